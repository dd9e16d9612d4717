package storage

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// accountWorld is a store that random things happen to, and an account of it that is kept apart.
type accountWorld struct {
	*bed
	rng      *rand.Rand
	next     map[string]uint64 // by source, in this epoch
	acked    map[string]uint64 // by source
	rejected map[string]uint64
	proven   map[string]Position
	power    func()   // cuts the power, and has a disk with what the cut left; nil: a kill
	log      []string // what was done
}

var accountSources = []string{"a1", "a2", "a3", "b1"}

// TestAccountHolds captures, retries, rejects, forwards, ages, leaps, stops and kills at random, with limits so small that they are reached all the time.
// After each step every source has received = stored + rejected, and every stream stored = forwarded + waiting + dropped; what the streams and their
// gap records hold says the same.
func TestAccountHolds(t *testing.T) {
	seeds, steps := uint64(4), 60
	if testing.Short() {
		seeds, steps = 1, 40
	}
	for seed := range seeds {
		newAccountWorld(t, seed).live(seed, steps)
	}
}

// newAccountWorld makes a world of small limits; those with an odd seed are encrypted, and records expire.
func newAccountWorld(t *testing.T, seed uint64) *accountWorld {
	w := &accountWorld{
		bed: newBed(t), rng: rand.New(rand.NewPCG(seed, 23)), acked: map[string]uint64{}, rejected: map[string]uint64{}, proven: map[string]Position{},
	}
	w.options.Streams[0].MaxMsgs, w.options.Streams[0].MaxMsgSize = 300, 1000
	w.options.Streams[1].MaxMsgs, w.options.Streams[1].WhenFull = 200, Refuse
	if seed%2 == 1 {
		w.options.Streams[0].MaxAge, w.options.Streams[0].ExpireUnsent = 150*time.Millisecond, true
		w.options.Budget = 1 << 20
		w.options.Key = keyFile(t, rightKey)
	}
	return w
}

// live lets random things happen, and checks the account after each.
func (w *accountWorld) live(seed uint64, steps int) {
	t := w.t
	t.Helper()
	w.begin()
	for range steps {
		w.step()
		w.check()
		if t.Failed() {
			t.Fatalf("seed %d: %v", seed, w.log)
		}
	}
	w.stop()
	w.begin()
	w.check()
	if t.Failed() {
		t.Fatalf("seed %d, at the end: %v", seed, w.log)
	}
	t.Logf("seed %d: captured %v, rejected %v, %+v", seed, w.acked, w.rejected, w.s.Streams())
	w.stop()
}

func (w *accountWorld) begin() {
	w.t.Helper()
	w.next = map[string]uint64{}
	s := w.open()
	if err := s.Mend(w.ctx(), nothingForwarded); err != nil {
		w.t.Fatal(err)
	}
	w.serve()
	srv := w.server()
	srv.Forwarded = func(stream string) (Position, bool) { p := w.proven[stream]; return p, p > 0 }
	if err := w.s.Attach(w.ctx(), srv); err != nil {
		w.t.Fatal(err)
	}
}

func (w *accountWorld) did(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf(format, args...))
}

func (w *accountWorld) step() {
	w.t.Helper()
	stream := []string{"A", "B"}[w.rng.IntN(2)]
	switch n := w.rng.IntN(24); {
	case n < 10:
		w.capture(accountSources[w.rng.IntN(len(accountSources))], 1+w.rng.IntN(120))
	case n < 13: // the hub confirms some
		last := w.s.counters.position(stream)
		if last > w.proven[stream] {
			from := max(w.proven[stream], w.s.counters.floor(stream), last-min(last, 400))
			w.proven[stream] = from + Position(w.rng.IntN(int(last-from)+1))
			w.did("proven %s %d", stream, w.proven[stream])
		}
	case n < 15:
		release, err := w.s.keeper.hold(w.ctx())
		if err != nil {
			w.t.Fatal(err)
		}
		err = w.s.keeper.round(w.ctx(), true)
		release()
		w.did("round")
		if err != nil {
			w.t.Fatal(err)
		}
	case n < 17: // the hub is ahead
		last := w.s.counters.position(stream)
		above := last + Position(w.rng.IntN(50))
		w.did("leap %s above %d, keep %d", stream, above, w.proven[stream]+1)
		poll(w.t, "the stream has leapt", func() bool {
			err := w.s.Leap(w.ctx(), stream, above, w.proven[stream]+1)
			if err != nil && !errors.Is(err, ErrUnavailable) { // otherwise again, as the uplink does
				w.t.Fatal(err)
			}
			if err != nil {
				w.did("once more: %v", err)
			}
			return err == nil
		})
	case n < 19:
		src := accountSources[w.rng.IntN(len(accountSources))]
		w.s.Reject(src, 3)
		w.rejected[src] += 3
		w.did("reject 3 of %s", src)
	case n < 21 && w.power == nil || n == 19:
		w.did("stop")
		w.stop()
		w.begin()
	case n < 23:
		w.did("kill")
		if err := w.s.counters.save(); err != nil { // of rejects a kill may lose a second's; that is said
			w.t.Fatal(err)
		}
		if w.power == nil {
			w.kill()
		} else {
			w.did("power cut")
			w.power()
		}
		w.begin()
	default:
		w.did("restart JetStream")
		if err := w.restart(); err != nil {
			w.t.Fatal(err)
		}
	}
}

