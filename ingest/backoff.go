package ingest

import (
	"context"
	"math/rand/v2"
	"time"
)

// Backoff gives growing pauses between attempts. It is not safe for concurrent use.
type Backoff struct {
	Min, Max time.Duration // bounds of a pause; both above 0
	fails    int
}

// Next returns the pause before the next attempt: twice the last one, at most Max, less up to a quarter of itself by chance.
func (b *Backoff) Next() time.Duration {
	d := b.Max
	if b.fails < 32 && b.Min<<b.fails>>b.fails == b.Min {
		d = min(b.Min<<b.fails, b.Max)
	}
	b.fails++
	return d - rand.N(d/4+1)
}

// Fails returns how many pauses were asked for since the last Reset.
func (b *Backoff) Fails() int { return b.fails }

// Reset makes the next pause a short one again.
func (b *Backoff) Reset() { b.fails = 0 }

// Wait pauses for Next, or until ctx ends: then it returns the error of ctx.
func (b *Backoff) Wait(ctx context.Context) error { return Pause(ctx, b.Next()) }

// Pause waits for d, or until ctx ends: then it returns the error of ctx.
func Pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
