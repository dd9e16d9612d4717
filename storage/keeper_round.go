package storage

import (
	"cmp"
	"context"
	"slices"
	"time"
)

// run removes forwarded records that are old enough, or that will be in the way soon, until ctx ends.
func (k *keeper) run(ctx context.Context) {
	tick := time.NewTicker(keeperInterval)
	defer tick.Stop()
	for {
		aged := false
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			aged = true
		case <-k.wake:
		}
		release, err := k.hold(ctx)
		if err != nil {
			return
		}
		if err := k.round(ctx, aged); err != nil && ctx.Err() == nil {
			k.log.Warn("cannot remove forwarded records", "err", err)
		}
		release()
	}
}

// round removes forwarded records that will be in the way soon or were noted, and with aged those that are old. Needs work.
func (k *keeper) round(ctx context.Context, aged bool) error {
	for _, s := range k.streams {
		if err := k.look(ctx, s); err != nil {
			return err
		}
		if err := k.removeNoted(ctx, s); err != nil {
			return err
		}
		if aged {
			if err := k.expire(ctx, s); err != nil {
				return err
			}
			k.audit(s)
		}
		if _, err := k.purgeForwarded(ctx, s, k.scarce(s)); err != nil {
			return err
		}
	}
	return k.purgeOthers(ctx, func() usage {
		var u usage
		u.bytes = max(0, k.overBudget(k.budget/headroomShare))
		if free, _, err := k.free(); err == nil {
			u.bytes = max(u.bytes, k.reserve+k.reserve/headroomShare-free)
		}
		return u
	})
}

// overBudget returns by how many bytes all streams together would exceed the budget with so much more; 0 or less if they do not.
func (k *keeper) overBudget(more int64) int64 {
	if k.budget <= 0 {
		return 0
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, s := range k.streams {
		more += s.taken().bytes
	}
	return more - k.budget
}

// bySize returns the streams in the order in which they give way: the lowest priority first, of equal ones the largest.
func (k *keeper) bySize() []*keptStream {
	k.mu.Lock()
	defer k.mu.Unlock()
	all := slices.Clone(k.streams)
	slices.SortStableFunc(all, func(a, b *keptStream) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(b.taken().bytes, a.taken().bytes))
	})
	return all
}
