package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	fleet "github.com/holdfast-edge/holdfast/forward/hub"
)

func hubInit(_ context.Context, args []string, std stdio) error {
	c := hubCommands()[0]
	fs := flags("hub init", c.args, c.summary+" An existing hub is never overwritten.", std)
	hosts := fs.String("hosts", "", "`names` or addresses of the servers' machines, by which leaves reach them, separated by commas")
	local := fs.Bool("local", false, "three servers on this machine, run where they are written")
	auth := fs.String("auth", string(fleet.ByJWT), "jwt: leaves have signed credentials, and servers need no change for a new one; config: users stand in the servers' configuration")
	etc := fs.String("etc", "/etc/nats-server", "`folder` of a server's files on its machine")
	data := fs.String("data", "/var/lib/nats-server", "`folder` of a server's streams on its machine")
	words, err := parse(fs, args, 1)
	if err != nil {
		return err
	}
	if len(words) == 0 {
		return usageErrorf("hub init into which folder?")
	}
	if *local == (*hosts != "") {
		return usageErrorf("hub init: give -hosts a,b,c for three machines, or -local for three servers on this one")
	}
	site := fleet.Site{Auth: fleet.Auth(*auth)}
	for i := range 3 {
		if *local {
			p := fleet.DefaultPorts
			site.Nodes = append(site.Nodes, fleet.Node{Host: "127.0.0.1", Client: p.Client + i, Cluster: p.Cluster + i, Leaf: p.Leaf + i, Monitor: p.Monitor + i})
		}
	}
	if *hosts != "" {
		for host := range strings.SplitSeq(*hosts, ",") {
			site.Nodes = append(site.Nodes, fleet.Node{Host: strings.TrimSpace(host), Dir: *etc, Data: *data})
		}
	}
	if err := site.Create(words[0]); err != nil {
		return fmt.Errorf("make a hub: %w", err)
	}
	fmt.Fprintf(std.out, "wrote a hub of %d servers into %s; what is in secret/ never leaves this machine\n", len(site.Nodes), words[0])
	if *local {
		for i := range site.Nodes {
			fmt.Fprintf(std.out, "start it: nats-server -c %s\n", filepath.Join(words[0], fmt.Sprintf("hub%d", i+1), "nats-server.conf"))
		}
	} else {
		for i, n := range site.Nodes {
			fmt.Fprintf(std.out, "copy %s to %s on %s, and start nats-server -c %s there\n", filepath.Join(words[0], fmt.Sprintf("hub%d", i+1)), *etc, n.Host, filepath.Join(*etc, "nats-server.conf"))
		}
	}
	_, err = fmt.Fprintf(std.out, "then add your leaves to %s, and: holdfast hub apply -fleet %[1]s\n", filepath.Join(words[0], fleet.FleetFile))
	return err
}

func hubRenew(_ context.Context, args []string, std stdio) error {
	f := newHubFlags("renew", std)
	_, file, err := f.parse(args, 0, std)
	if err != nil {
		return err
	}
	done, err := fleet.Renew(f.fleetOf(file).Dir, time.Now())
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(std.out, "new certificates in the folder tls of %s: copy them to the machines, then holdfast hub reload\n", strings.Join(done, ", "))
	return err
}
