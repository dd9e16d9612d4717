package journal

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// lastGroup makes a ring whose last group, of five entries in two blocks, is about to be written over zeros or over an earlier lap of the same shape.
// It returns the medium before and after, the entries before it and its own, and the segment's name with the offsets at which the group and each of its
// entries end.
type lastGroup struct {
	before, after *medium
	old, new      []Entry
	file          string
	start         int64
	ends          []int64
}

func makeLastGroup(t *testing.T, laps int) lastGroup {
	t.Helper()
	o := Options{SegmentBytes: 6 * block, Segments: 2}
	m := newMedium()
	r, _ := mustOpen(t, o, m)
	last := func(i int) []Entry { return group(i, 5, 850) }
	for i := range 2 * laps { // each lap of a segment: one block, two blocks, two blocks
		mustAppend(t, r, group(i, 2, 100))
		mustAppend(t, r, group(i, 2, 2200))
		if err := r.Checkpoint(mustAppend(t, r, last(1000+i))); err != nil {
			t.Fatal(err)
		}
		r, _ = mustOpen(t, o, m) // another run, too
	}
	l := lastGroup{old: append(group(500, 2, 100), group(600, 2, 2200)...), new: last(700)}
	mustAppend(t, r, l.old[:2])
	mustAppend(t, r, l.old[2:])
	l.before = m.image()
	s := r.State()
	mustAppend(t, r, l.new)
	l.after = m.image()
	l.file, l.start = r.file(r.current), r.offset(s.Tail)
	end := l.start + groupHeader
	for i := range l.new {
		end += int64(entryHeader + len(l.new[i].Payload))
		l.ends = append(l.ends, end)
	}
	if laps > 0 && r.current < 2 || l.start != r.offset(r.at(0, 4*block)) || r.start(r.current) != s.Checkpoint && laps > 0 {
		t.Fatalf("the last group lies at %d of segment %d, not where those of earlier laps do", l.start, r.current)
	}
	return l
}

// goOn opens what is left, wants some entries of the last group, appends once more and opens again.
func (l *lastGroup) goOn(t *testing.T, what string, m *medium, want int) {
	t.Helper()
	o := Options{SegmentBytes: 6 * block, Segments: 2}
	m = m.image()
	r, rec := mustOpen(t, o, m)
	if len(rec.Damage) > 0 || rec.Torn != (want < len(l.new)) && want > 0 {
		t.Fatalf("%s: %+v", what, rec)
	}
	all := append(slices.Clone(l.old), l.new[:want]...)
	same(t, what, replayed(t, r), all)
	more := group(800, 1, 64)
	mustAppend(t, r, more)
	r, rec = mustOpen(t, o, m)
	if len(rec.Damage) > 0 || rec.Torn {
		t.Fatalf("%s, opened again: %+v", what, rec)
	}
	same(t, what+", opened again", replayed(t, r), append(all, more...))
}

// TestTornWrite cuts the last group at every byte, over zeros and over earlier laps of the same shape: the entries in front of the cut are there, nothing else of it
// is, and what is written afterwards is not followed by what the torn group has left.
func TestTornWrite(t *testing.T) {
	for _, laps := range []int{0, 1, 2, 3} {
		t.Run(fmt.Sprintf("laps=%d", laps), func(t *testing.T) {
			l := makeLastGroup(t, laps)
			step := int64(1 + 6*(laps/2))
			if testing.Short() {
				step = 31
			}
			was, is := l.before.cached[l.file].data, l.after.cached[l.file].data
			for cut := l.start; cut <= l.ends[4]; cut += step {
				whole := cut
				for whole < l.ends[4] && was[whole] == is[whole] {
					whole++ // what is missing was there already
				}
				want := 0
				for whole >= l.start+groupHeader && want < 5 && l.ends[want] <= whole {
					want++
				}
				m := l.before.image()
				copy(m.cached[l.file].data[l.start:cut], is[l.start:cut])
				l.goOn(t, fmt.Sprintf("cut at byte %d", cut-l.start), m, want)
			}
		})
	}
}

// TestTornSectors lets any sectors of the last group survive.
func TestTornSectors(t *testing.T) {
	l := makeLastGroup(t, 2)
	is := l.after.cached[l.file].data
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range 2000 {
		m := l.before.image()
		file := m.cached[l.file].data
		for at := l.start; at < roundUp(l.ends[4]); at += 512 {
			if rnd.IntN(8) > 0 {
				copy(file[at:at+512], is[at:at+512])
			}
		}
		want := 0
		for want < 5 && slices.Equal(file[l.start:l.ends[want]], is[l.start:l.ends[want]]) {
			want++
		}
		l.goOn(t, fmt.Sprintf("pattern %d", i), m, want)
	}
}

