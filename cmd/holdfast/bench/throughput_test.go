package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// atOnce is the group in which records come at full speed.
const atOnce = 100

// throughput measures how fast records go at full speed: Append beside the log for so short that the journal has room, with publishing going on, and then
// what lasts, beside a stock server that syncs nothing of it. There the time counts until everything is in the streams and on the medium.
func (b *bench) throughput(ctx context.Context, medium string, forms []*form) error {
	byName := map[string]*form{}
	for _, f := range forms {
		byName[f.name] = f
	}
	store, log, stock := byName[formStore], byName[formLog], byName[formStock]
	var ratios, stores, logs []float64
	for round := range b.plan.rounds + 1 {
		var rates [2]float64
		for i, f := range []*form{log, store} {
			if err := f.settle(ctx); err != nil {
				return err
			}
			c, err := measure(ctx, f.mount, f, load{formStore, atOnce, 1}, b.plan.segment)
			if err != nil {
				return fmt.Errorf("%s at full speed: %w", f.name, err)
			}
			rates[i] = c.rate()
		}
		if round == 0 {
			continue // warms up
		}
		logs, stores, ratios = append(logs, rates[0]), append(stores, rates[1]), append(ratios, rates[1]/rates[0])
	}
	if err := errors.Join(b.print("\n### Full speed on %s, groups of %d\n", medium, atOnce),
		b.print("| what | store, records/s | beside it | ratio |"), b.print("|---|---|---|---|"),
		b.print("| Append while the journal has room, link up, medians of %d rounds of %v | %.0f | %s: %.0f | %.2f (%.2f to %.2f) |", b.plan.rounds, b.plan.segment,
			median(stores), formLog, median(logs), median(ratios), slices.Min(ratios), slices.Max(ratios))); err != nil {
		return err
	}
	b.goal(median(ratios) >= 0.8, "%s: Append at groups of %d reaches %.2f of the log; the aim is 0.8, 0.5 at least", medium, atOnce, median(ratios))
	return b.lasting(ctx, medium, store, stock)
}

// lasting measures the rates that last. One caller waits for the flush of each of its groups, of which the stock server has none; several share one.
func (b *bench) lasting(ctx context.Context, medium string, store, stock *form) error {
	const several = 10
	for _, c := range []struct {
		callers int
		up      bool
	}{{1, true}, {several, true}, {several, false}} {
		if err := store.link(ctx, c.up); err != nil {
			return err
		}
		theirs, err := b.sustained(ctx, stock, c.callers)
		if err != nil {
			return fmt.Errorf("%s, sustained: %w", stock.name, err)
		}
		ours, err := b.sustained(ctx, store, c.callers)
		if err != nil {
			return fmt.Errorf("%s, sustained: %w", store.name, err)
		}
		state := "down"
		if c.up {
			state = "up"
		}
		if err := b.print("| sustained for %v by %d callers, until all is in the stream and synced, link %s | %.0f | %s: %.0f | %.2f |",
			b.plan.sustained, c.callers, state, ours, formStock, theirs, ours/theirs); err != nil {
			return err
		}
		if c.callers == several {
			b.goal(ours/theirs >= 0.5, "%s, link %s: the rate that %d callers sustain is %.2f of the stock default's; at least 0.5", medium, state, several, ours/theirs)
		}
	}
	return nil
}

// sustained returns the records a second of a form when callers commit one group after the other.
func (b *bench) sustained(ctx context.Context, f *form, callers int) (float64, error) {
	if err := f.settle(ctx); err != nil {
		return 0, err
	}
	begun := time.Now()
	c, err := measure(ctx, f.mount, f, load{f.name, atOnce, callers}, b.plan.sustained)
	if err != nil {
		return 0, err
	}
	if s, ok := f.writer.(*store); ok {
		if err := s.store.Settle(ctx); err != nil {
			return 0, err
		}
	}
	err = settle(f.mount.Dir)
	return float64(c.records) / time.Since(begun).Seconds(), err
}

// verdict is a goal and whether it was met.
type verdict struct {
	met  bool
	what string
}

// goal notes whether a goal was met.
func (b *bench) goal(met bool, format string, args ...any) {
	b.goals = append(b.goals, verdict{met, fmt.Sprintf(format, args...)})
}

// verdicts prints the goals, and with -check fails for those that were missed.
func (b *bench) verdicts() error {
	if err := errors.Join(b.print("\n### Goals\n"), b.print("| | goal |"), b.print("|---|---|")); err != nil {
		return err
	}
	var missed []error
	for _, v := range b.goals {
		word := "met"
		if !v.met {
			word = "missed"
			missed = append(missed, errors.New("missed: "+v.what))
		}
		if err := b.print("| %s | %s |", word, v.what); err != nil {
			return err
		}
	}
	if !b.plan.check {
		return nil
	}
	return errors.Join(missed...)
}
