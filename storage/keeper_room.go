package storage

import (
	"context"
	"errors"
	"fmt"
)

// makeRoom makes room for records, or returns why there is none. Needs work.
func (k *keeper) makeRoom(ctx context.Context, needs []need) error {
	for _, n := range needs {
		s := k.byName[n.Stream]
		if s == nil {
			return fmt.Errorf("stream %s is not kept here: %w", n.Stream, ErrInvalid)
		}
		err := k.makeRoomIn(ctx, s, n)
		if err == nil {
			err = k.makeRoomInBudget(ctx, s, n)
		}
		if err == nil {
			err = k.makeRoomOnDisk(ctx, s, n)
		}
		if err != nil {
			if errors.Is(err, ErrFull) {
				k.mu.Lock()
				s.full = err
				k.mu.Unlock()
			}
			return err
		}
	}
	return nil
}

// makeRoomIn makes room within the stream's own limits.
func (k *keeper) makeRoomIn(ctx context.Context, s *keptStream, n need) error {
	if (s.MaxBytes > 0 && n.Bytes > s.MaxBytes) || (s.MaxMsgs > 0 && n.Records > s.MaxMsgs) {
		return fmt.Errorf("%d records of %d bytes are more than stream %s may hold at all: %w", n.Records, n.Bytes, s.name, ErrFull)
	}
	if err := k.look(ctx, s); err != nil {
		return err
	}
	more := usage{n.Records, n.Bytes}
	if k.missing(s, more) == (usage{}) {
		return nil
	}
	if k.settle != nil && s.pending() != (usage{}) && n != (need{Stream: n.Stream}) {
		k.settle(ctx) // only what is in the stream can be removed
		if err := k.look(ctx, s); err != nil {
			return err
		}
	}
	k.mu.Lock()
	s.press(k.now())
	k.mu.Unlock()
	if enough, err := k.purgeForwarded(ctx, s, k.withHeadroom(s, k.missing(s, more))); err != nil || enough {
		return err
	}
	short := k.missing(s, more)
	switch {
	case short == (usage{}):
		return nil
	case s.Refuse:
		return fmt.Errorf("stream %s is full of records that the hub has not confirmed, and its policy is to refuse: %w", s.name, ErrFull)
	}
	for range 4 { // records differ in size, so a chunk by the average may fall short
		if err := k.dropOldest(ctx, s, k.withHeadroom(s, short)); err != nil {
			return err
		}
		if short = k.missing(s, more); short == (usage{}) {
			return nil
		}
	}
	return nil // admit looks once more
}

// missing returns what a stream is short of.
func (k *keeper) missing(s *keptStream, more usage) usage {
	k.mu.Lock()
	defer k.mu.Unlock()
	return s.short(more)
}

// scarce returns what a stream is short of to have its headroom.
func (k *keeper) scarce(s *keptStream) usage {
	k.mu.Lock()
	defer k.mu.Unlock()
	return s.short(s.headroom(k.now()))
}

// withHeadroom returns what to free when short of so much.
func (k *keeper) withHeadroom(s *keptStream, short usage) usage {
	k.mu.Lock()
	head := s.headroom(k.now())
	k.mu.Unlock()
	if short.records > 0 {
		short.records += head.records
	}
	if short.bytes > 0 {
		short.bytes += head.bytes
	}
	return short
}

// makeRoomInBudget makes room within the budget of all streams.
func (k *keeper) makeRoomInBudget(ctx context.Context, s *keptStream, n need) error {
	if k.overBudget(n.Bytes) <= 0 {
		return nil
	}
	if err := k.refresh(ctx); err != nil {
		return err
	}
	over := func() usage { return usage{bytes: max(0, k.overBudget(n.Bytes))} }
	if err := k.purgeOthers(ctx, over); err != nil {
		return err
	}
	for range 4 {
		short := over().bytes
		if short == 0 {
			return nil
		}
		payer := k.payer(s)
		if payer == nil {
			return fmt.Errorf("the budget of all streams is used up by records that the hub has not confirmed, whose policy is to refuse or whose priority is higher: %w", ErrFull)
		}
		if err := k.dropOldest(ctx, payer, usage{bytes: short + k.budget/headroomShare}); err != nil {
			return err
		}
	}
	return nil
}

// payer returns the stream that gives up its oldest records for another; nil if there is none.
func (k *keeper) payer(incoming *keptStream) *keptStream {
	for _, s := range k.bySize() {
		if !s.Refuse && s.Priority <= incoming.Priority && (s == incoming || k.droppable(s)) {
			return s
		}
	}
	return nil
}

// droppable reports whether a stream has captured records that could be given up.
func (k *keeper) droppable(s *keptStream) bool {
	captured, _ := k.counters.held(s.name, k.unsentFrom(s), k.counters.position(s.name))
	return captured > 0
}

