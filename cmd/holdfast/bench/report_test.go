package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-edge/holdfast/rig/disk"
	"github.com/holdfast-edge/holdfast/rig/hub"
)

// bench is one run.
type bench struct {
	plan  plan
	mount *disk.Mount
	hub   *hub.Cluster
	out   io.Writer
	disks func(card bool, size int64) (*disk.Mount, error) // makes one, for the rest of the run
	goals []verdict
}

func (b *bench) print(format string, args ...any) error {
	_, err := fmt.Fprintf(b.out, format+"\n", args...)
	return err
}

// head says what was measured, and on what.
func (b *bench) head() error {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return fmt.Errorf("uname: %w", err)
	}
	where := "a loop device on the machine's disk"
	if b.plan.card {
		where = "the model of an SD card: 5 ms a flush, 0.5 ms a write"
	}
	return b.print("Records of %d bytes on ext4 on %s. %s/%s, %d CPUs, Linux %s, %s. Medians of %d rounds of %v, raw and store in turns.",
		recordSize, where, runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), unix.ByteSliceToString(u.Release[:]), runtime.Version(), b.plan.rounds, b.plan.segment)
}

// commits measures all loads with the link down, then with the link up, and the link's own writes.
func (b *bench) commits(ctx context.Context) (err error) {
	g, err := startGateway(ctx, b.plan, leafName, b.plan.size, filepath.Join(b.mount.Dir, "data"), b.hub)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.close()) }()
	s := newStore(g.store)
	for _, up := range []bool{false, true} {
		if err := g.link(ctx, up); err != nil {
			return err
		}
		if err := b.table(ctx, g, s, up); err != nil {
			return err
		}
	}
	return b.linkWrites(ctx, g, s)
}

// comparisons sets the store beside the other forms: on the disk, unless it is the card that is measured, and on the card unless this is the short run.
func (b *bench) comparisons(ctx context.Context) error {
	if b.plan.even <= 0 {
		return nil
	}
	var errs []error
	if !b.plan.card {
		errs = append(errs, b.comparison(ctx, false, diskName))
	}
	if b.plan.card || len(b.plan.paces) > 1 {
		errs = append(errs, b.comparison(ctx, true, cardName))
	}
	return errors.Join(errs...)
}

// row is what the rounds of one load came to.
type row struct {
	load       load
	raw, store cost // sums over the rounds
	rawRates   []float64
	storeRates []float64
	ratios     []float64
}

func (b *bench) table(ctx context.Context, g *gateway, s *store, up bool) error {
	state := "down"
	if up {
		state = "up (the hub, on this machine at the lowest priority, takes the records meanwhile)"
	}
	if err := errors.Join(
		b.print("\n### Link %s\n", state),
		b.print("| load | raw records/s | store records/s | ratio (worst to best round) | flushes per record, raw / store | device bytes per record, raw / store |"),
		b.print("|---|---|---|---|---|---|")); err != nil {
		return err
	}
	var groups *row
	for _, l := range loads() {
		r, err := b.rounds(ctx, g, s, l)
		if err != nil {
			return err
		}
		if err := b.print("| %s | %.0f | %.0f | %.2f (%.2f to %.2f) | %.4f / %.4f | %.0f / %.0f |", l.name, median(r.rawRates), median(r.storeRates),
			median(r.ratios), slices.Min(r.ratios), slices.Max(r.ratios), r.raw.flushes(), r.store.flushes(), r.raw.bytes(), r.store.bytes()); err != nil {
			return err
		}
		if l.group == 100 {
			groups = &r
		}
		if l.callers == 100 && groups != nil {
			if err := b.print("\nRaw for the callers is each of them appending to one file and syncing it. Against one writer that appends groups of 100, they reach %.2f of raw.",
				median(r.storeRates)/median(groups.rawRates)); err != nil {
				return err
			}
		}
	}
	return nil
}

// rounds runs raw and the store in turns. Raw waits until the link has sent what the store took. A short run of each before the first round is thrown away.
func (b *bench) rounds(ctx context.Context, g *gateway, s *store, l load) (row, error) {
	r := row{load: l}
	for round := range b.plan.rounds + 1 {
		d := b.plan.segment
		if round == 0 {
			d /= 4
		}
		if err := g.drained(ctx); err != nil {
			return r, err
		}
		plain, err := newRaw(b.mount.Dir, l.group)
		if err != nil {
			return r, err
		}
		raw, err := measure(ctx, b.mount, plain, l, d)
		if err := errors.Join(err, plain.remove()); err != nil {
			return r, err
		}
		ours, err := measure(ctx, b.mount, s, l, d)
		if err != nil {
			return r, err
		}
		if round == 0 {
			continue
		}
		r.raw, r.store = r.raw.plus(raw), r.store.plus(ours)
		r.rawRates = append(r.rawRates, raw.rate())
		r.storeRates = append(r.storeRates, ours.rate())
		r.ratios = append(r.ratios, ours.rate()/raw.rate())
	}
	return r, nil
}

// Pace of the trickle: a gateway with a few devices.
const (
	trickleGroup = 10
	tricklePause = 200 * time.Millisecond
	trickleTurns = 3
)

// linkWrites measures what the link itself writes on the leaf's disk: the same trickle with the link up and down, in turns.
func (b *bench) linkWrites(ctx context.Context, g *gateway, s *store) error {
	var sum [2]cost
	for range trickleTurns {
		for i, up := range []bool{false, true} {
			if err := g.link(ctx, up); err != nil {
				return err
			}
			c, err := b.drip(ctx, s)
			if err != nil {
				return err
			}
			sum[i] = sum[i].plus(c)
		}
	}
	down, up := sum[0], sum[1]
	share := 100 * (up.bytes() - down.bytes()) / up.bytes() // below zero when it drowns in noise
	return errors.Join(
		b.print("\n### The link's own writes on the leaf's disk\n"),
		b.print("%d records every %v, %d turns of %v each: %.0f device bytes and %.3f flushes per record with the link down, %.0f and %.3f with the link up: the link writes %.1f %% of the total.",
			trickleGroup, tricklePause, trickleTurns, b.plan.trickle, down.bytes(), down.flushes(), up.bytes(), up.flushes(), share))
}

// drip commits a group of records at a slow pace; the page cache is written out at the end, so that nothing is left for the next turn to pay.
func (b *bench) drip(ctx context.Context, s *store) (cost, error) {
	if err := settle(b.mount.Dir); err != nil {
		return cost{}, err
	}
	before, err := b.mount.Stats()
	if err != nil {
		return cost{}, err
	}
	begun := time.Now()
	tick := time.NewTicker(tricklePause)
	defer tick.Stop()
	records := 0
	for time.Since(begun) < b.plan.trickle {
		if err := s.commit(ctx, 0, trickleGroup); err != nil {
			return cost{}, err
		}
		records += trickleGroup
		select {
		case <-tick.C:
		case <-ctx.Done():
			return cost{}, ctx.Err()
		}
	}
	took := time.Since(begun)
	if err := settle(b.mount.Dir); err != nil {
		return cost{}, err
	}
	after, err := b.mount.Stats()
	return cost{records: records, took: took, device: minus(after, before)}, err
}
