package ingest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-edge/holdfast/storage"
)

// shelf is a store in memory that refuses what the test tells it to.
type shelf struct {
	mu      sync.Mutex // guards the fields below
	recs    []storage.Record
	answers []error                      // of the next calls of Append; nil entries and none left: stored
	partial bool                         // the good ones of a batch with an invalid one are stored
	lost    bool                         // a scripted error comes although the records were stored
	check   func(r storage.Record) error // not nil: called for every record
	calls   [][]uint64                   // sequence numbers of each call of Append
	at      []time.Time                  // when each call came
	rejects map[string]uint64
}

func (s *shelf) Leaf() string        { return "gw1" }
func (s *shelf) ID() storage.StoreID { return "00c0ffee00" }
func (s *shelf) Epoch() uint64       { return 7 }

func (s *shelf) Reject(source string, n uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rejects == nil {
		s.rejects = map[string]uint64{}
	}
	s.rejects[source] += n
}

func (s *shelf) Append(ctx context.Context, recs ...storage.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var seqs []uint64
	for _, r := range recs {
		seqs = append(seqs, r.Seq)
	}
	s.calls, s.at = append(s.calls, seqs), append(s.at, time.Now())
	var answer error
	if len(s.answers) > 0 {
		answer, s.answers = s.answers[0], s.answers[1:]
	}
	if s.check != nil && answer == nil {
		for _, r := range recs {
			if err := s.check(r); err != nil {
				answer = err
			}
		}
		if answer != nil && !s.partial {
			return answer
		}
	}
	if answer == nil || s.lost || s.partial {
		for _, r := range recs {
			if s.check == nil || s.check(r) == nil {
				answer = errors.Join(answer, s.keep(r))
			}
		}
	}
	return answer
}

// keep stores a record unless it is stored already; as the real store, it takes no number below one that it has.
func (s *shelf) keep(r storage.Record) error {
	high := uint64(0)
	for _, old := range s.recs {
		if old.Source == r.Source {
			high = max(high, old.Seq)
			if old.Seq == r.Seq {
				return nil
			}
		}
	}
	if r.Seq < high {
		return fmt.Errorf("records up to %d are stored already: %w", high, storage.ErrInvalid)
	}
	r.Data = bytes.Clone(r.Data)
	s.recs = append(s.recs, r)
	return nil
}

// stored lists what one source has stored as "seq:data".
func (s *shelf) stored(source string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for _, r := range s.recs {
		if r.Source == source {
			out = append(out, fmt.Sprintf("%d:%s", r.Seq, r.Data))
		}
	}
	return strings.Join(out, " ")
}

// script is a source whose Run is a function.
type script struct {
	name string
	run  func(ctx context.Context, deliver Deliver) error
	runs atomic.Int64
}

func (s *script) Name() string { return s.name }

func (s *script) Run(ctx context.Context, deliver Deliver) error {
	s.runs.Add(1)
	return s.run(ctx, deliver)
}

// told is a script with a state and counts.
type told struct {
	script
	state  State
	counts Counts
}

func (s *told) State() State   { return s.state }
func (s *told) Counts() Counts { return s.counts }

var base = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// texts makes readings that differ in time.
func texts(data ...string) []Reading {
	var out []Reading
	for i, d := range data {
		out = append(out, Reading{Time: base.Add(time.Duration(i) * time.Second), Data: []byte(d)})
	}
	return out
}

// running runs sources in a bubble until the test function returns.
func running(t *testing.T, st *shelf, f func(r *Runner, log *bytes.Buffer), sources ...Source) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		var entries []Entry
		for _, s := range sources {
			entries = append(entries, Entry{Source: s, Stream: "SENSORS"})
		}
		r := NewRunner(st, slog.New(slog.NewTextHandler(&log, nil)), entries...)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		synctest.Wait()
		f(r, &log)
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
	})
}

// idle waits for the end of ctx.
func idle(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }

