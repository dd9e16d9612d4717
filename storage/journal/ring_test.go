package journal

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

var small = Options{SegmentBytes: minSegmentBytes, Segments: 3}

// entry makes an entry that can be told from every other, with a payload of n bytes.
func entry(i, n int) Entry {
	payload := make([]byte, n)
	for at := range payload {
		payload[at] = byte(i*31 + at*7)
	}
	return Entry{Kind: Kind(1 + i%3), Incarnation: uint64(i / 5), Sequence: uint64(i), Payload: payload}
}

// group makes n entries from a number on.
func group(from, n, size int) []Entry {
	g := make([]Entry, n)
	for i := range g {
		g[i] = entry(from+i, size)
	}
	return g
}

func (e Entry) clone() Entry {
	e.Payload = slices.Clone(e.Payload)
	return e
}

// mustOpen opens a ring on a medium. It is not closed: whoever cares closes it.
func mustOpen(t testing.TB, o Options, v volume) (*Ring, Recovery) {
	t.Helper()
	if err := o.complete(); err != nil {
		t.Fatal(err)
	}
	r, rec, err := open(o, v)
	if err != nil {
		t.Fatalf("open() = %v", err)
	}
	return r, rec
}

func mustAppend(t testing.TB, r *Ring, g []Entry) Position {
	t.Helper()
	p, err := r.Append(g)
	if err != nil {
		t.Fatalf("Append() = %v", err)
	}
	return p
}

// replayed returns everything that Replay gives.
func replayed(t testing.TB, r *Ring) []Entry {
	t.Helper()
	var all []Entry
	last := Position(0)
	err := r.Replay(0, func(end Position, g []Entry) error {
		if end <= last || end%block != 0 {
			t.Errorf("Replay: a group ends at %d, the one before at %d", end, last)
		}
		last = end
		for _, e := range g {
			all = append(all, e.clone())
		}
		return nil
	})
	if err != nil {
		t.Fatalf("Replay() = %v", err)
	}
	return all
}

// same fails the test unless both have the same entries.
func same(t testing.TB, what string, got, want []Entry) {
	t.Helper()
	if len(got) == len(want) && (len(got) == 0 || reflect.DeepEqual(normal(got), normal(want))) {
		return
	}
	t.Fatalf("%s: got %s, want %s", what, list(got), list(want))
}

func normal(all []Entry) []Entry {
	out := make([]Entry, len(all))
	for i, e := range all {
		if e.Payload = append([]byte{}, e.Payload...); len(e.Payload) == 0 {
			e.Payload = nil
		}
		out[i] = e
	}
	return out
}

func list(all []Entry) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d entries", len(all))
	for _, e := range all {
		fmt.Fprintf(&b, " %d/%d", e.Sequence, len(e.Payload))
	}
	return b.String()
}

func TestAppendAndReplay(t *testing.T) {
	m := newMedium()
	r, rec := mustOpen(t, small, m)
	if !rec.Created || rec.Entries != 0 {
		t.Errorf("open() of an empty directory = %+v, want Created", rec)
	}
	var want []Entry
	for i, n := range []int{1, 3, 10, 2} {
		g := group(100*i, n, i*100)
		mustAppend(t, r, g)
		want = append(want, g...)
	}
	same(t, "Replay while open", replayed(t, r), want)
	if err := r.Close(); err != nil {
		t.Fatalf("Close() = %v", err)
	}
	r, rec = mustOpen(t, small, m.image())
	if rec.Created || rec.Entries != len(want) || rec.Torn || len(rec.Damage) > 0 || rec.From == rec.To {
		t.Errorf("open() after Close = %+v, want %d entries", rec, len(want))
	}
	same(t, "Replay after Close", replayed(t, r), want)
}

