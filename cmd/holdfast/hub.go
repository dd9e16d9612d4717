package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/configs"
	fleet "github.com/holdfast-edge/holdfast/forward/hub"
)

const hubAbout = `Prepares a hub of stock NATS servers for the leaves of a fleet file.
  plan   prints the accounts block for the hub servers' configuration, with each
         leaf's least rights, and the streams that apply makes
  apply  makes or updates these streams; what it does not know it leaves alone`

func hubCommand(ctx context.Context, args []string, std stdio) error {
	fs := flags("hub plan|apply", "", hubAbout, std)
	path := fs.String("fleet", "fleet.yaml", "fleet `file`")
	server := fs.String("server", nats.DefaultURL, "apply: `address` of the hub")
	creds := fs.String("creds", "", "apply: credentials `file` of a user who may manage the account's streams")
	nkey := fs.String("nkey", "", "apply: nkey seed `file` of such a user; user and password stand in the address")
	ca := fs.String("ca", "", "apply: PEM `file` of the authority of the hub's certificate")
	asJSON := fs.Bool("json", false, "print JSON")
	if len(args) == 0 {
		fs.Usage()
		return exitError{exitUsage, errSaid}
	}
	word := args[0]
	if word == "-h" || word == "--help" {
		_, err := parse(fs, args, 0)
		return err
	}
	if word != "plan" && word != "apply" {
		return usageErrorf("hub %s: want plan or apply", word)
	}
	if _, err := parse(fs, args[1:], 0); err != nil {
		return err
	}
	plan, err := loadPlan(*path, std.err)
	if err != nil {
		return err
	}
	if word == "plan" {
		return printPlan(std.out, plan, *asJSON)
	}
	opts := []nats.Option{nats.Name("holdfast hub apply"), nats.Timeout(10 * time.Second)}
	if *creds != "" {
		opts = append(opts, nats.UserCredentials(*creds))
	}
	if *nkey != "" {
		option, err := nats.NkeyOptionFromSeed(*nkey)
		if err != nil {
			return fmt.Errorf("read nkey seed %s: %w", *nkey, err)
		}
		opts = append(opts, option)
	}
	if *ca != "" {
		opts = append(opts, nats.RootCAs(*ca))
	}
	return applyPlan(ctx, *server, opts, plan, *asJSON, std.out)
}

func loadPlan(path string, w io.Writer) (fleet.Plan, error) {
	f, faults, err := configs.LoadFleet(path)
	if err != nil {
		return fleet.Plan{}, exitError{exitConfig, err}
	}
	if len(faults) > 0 {
		_, err := io.WriteString(w, configs.Format(faults))
		return fleet.Plan{}, exitError{exitConfig, errors.Join(err, errSaid)}
	}
	spec := fleet.Spec{Account: f.Account, Domain: f.Domain, Replicas: f.Replicas}
	for _, e := range f.Leaves {
		l := fleet.Leaf{Name: e.Name, User: e.User, Password: e.Password, NKey: e.NKey}
		for _, s := range e.Streams {
			l.Streams = append(l.Streams, fleet.Stream{Name: s.Name, Mode: fleet.Mode(s.Mode), HubStream: s.HubStream})
		}
		spec.Leaves = append(spec.Leaves, l)
	}
	plan, err := fleet.New(spec)
	if err != nil {
		return fleet.Plan{}, exitError{exitConfig, fmt.Errorf("%s: %w", path, err)}
	}
	return plan, nil
}

func printPlan(w io.Writer, plan fleet.Plan, asJSON bool) error {
	if asJSON {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(map[string]any{"accounts": plan.Config(), "streams": plan.Streams()})
	}
	if _, err := fmt.Fprint(w, plan.Config()); err != nil {
		return err
	}
	for _, s := range plan.Streams() {
		kind := fmt.Sprintf("sources %d leaf streams", len(s.Sources))
		if s.Mirror != nil {
			kind = "mirrors " + s.Mirror.Name + " of " + s.Mirror.External.APIPrefix
		}
		if _, err := fmt.Fprintf(w, "# stream %s: %s, %d replicas\n", s.Name, kind, s.Replicas); err != nil {
			return err
		}
	}
	return nil
}

func applyPlan(ctx context.Context, server string, opts []nats.Option, plan fleet.Plan, asJSON bool, w io.Writer) error {
	nc, err := nats.Connect(server, opts...)
	if err != nil {
		return fmt.Errorf("connect to the hub: %s", withoutUser(err.Error()))
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return fmt.Errorf("use the hub's JetStream: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	steps, err := fleet.Apply(ctx, js, plan)
	if asJSON {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return errors.Join(err, enc.Encode(steps))
	}
	for _, s := range steps {
		if _, err := fmt.Fprintln(w, s); err != nil {
			return err
		}
	}
	return err
}

var userinfo = regexp.MustCompile(`//[^"]*@`)

// withoutUser takes users and passwords out of addresses that a library quotes.
func withoutUser(text string) string { return userinfo.ReplaceAllString(text, "//…@") }
