package journal

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
)

// world is a ring on a medium whose power fails, and what must be true of it.
type world struct {
	t    *testing.T
	rnd  *rand.Rand
	o    Options
	m    *medium
	ring *Ring

	next    int     // number of the next entry
	acked   []Entry // all that Append has answered, since the ring was made
	ends    []Position
	needed  int     // of acked: below lies the checkpoint
	pending []Entry // of an Append that was not answered
	laps    uint64
	cuts    int
}

// TestRandomOperations appends, gives checkpoints, closes, is killed and loses its power, also in the middle of any operation, of opening too. After each
// start the log holds every entry that was answered and is needed, in order, nothing that was never appended, and of a group that was not answered
// only what comes first. No damage is reported, because there is none.
func TestRandomOperations(t *testing.T) {
	cuts, laps, seeds := 0, uint64(0), uint64(100)
	if testing.Short() {
		seeds = 40
	}
	for seed := range seeds {
		rnd := rand.New(rand.NewPCG(seed, 17))
		w := &world{t: t, rnd: rnd, m: newMedium(), o: Options{SegmentBytes: int64(4+rnd.IntN(4)) * block, Segments: 2 + rnd.IntN(4)}}
		if seed%3 == 0 {
			w.o.Key = []byte("0123456789abcdef0123456789abcdef")
		}
		w.open()
		for range 300 {
			w.step()
			if t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		}
		cuts, laps = cuts+w.cuts, laps+w.laps
	}
	if uint64(cuts) < 20*seeds || laps < 5*seeds {
		t.Errorf("%d cuts and %d laps: nothing was at stake", cuts, laps)
	}
}

func (w *world) step() {
	switch n := w.rnd.IntN(20); {
	case n < 11:
		w.append()
	case n < 15:
		w.checkpoint()
	case n < 16:
		if err := w.ring.Close(); err != nil && !errors.Is(err, errPower) {
			w.t.Fatalf("Close() = %v", err)
		}
		w.restart()
	case n < 17:
		w.m.kill()
		w.open()
	case n < 18:
		w.restart()
	default:
		if w.m.budget < 0 {
			w.m.budget = w.rnd.IntN(12)
		}
	}
}

// append appends a group of any size that fits, sometimes only just.
func (w *world) append() {
	n := 1 + w.rnd.IntN(6)
	g := make([]Entry, n)
	room := w.ring.GroupLimit()/n - EntrySize(0)
	for i := range g {
		size := w.rnd.IntN(200)
		if w.rnd.IntN(4) == 0 {
			size = w.rnd.IntN(room + 1)
		}
		g[i] = entry(w.next, size)
		w.next++
	}
	end, err := w.ring.Append(g)
	switch {
	case err == nil:
		for i := range g {
			w.acked = append(w.acked, g[i])
			w.ends = append(w.ends, 0)
			if i == n-1 {
				w.ends[len(w.ends)-1] = end
			}
		}
		w.laps = max(w.laps, w.ring.current/uint64(w.ring.count))
	case errors.Is(err, ErrRingFull):
		w.checkpoint()
	case errors.Is(err, ErrFailed) && errors.Is(err, errPower):
		w.pending = g
		w.restart()
	default:
		w.t.Fatalf("Append() = %v", err)
	}
}

// checkpoint moves the checkpoint to the end of any group that was answered.
func (w *world) checkpoint() {
	if w.needed == len(w.acked) {
		return
	}
	at := w.needed + w.rnd.IntN(len(w.acked)-w.needed)
	for w.ends[at] == 0 {
		at++
	}
	err := w.ring.Checkpoint(w.ends[at])
	if err != nil && !errors.Is(err, errPower) {
		w.t.Fatalf("Checkpoint() = %v", err)
	}
	w.needed = at + 1
}

// restart cuts the power and starts anew.
func (w *world) restart() {
	w.cuts++
	w.m = w.m.cut(w.rnd.IntN(3), w.rnd)
	w.open()
}

// open starts on what is there and compares it with what must be. The power may fail meanwhile, again and again.
func (w *world) open() {
	for w.rnd.IntN(3) == 0 {
		w.m.budget = w.rnd.IntN(8)
		if _, _, err := open(w.o, w.m); err != nil && !errors.Is(err, errPower) {
			w.t.Fatalf("open() = %v", err)
		}
		w.cuts++
		w.m = w.m.cut(w.rnd.IntN(3), w.rnd)
	}
	var rec Recovery
	var err error
	if w.ring, rec, err = open(w.o, w.m); err != nil {
		w.t.Fatalf("open() = %v", err)
	}
	if len(rec.Damage) > 0 {
		w.t.Fatalf("damage on an honest medium: %v", rec.Damage)
	}
	if w.ring.GroupLimit() == 0 || rec.Created && w.needed < len(w.acked) {
		w.t.Fatalf("open() = %+v with %d entries needed", rec, len(w.acked)-w.needed)
	}
	w.compare()
}

