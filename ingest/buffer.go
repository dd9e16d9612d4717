package ingest

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// ReasonOverrun is the reason under which readings count that came while a Buffer was full because the store took none.
const ReasonOverrun = "overrun"

const (
	batchMax     = 512                    // readings handed over at once
	drainTimeout = time.Second            // how long a stop waits for the store to take what was read
	pumpMin      = 250 * time.Millisecond // first pause after a delivery that failed
	pumpMax      = 10 * time.Second       // longest one
)

// Buffer stands between a device that cannot be told to wait and the store, which may take nothing for a while.
type Buffer struct {
	limit int64 // bytes
	tally *Tally
	log   *slog.Logger
	more  chan struct{} // holds a token when something was put since the last look; never closed

	mu    sync.Mutex // guards the fields below
	items []Reading
	bytes int64
	full  bool // the last reading found no room
}

// NewBuffer returns an empty buffer for so many bytes. What it delivers, and what finds no room, is counted by tally.
func NewBuffer(limit int64, tally *Tally, log *slog.Logger) *Buffer {
	return &Buffer{limit: limit, tally: tally, log: log, more: make(chan struct{}, 1)}
}

// Run runs read, and delivers what read puts until ctx ends; it returns when both have ended. What is left when ctx ends is delivered
// for up to a second more, and by the next Run if the store does not take it. Its error is that of read, or of ctx. It is the Run
// of a source, which delivers nothing by itself.
func (b *Buffer) Run(ctx context.Context, deliver Deliver, read func(context.Context) error) error {
	inner, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		cancel(Guard(func() error { return b.pump(inner, deliver) }))
	})
	err := Guard(func() error { return read(inner) })
	cancel(err)
	wg.Wait()
	if ctx.Err() == nil {
		return context.Cause(inner)
	}
	last, done := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
	defer done()
	if err := b.drain(last, deliver); err != nil {
		b.log.Warn("readings not stored at stop", "pending", b.Len(), "err", err)
	}
	return ctx.Err()
}

// pump hands what was read to the store until ctx ends.
func (b *Buffer) pump(ctx context.Context, deliver Deliver) error {
	back := Backoff{Min: pumpMin, Max: pumpMax}
	for {
		err := b.drain(ctx, deliver)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			if n := back.Fails() + 1; n == 1 || n%10 == 0 {
				b.log.Error("readings not delivered, will be tried again", "err", err, "pending", b.Len(), "fails", n)
			}
			_ = back.Wait(ctx) // ctx is looked at next
			continue
		}
		back.Reset()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-b.more:
		}
	}
}

// drain delivers until nothing is left.
func (b *Buffer) drain(ctx context.Context, deliver Deliver) error {
	for {
		batch := b.head(batchMax)
		if len(batch) == 0 {
			return nil
		}
		if err := deliver(ctx, batch...); err != nil {
			return err
		}
		b.drop(len(batch))
		b.tally.Deliver(len(batch))
	}
}

// weight is what a reading counts against the limit; the constant stands for what Go adds.
func weight(r Reading) int64 { return int64(len(r.Data)) + 128 }

// Put appends a reading, whose Data and Header belong to the buffer from now on. It returns false when there is no room: the reading
// is then counted as overrun, with so many bytes as it had on the line. A reading always fits into an empty buffer.
func (b *Buffer) Put(r Reading, size int) bool {
	b.mu.Lock()
	full := len(b.items) > 0 && b.bytes+weight(r) > b.limit
	if !full {
		b.items = append(b.items, r)
		b.bytes += weight(r)
	}
	first := full && !b.full
	b.full = full
	b.mu.Unlock()
	if full {
		b.tally.Reject(ReasonOverrun, size)
		if first {
			b.log.Warn("buffer is full, readings are rejected as overrun", "pending", b.Len(), "bytes", b.limit)
		}
		return false
	}
	select {
	case b.more <- struct{}{}:
	default:
	}
	return true
}

// Len returns how many readings wait.
func (b *Buffer) Len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.items)
}

// head returns up to n of the oldest readings, which stay.
func (b *Buffer) head(n int) []Reading {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]Reading(nil), b.items[:min(n, len(b.items))]...)
}

// drop removes the n oldest readings.
func (b *Buffer) drop(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.items[:n] {
		b.bytes -= weight(r)
	}
	clear(b.items[:n])
	b.items = b.items[n:]
	if len(b.items) == 0 {
		b.items = nil
	}
}
