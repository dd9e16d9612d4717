package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/configs"
	fleet "github.com/holdfast-edge/holdfast/forward/hub"
)

const hubAbout = `Looks after a hub of stock NATS servers, on an operator's machine.
  init DIR     write a new hub: servers, keys, certificates, fleet file
  plan         show what the running hub lacks for the fleet file
  apply        make it; nothing that holds data is deleted or shrunk
  enrol LEAF   let a leaf in; writes the one file that its gateway needs
  revoke LEAF  let it in no more, at once
  reload       make servers read their users again, without jwt
  renew        make new certificates for the servers
  users        print each leaf's rights, for servers that init did not write
  list         each leaf: last seen, what waits, what was lost
  audit        account for every record of every leaf; code 1 if any is missing
holdfast hub COMMAND -h lists the flags of each.`

// hubCommands are the words behind hub, with what each takes.
func hubCommands() []subcommand {
	return []subcommand{
		{"init", "DIR", "Writes a hub of three stock nats-servers into DIR: a folder for each server's machine, and fleet file, keys and credentials for the operator's.", hubInit},
		{"plan", "", "Compares the running hub with the fleet file, and changes nothing.", hubPlan},
		{"apply", "", "Makes the hub's streams and consumers as the fleet file says. It may be run again at any time: nothing that holds data is deleted or shrunk.", hubApply},
		{"enrol", "LEAF", "Lets a leaf of the fleet file in, and writes the file for its gateway: holdfast init -enrolment FILE makes its configuration.", hubEnrol},
		{"revoke", "LEAF", "Takes a leaf's rights away. What the hub has of it stays.", hubRevoke},
		{"reload", "", "Makes the servers of a hub without jwt read their configuration again, once the new accounts.conf is there, and hangs up on revoked leaves.", hubReload},
		{"renew", "", "Makes new certificates for the servers that hub init wrote, by the hub's own authority. Leaves need nothing new.", hubRenew},
		{"list", "", "Shows each leaf: when it was last seen, what waits and what was lost.", hubList},
		{"audit", "", "Reads the hub's records and accounts for every one that each leaf has captured, by its ID and by what epoch and gap records say. Exit code 1 if any is missing without a word, or double.", hubAudit},
		{"users", "", "Prints the accounts block with each leaf's least rights, for servers that hub init did not write.", hubUsers},
	}
}

func hubCommand(ctx context.Context, args []string, std stdio) error {
	if len(args) == 0 || args[0] == "-h" || args[0] == "--help" {
		fmt.Fprintf(std.err, "usage: holdfast hub COMMAND [flags]\n\n%s\n", hubAbout)
		if len(args) == 0 {
			return exitError{exitUsage, errSaid}
		}
		return flag.ErrHelp
	}
	var names []string
	for _, c := range hubCommands() {
		if c.name == args[0] {
			return c.run(ctx, args[1:], std)
		}
		names = append(names, c.name)
	}
	return usageErrorf("hub %s: want %s", args[0], strings.Join(names, ", "))
}

// hubFlags are the flags that all hub commands but init share.
type hubFlags struct {
	*flag.FlagSet
	fleet, server, creds, ca *string
	asJSON                   *bool
}

func newHubFlags(name string, std stdio) hubFlags {
	all := hubCommands()
	c := all[slices.IndexFunc(all, func(c subcommand) bool { return c.name == name })]
	fs := flags("hub "+name, c.args, c.summary, std)
	return hubFlags{fs,
		fs.String("fleet", fleet.FleetFile, "fleet `file`"),
		fs.String("server", "", "`address` of the hub; the fleet file's servers when left out"),
		fs.String("creds", "", "credentials or nkey seed `file`; that of hub init when left out"),
		fs.String("ca", "", "PEM `file` of the authority of the hub's certificate; that of hub init when left out"),
		fs.Bool("json", false, "print JSON"),
	}
}

// parse reads args, which may hold most words, and the fleet file.
func (f hubFlags) parse(args []string, most int, std stdio) ([]string, configs.Fleet, error) {
	words, err := parse(f.FlagSet, args, most)
	if err != nil {
		return nil, configs.Fleet{}, err
	}
	file, faults, err := configs.LoadFleet(*f.fleet)
	if err != nil {
		return nil, configs.Fleet{}, exitError{exitConfig, err}
	}
	if len(faults) > 0 {
		_, err := io.WriteString(std.err, configs.Format(faults))
		return nil, configs.Fleet{}, exitError{exitConfig, errors.Join(err, errSaid)}
	}
	return words, file, nil
}

