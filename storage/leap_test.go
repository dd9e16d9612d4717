package storage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// loseNewest takes the newest bytes of a stream's newest block away, as a power cut does to what was not synced.
func (b *bed) loseNewest(stream string, bytes int64) {
	b.t.Helper()
	blocks, err := filepath.Glob(filepath.Join(b.dir, "jetstream", account, "streams", stream, "msgs", "*.blk"))
	if err != nil || len(blocks) == 0 {
		b.t.Fatalf("blocks %v, %v", blocks, err)
	}
	blocks = blocks[len(blocks)-1:]
	info, err := os.Stat(blocks[0])
	if err != nil {
		b.t.Fatal(err)
	}
	index := filepath.Join(filepath.Dir(blocks[0]), "index.db")
	if err := errors.Join(os.Truncate(blocks[0], info.Size()-bytes), os.Remove(index)); err != nil && !errors.Is(err, os.ErrNotExist) {
		b.t.Fatal(err)
	}
}

// lose removes files of the store's own.
func (b *bed) lose(names ...string) {
	b.t.Helper()
	for _, n := range names {
		if err := os.RemoveAll(filepath.Join(b.dir, "store", n)); err != nil {
			b.t.Fatal(err)
		}
	}
}

// TestSequencesNeverGoBack stops in several ways, with files damaged or gone, and looks where the stream goes on, and that nothing is lost that can be had.
func TestSequencesNeverGoBack(t *testing.T) {
	cases := []struct {
		name  string
		end   func(b *bed)
		least Position // how far above the newest record, at least, the next one lies
		most  Position
		lost  uint64
	}{
		{"clean stop", func(b *bed) { b.stop() }, 1, 1, 0},
		{"killed", func(b *bed) { b.kill() }, 1, 1, 0},
		{"power cut, the stream lost its end", func(b *bed) { b.kill(); b.loseNewest("A", 2000) }, 1, 1, 0},
		{"power cut, the stream vanished", func(b *bed) { b.kill(); b.loseStream("A") }, 1, 1, 0},
		{"power cut, counters gone", func(b *bed) { b.kill(); b.loseNewest("A", 2000); b.lose("counters", "counters.bak") }, 1, 1, 0},
		{"power cut, catalog gone", func(b *bed) { b.kill(); b.loseNewest("A", 2000); b.lose("streams", "streams.bak") }, 1, 1, 0},
		{"power cut, journal gone", func(b *bed) { b.kill(); b.lose("journal") }, lostRing, lostRing + 1, 0},
		{"power cut, journal and catalog gone", func(b *bed) { b.kill(); b.lose("journal", "streams", "streams.bak") }, lostRing, lostRing + 1, 0},
		{"damage, the stream lost its end", func(b *bed) { b.stop(); b.loseNewest("A", 2000) }, 1, 1, 5},
		{"damage, the stream vanished", func(b *bed) { b.stop(); b.loseStream("A") }, 1, 1, 20},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t)
			b.start()
			b.add("a1", 1, 20)
			before := b.captured("A")
			last := b.last("A")
			c.end(b)
			b.start()
			if strings.Contains(c.name, "journal") && len(b.s.Alarms()) == 0 {
				t.Error("no alarm")
			}
			all := b.read("A")
			next := slices.IndexFunc(all, func(k kept) bool { return k.Position > last })
			if next < 0 || all[next].Position < last+c.least || all[next].Position > last+c.most {
				t.Fatalf("the next start goes on with %v, the last was at %d", all[max(next, 0):], last)
			}
			for _, k := range all {
				if k.Subject == LeapSubject("A") {
					t.Errorf("a placeholder is left at %d", k.Position)
				}
			}
			st := b.s.Streams()[0]
			if c.lost > 0 && (st.Dropped[GapDamage] == 0 || st.Waiting+st.Dropped[GapDamage] != 20) || c.lost == 0 && st.Waiting != 20 || st.Stored != 20 {
				t.Errorf("counted %+v, want 20 stored and some %d lost", st.StreamCounters, c.lost)
			}
			if got := b.captured("A"); c.lost == 0 {
				for i, k := range got {
					if k.ID != before[i].ID || k.Position != before[i].Position || k.Data != before[i].Data {
						t.Errorf("%v at %d was %v at %d", k.ID, k.Position, before[i].ID, before[i].Position)
					}
				}
				if len(got) != 20 {
					t.Errorf("%d records, want 20", len(got))
				}
			}
			b.add("a1", 1, 1)
			if got := b.captured("A"); got[len(got)-1].Position <= all[next].Position {
				t.Errorf("went on at %d", got[len(got)-1].Position)
			}
		})
	}
}