func TestRunRestartsSource(t *testing.T) {
	for _, tc := range []struct {
		name  string
		run   func(n int) error
		cause string
		panic uint64
	}{
		{"error", func(int) error { return errors.New("port fell off") }, "port fell off", 0},
		{"no error", func(int) error { return nil }, "returned without an error", 0},
		{"panic", func(int) error { panic("index out of range") }, "panic: index out of range", 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			src := &script{name: "gps"}
			src.run = func(context.Context, Deliver) error { return tc.run(int(src.runs.Load())) }
			running(t, &shelf{}, func(r *Runner, log *bytes.Buffer) {
				s := r.Status()[0]
				if s.State.Kind != Waiting || !strings.Contains(s.State.Cause, tc.cause) || s.State.Remedy == "" || s.Panics != tc.panic {
					t.Errorf("Status() = %+v, want waiting because of %q", s, tc.cause)
				}
				time.Sleep(10 * time.Minute)
				synctest.Wait()
				// 0.5, 1, 2, 4, 8, 16 s, then 30 s, each up to a quarter less.
				if n := src.runs.Load(); n < 24 || n > 34 {
					t.Errorf("%d runs in ten minutes, want 24 to 34", n)
				}
				if got := r.Status()[0].Restarts; got != uint64(src.runs.Load()-1) {
					t.Errorf("Restarts = %d, want %d", got, src.runs.Load()-1)
				}
				if n := strings.Count(log.String(), "will be restarted"); n < 3 || n > 4 {
					t.Errorf("%d log lines about restarts, want the first and every tenth", n)
				}
			}, src)
		})
	}
}

func TestRunResetsBackoffAfterGoodRun(t *testing.T) {
	src := &script{name: "gps"}
	src.run = func(ctx context.Context, _ Deliver) error {
		if src.runs.Load() < 8 {
			return errors.New("no device")
		}
		return errors.Join(Pause(ctx, restartGood), errors.New("unplugged"))
	}
	running(t, &shelf{}, func(*Runner, *bytes.Buffer) {
		time.Sleep(2 * time.Minute) // seven bad runs take at most 61.5 s, at least 46 s
		synctest.Wait()
		if src.runs.Load() != 8 && src.runs.Load() != 9 {
			t.Fatalf("%d runs, want 8 or 9", src.runs.Load())
		}
		before := src.runs.Load()
		time.Sleep(restartGood + 2*restartMin)
		synctest.Wait()
		if src.runs.Load() == before {
			t.Errorf("no restart within %s of a good run's end", 2*restartMin)
		}
	}, src)
}

func TestStatusFoldsStates(t *testing.T) {
	waiting := State{Kind: Waiting, Cause: "no such file", Remedy: "plug it in", Since: base}
	for _, tc := range []struct {
		name string
		said State
		ends bool
		want Kind
	}{
		{"running", State{Kind: Running}, false, Running},
		{"waiting", waiting, false, Waiting},
		{"ended while running", State{Kind: Running}, true, Waiting},
		{"ended with a cause of its own", State{Kind: Denied, Cause: "mode 0600", Remedy: "join dialout"}, true, Denied},
	} {
		t.Run(tc.name, func(t *testing.T) {
			src := &told{script: script{name: "gps"}, state: tc.said}
			src.run = func(ctx context.Context, _ Deliver) error {
				if tc.ends {
					return errors.New("ended")
				}
				return idle(ctx)
			}
			running(t, &shelf{}, func(r *Runner, _ *bytes.Buffer) {
				got := r.Status()[0].State
				if got.Kind != tc.want {
					t.Errorf("Kind = %v, want %v", got.Kind, tc.want)
				}
				if got.Kind != Running && (got.Cause == "" || got.Remedy == "") {
					t.Errorf("State = %+v, want cause and remedy", got)
				}
			}, src)
		})
	}
}

func TestRejectsOfSourceReachStore(t *testing.T) {
	st := &shelf{}
	src := &told{script: script{name: "gps", run: func(ctx context.Context, _ Deliver) error { return idle(ctx) }}}
	src.counts = Counts{Received: 5, Rejected: map[string]uint64{"bad checksum": 2, "overlong": 1}, RejectedBytes: map[string]uint64{"overlong": 70000}}
	running(t, st, func(r *Runner, _ *bytes.Buffer) {
		time.Sleep(3 * reportInterval)
		synctest.Wait()
		st.mu.Lock()
		if n := st.rejects["gps"]; n != 3 {
			t.Errorf("store was told of %d rejects, want 3", n)
		}
		st.mu.Unlock()
		s := r.Status()[0]
		if s.Received != 3 || s.Rejected["bad checksum"] != 2 || s.RejectedBytes["overlong"] != 70000 {
			t.Errorf("Status() = %+v, want the rejects of the source", s)
		}
		src.counts.Rejected["overlong"] = 4 // found at the stop
	}, src)
	if n := st.rejects["gps"]; n != 6 {
		t.Errorf("store was told of %d rejects at the end, want 6", n)
	}
}