// capture appends records, some of them twice and some that can never be stored, until all are answered or the stream is full.
func (w *accountWorld) capture(source string, n int) {
	w.t.Helper()
	var recs []Record
	first := w.next[source] + 1
	for i := range n {
		r := w.record(source, first+uint64(i))
		r.Data = make([]byte, w.rng.IntN(800))
		recs = append(recs, r)
	}
	if w.rng.IntN(4) == 0 {
		bad := w.record(source, first)
		bad.Tail = ".."
		var invalid *InvalidError
		if err := w.s.Append(w.ctx(), bad); !errors.As(err, &invalid) {
			w.t.Fatalf("Append of a bad record: %v", err)
		}
		w.s.Reject(source, 1)
		w.rejected[source]++
	}
	err := w.s.Append(w.ctx(), recs...)
	w.did("capture %d of %s: %v", n, source, err)
	switch {
	case errors.Is(err, ErrFull): // some parts of the call may be stored all the same: the rest waits for room
		w.proven[w.options.Sources[source]] = w.s.counters.position(w.options.Sources[source])
		if err = w.s.Append(w.ctx(), recs...); err != nil {
			w.t.Fatalf("Append with room: %v", err)
		}
	case err != nil:
		w.t.Fatal(err)
	case w.rng.IntN(4) == 0:
		if err := w.s.Append(w.ctx(), recs[n/2:]...); err != nil { // a retry
			w.t.Fatal(err)
		}
	}
	w.next[source] += uint64(n)
	w.acked[source] += uint64(n)
}

// check compares the store's account with ours, and with what is in the streams.
func (w *accountWorld) check() {
	w.t.Helper()
	for _, c := range w.s.Sources() {
		if c.Stored != w.acked[c.Name] || c.Rejected != w.rejected[c.Name] {
			w.t.Errorf("source %s: stored %d, rejected %d, want %d and %d", c.Name, c.Stored, c.Rejected, w.acked[c.Name], w.rejected[c.Name])
		}
	}
	for _, st := range w.s.Streams() {
		var stored, dropped, waiting uint64
		for name, into := range w.options.Sources {
			if into == st.Name {
				stored += w.acked[name]
			}
		}
		for _, n := range st.Dropped {
			dropped += n
		}
		from := max(w.proven[st.Name]+1, w.s.counters.floor(st.Name))
		newest := map[string]recordNo{}
		for _, k := range w.captured(st.Name) {
			no := recordNo{k.Epoch, k.Seq}
			if !no.after(newest[k.Source]) {
				w.t.Errorf("stream %s: %v at %d comes behind %v", st.Name, k.ID, k.Position, newest[k.Source])
			}
			newest[k.Source] = no
			if k.Position >= from {
				waiting++
			}
		}
		if n := st.Dropped[GapDamage]; n > 0 {
			w.t.Errorf("stream %s: %d records are gone, and nothing was damaged", st.Name, n)
		}
		if st.Stored != stored || st.Off != 0 || st.Stored != st.Forwarded+st.Waiting+dropped || st.Waiting != waiting || st.Unbalanced {
			w.t.Errorf("stream %s: %+v, want stored %d, waiting %d, and a balance", st.Name, st.StreamCounters, stored, waiting)
		}
	}
}
