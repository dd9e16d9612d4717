package storage

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// giveUp gives up a range of unsent records: first a gap record on flash, then the removal. What is below goes before, as forwarded: the hub may have
// confirmed it a moment ago, and a gap record that covers an older one's range would count it as given up then.
func (k *keeper) giveUp(ctx context.Context, s *keptStream, from, last Position, reason GapReason) error {
	if err := k.remove(ctx, s, from); err != nil {
		return err
	}
	gaps, err := k.gapsOf(ctx, s, from, last, reason)
	if err != nil {
		return err
	}
	for _, g := range gaps {
		if err := k.appendGap(ctx, g); err != nil {
			return fmt.Errorf("store a gap record in stream %s: %w", s.name, err)
		}
	}
	if n := len(gaps); n > 0 {
		s.gaveUp += gaps[n-1].Count - gaps[n-1].Merged
		if now := k.now(); s.gaveUp > 0 && (s.warned.IsZero() || now.Sub(s.warned) >= warnInterval) {
			k.log.Warn("gave up the oldest records", "stream", s.name, "last", last, "count", s.gaveUp, "reason", reason)
			s.gaveUp, s.warned = 0, now
		}
	}
	return k.remove(ctx, s, last+1)
}

// gapsOf returns the gap records that have to be on flash before a range is removed: one for its captured records, and for the older gap
// records in it with the same reason too, one for those with the keeper's other reason, and a copy of each of the rest.
func (k *keeper) gapsOf(ctx context.Context, s *keptStream, from, last Position, reason GapReason) ([]GapRecord, error) {
	var gaps []GapRecord
	drop := GapRecord{Stream: s.name, Last: last, Reason: reason}
	var other GapRecord
	for _, run := range k.counters.runs(s.name, from, last) {
		if !run.own {
			if drop.First == 0 {
				drop.First = run.first
			}
			drop.Count += uint64(run.last-run.first) + 1
			if err := k.addTimes(ctx, s, &drop, run); err != nil {
				return nil, err
			}
			continue
		}
		for at := run.first; at <= run.last; at++ {
			r, err := s.held.next(ctx, at)
			if errors.Is(err, errNoRecord) || (err == nil && (r.Position != at || r.ID.Source != GapSource)) {
				continue
			}
			if err != nil {
				return nil, err
			}
			old, err := ParseGap(r.Data)
			if err != nil {
				continue // it never counted for anything
			}
			old.Merged = old.Count
			if old.Reason != reason {
				switch {
				case !old.Reason.givesUp():
					gaps = append(gaps, old)
				case other.First == 0:
					other = old
				default:
					other = other.merge(old)
				}
				continue
			}
			if drop.First == 0 {
				drop.First = old.First
			}
			drop = drop.merge(old)
		}
	}
	if other.First != 0 {
		gaps = append(gaps, other)
	}
	if drop.First != 0 {
		gaps = append(gaps, drop) // last: from when it is on flash the range counts as given up
	}
	return gaps, nil
}

// addTimes widens a gap record's time span to the ends of a run.
func (k *keeper) addTimes(ctx context.Context, s *keptStream, g *GapRecord, run span) error {
	for _, at := range []Position{run.first, run.last} {
		r, err := s.held.next(ctx, at)
		if errors.Is(err, errNoRecord) {
			continue
		}
		if err != nil {
			return err
		}
		when := r.Stamp.Wall
		if t, known := k.timeOf(r); known {
			when = t
		}
		if r.Position == at && !when.IsZero() {
			g.From, g.To = earlier(g.From, when), later(g.To, when)
		}
	}
	return nil
}

// earlier returns the earlier of two times; zero means unknown.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// later returns the later of two times.
func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
