package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/holdfast-edge/holdfast/storage"
)

func repairCommand(_ context.Context, args []string, std stdio) error {
	fs := flags("repair", "[DIR]", "Puts damaged blocks of stored records right, in the data directory of the configuration or in DIR, while no daemon runs on it. Whole records keep their place; the next start writes gap records for the rest. Blocks as they were are kept in store/damaged. Acknowledged records that could not go into their streams are in store/quarantine; with --put-back the next start puts them back.", std)
	path := fs.String("config", defaultConfig, "configuration `file`")
	dryRun := fs.Bool("dry-run", false, "only say what would be done")
	putBack := fs.Bool("put-back", false, "have the next start put the records of store/quarantine into their streams, behind what is there")
	asJSON := fs.Bool("json", false, "print the result as JSON")
	key := fs.String("key", "", "`file` with the key of an encrypted DIR")
	words, err := parse(fs, args, 1)
	if err != nil {
		return err
	}
	if len(words) == 1 {
		*path = words[0]
	}
	dir, keyFile, err := dataDir(*path, *key, std.err)
	if err != nil {
		return err
	}
	r, err := storage.Repair(dir, keyFile, *dryRun)
	if err != nil {
		return storeError(err)
	}
	if *putBack && !*dryRun && len(r.Quarantined) > 0 {
		if err := storage.AskPutBack(dir); err != nil {
			return storeError(err)
		}
	}
	if *asJSON {
		enc := json.NewEncoder(std.out)
		enc.SetIndent("", "  ")
		return enc.Encode(r)
	}
	out := &result{w: std.out}
	for _, b := range r.Blocks {
		fmt.Fprintf(out, "%s/%s block %d:", b.Account, b.Stream, b.Number)
		if b.Skipped != "" {
			fmt.Fprintf(out, " left alone: %s", b.Skipped)
		}
		if b.Problem != "" {
			fmt.Fprintf(out, " cannot be read: %s;", b.Problem)
		}
		if b.Mended > 0 {
			fmt.Fprintf(out, " %d records restored by their checksum;", b.Mended)
		}
		for _, d := range b.Damage {
			fmt.Fprintf(out, " %d bytes at %d left out, between %d and %d;", d.Bytes, d.Offset, d.After, d.Before)
		}
		if b.Aside != "" {
			fmt.Fprintf(out, " as it was: %s", b.Aside)
		}
		fmt.Fprintln(out)
	}
	printQuarantine(out, r.Quarantined, *putBack)
	switch {
	case len(r.Blocks) == 0:
		fmt.Fprintln(out, "nothing is damaged")
	case *dryRun:
		fmt.Fprintln(out, "nothing was changed")
	}
	return out.err
}

// printQuarantine says why records were set aside, and what becomes of them.
func printQuarantine(out *result, all []storage.Quarantined, putBack bool) {
	type group struct{ stream, reason, stays string }
	counts := map[group]int{}
	var groups []group
	for _, r := range all {
		g := group{r.Stream, r.Reason, r.Stays()}
		if counts[g]++; counts[g] == 1 {
			groups = append(groups, g)
		}
	}
	for _, g := range groups {
		fmt.Fprintf(out, "store/quarantine: %d acknowledged records of %s: %s;", counts[g], g.stream, g.reason)
		switch {
		case g.stays != "":
			fmt.Fprintf(out, " they stay there: %s\n", g.stays)
		case putBack:
			fmt.Fprintln(out, " the next start puts them back")
		default:
			fmt.Fprintln(out, " --put-back has the next start put them back, --json shows them")
		}
	}
}
