package hub

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/nats-io/nats-server/v2/server"
)

// sysUser is the user of the system account, with Password.
const sysUser = "sys"

// spec is what a node is started from, also in another process.
type spec struct {
	Config   string // the server's configuration
	Operator bool   // add no accounts
}

// config returns the configuration of node i.
func (c *Cluster) config(i int) string {
	var routes []string
	for j, p := range c.routes {
		if j != i {
			routes = append(routes, strconv.Quote("nats://127.0.0.1:"+strconv.Itoa(p)))
		}
	}
	accounts := c.opts.Accounts
	if accounts == "" && !c.opts.Operator {
		accounts = fmt.Sprintf("accounts {\n  %s: { jetstream: enabled, users: [\n%s\n] }\n}", Account, c.opts.Users)
	}
	cluster := ""
	if c.Len() > 1 {
		cluster = fmt.Sprintf("cluster { name: %s, listen: \"127.0.0.1:%d\", no_advertise: true, routes: [%s] }",
			Name, c.routes[i], strings.Join(routes, ", "))
	}
	name := "hub" + strconv.Itoa(i+1)
	return fmt.Sprintf(`server_name: %s
listen: "127.0.0.1:%d"
jetstream { store_dir: %q, domain: %s, max_memory_store: 256MB, max_file_store: 8GB }
feature_flags { js_ack_fc_v2: true, js_api_reply_v2: true }
%s
leafnodes {
  listen: %q
  no_advertise: true
  isolate_leafnode_interest: true
  ping_interval: 10s
  ping_max: 2
  %s
}
%s
%s
`, name, c.clients[i], filepath.Join(c.dir, name), Domain, cluster, c.LeafAddr(i), c.opts.LeafNodes, accounts, c.opts.Config)
}

// options processes a node's configuration and adds the system account and the administrators, so that the text given by callers
// need not hold them.
func (s spec) options() (*server.Options, error) {
	o := &server.Options{}
	if err := o.ProcessConfigString(s.Config); err != nil {
		return nil, fmt.Errorf("hub configuration: %w", err)
	}
	o.NoSigs = true
	if s.Operator {
		return o, nil
	}
	find := func(name string) *server.Account {
		for _, a := range o.Accounts {
			if a.GetName() == name {
				return a
			}
		}
		return nil
	}
	edge := find(Account)
	if edge == nil {
		return nil, fmt.Errorf("hub configuration: the accounts text has no account %s", Account)
	}
	sys := find("SYS")
	if sys == nil {
		sys = server.NewAccount("SYS")
		o.Accounts = append(o.Accounts, sys)
	}
	o.SystemAccount = "SYS"
	o.Users = append(o.Users,
		&server.User{Username: User, Password: Password, Account: edge},
		&server.User{Username: sysUser, Password: Password, Account: sys})
	return o, nil
}