// loseStream removes a stream's files.
func (b *bed) loseStream(stream string) {
	b.t.Helper()
	if err := os.RemoveAll(filepath.Join(b.dir, "jetstream", account, "streams", stream)); err != nil {
		b.t.Fatal(err)
	}
}

// TestAttachAgain has an Attach fail and tries again, while records come in.
func TestAttachAgain(t *testing.T) {
	b := newBed(t)
	b.start()
	b.add("a1", 1, 3)
	b.kill()
	b.loseNewest("A", 300)
	b.open()
	b.serve()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := b.s.Attach(ctx, b.server()); err == nil {
		t.Fatal("Attach succeeded with a dead context")
	}
	b.add("a1", 1, 1)
	b.attach()
	b.add("a1", 2, 2)
	b.expect("A", "a1 1", "a1 2", "a1 3", "a1 1", "a1 2")
	b.account("A", 5)
}

// TestStreamLeavesTheConfiguration has records in the journal of a stream that is not configured at the next start: they are published if it is still there,
// and set aside if not.
func TestStreamLeavesTheConfiguration(t *testing.T) {
	for _, there := range []bool{true, false} {
		t.Run(fmt.Sprintf("still there: %v", there), func(t *testing.T) {
			b := newBed(t)
			b.start()
			b.add("b1", 1, 2)
			b.stop()
			b.open() // no server: what comes stays in the journal
			b.add("b1", 1, 3)
			b.crash()
			if !there {
				b.loseStream("B")
			}
			b.options.Streams = b.options.Streams[:1]
			delete(b.options.Sources, "b1")
			s := b.start()
			aside := 0
			f, err := os.Open(filepath.Join(s.Home(), "quarantine", "B"))
			if err == nil {
				err = errors.Join(s.quarantine.read(f, func(q Quarantined) { aside++ }), f.Close())
			}
			b.options.Sources["b1"] = "B" // for captured
			if there {
				b.expect("B", "b1 1", "b1 2", "b1 1", "b1 2", "b1 3")
				if !errors.Is(err, os.ErrNotExist) {
					t.Errorf("the quarantine: %v, %d records, want none", err, aside)
				}
			} else if aside != 4 || err != nil { // and the epoch record
				t.Errorf("%d records were set aside, %v, want 4", aside, err)
			}
			if st := s.ring.State(); st.Checkpoint != st.Tail {
				t.Errorf("the journal is not empty: %+v", st)
			}
		})
	}
}

// TestStreamsAreSyncedBeforeTheFirstAcknowledgement looks that the streams' files exist when a sync is made, before the first Append is answered.
func TestStreamsAreSyncedBeforeTheFirstAcknowledgement(t *testing.T) {
	b := newBed(t)
	s := b.open()
	b.serve()
	var seen []bool
	setSync(s, func(int) error {
		_, err := os.Stat(filepath.Join(b.dir, "jetstream", account, "streams", "A", "meta.inf"))
		seen = append(seen, err == nil)
		return nil
	})
	b.attach()
	if len(seen) == 0 || !seen[0] {
		t.Errorf("syncs that saw the stream's files before Attach returned: %v", seen)
	}
}

