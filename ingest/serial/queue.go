package serial

import (
	"sync"

	"github.com/holdfast-edge/holdfast/ingest"
)

// queue holds readings between the line, which does not wait, and the store, which may.
type queue struct {
	limit int64
	more  chan struct{} // holds a token when something was put since the last look; never closed

	mu    sync.Mutex // guards the fields below
	items []ingest.Reading
	bytes int64
}

func newQueue(limit int64) *queue { return &queue{limit: limit, more: make(chan struct{}, 1)} }

// weight is what a reading counts against the limit; the constant stands for what Go adds.
func weight(r ingest.Reading) int64 { return int64(len(r.Data)) + 128 }

// put appends a reading, or returns false when there is no room. A reading always fits into an empty queue.
func (q *queue) put(r ingest.Reading) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.items) > 0 && q.bytes+weight(r) > q.limit {
		return false
	}
	q.items = append(q.items, r)
	q.bytes += weight(r)
	select {
	case q.more <- struct{}{}:
	default:
	}
	return true
}

// head returns up to n of the oldest readings, which stay in the queue.
func (q *queue) head(n int) []ingest.Reading {
	q.mu.Lock()
	defer q.mu.Unlock()
	return append([]ingest.Reading(nil), q.items[:min(n, len(q.items))]...)
}

// drop removes the n oldest readings.
func (q *queue) drop(n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, r := range q.items[:n] {
		q.bytes -= weight(r)
	}
	clear(q.items[:n])
	q.items = q.items[n:]
	if len(q.items) == 0 {
		q.items = nil
	}
}

func (q *queue) len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.items)
}
