package storage

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// spoilRing overwrites where a text lies in the journal.
func spoilRing(t *testing.T, dir, text string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "store", "journal", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		at := bytes.Index(raw, []byte(text))
		if at < 0 {
			continue
		}
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteAt(make([]byte, len(text)), int64(at))
		}
		if err == nil {
			err = f.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatalf("%q is not in the journal", text)
}

// TestHoleInTheJournal spoils a group in the journal that no stream has yet. Those around it lie where they were promised to, and a gap record tells of
// exactly the sequences between, at the next start.
func TestHoleInTheJournal(t *testing.T) {
	b := newBed(t)
	b.start()
	b.add("a1", 1, 2)
	b.settle()
	first := b.last("A")
	b.stop()
	b.open() // and an epoch record
	for n := uint64(1); n <= 10; n++ {
		b.add("a2", 10*n, 10*n+2)
	}
	b.crash()
	spoilRing(t, b.dir, "a2 50")
	s := b.start()
	want := []string{"a1 1", "a1 2"}
	for n := 1; n <= 10; n++ {
		for i := 0; n != 5 && i < 3; i++ {
			want = append(want, fmt.Sprint("a2 ", 10*n+i))
		}
	}
	b.expect("A", want...)
	lost := first + 1 + 4*3 + 1 // behind the epoch record and four groups
	var gaps []GapRecord
	for _, k := range b.read("A") {
		if k.Source != GapSource {
			continue
		}
		g, err := ParseGap([]byte(k.Data))
		if err != nil {
			t.Fatal(err)
		}
		gaps = append(gaps, g)
	}
	if len(gaps) != 1 || gaps[0].First != lost || gaps[0].Last != lost+2 || gaps[0].Count != 3 || gaps[0].Reason != GapDamage {
		t.Errorf("gap records %+v, want one of 3 records from %d on", gaps, lost)
	}
	if st := s.Streams()[0]; st.Stored != 32 || st.Dropped[GapDamage] != 3 || st.Off != 0 {
		t.Errorf("counted %+v, want 32 stored, 3 lost by damage", st)
	}
	b.stop()
	if st := b.start().Streams()[0]; st.Stored != 32 || st.Dropped[GapDamage] != 3 || st.Off != 0 {
		t.Errorf("counted at the next start %+v, want 32 stored, 3 lost by damage", st)
	}
}

// TestNewestSegmentGone: what the journal told of is in the stream, and the part of the journal that tells of it is gone. All of it counts.
func TestNewestSegmentGone(t *testing.T) {
	b := newBed(t)
	b.start()
	b.add("a1", 1, 100)
	b.stop()
	b.start()
	for n := uint64(1); n <= 35; n++ {
		b.add("a2", n, n)
	}
	b.settle()
	b.kill()
	spoilRing(t, b.dir, "a2 35")
	spoilRing(t, b.dir, "a2 34")
	b.open()
	b.add("a3", 1, 5) // it does not wait
	b.serve()
	b.attach()
	if n := len(b.captured("A")); n != 140 {
		t.Fatalf("%d records, want 140", n)
	}
	if st := b.s.Streams()[0]; st.Stored != 140 || st.Waiting != 140 || st.Off != 0 {
		t.Errorf("counted %+v, want 140 stored and waiting", st.StreamCounters)
	}
	b.stop()
	if st := b.start().Streams()[0]; st.Stored != 140 || st.Waiting != 140 || st.Off != 0 {
		t.Errorf("counted at the next start %+v, want 140 stored and waiting", st.StreamCounters)
	}
}