// TestMetadataDamaged loses a stream's metadata, with and without the copies.
func TestMetadataDamaged(t *testing.T) {
	for _, copies := range []bool{true, false} {
		t.Run(fmt.Sprintf("copies=%v", copies), func(t *testing.T) {
			b := newBed(t)
			b.start()
			b.add("a1", 1, 10)
			b.add("b1", 1, 10)
			b.stop()
			for _, s := range []string{"A", "B"} {
				spoil(t, filepath.Join(b.dir, "jetstream", account, "streams", s, "meta.inf"))
			}
			if !copies {
				if err := os.RemoveAll(filepath.Join(b.dir, "store", "metadata")); err != nil {
					t.Fatal(err)
				}
				// Not even how the streams were made is known of B.
				for _, f := range []string{"streams", "streams.bak"} {
					if err := os.Remove(filepath.Join(b.dir, "store", f)); err != nil {
						t.Fatal(err)
					}
				}
			}
			b.start()
			b.add("a1", 1, 1)
			if a, c := len(b.captured("A")), len(b.captured("B")); a != 11 || c != 10 {
				t.Errorf("%d and %d records, want 11 and 10", a, c)
			}
			if st := b.s.Streams()[0]; len(st.Dropped) != 0 {
				t.Errorf("counted %+v, want nothing dropped", st.StreamCounters)
			}
		})
	}
}

// TestFirstSequence looks where new streams begin.
func TestFirstSequence(t *testing.T) {
	cases := []struct {
		name string
		now  time.Time
		want uint64
	}{
		{"2026", time.Unix(1_790_000_000, 5), 1_790_000_000 << 20},
		{"1970", time.Unix(12, 0), 12 << 20},
		{"before 1970", time.Unix(-5, 0), 0},
		{"far future", time.Unix(1<<40, 0), (1<<33 - 1) << 20},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got := firstSequence(c.now)
			if got != c.want {
				t.Errorf("firstSequence = %d, want %d", got, c.want)
			}
			if got >= 1<<53 {
				t.Errorf("firstSequence = %d does not fit a JSON number", got)
			}
		})
	}
}

// TestLimitsChange lowers the limits of a stream that holds more.
func TestLimitsChange(t *testing.T) {
	b := newBed(t)
	b.start()
	for n := uint64(1); n <= 200; n += 10 {
		var recs []Record
		for i := range uint64(10) {
			r := b.record("a1", n+i)
			r.Data = make([]byte, 60_000)
			recs = append(recs, r)
		}
		if err := b.s.Append(b.ctx(), recs...); err != nil {
			t.Fatal(err)
		}
	}
	b.settle()
	b.kill()
	b.options.Streams[0].MaxBytes = 1 << 20
	b.options.Streams[0].MaxMsgs = 20
	b.start()
	b.add("a2", 1, 3)
	st, err := b.js.Stream(b.ctx(), "A")
	if err != nil {
		t.Fatal(err)
	}
	if c := st.CachedInfo().Config; c.MaxBytes < 12<<20 || c.Discard != jetstream.DiscardNew {
		t.Errorf("configuration %+v, want room for what is there", c)
	}
	state := b.s.Streams()[0]
	if state.Bytes > 1<<20 || state.Stored != 203 || state.Waiting+state.Dropped[GapDropOldest] != 203 || state.Dropped[GapDropOldest] == 0 {
		t.Errorf("counted %+v in %d bytes, want 203 stored, the oldest of them dropped", state.StreamCounters, state.Bytes)
	}
	b.stop()
	b.start()
	if st, err = b.js.Stream(b.ctx(), "A"); err != nil {
		t.Fatal(err)
	}
	if c := st.CachedInfo().Config; c.MaxBytes != 1<<20+headroomBytes || c.MaxMsgs != 20+headroomMsgs {
		t.Errorf("configuration %+v, want the new limits", c)
	}
}