// TestAppendCostsOneSync counts what a group costs, once and at a lap's end.
func TestAppendCostsOneSync(t *testing.T) {
	m := newMedium()
	r, _ := mustOpen(t, small, m)
	for i := range 50 {
		syncs, written := m.syncs, m.written
		p := mustAppend(t, r, group(i, 5, 100))
		if m.syncs != syncs+1 || m.written != written+block {
			t.Fatalf("group %d cost %d syncs and %d bytes, want 1 and %d", i, m.syncs-syncs, m.written-written, block)
		}
		if i%2 == 1 { // the group behind a checkpoint carries it, so that no lap costs a sync of the marks
			if err := r.Checkpoint(p); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestRingFull(t *testing.T) {
	r, _ := mustOpen(t, Options{SegmentBytes: minSegmentBytes, Segments: 4, Reserve: 1}, newMedium())
	perSegment := minSegmentBytes/block - 1
	var ends []Position
	for i := range 3 * perSegment {
		ends = append(ends, mustAppend(t, r, group(i, 1, 10)))
	}
	for range 3 {
		if _, err := r.Append(group(99, 1, 10)); !errors.Is(err, ErrRingFull) {
			t.Fatalf("Append() to a full ring = %v, want ErrRingFull", err)
		}
	}
	if s := r.State(); s.Used != 3 || s.Segments != 4 {
		t.Errorf("State() = %+v, want 3 of 4 used", s)
	}
	for i := range perSegment {
		if _, err := r.AppendReserve(group(200+i, 1, 10)); err != nil {
			t.Fatalf("AppendReserve() into the reserve = %v", err)
		}
	}
	if _, err := r.AppendReserve(group(300, 1, 10)); !errors.Is(err, ErrRingFull) {
		t.Fatalf("AppendReserve() with nothing left = %v, want ErrRingFull", err)
	}
	if err := r.Checkpoint(ends[perSegment-1]); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Append(group(400, 1, 10)); !errors.Is(err, ErrRingFull) {
		t.Fatalf("Append() with only the reserve left = %v, want ErrRingFull", err)
	}
	if err := r.Checkpoint(ends[2*perSegment-1]); err != nil {
		t.Fatal(err)
	}
	mustAppend(t, r, group(500, 1, 10))
	if got := replayed(t, r); got[0].Sequence != uint64(2*perSegment) || got[len(got)-1].Sequence != 500 {
		t.Errorf("Replay() = %s, want from %d to 500", list(got), 2*perSegment)
	}
}

func TestAppendRefuses(t *testing.T) {
	m := newMedium()
	r, _ := mustOpen(t, small, m)
	limit := r.GroupLimit()
	tests := []struct {
		name  string
		group []Entry
		want  error
	}{
		{"as large as can be", []Entry{entry(1, limit-EntrySize(0))}, nil},
		{"one byte more", []Entry{entry(1, limit-EntrySize(0)+1)}, ErrTooLarge},
		{"many, too large together", group(1, 20, limit/16), ErrTooLarge},
		{"nothing", nil, errors.New("")},
		{"no kind", []Entry{{Sequence: 1}}, errors.New("")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := r.State()
			_, err := r.Append(tt.group)
			switch {
			case tt.want == nil && err != nil, tt.want != nil && err == nil, errors.Is(tt.want, ErrTooLarge) && !errors.Is(err, ErrTooLarge):
				t.Errorf("Append() = %v, want %v", err, tt.want)
			case err != nil && r.State() != before:
				t.Errorf("a refused Append left %+v, was %+v", r.State(), before)
			}
		})
	}
	if err := r.Checkpoint(r.State().Tail + 1); err == nil {
		t.Error("Checkpoint() above the tail = nil")
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Append(group(1, 1, 1)); !errors.Is(err, ErrClosed) {
		t.Errorf("Append() after Close = %v, want ErrClosed", err)
	}
	if err := r.Close(); err != nil {
		t.Errorf("second Close() = %v", err)
	}
}

// TestLaps goes round many times with groups of one size, so that entries of all laps lie in the same places.
func TestLaps(t *testing.T) {
	m := newMedium()
	r, _ := mustOpen(t, small, m)
	var live []Entry
	for i := range 100 {
		p := mustAppend(t, r, group(i, 1, 3000))
		live = append(live, entry(i, 3000))
		if i%3 == 2 {
			if err := r.Checkpoint(p); err != nil {
				t.Fatal(err)
			}
			live = nil
		}
		again, rec := mustOpen(t, small, m.image())
		if len(rec.Damage) > 0 || rec.Torn {
			t.Fatalf("after %d groups: %+v", i+1, rec)
		}
		got := replayed(t, again)
		if len(got) < len(live) { // a checkpoint may be forgotten, entries may not
			t.Fatalf("after %d groups: got %s, want at least %s", i+1, list(got), list(live))
		}
		same(t, "Replay", got[len(got)-len(live):], live)
	}
}

func TestSyncErrorEndsTheRing(t *testing.T) {
	m := newMedium()
	r, _ := mustOpen(t, small, m)
	mustAppend(t, r, group(1, 1, 10))
	m.failSync = 1
	if _, err := r.Append(group(2, 1, 10)); !errors.Is(err, ErrFailed) || !errors.Is(err, unix.EIO) {
		t.Fatalf("Append() over a sync error = %v, want ErrFailed and EIO", err)
	}
	for range 3 {
		if _, err := r.Append(group(3, 1, 10)); !errors.Is(err, ErrFailed) {
			t.Fatalf("Append() after a sync error = %v, want ErrFailed", err)
		}
	}
	if err := r.Checkpoint(r.State().Tail); !errors.Is(err, ErrFailed) {
		t.Errorf("Checkpoint() after a sync error = %v, want ErrFailed", err)
	}
	if err := r.Close(); err != nil {
		t.Errorf("Close() = %v", err)
	}
	// The next process finds the group in the kernel's cache, from where it will never reach the medium.
	r, rec := mustOpen(t, small, m)
	got := replayed(t, r)
	if m.failSync > 0 || len(rec.Damage) > 0 {
		t.Errorf("%+v", rec)
	}
	r, rec = mustOpen(t, small, m.cut(keepNone, nil))
	same(t, "Replay after a cut", replayed(t, r), got)
	if len(rec.Damage) > 0 || len(got) == 0 {
		t.Errorf("%+v with %s", rec, list(got))
	}
}

func TestCreateOnFullDisk(t *testing.T) {
	m := newMedium()
	m.room = 2*minSegmentBytes + 100
	if _, _, err := open(small, m); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("open() with no room = %v, want ENOSPC", err)
	}
	if names, _ := m.names(); len(names) > 0 {
		t.Errorf("open() with no room left %v", names)
	}
	m.room = 3*minSegmentBytes + 2*block
	r, _ := mustOpen(t, small, m)
	for i := range 50 { // and from then on none is needed
		if err := r.Checkpoint(mustAppend(t, r, group(i, 3, 500))); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCreateCutAnywhere cuts the power in every step of making a ring, and of making it anew in another size.
func TestCreateCutAnywhere(t *testing.T) {
	for mode := range 3 {
		for budget := 1; ; budget++ {
			r := rand.New(rand.NewPCG(uint64(mode), uint64(budget)))
			m := newMedium()
			m.budget = budget
			ring, _, err := open(small, m)
			done := err == nil
			if done && budget%2 == 0 {
				if err := ring.Close(); err != nil {
					done = false
				}
			}
			if done {
				m.budget = budget / 3
				_, _, err = open(Options{SegmentBytes: 2 * minSegmentBytes, Segments: 2}, m)
				done = err == nil
			}
			ring, rec := mustOpen(t, small, m.cut(mode, r))
			if len(rec.Damage) > 0 || rec.Entries > 0 {
				t.Fatalf("cut %d in step %d: %+v", mode, budget, rec)
			}
			mustAppend(t, ring, group(1, 2, 100))
			same(t, "Replay", replayed(t, ring), group(1, 2, 100))
			if done {
				break
			}
		}
	}
}

func TestResize(t *testing.T) {
	m := newMedium()
	r, _ := mustOpen(t, small, m)
	p := mustAppend(t, r, group(1, 2, 10))
	larger := Options{SegmentBytes: 2 * minSegmentBytes, Segments: 5}
	r, rec := mustOpen(t, larger, m)
	if !rec.Resize || rec.Created || r.State().Segments != 3 {
		t.Errorf("open() of a ring with entries = %+v, want it kept", rec)
	}
	same(t, "Replay", replayed(t, r), group(1, 2, 10))
	if err := r.Checkpoint(p); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	r, rec = mustOpen(t, larger, m)
	if !rec.Created || r.State().Segments != 5 {
		t.Errorf("open() of an empty ring = %+v, want it made anew", rec)
	}
	if names, _ := m.names(); len(names) != 6 {
		t.Errorf("files %v, want five segments and the marks", names)
	}
}

func TestOptions(t *testing.T) {
	tests := []struct {
		name string
		o    Options
		ok   bool
	}{
		{"defaults", Options{}, true},
		{"not whole blocks", Options{SegmentBytes: 1<<20 + 512}, false},
		{"too small", Options{SegmentBytes: 8192}, false},
		{"too large", Options{SegmentBytes: 128 << 20}, false},
		{"one segment", Options{Segments: 1}, false},
		{"all reserve", Options{Segments: 4, Reserve: 3}, false},
		{"some reserve", Options{Segments: 4, Reserve: 2}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := tt.o.complete(); (err == nil) != tt.ok {
				t.Errorf("complete() = %v, want nil: %v", err, tt.ok)
			}
		})
	}
}

// TestNewerFormat makes sure that a newer ring is neither read nor written over.
func TestNewerFormat(t *testing.T) {
	m := newMedium()
	r, _ := mustOpen(t, small, m)
	mustAppend(t, r, group(1, 2, 10))
	for i := range int64(2) {
		b := m.cached[markName].data[i*block:][:markSize]
		b[8] = formatVersion + 1
		seal(b)
	}
	m = m.image()
	before := m.image()
	if _, _, err := open(small, m); !errors.Is(err, ErrFormat) {
		t.Fatalf("open() of a newer ring = %v, want ErrFormat", err)
	}
	for name, n := range before.cached {
		if !slices.Equal(n.data, m.cached[name].data) {
			t.Errorf("open() of a newer ring changed %s", name)
		}
	}
}