// makeRoomOnDisk keeps the reserve on the disk free.
func (k *keeper) makeRoomOnDisk(ctx context.Context, s *keptStream, n need) error {
	if tight, _, err := k.diskShort(); err != nil || !tight {
		return nil // who cannot look does not refuse: the server will say when the disk is full
	}
	err := k.purgeOthers(ctx, func() usage {
		free, _, err := k.free()
		if err != nil {
			return usage{}
		}
		return usage{bytes: max(0, k.reserve-free)}
	})
	if err != nil {
		return err
	}
	tight, low, err := k.diskShort()
	if err != nil || !tight {
		return nil
	}
	if low && !s.Refuse {
		return nil // the publisher keeps the streams from growing
	}
	if s.Refuse {
		return fmt.Errorf("the disk has less than reserve_free left, and the policy of stream %s is to refuse: %w", s.name, ErrFull)
	}
	for range 4 { // a gap record takes some of what was given up
		k.mu.Lock()
		credit, before := s.credit, int64(s.view.Bytes)
		k.mu.Unlock()
		if credit >= n.Bytes {
			return nil
		}
		if err := k.dropOldest(ctx, s, usage{records: 8, bytes: max(n.Bytes-credit, before/headroomShare)}); err != nil {
			return err
		}
		k.mu.Lock()
		s.credit += max(0, before-int64(s.view.Bytes))
		k.mu.Unlock()
	}
	return nil
}

// size returns what a stream took when it was last looked at.
func (k *keeper) size(s *keptStream) int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return int64(s.view.Bytes)
}

// diskShort reports whether less than the reserve is free, and whether so little that streams must not grow any more: see Store.diskFull.
func (k *keeper) diskShort() (tight, low bool, err error) {
	free, inodes, err := k.free()
	if err != nil {
		return false, false, err
	}
	return free < k.reserve || inodes < minFreeInodes, free < k.reserve/4 || inodes < minFreeInodes, nil
}

// purgeOthers removes forwarded records of all streams, of the largest first, until nothing is short or nothing is left.
func (k *keeper) purgeOthers(ctx context.Context, short func() usage) error {
	for _, s := range k.bySize() {
		for range 64 {
			want := short()
			if want == (usage{}) {
				return nil
			}
			before := k.size(s)
			want.bytes = max(want.bytes, before/headroomShare)
			if _, err := k.purgeForwarded(ctx, s, want); err != nil {
				return err
			}
			if k.size(s) == before {
				break // nothing left here
			}
		}
	}
	return nil
}

// purgeForwarded removes forwarded records, the oldest first, until so much is free or none is left. Enough: it was so much.
func (k *keeper) purgeForwarded(ctx context.Context, s *keptStream, want usage) (enough bool, err error) {
	for want.records > 0 || want.bytes > 0 {
		v := k.seen(s)
		below := min(k.provenBelow(s), k.counters.nth(s.name, v.First, v.recordsFor(want))+1)
		if below <= v.First {
			return false, nil
		}
		if err := k.remove(ctx, s, below); err != nil {
			return false, err
		}
		now := k.seen(s)
		want.records -= int64(v.Messages) - int64(now.Messages)
		want.bytes -= int64(v.Bytes) - int64(now.Bytes)
	}
	return true, nil
}

func (k *keeper) seen(s *keptStream) streamView {
	k.mu.Lock()
	defer k.mu.Unlock()
	return s.view
}

// recordsFor returns how many records of average size make up what is wanted, at least one.
func (v streamView) recordsFor(want usage) uint64 {
	n := max(want.records, 1)
	if want.bytes > 0 && v.Messages > 0 {
		average := max(1, int64(v.Bytes/v.Messages))
		n = max(n, (want.bytes+average-1)/average)
	}
	return uint64(n)
}

// provenBelow returns the position below which everything is at the hub, but not above the stream's newest record, which stays.
func (k *keeper) provenBelow(s *keptStream) Position {
	proven, known := k.forwarded(s.name)
	if !known {
		return 0
	}
	return min(proven+1, k.seen(s).Last)
}

// unsentFrom returns the position of the first record that may be unsent and was not given up yet.
func (k *keeper) unsentFrom(s *keptStream) Position {
	from := max(k.seen(s).First, k.counters.floor(s.name))
	if proven, known := k.forwarded(s.name); known {
		from = max(from, proven+1)
	}
	return from
}

// remove removes everything below a position and looks at the stream again.
func (k *keeper) remove(ctx context.Context, s *keptStream, below Position) error {
	if below = max(below, k.counters.floor(s.name)); below <= k.seen(s).First {
		return nil
	}
	if err := k.counters.giveUp(s.name, below); err != nil {
		return err
	}
	return k.purge(ctx, s, below)
}

// purge removes what the account may do without.
func (k *keeper) purge(ctx context.Context, s *keptStream, below Position) error {
	if err := s.held.purge(ctx, below); err != nil {
		return err
	}
	k.counters.purged(s.name)
	return k.look(ctx, s)
}

// dropOldest gives up the oldest unsent records: first a gap record on flash, then the removal.
func (k *keeper) dropOldest(ctx context.Context, s *keptStream, want usage) error {
	v := k.seen(s)
	from := k.unsentFrom(s)
	last := min(k.counters.nth(s.name, from, v.recordsFor(want)), k.counters.position(s.name), v.Last)
	if last < from {
		return fmt.Errorf("stream %s has nothing left to give up: %w", s.name, ErrFull)
	}
	return k.giveUp(ctx, s, from, last, GapDropOldest)
}
