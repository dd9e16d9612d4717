package storage

import (
	"context"
	"errors"
)

// agedBelow returns the position below which every record was forwarded and is older than keep_forwarded: zero if there is none, or if nobody can
// say because the clock is not trusted.
//
// Records lie in the order of their capture, so everything before an old record is older. Only records whose own time can be trusted say how old
// they are; one that was captured before the clock was set is as old as the next that was captured after. The search takes samples, so
// it may find less than there is; the next round goes on from there.
func (k *keeper) agedBelow(ctx context.Context, s *keptStream) (Position, error) {
	v, end := k.seen(s), k.provenBelow(s)
	if end <= v.First {
		return 0, nil
	}
	if s.KeepForwarded == 0 {
		return end, nil
	}
	if k.clock() != ClockSynced {
		return 0, nil
	}
	const samples = 64
	step := max(1, (end-v.First)/samples)
	var old Position // the newest record known to be old
	young := end     // nothing from here on is
	for at := v.First; at < young; {
		r, age, err := k.ageOf(ctx, s, at)
		if err != nil {
			return 0, err
		}
		if r.Position >= end || age == ageYoung {
			young = max(at, old+1)
			break
		}
		if age == ageOld {
			old = r.Position
		}
		at = max(at+step, r.Position+1)
	}
	// Between the newest old sample and the first young one, halve.
	for low, high := old+1, young; old > 0 && low < high; {
		mid := low + (high-low)/2
		r, age, err := k.ageOf(ctx, s, mid)
		if err != nil {
			return 0, err
		}
		if age == ageOld && r.Position < end {
			old = r.Position
			low = r.Position + 1
		} else {
			high = mid
		}
	}
	if old == 0 {
		return 0, nil
	}
	return old + 1, nil
}

type age uint8

const (
	ageUnknown age = iota // captured with an untrusted clock
	ageYoung
	ageOld
)

// ageOf tells whether the first record at or above a position is older than keep_forwarded.
func (k *keeper) ageOf(ctx context.Context, s *keptStream, at Position) (heldRecord, age, error) {
	r, err := s.held.next(ctx, at)
	if errors.Is(err, errNoRecord) {
		return heldRecord{Position: at}, ageYoung, nil
	}
	if err != nil {
		return heldRecord{}, ageUnknown, err
	}
	switch {
	case r.Stamp.Clock != ClockSynced:
		return r, ageUnknown, nil
	case k.now().Sub(r.Stamp.Wall) > s.KeepForwarded:
		return r, ageOld, nil
	}
	return r, ageYoung, nil
}