func TestRunRefusesTwoOfOneName(t *testing.T) {
	a, b := &script{name: "gps"}, &script{name: "gps"}
	r := NewRunner(&shelf{}, slog.New(slog.DiscardHandler), Entry{Source: a}, Entry{Source: b})
	if err := r.Run(context.Background()); err == nil || !strings.Contains(err.Error(), `"gps"`) {
		t.Errorf("Run() = %v, want an error that names gps", err)
	}
	if a.runs.Load()+b.runs.Load() != 0 {
		t.Error("a source ran although the names are equal")
	}
}

func TestConditionLogsEdges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		c := NewCondition(slog.New(slog.NewTextHandler(&log, nil)).With("source", "gps"))
		c.Set(Waiting, "no such file", "plug it in")
		began := time.Now()
		time.Sleep(time.Second)
		c.Set(Waiting, "still no such file", "plug it in")
		if s := c.State(); s.Cause != "still no such file" || !s.Since.Equal(began) {
			t.Errorf("State() = %+v, want the new cause and the old since", s)
		}
		c.Set(Running, "", "")
		if n := strings.Count(log.String(), "\n"); n != 2 || !strings.Contains(log.String(), "dur=1s") || !strings.Contains(log.String(), "source=gps") {
			t.Errorf("log:\n%swant two lines, the second with dur=1s", log.String())
		}
		time.Sleep(time.Second)
		if s := c.State(); s.Kind != Running || time.Since(s.Since) != time.Second {
			t.Errorf("State() = %+v, want running for 1s", s)
		}
	})
}

func TestBackoff(t *testing.T) {
	b := Backoff{Min: 100 * time.Millisecond, Max: time.Second}
	for round := range 2 {
		want := b.Min
		for i := range 200 {
			if d := b.Next(); d > want || d < want*3/4 {
				t.Fatalf("round %d pause %d = %s, want %s less up to a quarter", round, i, d, want)
			}
			want = min(2*want, b.Max)
		}
		if b.Fails() != 200 {
			t.Errorf("Fails() = %d, want 200", b.Fails())
		}
		b.Reset()
	}
}

// ticker is a source that delivers its own name and a count at every tick.
type ticker struct {
	name, says string
	runs       atomic.Int64
}

func (s *ticker) Name() string { return s.name }

func (s *ticker) Run(ctx context.Context, deliver Deliver) error {
	s.runs.Add(1)
	for Pause(ctx, time.Second) == nil {
		if err := deliver(ctx, Reading{Data: []byte(s.says)}); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func TestSetChangesSourcesWhileTheyRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &shelf{}
		a, b, b2, c := &ticker{name: "a", says: "a"}, &ticker{name: "b", says: "b"}, &ticker{name: "b", says: "B"}, &ticker{name: "c", says: "c"}
		entry := func(s *ticker) Entry { return Entry{Source: s, Stream: "S"} }
		r := NewRunner(store, slog.New(slog.DiscardHandler), entry(a), entry(b))
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _ = r.Run(ctx) })
		count := func() map[string]int {
			store.mu.Lock()
			defer store.mu.Unlock()
			n := map[string]int{}
			for _, rec := range store.recs {
				n[string(rec.Data)]++
			}
			return n
		}
		tick := func() { time.Sleep(10*time.Second + 500*time.Millisecond) }
		tick()
		r.Set(entry(a), entry(b2), entry(c))
		tick()
		r.Set(entry(a), entry(c))
		tick()
		r.Set(entry(a), entry(b), entry(c))
		tick()
		cancel()
		wg.Wait()
		n := count()
		if a.runs.Load() != 1 {
			t.Errorf("a, which nothing was changed about, was started %d times", a.runs.Load())
		}
		if n["a"] < 41 || n["b"] < 19 || n["b"] > 21 || n["B"] < 9 || n["B"] > 11 || n["c"] < 30 {
			t.Errorf("delivered %v, want a all the time, b in the first and last quarter, B in the second, c from the second on", n)
		}
		last := map[string]uint64{}
		for _, rec := range store.recs {
			if rec.Seq != last[rec.Source]+1 {
				t.Errorf("record %d of %s comes after %d", rec.Seq, rec.Source, last[rec.Source])
			}
			last[rec.Source] = rec.Seq
		}
		if len(r.Status()) != 3 {
			t.Errorf("%d sources, want 3", len(r.Status()))
		}
	})
}