// fleetOf returns the hub's folder, where the fleet file is, with what that says.
func (f hubFlags) fleetOf(file configs.Fleet) fleet.Fleet {
	streams := func(from []configs.FleetStream) []fleet.Stream {
		var all []fleet.Stream
		for _, s := range from {
			all = append(all, fleet.Stream{Name: s.Name, Mode: fleet.Mode(s.Mode), HubStream: s.HubStream})
		}
		return all
	}
	spec := fleet.Spec{Account: file.Account, Domain: file.Domain, Replicas: file.Replicas}
	for _, s := range file.Streams {
		spec.Streams = append(spec.Streams, fleet.HubStream{
			Name: s.Name, Replicas: s.Replicas, MaxBytes: s.MaxBytes, MaxAge: s.MaxAge, Full: fleet.Full(s.WhenFull), Shards: s.Shards,
		})
	}
	for _, e := range file.Leaves {
		l := fleet.Leaf{Name: e.Name, User: e.User, Password: e.Password, NKey: e.NKey, Commands: e.Commands, Documents: e.Documents, Streams: streams(e.Streams)}
		if len(e.Streams) == 0 {
			l.Streams = streams(file.LeafStreams)
		}
		spec.Leaves = append(spec.Leaves, l)
	}
	return fleet.Fleet{Dir: filepath.Dir(*f.fleet), Auth: fleet.Auth(file.Auth), URLs: file.LeafURLs, Spec: spec}
}

// plan returns the plan of a fleet.
func (f hubFlags) plan(file configs.Fleet) (fleet.Plan, error) {
	plan, err := f.fleetOf(file).Plan()
	if err != nil {
		return fleet.Plan{}, exitError{exitConfig, fmt.Errorf("%s: %w", *f.fleet, err)}
	}
	return plan, nil
}

// connect connects to the hub by the credentials of a secret file of hub init, unless the flags name others.
func (f hubFlags) connect(file configs.Fleet, secret string) (*nats.Conn, error) {
	dir := filepath.Dir(*f.fleet)
	orElse := func(given, common string) string {
		if given != "" {
			return given
		}
		if _, err := os.Stat(common); err != nil {
			return ""
		}
		return common
	}
	opts := []nats.Option{nats.Name("holdfast hub"), nats.Timeout(10 * time.Second)}
	if path := orElse(*f.creds, fleet.Secret(dir, secret)); path != "" {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("credentials for the hub: %w", err)
		}
		option := nats.UserCredentials(path)
		if !strings.Contains(string(data), "USER JWT") {
			if option, err = nats.NkeyOptionFromSeed(path); err != nil {
				return nil, fmt.Errorf("credentials for the hub: %s holds no user's seed", path)
			}
		}
		opts = append(opts, option)
	}
	if path := orElse(*f.ca, filepath.Join(dir, fleet.AuthorityFile)); path != "" {
		opts = append(opts, nats.RootCAs(path))
	}
	server := *f.server
	if server == "" {
		server = strings.Join(file.Servers, ",")
	}
	if server == "" {
		server = nats.DefaultURL
	}
	nc, err := nats.Connect(server, opts...)
	if err != nil {
		return nil, fmt.Errorf("connect to the hub: %s", withoutUser(err.Error()))
	}
	return nc, nil
}

// admin connects as the administrator of the leaves' account.
func (f hubFlags) admin(file configs.Fleet) (jetstream.JetStream, error) {
	nc, err := f.connect(file, fleet.AdminFile)
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(30*time.Second))
	if err != nil {
		nc.Close()
		return nil, fmt.Errorf("use the hub's JetStream: %w", err)
	}
	return js, nil
}

func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

var userinfo = regexp.MustCompile(`//[^"]*@`)

// withoutUser takes users and passwords out of addresses that a library quotes.
func withoutUser(text string) string { return userinfo.ReplaceAllString(text, "//…@") }
