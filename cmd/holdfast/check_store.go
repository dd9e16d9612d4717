package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/holdfast-edge/holdfast/storage"
)

// checkStore checks the data directory that path is, or that the configuration at path names.
func checkStore(path, key string, asJSON bool, std stdio) error {
	dir, key, err := dataDir(path, key, std.err)
	if err != nil {
		return err
	}
	r, err := storage.Check(dir, key)
	if err != nil {
		return storeError(err)
	}
	if asJSON {
		enc := json.NewEncoder(std.out)
		enc.SetIndent("", "  ")
		err = enc.Encode(r)
	} else {
		err = printCheck(std.out, r)
	}
	if err == nil && !r.Clean() {
		return exitError{exitStore, errSaid}
	}
	return err
}

// dataDir returns path if it is a directory, else the data directory of the configuration at path, and with it the key file that is named there, unless
// one is given.
func dataDir(path, key string, log io.Writer) (dir, keyFile string, err error) {
	if st, err := os.Stat(path); err == nil && st.IsDir() {
		return path, key, nil
	}
	cfg, err := loadConfig(path, log)
	return cfg.Leaf.Data, cmp.Or(key, cfg.Storage.Key), err
}

// storeError gives errors of a store that cannot be used their exit code.
func storeError(err error) error {
	if errors.Is(err, storage.ErrLocked) || errors.Is(err, storage.ErrFormat) || errors.Is(err, storage.ErrKey) {
		return exitError{exitStore, err}
	}
	return err
}

func printCheck(w io.Writer, r storage.CheckReport) error {
	out := &result{w: w}
	fmt.Fprintf(out, "%s: leaf %s, store %s\n", r.Dir, orUnknown(r.Leaf), orUnknown(string(r.Store)))
	for _, st := range r.Streams {
		fmt.Fprintf(out, "  %s/%s: %d records in %d blocks, sequences %d to %d", st.Account, st.Name, st.Messages, st.Blocks, st.First, st.Last)
		if st.Skipped != "" {
			fmt.Fprintf(out, "; not read: %s", st.Skipped)
		}
		fmt.Fprintln(out)
	}
	for _, f := range r.Findings {
		fmt.Fprintf(out, "%-6s  %s: %s\n        %s\n", f.Severity, f.Where, f.Problem, f.Effect)
	}
	var lost, behind uint64
	for _, st := range r.Streams {
		behind += st.Behind
		for _, l := range st.Lost {
			lost += l.Count
		}
	}
	switch {
	case r.Clean():
		fmt.Fprintln(out, "nothing is damaged")
	case lost == 0:
		fmt.Fprintln(out, "damaged, and no record is lost by it")
	default:
		fmt.Fprintf(out, "%d records are lost\n", lost)
	}
	if behind > 0 {
		fmt.Fprintf(out, "%d records behind damaged ones are whole: `holdfast repair` keeps them\n", behind)
	}
	return out.err
}

func orUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}
