package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nats-io/nats.go"

	fleet "github.com/holdfast-edge/holdfast/forward/hub"
)

func hubList(ctx context.Context, args []string, std stdio) error {
	f := newHubFlags("list", std)
	_, file, err := f.parse(args, 0, std)
	if err != nil {
		return err
	}
	plan, err := f.plan(file)
	if err != nil {
		return err
	}
	js, err := f.admin(file)
	if err != nil {
		return err
	}
	defer js.Conn().Close()
	var system *nats.Conn
	if *f.creds == "" {
		if system, err = f.connect(file, fleet.SystemFile); err != nil {
			return err
		}
		defer system.Close()
	}
	ctx, cancel := context.WithTimeout(ctx, hubTimeout)
	defer cancel()
	leaves, err := fleet.List(ctx, js, system, plan)
	if err != nil {
		return err
	}
	if *f.asJSON {
		return writeJSON(std.out, leaves)
	}
	return printLeaves(std.out, leaves, time.Now())
}

func printLeaves(w io.Writer, leaves []fleet.LeafState, now time.Time) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "LEAF\tLAST SEEN\tSTREAM\tAT THE HUB\tWAITING\tLOST\t")
	for _, l := range leaves {
		seen := "never"
		switch {
		case l.Connected:
			seen = "connected"
		case !l.Enrolled:
			seen = "not enrolled"
		case !l.Seen.IsZero():
			seen = ago(now.Sub(l.Seen)) + " ago"
		}
		for _, s := range l.Streams {
			waiting, note := fmt.Sprint(s.Waiting), s.Error
			if !l.Connected {
				waiting = "?" // what the hub heard last is old
			}
			if s.Missing {
				waiting, note = "-", "the hub does not take it: hub apply"
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%d\t%s\n", l.Name, seen, s.Stream, s.HubStream, waiting, s.Lost, note)
		}
		for _, d := range l.Down {
			fmt.Fprintf(t, "%s\t%s\t%s, down\t%s\t%d\t-\t\n", l.Name, seen, d.Stream, d.Stream, d.Waiting)
		}
		if len(l.Streams)+len(l.Down) == 0 {
			fmt.Fprintf(t, "%s\t%s\t-\t-\t-\t-\t\n", l.Name, seen)
		}
	}
	return t.Flush()
}

// ago returns a duration in the unit that suits it.
func ago(d time.Duration) string {
	if d > 48*time.Hour {
		return fmt.Sprintf("%d days", int(d/(24*time.Hour)))
	}
	return d.Round(time.Second).String()
}

func hubAudit(ctx context.Context, args []string, std stdio) error {
	f := newHubFlags("audit", std)
	leaf := f.String("leaf", "*", "`name` of the only leaf to account for")
	also := f.String("stream", "", "`name` of a hub stream to read besides the fleet file's, as of a leaf that is gone")
	every := f.Bool("all", false, "show sources of which nothing is missing, too")
	_, file, err := f.parse(args, 0, std)
	if err != nil {
		return err
	}
	plan, err := f.plan(file)
	if err != nil {
		return err
	}
	streams := plan.RecordStreams()
	if *also != "" && !slices.Contains(streams, *also) {
		streams = append(streams, *also)
	}
	js, err := f.admin(file)
	if err != nil {
		return err
	}
	defer js.Conn().Close()
	a := fleet.NewAudit()
	var n uint64
	good := true
	for _, name := range streams {
		read, err := a.Read(ctx, js, name, *leaf, func(left uint64) { fmt.Fprintf(std.err, "%s: %d records left\n", name, left) })
		if errors.Is(err, fleet.ErrNoStream) || errors.Is(err, fleet.ErrAway) {
			good = false
			fmt.Fprintln(std.err, err)
			continue
		}
		if err != nil {
			return err
		}
		n += read
	}
	if n == 0 && *leaf != "*" {
		good = false
		fmt.Fprintf(std.err, "the hub has no record of leaf %s: look at its name, holdfast hub list shows all\n", *leaf)
	}
	result := a.Result()
	good = good && !slices.ContainsFunc(result, func(r fleet.Audited) bool { return !r.Verdict.Good() })
	if *f.asJSON {
		err = writeJSON(std.out, result)
	} else {
		err = printAudit(std.out, result, n, *every)
	}
	if err == nil && !good {
		return exitError{exitFailed, errSaid}
	}
	return err
}

func printAudit(w io.Writer, result []fleet.Audited, n uint64, every bool) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	verdicts := map[fleet.Verdict]int{}
	fmt.Fprintln(t, "LEAF\tSTREAM\tSOURCE\tSTORE\tRECORDS\tVERDICT\t")
	for _, r := range result {
		verdicts[r.Verdict]++
		if r.Verdict == fleet.Contiguous && !every {
			continue
		}
		var notes []string
		note := func(n uint64, word string) {
			if n > 0 {
				notes = append(notes, fmt.Sprintf("%d %s", n, word))
			}
		}
		note(r.Missing, "missing without a word")
		for reason, n := range r.Explained {
			note(n, "lost: "+string(reason))
		}
		note(r.Double, "double")
		note(r.Late, "behind later ones")
		note(r.Unclear, "starts of which the end is not known")
		note(r.Expired, "older than what the hub keeps")
		note(r.Foreign, "messages of somebody else on its subjects")
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d\t%s\t%s\n", r.Leaf, r.Stream, r.Source, r.Store, r.Records, r.Verdict, strings.Join(notes, ", "))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "%d records of %d sources: %d contiguous, %d explained, %d missing, %d double, %d out of order, %d unclear, %d foreign\n", n, len(result),
		verdicts[fleet.Contiguous], verdicts[fleet.AllExplained], verdicts[fleet.HasMissing], verdicts[fleet.HasDouble], verdicts[fleet.OutOfOrder],
		verdicts[fleet.NotClear], verdicts[fleet.IsForeign])
	return err
}
