package storage

import (
	"context"
	"errors"
	"time"
)

// expire removes what is older than it may become: forwarded records quietly, unsent ones after a gap record. Needs work.
func (k *keeper) expire(ctx context.Context, s *keptStream) error {
	below, err := k.agedBelow(ctx, s, k.seen(s).First, k.provenBelow(s), s.Keep)
	if err != nil {
		return err
	}
	if err := k.removeAged(ctx, s, below); err != nil || s.KeepAll == forEver {
		return err
	}
	from := k.unsentFrom(s)
	below, err = k.agedBelow(ctx, s, from, min(k.seen(s).Last, k.counters.position(s.name))+1, s.KeepAll)
	if err != nil || below <= from {
		return err
	}
	return k.giveUp(ctx, s, from, below-1, GapExpired)
}

// removeAged is remove in no hurry: if a checkpoint is coming, the account gets to flash with that, and what is below goes behind it.
func (k *keeper) removeAged(ctx context.Context, s *keptStream, below Position) error {
	below = max(below, k.counters.floor(s.name))
	waited := s.noted > k.counters.removable(s.name) // for a checkpoint that did not come
	if below <= max(k.seen(s).First, k.counters.removable(s.name)) || waited || k.ask == nil {
		return k.remove(ctx, s, below)
	}
	k.counters.note(s.name, below) // before asking
	if !k.ask() {
		return k.remove(ctx, s, below)
	}
	s.noted = below
	return nil
}

// removeNoted removes what is on flash as given up.
func (k *keeper) removeNoted(ctx context.Context, s *keptStream) error {
	below := min(s.noted, k.counters.removable(s.name))
	if below <= k.seen(s).First {
		return nil
	}
	return k.purge(ctx, s, below)
}

// agedBelow returns the position up to which every record from first to before end is older than so long: zero if there is none, or if nobody can
// say because the clock is not trusted.
//
// Records lie in the order of their capture, so everything before an old record is older. Only records whose own age is known say how old
// they are; one that was captured before the clock was set is as old as the next that was captured after. The search takes samples, so
// it may find less than there is; the next round goes on from there.
func (k *keeper) agedBelow(ctx context.Context, s *keptStream, first, end Position, limit time.Duration) (Position, error) {
	if end <= first {
		return 0, nil
	}
	if limit == 0 {
		return end, nil
	}
	const samples = 64
	step := max(1, (end-first)/samples)
	var old Position // the newest record known to be old
	young := end     // nothing from here on is
	for at := first; at < young; {
		r, age, err := k.ageOf(ctx, s, at, limit)
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
		r, age, err := k.ageOf(ctx, s, mid, limit)
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
	ageUnknown age = iota // captured with an untrusted clock, in another boot of the machine
	ageYoung
	ageOld
)

// ageOf tells whether the first record at or above a position is older than so long.
func (k *keeper) ageOf(ctx context.Context, s *keptStream, at Position, limit time.Duration) (heldRecord, age, error) {
	r, err := s.held.next(ctx, at)
	if errors.Is(err, errNoRecord) {
		return heldRecord{Position: at}, ageYoung, nil
	}
	if err != nil {
		return heldRecord{}, ageUnknown, err
	}
	old, known := k.age(r)
	switch {
	case !known:
		return r, ageUnknown, nil
	case old > limit:
		return r, ageOld, nil
	}
	return r, ageYoung, nil
}
