package storage

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"testing"
)

// TestOlderFilesOfTheStore: the store's own files, or the journal alone, are brought back from an older copy of the card than the streams are. Their predictions
// are wrong. What is captured before the server tells so is in the stream or set aside with an alarm, never taken for what lies at its place.
func TestOlderFilesOfTheStore(t *testing.T) {
	for _, c := range []struct {
		name   string
		folder string
		killed bool // the streams were not closed: only their blocks know how far they go
	}{
		{"all of them", "", false},
		{"the journal", "journal", false},
		{"all of them, after a kill", "", true},
		{"the journal, after a kill", "journal", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t)
			b.start()
			b.add("a1", 1, 100)
			b.stop()
			old := filepath.Join(t.TempDir(), "old")
			own := filepath.Join(b.dir, "store", c.folder)
			if err := os.CopyFS(old, os.DirFS(own)); err != nil {
				t.Fatal(err)
			}
			b.start()
			b.add("a1", 101, 200)
			if b.settle(); c.killed {
				b.kill()
				for _, stream := range []string{"A", "B"} {
					_ = os.Remove(filepath.Join(b.dir, "jetstream", account, "streams", stream, "msgs", "index.db")) // it is written now and then
				}
			} else {
				b.stop()
			}
			if err := os.RemoveAll(own); err != nil {
				t.Fatal(err)
			}
			if err := os.CopyFS(own, os.DirFS(old)); err != nil {
				t.Fatal(err)
			}

			s := b.open()
			done := make(chan error, 1)
			var recs []Record
			for n := range uint64(20) {
				recs = append(recs, b.record("a2", n+1))
			}
			go func() { done <- s.Append(b.ctx(), recs...) }()
			if c.killed {
				if err := <-done; err != nil {
					t.Fatal(err)
				}
			}
			if err := s.Mend(b.ctx(), nothingForwarded); err != nil {
				t.Fatal(err)
			}
			b.serve()
			b.attach()
			if !c.killed {
				if err := <-done; err != nil {
					t.Fatal(err)
				}
			}
			b.add("a3", 1, 20)

			count := map[string]int{}
			for _, k := range b.captured("A") {
				count[k.Source]++
			}
			if !c.killed {
				if want := (map[string]int{"a1": 200, "a2": 20, "a3": 20}); !maps.Equal(count, want) {
					t.Errorf("stream has %v, want %v", count, want)
				}
			} else if count["a1"] != 200 || count["a3"] != 20 {
				t.Errorf("stream has %v, want 200 of a1 and 20 of a3", count)
			}
			inStream := len(b.captured("A"))
			aside, err := readQuarantine(b.dir, "")
			if err != nil {
				t.Fatal(err)
			}
			for _, q := range aside {
				if bytes.HasPrefix(q.Data, []byte("a2 ")) {
					count["a2"]++
				}
			}
			if count["a2"] != 20 {
				t.Errorf("%d of 20 records of a2 are left", count["a2"])
			}
			if len(aside) > 0 && len(s.Alarms()) == 0 {
				t.Error("records were set aside without an alarm")
			}
			if st := s.Streams()[0]; st.Off != 0 {
				t.Errorf("the account is off by %d", st.Off)
			}
			b.stop()
			b.start()
			b.add("a1", 201, 210)
			if n := len(b.captured("A")); n != inStream+10 {
				t.Errorf("%d records after another start, want %d", n, inStream+10)
			}
		})
	}
}

// TestStreamComesBack: a stream leaves the configuration while the journal has records of it, which are brought into it, and comes back. What is captured
// then lies behind them.
func TestStreamComesBack(t *testing.T) {
	b := newBed(t)
	b.start()
	b.add("a1", 1, 300)
	b.kill()
	streams, sources := b.options.Streams, b.options.Sources
	b.options.Streams, b.options.Sources = streams[1:], map[string]string{"b1": "B"}
	b.start()
	if l := b.s.Lefts(); len(l) != 1 || l[0].Name != "A" || l[0].Records < 300 {
		t.Errorf("left the configuration: %v, want A with 300 records", l)
	}
	b.stop()
	b.options.Streams, b.options.Sources = streams, sources
	b.open()
	done := make(chan error, 1)
	go func() { done <- b.s.Append(b.ctx(), b.record("a2", 1), b.record("a2", 2)) }()
	b.serve()
	b.attach()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	b.add("a1", 1, 3)
	if n := len(b.captured("A")); n != 305 {
		t.Errorf("%d records, want 305", n)
	}
	if st := b.s.Streams()[0]; st.Off != 0 || st.Stored != 305 {
		t.Errorf("counted %+v, want 305", st.StreamCounters)
	}
	if aside, err := readQuarantine(b.dir, ""); err != nil || len(aside) > 0 {
		t.Errorf("%d records were set aside, %v", len(aside), err)
	}
}
