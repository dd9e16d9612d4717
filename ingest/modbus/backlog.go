package modbus

import (
	"sync"

	"github.com/holdfast-edge/holdfast/ingest"
)

// backlog holds records between the bus, which goes on, and the store, which may take none for a while.
type backlog struct {
	limit int64         // bytes
	more  chan struct{} // holds a token when something was put since the last look; never closed

	mu    sync.Mutex // guards the fields below
	items []ingest.Reading
	bytes int64
}

func newBacklog(limit int64) *backlog { return &backlog{limit: limit, more: make(chan struct{}, 1)} }

// weight is what a record counts against the limit; the constant stands for what Go adds.
func weight(r ingest.Reading) int64 { return int64(len(r.Data)) + 128 }

// put appends a record, or returns false when there is no room. A record always fits into an empty backlog.
func (b *backlog) put(r ingest.Reading) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.items) > 0 && b.bytes+weight(r) > b.limit {
		return false
	}
	b.items = append(b.items, r)
	b.bytes += weight(r)
	select {
	case b.more <- struct{}{}:
	default:
	}
	return true
}

// head returns up to n of the oldest records, which stay.
func (b *backlog) head(n int) []ingest.Reading {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]ingest.Reading(nil), b.items[:min(n, len(b.items))]...)
}

// drop removes the n oldest records.
func (b *backlog) drop(n int) {
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

func (b *backlog) len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.items)
}