// TestFlippedByte damages every byte of a segment in turn. Nothing that is given out is wrong, what lies in other groups is there, and entries are
// never missing without being named, except at the end of a log that was not closed, where they look like a torn write.
func TestFlippedByte(t *testing.T) {
	for _, closed := range []bool{true, false} {
		t.Run(fmt.Sprintf("closed=%v", closed), func(t *testing.T) {
			l := makeLastGroup(t, 2)
			all := append(slices.Clone(l.old), l.new...)
			m := l.after
			if closed {
				r, _ := mustOpen(t, Options{SegmentBytes: 6 * block, Segments: 2}, m)
				if err := r.Close(); err != nil {
					t.Fatal(err)
				}
			}
			rnd := rand.New(rand.NewPCG(3, 4))
			step := int64(9)
			if testing.Short() {
				step = 60
			}
			for at := int64(0); at < 6*block; at += 1 + rnd.Int64N(step) {
				damaged := m.image()
				damaged.cached[l.file].data[at] ^= 1 << rnd.IntN(8)
				r, rec := mustOpen(t, Options{SegmentBytes: 6 * block, Segments: 2}, damaged.image())
				got := replayed(t, r)
				lost := missing(t, got, all)
				atEnd := at >= l.start
				switch {
				case lost > 0 && len(rec.Damage) == 0 && (closed || !atEnd):
					t.Fatalf("byte %d: %d entries are gone without a word: %+v", at, lost, rec)
				case lost > 5, !atEnd && lost > 2:
					t.Fatalf("byte %d: %d entries are gone, more than its group has", at, lost)
				case lost > 0 && len(rec.Damage) > 0 && rec.Damage[0].File != l.file:
					t.Fatalf("byte %d: the damage is said to be in %s", at, rec.Damage[0])
				case lost == 0 && len(rec.Damage) > 0 && at >= segmentHeader:
					t.Fatalf("byte %d: nothing is gone, but: %v", at, rec.Damage)
				}
				mustAppend(t, r, group(900, 1, 10)) // and it goes on
			}
		})
	}
}

// missing counts the entries of all that are not in got, which must be some of them in order.
func missing(t *testing.T, got, all []Entry) int {
	t.Helper()
	at := 0
	for _, e := range got {
		for at < len(all) && all[at].Sequence != e.Sequence {
			at++
		}
		if at == len(all) {
			t.Fatalf("got %s out of %s", list(got), list(all))
		}
		same(t, "an entry", []Entry{e}, all[at:at+1])
		at++
	}
	return len(all) - len(got)
}

// TestDamagedSegment harms a segment in the middle of the log as a whole.
func TestDamagedSegment(t *testing.T) {
	o := Options{SegmentBytes: minSegmentBytes, Segments: 6}
	perSegment := minSegmentBytes/block - 1
	tests := []struct {
		name   string
		harm   func(m *medium, name string, lap *medium)
		reason string
	}{
		{"zeros", func(m *medium, name string, _ *medium) { clear(m.cached[name].data) }, "no valid group"},
		{"missing", func(m *medium, name string, _ *medium) { delete(m.cached, name) }, "no valid group"},
		{"empty", func(m *medium, name string, _ *medium) { m.cached[name].data = nil }, "no valid group"},
		{"an older lap", func(m *medium, name string, lap *medium) { copy(m.cached[name].data, lap.cached[name].data) }, "holds part 2 of the log instead of part 8"},
		{"another's", func(m *medium, name string, _ *medium) { copy(m.cached[name].data, m.cached[segmentName(3)].data) }, "no valid group"},
		{"first block", func(m *medium, name string, _ *medium) { clear(m.cached[name].data[block : 2*block]) }, "cannot be read"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := newMedium()
			r, _ := mustOpen(t, o, m)
			var all []Entry
			var lap *medium
			for i := range 10 * perSegment { // segments 6 to 9 are live: files 0 to 3
				p := mustAppend(t, r, group(i, 1, 50))
				if i < 6*perSegment {
					if err := r.Checkpoint(p); err != nil {
						t.Fatal(err)
					}
					lap = m.image()
					continue
				}
				all = append(all, entry(i, 50))
			}
			name := segmentName(2)
			tt.harm(m, name, lap)
			m = m.image()
			r, rec := mustOpen(t, o, m)
			lost := missing(t, replayed(t, r), all)
			if want := perSegment; lost != want && !(tt.name == "first block" && lost == 1) {
				t.Errorf("%d entries are gone, want those of one segment, %d", lost, want)
			}
			if !slices.ContainsFunc(rec.Damage, func(d Damage) bool {
				return d.File == name && strings.Contains(d.Reason, tt.reason) && d.From >= r.start(8) && d.To <= r.start(9) && d.From < d.To
			}) {
				t.Errorf("damage %v, want %s named with %q", rec.Damage, name, tt.reason)
			}
			mustAppend(t, r, group(900, 1, 10))
			r, rec = mustOpen(t, o, m)
			if got := replayed(t, r); got[len(got)-1].Sequence != 900 || len(got) != len(all)-lost+1 {
				t.Errorf("opened again: %s, %v", list(got), rec.Damage)
			}
		})
	}
}

