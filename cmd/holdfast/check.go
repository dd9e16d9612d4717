package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/holdfast-edge/holdfast/configs"
	fleet "github.com/holdfast-edge/holdfast/forward/hub"
	"github.com/holdfast-edge/holdfast/leaf"
	"github.com/holdfast-edge/holdfast/storage"
)

func checkCommand(_ context.Context, args []string, std stdio) error {
	fs := flags("check", "[FILE|DIR]", "Reads the configuration as `holdfast run` would and says everything that is wrong with it. Starts nothing. With --store, reads every record in the data directory of the configuration, or in DIR, and says what is damaged or lost; changes nothing.", std)
	path := fs.String("config", defaultConfig, "configuration `file`")
	asJSON := fs.Bool("json", false, "print the faults as JSON")
	store := fs.Bool("store", false, "check the stored records instead; the daemon must be stopped, or DIR be a copy")
	key := fs.String("key", "", "with --store, `file` with the key of an encrypted DIR")
	words, err := parse(fs, args, 1)
	if err != nil {
		return err
	}
	if len(words) == 1 {
		*path = words[0]
	}
	if *store {
		return checkStore(*path, *key, *asJSON, std)
	}
	cfg, faults, err := configs.Load(*path)
	if err != nil {
		return exitError{exitConfig, err}
	}
	switch {
	case *asJSON:
		if faults == nil {
			faults = []configs.Fault{}
		}
		enc := json.NewEncoder(std.out)
		enc.SetIndent("", "  ")
		err = enc.Encode(faults)
	case len(faults) > 0:
		_, err = fmt.Fprint(std.out, configs.Format(faults))
	default:
		if has, derr := storage.DiskRoom(cfg.Leaf.Data); derr == nil {
			if short := cfg.Storage.Short(has, cfg.StorageStreams()...); short != nil {
				fmt.Fprintf(std.err, "warning: %s: %v: lower storage.budget or max_bytes, or make room\n", cfg.Leaf.Data, short)
			}
		}
		owned := leaf.Options{Config: cfg.Leaf, Hub: cfg.Hub, Owner: fleet.Owner}.Ours()
		var file *os.PathError
		if owned != nil && !errors.As(owned, &file) { // a file of systemd's is not there yet
			fmt.Fprintf(std.err, "warning: %v; until then the link is refused, and capture goes on\n", owned)
		}
		if problem, remedy, _ := cfg.Apps.TLS.Examine(time.Now()); problem != "" {
			fmt.Fprintf(std.err, "warning: apps.tls: %s: %s\n", problem, remedy)
		}
		_, err = fmt.Fprintf(std.out, "%s: leaf %s, streams: %d, sources: %d, no faults found\n", *path, cfg.Leaf.Name, len(cfg.Streams), len(cfg.Sources))
		for _, hint := range portHints(cfg) {
			fmt.Fprintln(std.out, "hint: "+hint)
		}
	}
	if err == nil && len(faults) > 0 {
		return exitError{exitConfig, errSaid}
	}
	return err
}
