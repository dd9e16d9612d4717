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
	"github.com/holdfast-edge/holdfast/storage"
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
	list = append(list, examination{"data directory", func(context.Context) []ingest.Finding { return examineData(cfg) }})
	if cfg.Apps.TLS.Cert != "" {
		list = append(list, examination{"apps.tls", func(context.Context) []ingest.Finding { return examineAppTLS(cfg) }})
	}
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

// examineAppTLS looks at the certificate of the ports for local applications.
func examineAppTLS(cfg configs.Config) []ingest.Finding {
	f := ingest.Finding{What: "certificate", Level: ingest.Fine}
	var lasting bool
	if f.Cause, f.Remedy, lasting = cfg.Apps.TLS.Examine(time.Now()); lasting {
		f.Level = ingest.Failure
	} else if f.Cause != "" {
		f.Level = ingest.Warning
	}
	return []ingest.Finding{f}
}

// examineData looks at what keeps a daemon from its store.
func examineData(cfg configs.Config) (found []ingest.Finding) {
	if err := cfg.Storage.CheckMount(cfg.Leaf.Data); err != nil {
		found = append(found, ingest.Finding{What: "mount", Level: ingest.Failure, Cause: err.Error(), Remedy: "mount it: the daemon waits for it"})
	}
	if n, cause := storage.CrashLoop(cfg.Leaf.Data); n > 0 {
		found = append(found, ingest.Finding{What: "starts", Level: ingest.Failure, Cause: crashLoop(n, cause),
			Remedy: "report it with crash.last of the data directory; after some more the store is set aside and capture goes on in a new one"})
	}
	for _, a := range storage.AsideStores(cfg.Leaf.Data) {
		found = append(found, ingest.Finding{What: "store set aside", Level: ingest.Failure, Cause: a.Dir + ": " + a.Why,
			Remedy: "bring back what it holds (docs/OPERATIONS.md, `A store that was set aside`), then remove the folder"})
	}
	return found
}

func crashLoop(n int, cause string) string {
	return fmt.Sprintf("%d starts in a row have crashed: %s", n, cause)
}

// diagnosis is a finding and what it is about.
type diagnosis struct {
	About string `json:"about"`
	ingest.Finding
}

func doctorCommand(ctx context.Context, args []string, std stdio) error {
	fs := flags("doctor", "", "Looks at what the configuration needs from outside: whether the data partition is there, whether starts crash, whether brokers are reached, grant the subscriptions and keep what they queue, and whether users and certificates can be used. Changes nothing, and may run beside the daemon. Exit code 1 if something cannot work.", std)
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