// TestDamageNamesOnlyWhatIsGone loses a segment whose neighbour was left with room to spare, in the first lap and later.
func TestDamageNamesOnlyWhatIsGone(t *testing.T) {
	o := Options{SegmentBytes: 6 * block, Segments: 5}
	for _, laps := range []int{0, 1} {
		m := newMedium()
		r, _ := mustOpen(t, o, m)
		for i := range 5*laps + 3 {
			p := mustAppend(t, r, group(i, 3, 4000)) // three blocks and a bit of five
			if i < 5*laps {
				if err := r.Checkpoint(p); err != nil {
					t.Fatal(err)
				}
			}
		}
		clear(m.cached[segmentName(1)].data[block:])
		r, rec := mustOpen(t, o, m.image())
		if len(rec.Damage) != 1 || rec.Damage[0].File != segmentName(1) || len(replayed(t, r)) != 6 {
			t.Errorf("%d laps: damage %v with %s, want that of one segment", laps, rec.Damage, list(replayed(t, r)))
		}
	}
}

// TestMisplacedBlocks puts whole, valid blocks where they do not belong: an earlier run's behind the end of the log, and a group over another.
func TestMisplacedBlocks(t *testing.T) {
	m := newMedium()
	r, _ := mustOpen(t, small, m)
	empty := m.image()
	for i := range 3 {
		mustAppend(t, r, group(i, 1, 10))
	}
	name := segmentName(0)
	block2 := slices.Clone(m.cached[name].data[2*block : 3*block])

	r, _ = mustOpen(t, small, empty) // the first run's groups are lost
	mustAppend(t, r, group(10, 1, 10))
	copy(empty.cached[name].data[2*block:], block2) // and one comes back
	r, rec := mustOpen(t, small, empty.image())
	same(t, "Replay over the leftover of an earlier run", replayed(t, r), group(10, 1, 10))
	if len(rec.Damage) > 0 {
		t.Errorf("damage %v", rec.Damage)
	}

	image := m.image()
	copy(image.cached[name].data[block:], block2)
	r, rec = mustOpen(t, small, image.image())
	same(t, "Replay with the second group over the first, too", replayed(t, r), group(1, 2, 10))
	if len(rec.Damage) != 1 || rec.Damage[0].From != r.start(0) || rec.Damage[0].To >= r.start(0)+block {
		t.Errorf("damage %v, want that of the first group", rec.Damage)
	}
}

// TestDamagedMarks loses one mark or both.
func TestDamagedMarks(t *testing.T) {
	tests := []struct {
		name   string
		harm   func(m *medium)
		damage bool
	}{
		{"the first", func(m *medium) { clear(m.cached[markName].data[:block]) }, false},
		{"the second", func(m *medium) { clear(m.cached[markName].data[block:]) }, false},
		{"both", func(m *medium) { clear(m.cached[markName].data) }, true},
		{"the file", func(m *medium) { delete(m.cached, markName) }, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := newMedium()
			r, _ := mustOpen(t, small, m)
			var all []Entry
			for i := range 40 {
				p := mustAppend(t, r, group(i, 1, 50))
				all = append(all, entry(i, 50))
				if i == 37 {
					if err := r.Checkpoint(p); err != nil {
						t.Fatal(err)
					}
				} else if i < 37 && i%4 == 3 {
					if err := r.Checkpoint(p); err != nil {
						t.Fatal(err)
					}
				}
			}
			tt.harm(m)
			m = m.image()
			for range 2 {
				var rec Recovery
				r, rec = mustOpen(t, small, m)
				got := replayed(t, r)
				if len(got) < 2 || len(got) > 10 {
					t.Errorf("Replay() = %s, want 38 and 39, and a few at most before them", list(got))
				}
				same(t, "the newest", got[len(got)-2:], all[38:])
				if (len(rec.Damage) > 0) != tt.damage {
					t.Errorf("damage %v, want some: %v", rec.Damage, tt.damage)
				}
				tt.damage = false // the second time it is made good
			}
			if r.run < 2 {
				t.Errorf("run %d after a start", r.run)
			}
		})
	}
}
