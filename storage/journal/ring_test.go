package journal

import (
	"errors"
	"fmt"
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