func (w *world) compare() {
	var got []Entry
	var ends []Position
	err := w.ring.Replay(0, func(end Position, g []Entry) error {
		for i, e := range g {
			got, ends = append(got, e.clone()), append(ends, 0)
			if i == len(g)-1 {
				ends[len(ends)-1] = end
			}
		}
		return nil
	})
	if err != nil {
		w.t.Fatalf("Replay() = %v", err)
	}
	// Where what was replayed begins among what was answered: at the checkpoint or before it.
	first := len(w.acked)
	if len(got) > 0 {
		for first = range len(w.acked) + 1 {
			if first == len(w.acked) || w.acked[first].Sequence == got[0].Sequence {
				break
			}
		}
	}
	if first > w.needed {
		w.t.Fatalf("Replay() = %s, want from entry %d on of %s", list(got), w.needed, list(w.acked))
	}
	tail := len(w.acked) - first
	if tail > len(got) {
		w.t.Fatalf("Replay() = %s, want all of %s", list(got), list(w.acked[first:]))
	}
	same(w.t, "what was answered", got[:tail], w.acked[first:])
	rest := got[tail:]
	if len(rest) > len(w.pending) {
		w.t.Fatalf("Replay() = %s behind what was answered, want some of %s", list(rest), list(w.pending))
	}
	same(w.t, "what was not answered", rest, w.pending[:len(rest)])
	// From here on they count like the others: they were given out.
	w.acked, w.ends, w.needed, w.pending = got, ends, max(w.needed-first, 0), nil
}

// TestCutWhileRecycling cuts the power while a segment is written over behind a checkpoint that no group carries yet: its old entries are not missed.
func TestCutWhileRecycling(t *testing.T) {
	for budget := range 6 {
		for seed := range uint64(60) {
			m := newMedium()
			r, _ := mustOpen(t, small, m)
			var p Position
			for i := range 3 * (minSegmentBytes/block - 1) {
				p = mustAppend(t, r, group(i, 1, 10))
			}
			if err := r.Checkpoint(p); err != nil {
				t.Fatal(err)
			}
			m.budget = budget
			_, err := r.Append(group(100, 1, 10))
			r, rec := mustOpen(t, small, m.cut(keepSome, rand.New(rand.NewPCG(seed, uint64(budget)))))
			got := replayed(t, r)
			if len(rec.Damage) > 0 || err == nil && (len(got) == 0 || got[len(got)-1].Sequence != 100) {
				t.Fatalf("cut in step %d, seed %d: %+v with %s, Append() = %v", budget, seed, rec, list(got), err)
			}
		}
	}
}

// TestCutWhileOpening cuts the power while the marks are written for a new run and those of the old one are not on flash: one of the two is always whole.
func TestCutWhileOpening(t *testing.T) {
	for budget := range 12 {
		for seed := range uint64(100) {
			m := newMedium()
			r, _ := mustOpen(t, small, m)
			if err := r.Checkpoint(mustAppend(t, r, group(1, 1, 10))); err != nil {
				t.Fatal(err)
			}
			mustAppend(t, r, group(2, 1, 10))
			m.kill()
			m.budget = budget
			if _, _, err := open(small, m); err != nil && !errors.Is(err, errPower) {
				t.Fatalf("open() = %v", err)
			}
			r, rec := mustOpen(t, small, m.cut(keepSome, rand.New(rand.NewPCG(seed, uint64(budget)))))
			got := replayed(t, r)
			if len(rec.Damage) > 0 || len(got) == 0 || got[len(got)-1].Sequence != 2 {
				t.Fatalf("cut in step %d, seed %d: %+v with %s", budget, seed, rec, list(got))
			}
		}
	}
}

// TestModelNoticesALyingDisk makes sure that TestRandomOperations can fail: on a disk that ignores syncs entries are lost.
func TestModelNoticesALyingDisk(t *testing.T) {
	m := newMedium()
	r, _ := mustOpen(t, small, m)
	m.lazySync = true
	mustAppend(t, r, group(1, 1, 10))
	r, _ = mustOpen(t, small, m.cut(keepNone, nil))
	if got := replayed(t, r); len(got) > 0 {
		t.Errorf("Replay() = %s from a disk that ignored the sync: the medium of these tests loses nothing", list(got))
	}
}

// TestLyingDiskIsNoticed: what a disk has forgotten although it said otherwise is named where anything behind it is left, and that is given out.
func TestLyingDiskIsNoticed(t *testing.T) {
	noticed := 0
	for seed := range uint64(50) {
		m := newMedium()
		o := Options{SegmentBytes: 16 * block, Segments: 3}
		r, _ := mustOpen(t, o, m)
		m.lazySync = true
		var all []Entry
		for i := range 20 {
			mustAppend(t, r, group(i, 1, 3000))
			all = append(all, entry(i, 3000))
		}
		r, rec := mustOpen(t, o, m.cut(keepSome, rand.New(rand.NewPCG(seed, seed))))
		got := replayed(t, r)
		missing(t, got, all)
		if len(got) > 0 {
			behind := int(got[len(got)-1].Sequence) + 1
			if behind > len(got) != (len(rec.Damage) > 0) {
				t.Fatal(fmt.Sprintf("seed %d: %d of %d entries before the last", seed, len(got)-1, behind-1), rec.Damage)
			}
			if len(rec.Damage) > 0 {
				noticed++
			}
		}
	}
	if noticed == 0 {
		t.Error("nothing was at stake")
	}
}
