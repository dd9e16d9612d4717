package journal

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

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

// TestCreateCutAnywhere cuts the power in every step of making a ring.
func TestCreateCutAnywhere(t *testing.T) {
	cutEveryStep(t, newMedium, small)
}

// TestResizeCutAnywhere cuts the power in every step of making a ring anew in another size, after it was used.
func TestResizeCutAnywhere(t *testing.T) {
	cutEveryStep(t, func() *medium {
		m := newMedium()
		r, _ := mustOpen(t, small, m)
		for i := range 20 {
			if err := r.Checkpoint(mustAppend(t, r, group(i, 1, 100))); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		return m
	}, Options{SegmentBytes: 2 * minSegmentBytes, Segments: 2})
}

// cutEveryStep opens with the power failing one step later each time: what is left is a ring without entries and without damage.
func cutEveryStep(t *testing.T, before func() *medium, o Options) {
	t.Helper()
	for mode := range 3 {
		for budget, done := 1, false; !done; budget++ {
			for seed := range uint64(5) {
				m := before()
				m.budget = budget
				_, rec, err := open(o, m)
				if done = err == nil; done && !rec.Created {
					t.Fatalf("open() = %+v, want a new ring", rec)
				}
				ring, rec := mustOpen(t, o, m.cut(mode, rand.New(rand.NewPCG(seed, uint64(budget)))))
				if len(rec.Damage) > 0 || rec.Entries > 0 || rec.Resize {
					t.Fatalf("cut %d in step %d: %+v", mode, budget, rec)
				}
				mustAppend(t, ring, group(1, 2, 100))
				same(t, "Replay", replayed(t, ring), group(1, 2, 100))
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
