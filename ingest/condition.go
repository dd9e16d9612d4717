package ingest

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"time"
)

// Condition keeps the state of a source and logs its changes. It is safe for concurrent use.
type Condition struct {
	log *slog.Logger

	mu    sync.Mutex // guards the fields below
	state State
}

// NewCondition returns the condition of a source that has not started. The logger should carry the source's name.
func NewCondition(log *slog.Logger) *Condition {
	return &Condition{log: log, state: State{Since: time.Now()}}
}

// Set changes the state. Since is kept, and nothing is logged, while the kind stays the same.
func (c *Condition) Set(kind Kind, cause, remedy string) {
	c.mu.Lock()
	old := c.state
	c.state = State{Kind: kind, Cause: cause, Remedy: remedy, Since: old.Since}
	if kind != old.Kind {
		c.state.Since = time.Now()
	}
	c.mu.Unlock()
	if kind == old.Kind {
		return
	}
	level := slog.LevelInfo
	if kind == Denied || kind == Refused {
		level = slog.LevelError
	} else if kind != Running && kind != Starting && old.Kind != Unknown {
		level = slog.LevelWarn
	}
	c.log.Log(context.Background(), level, "source state changed", "state", kind.String(), "cause", cause, "remedy", remedy,
		"was", old.Kind.String(), slog.Duration("dur", time.Since(old.Since)))
}

// State returns the present state.
func (c *Condition) State() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state
}

// Tally counts what a source received and rejected. The zero value is ready; it is safe for concurrent use.
type Tally struct {
	mu       sync.Mutex // guards the fields below
	received uint64
	rejected map[string]uint64
	bytes    map[string]uint64
}

// Deliver counts n readings that Deliver has taken.
func (t *Tally) Deliver(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.received += uint64(n)
}

// Reject counts one reading of so many bytes that was refused for a reason.
func (t *Tally) Reject(reason string, bytes int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.rejected == nil {
		t.rejected, t.bytes = map[string]uint64{}, map[string]uint64{}
	}
	t.received++
	t.rejected[reason]++
	t.bytes[reason] += uint64(bytes)
}

// Counts returns a copy of the numbers.
func (t *Tally) Counts() Counts {
	t.mu.Lock()
	defer t.mu.Unlock()
	return Counts{Received: t.received, Rejected: maps.Clone(t.rejected), RejectedBytes: maps.Clone(t.bytes)}
}
