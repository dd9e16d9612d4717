package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

// evenSize is the size in bytes of the disk of each form that is measured at an even pace.
const evenSize = 512 << 20

// checkpointEvery is how often the store's journal gives up what the streams have.
const checkpointEvery = 45 * time.Second

// pace is records that come evenly: group of them every interval, in one commit.
type pace struct {
	group    int
	interval time.Duration
}

func (p pace) String() string {
	return fmt.Sprintf("%.0f, %d", float64(p.group)/p.interval.Seconds(), p.group)
}

func paces() []pace {
	return []pace{{1, time.Second}, {1, 100 * time.Millisecond}, {10, 100 * time.Millisecond}, {100, 100 * time.Millisecond}}
}

// turn is what one form took at one pace.
type turn struct {
	cost
	commits  int
	p50, p99 time.Duration
}

func (t turn) perCommit() float64 { return float64(t.device.Flushes) / float64(t.commits) }

// comparison measures on one medium what records cost the device in each form, at an even pace and at full speed.
func (b *bench) comparison(ctx context.Context, card bool, leaf string) (err error) {
	name := "the disk"
	if card {
		name = "the model of an SD card"
	}
	forms, absent, err := b.startForms(ctx, card, leaf)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeForms(forms)) }()
	how := "all forms at the same time, each on a disk of its own"
	if b.plan.turns {
		how = "one form after the other, each on a disk of its own"
	}
	if err := errors.Join(b.print("\n### Cost at an even pace on %s, %v each, the store's link up, %s\n", name, b.plan.even, how),
		b.print("| records/s, in one commit | form | flushes per commit | device bytes per record | p50 | p99 |"), b.print("|---|---|---|---|---|---|")); err != nil {
		return err
	}
	for _, p := range b.plan.paces {
		turns, err := b.evenly(ctx, forms, p)
		if err != nil {
			return err
		}
		for i, t := range turns {
			if err := b.print("| %v | %s | %.2f | %.0f | %v | %v |", p, forms[i].name, t.perCommit(), t.bytes(), t.p50, t.p99); err != nil {
				return err
			}
		}
		b.judge(name, p, turns[0], turns[1])
	}
	for _, a := range absent {
		if err := b.print("\nNOT MEASURED: %s", a); err != nil {
			return err
		}
	}
	if err := b.print("\n(*) loses acknowledged records in a power cut. Each turn ends with a sync that counts."); err != nil {
		return err
	}
	return b.throughput(ctx, name, forms)
}

// evenly runs every form at a pace.
func (b *bench) evenly(ctx context.Context, forms []*form, p pace) ([]turn, error) {
	turns := make([]turn, len(forms))
	var g errgroup.Group
	if b.plan.turns {
		g.SetLimit(1)
	}
	for i, f := range forms {
		g.Go(func() (err error) {
			if turns[i], err = f.even(ctx, p, b.plan.even); err != nil {
				return fmt.Errorf("%s at %v: %w", f.name, p, err)
			}
			return nil
		})
	}
	return turns, g.Wait()
}

// judge compares the store with the goals at a pace.
func (b *bench) judge(medium string, p pace, store, log turn) {
	// What the log's flushes are beyond one a commit is the file system's, which commits its own journal every 5 s.
	checkpoints := 2 * (store.took.Seconds()/checkpointEvery.Seconds() + 1) / float64(store.commits)
	b.goal(store.perCommit() <= max(1, log.perCommit())+0.1+checkpoints, "%s, %v records/s in one commit: %.2f flushes per commit, the log %.2f; at most 0.1 above that, and 2 for each of the checkpoints (%.2f)",
		medium, p, store.perCommit(), log.perCommit(), checkpoints)
	if p == (pace{1, 100 * time.Millisecond}) {
		b.goal(store.bytes() <= 1.25*log.bytes()+recordSize, "%s, %v: %.0f device bytes per record, the log %.0f; at most 1.25 of that and one payload: %.0f",
			medium, p, store.bytes(), log.bytes(), 1.25*log.bytes()+recordSize)
	}
	b.goal(store.p99 <= 2*log.p99, "%s, %v: p99 of Append %v, of the log %v; at most twice that", medium, p, store.p99, log.p99)
}

// even commits at a pace for a time. What the page cache has in the end is written out and counted, too.
func (f *form) even(ctx context.Context, p pace, d time.Duration) (t turn, err error) {
	if err := f.settle(ctx); err != nil {
		return t, err
	}
	before, err := f.mount.Stats()
	if err != nil {
		return t, err
	}
	tick := time.NewTicker(p.interval)
	defer tick.Stop()
	begun := time.Now()
	var times []time.Duration
	for len(times) == 0 || time.Since(begun) < d {
		at := time.Now()
		if err := f.commit(ctx, 0, p.group); err != nil {
			return t, err
		}
		times = append(times, time.Since(at))
		select {
		case <-tick.C:
		case <-ctx.Done():
			return t, ctx.Err()
		}
	}
	t.took, t.commits, t.records = time.Since(begun), len(times), len(times)*p.group
	if err := f.settle(ctx); err != nil {
		return t, err
	}
	after, err := f.mount.Stats()
	t.device = minus(after, before)
	slices.Sort(times)
	t.p50, t.p99 = times[len(times)/2].Round(10*time.Microsecond), times[len(times)*99/100].Round(10*time.Microsecond)
	return t, err
}

// settle waits until nothing is under way and the page cache is written.
func (f *form) settle(ctx context.Context) error {
	if f.drained != nil {
		if err := f.drained(ctx); err != nil {
			return err
		}
	}
	return settle(f.mount.Dir)
}
