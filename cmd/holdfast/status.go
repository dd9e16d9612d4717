package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/holdfast-edge/holdfast/cmd/holdfast/status"
	"github.com/holdfast-edge/holdfast/configs"
	"github.com/holdfast-edge/holdfast/storage"
)

func statusCommand(ctx context.Context, args []string, std stdio) error {
	fs := flags("status", "", "Tells whether the data is safe, how much waits for the hub, how old the oldest of it is, when it will be there, what is wrong and what to do. Exit code 1 when something is a problem.", std)
	path := fs.String("config", defaultConfig, "configuration `file` of the daemon")
	data := fs.String("data", "", "data directory of the daemon, instead of the one its configuration names")
	asJSON := fs.Bool("json", false, "print JSON")
	if _, err := parse(fs, args, 0); err != nil {
		return err
	}
	var cfg configs.Config
	if *data == "" {
		var err error
		if cfg, err = loadConfig(*path, std.err); err != nil {
			return err
		}
		*data = cfg.Leaf.Data
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	r, err := askStatus(ctx, *data)
	if err != nil {
		if n, cause := storage.CrashLoop(*data); n > 0 {
			err = fmt.Errorf("%s; %w", crashLoop(n, cause), err)
		}
		if away := cfg.Storage.CheckMount(*data); away != nil {
			err = fmt.Errorf("nothing is captured: %w; %w", away, err)
		}
		return err
	}
	if *asJSON {
		enc := json.NewEncoder(std.out)
		enc.SetIndent("", "  ")
		err = enc.Encode(r)
	} else {
		err = status.Text(std.out, r)
	}
	if err != nil {
		return err
	}
	for _, f := range r.Verdict.Findings {
		if f.Severity == status.Problem {
			return errSaid
		}
	}
	return nil
}
