package ingest

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"time"

	"github.com/holdfast-edge/holdfast/storage"
)

// Status says how one source is and what it has done since the daemon started.
type Status struct {
	Name   string
	Stream string
	State  State

	Received uint64            // Stored, the sum of Rejected, and Pending
	Stored   uint64            // readings on flash
	Rejected map[string]uint64 // readings refused by the source or the store, by reason; never nil
	Pending  uint64            // readings the store has not answered yet
	Last     time.Time         // when the newest stored reading was received; zero: none yet

	RejectedBytes map[string]uint64 // bytes refused by the source, by reason; nil for none
	Invalid       string            // what was wrong with the last reading that the store could never take
	Restarts      uint64            // how often Run returned or panicked and was called again
	Panics        uint64            // how many of these were panics
}

// status folds the state of the source, of its runner and of the store into one.
func (l *lane) status() Status {
	var c Counts
	if s, ok := l.source.(Counter); ok {
		c = s.Counts()
	}
	state := State{Kind: Running}
	stater, known := l.source.(Stater)
	if known {
		state = stater.State()
	}

	l.mu.Lock()
	defer l.mu.Unlock()
	if !known {
		state.Since = l.began
		if l.began.IsZero() {
			state.Kind = Starting
		}
	}
	switch {
	case l.blocked.Kind == Blocked:
		state = l.blocked
	case l.stop.Kind != Unknown && (!known || state.Kind <= Running):
		// What the source last said of its device is no longer so.
		state = l.stop
	}
	s := Status{Name: l.name, Stream: l.stream, State: state, Stored: l.stored, Pending: l.pending, Last: l.last,
		Rejected: maps.Clone(c.Rejected), RejectedBytes: c.RejectedBytes, Invalid: l.why, Restarts: l.restarts, Panics: l.panics}
	if s.Rejected == nil {
		s.Rejected = map[string]uint64{}
	}
	if l.invalid > 0 {
		s.Rejected[ReasonInvalid] += l.invalid
	}
	s.Received = s.Stored + s.Pending
	for _, n := range s.Rejected {
		s.Received += n
	}
	return s
}

// started marks the source as running.
func (l *lane) started() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.began.IsZero() {
		l.restarts++
	}
	l.began, l.stop = time.Now(), State{}
}

// stopped marks the source as ended by err, to be started again after wait; a nil error means for good.
func (l *lane) stopped(err error, wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stop = State{Kind: Waiting, Cause: "the daemon is stopping", Since: time.Now()}
	if err != nil {
		l.stop.Cause = fmt.Sprintf("the source ended: %v; it starts again in %s", err, wait.Round(100*time.Millisecond))
		l.stop.Remedy = "look in the log for what came before; if it does not recover, check the source's configuration"
	}
}

func (l *lane) panicked() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.panics++
}

func (l *lane) addPending(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pending += uint64(n)
}

// count counts stored records and moves the numbers on.
func (l *lane) count(recs []storage.Record) {
	l.seq = recs[len(recs)-1].Seq
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stored += uint64(len(recs))
	l.last = recs[len(recs)-1].Time
}

// refuse counts a record that can never be stored; its number goes to the next one.
func (l *lane) refuse(rec storage.Record, err error) {
	l.mu.Lock()
	l.invalid++
	n := l.invalid
	l.why = err.Error()
	l.mu.Unlock()
	l.store.Reject(l.name, 1)
	l.onReject(Reject{Source: l.name, Reason: ReasonInvalid, Detail: err.Error(), Data: rec.Data, Size: len(rec.Data), Time: rec.Time})
	if n == 1 || n%1000 == 0 {
		l.log.Error("reading refused as invalid", "err", err, "bytes", len(rec.Data), "total", n)
	}
}

// block shows that the store takes nothing at present.
func (l *lane) block(err error) {
	cause, remedy := "the store fails: "+err.Error(), "look at the state of the store, it says what to do; readings wait, and go on by themselves"
	if errors.Is(err, storage.ErrFull) {
		cause, remedy = err.Error(), "make room: raise the stream's limits or the budget, bring the hub link up, or set when_full: drop-oldest"
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.blocked.Kind != Blocked {
		l.blocked.Since = time.Now()
		l.log.Warn("source blocked by the store", "stream", l.stream, "err", err)
	}
	l.blocked = State{Kind: Blocked, Cause: cause, Remedy: remedy, Since: l.blocked.Since}
}

// unblock shows that the store answers again.
func (l *lane) unblock() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.blocked.Kind == Blocked {
		l.log.Info("source no longer blocked by the store", "stream", l.stream, slog.Duration("dur", time.Since(l.blocked.Since)))
	}
	l.blocked = State{}
}

// passRejects tells the store how many readings the source has rejected since it was last told.
func (l *lane) passRejects() {
	c, ok := l.source.(Counter)
	if !ok {
		return
	}
	var total uint64
	for _, n := range c.Counts().Rejected {
		total += n
	}
	l.mu.Lock()
	n := uint64(0)
	if total > l.passed {
		n, l.passed = total-l.passed, total
	}
	l.mu.Unlock()
	if n > 0 {
		l.store.Reject(l.name, n)
	}
}
