package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/holdfast-edge/holdfast/configs"
	"github.com/holdfast-edge/holdfast/ingest"
	"github.com/holdfast-edge/holdfast/ingest/mqtt"
	"github.com/holdfast-edge/holdfast/ingest/mqttserver"
)

// doctorTime bounds one examination.
const doctorTime = 30 * time.Second

// examination is one thing that `holdfast doctor` looks at. Packages add theirs to examinations.
type examination struct {
	about string // the part of the configuration
	run   func(ctx context.Context) []ingest.Finding
}

// examinations lists what there is to look at in a configuration.
func examinations(cfg configs.Config) (list []examination) {
	for _, s := range cfg.Sources {
		switch {
		case s.MQTT != nil:
			list = append(list, examination{"source " + s.Name, func(ctx context.Context) []ingest.Finding {
				return mqtt.Examine(ctx, mqtt.Options{Name: s.Name, Leaf: cfg.Leaf.Name, Config: *s.MQTT, Log: slog.New(slog.DiscardHandler)})
			}})
		case s.MQTTServer != nil:
			list = append(list, examination{"source " + s.Name, func(context.Context) []ingest.Finding { return mqttserver.Examine(*s.MQTTServer) }})
		}
	}
	return list
}

// diagnosis is a finding and what it is about.
type diagnosis struct {
	About string `json:"about"`
	ingest.Finding
}

func doctorCommand(ctx context.Context, args []string, std stdio) error {
	fs := flags("doctor", "", "Looks at what the configuration needs from outside: whether brokers are reached, grant the subscriptions and keep what they queue, and whether users and certificates can be used. Changes nothing, and may run beside the daemon. Exit code 1 if something cannot work.", std)
	path := fs.String("config", defaultConfig, "configuration `file`")
	asJSON := fs.Bool("json", false, "print the findings as JSON")
	if _, err := parse(fs, args, 0); err != nil {
		return err
	}
	cfg, err := loadConfig(*path, std.err)
	if err != nil {
		return err
	}
	all := []diagnosis{}
	failed := false
	for _, e := range examinations(cfg) {
		within, cancel := context.WithTimeout(ctx, doctorTime)
		for _, f := range e.run(within) {
			all = append(all, diagnosis{e.about, f})
			failed = failed || f.Level == ingest.Failure
		}
		cancel()
	}
	if *asJSON {
		enc := json.NewEncoder(std.out)
		enc.SetIndent("", "  ")
		err = enc.Encode(all)
	} else {
		err = printDiagnoses(all, std)
	}
	if err == nil && failed {
		return exitError{exitFailed, errSaid}
	}
	return err
}

func printDiagnoses(all []diagnosis, std stdio) error {
	for _, d := range all {
		if _, err := fmt.Fprintf(std.out, "%-8s %s: %s\n", d.Level, d.About, d.What); err != nil {
			return err
		}
		if d.Cause != "" {
			if _, err := fmt.Fprintf(std.out, "%s\n%s\n", wrap(d.Cause, 78, "         "), wrap("do: "+d.Remedy, 78, "         ")); err != nil {
				return err
			}
		}
	}
	if len(all) == 0 {
		_, err := fmt.Fprintln(std.out, "there is nothing to look at: the configuration has no source that needs anything from outside")
		return err
	}
	return nil
}
