package hub

import (
	"fmt"
	"path/filepath"
	"strings"
)

// config returns the configuration of a node, in the server's language.
func (s Site) config(n Node) string {
	file := func(name string) string { return quote(filepath.Join(n.Dir, "tls", name)) }
	certs := fmt.Sprintf("cert_file: %s\n    key_file: %s", file(nodeCert), file(nodeKey))
	cluster := ""
	if len(s.Nodes) > 1 {
		var routes strings.Builder
		for _, other := range s.Nodes {
			fmt.Fprintf(&routes, "    %s\n", quote(fmt.Sprintf("nats-route://%s:%d", hostPort(other.Host), other.Cluster)))
		}
		cluster = fmt.Sprintf(`
cluster {
  name: HUB
  listen: "0.0.0.0:%d"
  no_advertise: true
  routes: [
%s  ]
  tls {
    %s
    ca_file: %s
    verify: true
  }
}
`, n.Cluster, routes.String(), certs, file(AuthorityFile))
	}
	return fmt.Sprintf(`# Node %[1]s of the hub: a stock nats-server, %[2]s or newer. It reads its files in %[3]s.
# Written by holdfast hub init; yours to change.
server_name: %[1]s

# Applications and operators connect here.
listen: "0.0.0.0:%[4]d"
tls {
    %[5]s
}

# Monitoring, for this machine alone.
http: "127.0.0.1:%[6]d"

jetstream {
  store_dir: %[7]s
  domain: %[8]s
  # A record counts as delivered when a majority of the nodes has written it. The servers sync their files every two minutes by default: that is
  # what a power cut of a majority at once can take. Shorten it further if your nodes share a power supply.
  sync_interval: 10s
}

# Without these two, leaves see each other's acknowledgements. Holdfast sets them on the leaf.
feature_flags {
  js_ack_fc_v2: true
  js_api_reply_v2: true
}
%[9]s
# Leaves connect here. The pings notice a silent link in half a minute, and no_advertise keeps leaves on the addresses they were given, which may
# be those of a proxy.
leafnodes {
  listen: "0.0.0.0:%[10]d"
  no_advertise: true
  isolate_leafnode_interest: true
  ping_interval: 10s
  ping_max: 2
  authorization { timeout: 30 } # a satellite link, or 9600 bit/s, needs more than the default 2 s for its greeting
  tls {
    %[5]s
    timeout: 10
  }
}

include "%[11]s"
`, n.Name, MinVersion, n.Dir, n.Client, certs, n.Monitor, quote(n.Data), s.Domain, cluster, n.Leaf, accountsFile)
}

// hostPort returns a host as it stands in front of a port.
func hostPort(host string) string {
	if strings.Contains(host, ":") && !strings.HasPrefix(host, "[") {
		return "[" + host + "]"
	}
	return host
}

// fleetFile returns the fleet file of a new hub.
func (s Site) fleetFile(account string) string {
	urls := func(port func(Node) int) string {
		var all []string
		for _, n := range s.Nodes {
			all = append(all, fmt.Sprintf("%q", fmt.Sprintf("tls://%s:%d", hostPort(n.Host), port(n))))
		}
		return "[" + strings.Join(all, ", ") + "]"
	}
	replicas := len(s.Nodes)
	if replicas > 3 {
		replicas = 3
	}
	return fmt.Sprintf(`# What this hub serves, for the hub commands of holdfast. Add your leaves below, then:
#   holdfast hub plan     shows what the hub lacks for them
#   holdfast hub apply    makes it
#   holdfast hub enrol N  lets leaf N in, and writes the one file that its gateway needs

auth: %s # jwt: leaves have signed credentials; config: users stand in the servers' configuration
account: %s # hub account of the leaves
domain: %s # JetStream domain of the hub
replicas: %d # copies of each hub stream
servers: %s # where operators and applications connect
leaf_urls: %s # where leaves connect

# Limits of hub streams. One that is not listed has none, but the disk's.
# streams:
#   - {name: SENSORS, max_bytes: 200GiB, when_full: drop-oldest}
#   - {name: FAST, shards: 4} # beyond 20,000 records a second

# What a leaf forwards that does not list streams itself.
leaf_streams:
  - {name: SENSORS}

# Take the [] away and add your leaves, each with a name of its own, as:
#   - name: pump-07
#   - {name: pump-08, commands: true, streams: [{name: SENSORS}, {name: EVENTS, mode: mirror}]}
leaves: []
`, s.Auth, account, s.Domain, replicas, urls(func(n Node) int { return n.Client }), urls(func(n Node) int { return n.Leaf }))
}
