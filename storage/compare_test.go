package storage

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/storage/blocks"
)

// midstream makes a killed store whose journal has the newest 4,000 of 6,000 records of A, which lie in three blocks, and returns how they lay.
func midstream(t *testing.T, key bool) (*bed, []kept) {
	t.Helper()
	b := newBed(t)
	b.options.Journal.Size = 32 << 20
	b.options.Streams[0].MaxBytes = 16 << 20 // blocks of 4 MB
	if key {
		b.options.Key = keyFile(t, rightKey)
	}
	s := b.start()
	put := func(first, last uint64) {
		for n := first; n <= last; n += 200 {
			var recs []Record
			for i := range uint64(200) {
				r := b.record("a1", n+i)
				r.Data = fmt.Appendf(nil, "%-1400d", n+i)
				recs = append(recs, r)
			}
			if err := s.Append(b.ctx(), recs...); err != nil {
				t.Fatal(err)
			}
		}
	}
	put(1, 2000)
	b.settle()
	s.publisher.want()
	poll(t, "a checkpoint is given", func() bool { st := s.ring.State(); return st.Checkpoint == st.Tail })
	put(2001, 6000)
	before := b.captured("A")
	if st := s.ring.State(); len(before) != 6000 || st.Checkpoint == st.Tail {
		t.Fatalf("%d records, journal %+v: the rig does not work", len(before), st)
	}
	b.kill()
	return b, before
}

// TestJournalFillsHoles takes out of a stream what a power cut can take out of it: the end of a block, though the next one is on flash; a whole block; the
// newest end, though the index, which the server believes, is on flash. The journal has it all: every record is brought back to its place.
func TestJournalFillsHoles(t *testing.T) {
	shorten := func(t *testing.T, path string, by int64) {
		info, err := os.Stat(path)
		if err == nil {
			err = os.Truncate(path, info.Size()-by)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name string
		key  bool
		harm func(t *testing.T, b *bed, msgs string, blk []string)
	}{
		{"the end of a block", false, func(t *testing.T, b *bed, _ string, blk []string) { shorten(t, blk[len(blk)-2], 2000) }},
		{"a block", false, func(t *testing.T, _ *bed, _ string, blk []string) {
			if err := os.Remove(blk[len(blk)-2]); err != nil {
				t.Fatal(err)
			}
		}},
		{"the end of a block, encrypted", true, func(t *testing.T, b *bed, _ string, blk []string) { shorten(t, blk[len(blk)-2], 2000) }},
		{"the end of the stream, with an index that has it", false, func(t *testing.T, b *bed, msgs string, blk []string) {
			// A clean stop of the server alone writes its index.
			b.serve()
			b.shutdown()
			shorten(t, blk[len(blk)-1], 2000)
			if _, err := os.Stat(filepath.Join(msgs, "index.db")); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if testing.Short() && c.key {
				t.Skip("SKIPPED: as the others but encrypted, not done with -short")
			}
			t.Parallel()
			b, before := midstream(t, c.key)
			msgs := filepath.Join(b.dir, "jetstream", account, "streams", "A", "msgs")
			numbers, err := (blocks.Stream{Dir: filepath.Dir(msgs), Name: "A"}).Numbers()
			if err != nil || len(numbers) < 3 {
				t.Fatalf("blocks %v, %v", numbers, err)
			}
			var blk []string
			for _, n := range numbers {
				blk = append(blk, filepath.Join(msgs, fmt.Sprintf("%d.blk", n)))
			}
			c.harm(t, b, msgs, blk)
			s := b.open()
			b.add("a2", 1, 1) // capture does not wait for any of it
			if err := s.Mend(b.ctx(), nothingForwarded); err != nil {
				t.Fatal(err)
			}
			b.serve()
			b.attach()
			after := b.captured("A")
			if len(after) != len(before)+1 {
				t.Fatalf("%d records, want %d", len(after), len(before)+1)
			}
			for i, k := range before {
				if a := after[i]; a.ID != k.ID || a.Position != k.Position || a.Data != k.Data {
					t.Fatalf("%v at %d was %v at %d", a.ID, a.Position, k.ID, k.Position)
				}
			}
			if st := s.Streams()[0]; st.Off != 0 || st.Waiting != 6001 || len(st.Dropped) != 0 {
				t.Errorf("counted %+v, want all waiting", st.StreamCounters)
			}
			if !strings.Contains(fmt.Sprint(s.Alarms()), "brings all of them back") {
				t.Errorf("alarms %v, want one that names it", s.Alarms())
			}
			if q, err := readQuarantine(b.dir, b.options.Key); err != nil || len(q) > 0 {
				t.Errorf("set aside: %d, %v", len(q), err)
			}
		})
	}
}

// TestPlaceTaken has another record lie in a stream where a record of the journal was promised to lie, as when files of two copies of a card are mixed. Both
// are kept, and an alarm names it.
func TestPlaceTaken(t *testing.T) {
	b := newBed(t)
	b.start()
	b.add("a1", 1, 5)
	before := b.captured("A")
	b.kill()
	b.loseNewest("A", 200) // the newest record
	b.serve()
	forged := nats.NewMsg(DataSubject("leaf", "A", "a1"))
	forged.Header.Set(HeaderID, "leaf.0000000000.a1.1.99")
	forged.Data = []byte("forged")
	ack, err := b.js.PublishMsg(b.ctx(), forged, jetstream.WithRetryAttempts(0))
	if err != nil || Position(ack.Sequence) != before[4].Position {
		t.Fatalf("published at %+v, %v, want %d", ack, err, before[4].Position)
	}
	b.shutdown()
	s := b.open()
	if err := s.Mend(b.ctx(), nothingForwarded); err != nil {
		t.Fatal(err)
	}
	b.serve()
	b.attach()
	b.add("a1", 1, 1)
	q, err := readQuarantine(b.dir, "")
	if err != nil || len(q) != 1 || string(q[0].Data) != before[4].Data || q[0].Reason != placeTaken || q[0].Sequence != before[4].Position {
		t.Fatalf("set aside: %+v, %v", q, err)
	}
	if !strings.Contains(fmt.Sprint(s.Alarms()), placeTaken) {
		t.Errorf("alarms %v, want one that names it", s.Alarms())
	}
	var data []string
	for _, k := range b.captured("A") {
		data = append(data, k.Data)
	}
	if fmt.Sprint(data) != "[a1 1 a1 2 a1 3 a1 4 forged a1 1]" {
		t.Errorf("the stream holds %q", data)
	}
	if st := s.Streams()[0]; st.Off != 0 {
		t.Errorf("counted %+v", st.StreamCounters)
	}
	// A second start sets nothing aside twice.
	b.kill()
	s = b.open()
	if err := errors.Join(s.Mend(b.ctx(), nothingForwarded)); err != nil {
		t.Fatal(err)
	}
	if q, err := readQuarantine(b.dir, ""); err != nil || len(q) != 1 {
		t.Errorf("set aside after another start: %d, %v", len(q), err)
	}
}
