package storage

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// TestGivenUpStaysGivenUp stops between the gap record and the removal, as a kill may. A removal that a power cut takes back looks the same.
func TestGivenUpStaysGivenUp(t *testing.T) {
	killed := errors.New("killed")
	for _, c := range []struct {
		name string
		stop func(r *keeperRig)
	}{
		{"before the removal", func(r *keeperRig) { r.broken = killed }},
		{"right after the gap record", func(r *keeperRig) {
			good := r.k.appendGap
			r.k.appendGap = func(ctx context.Context, g GapRecord) error { return errors.Join(good(ctx, g), killed) }
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newKeeperRig(t, map[string]limits{"S": {MaxMsgs: 60}})
			r.mustPut("S", "a", 59, 20)
			c.stop(r)
			if err := r.put("S", "a", 1, 20); !errors.Is(err, killed) {
				t.Fatalf("put = %v, want it to stop", err)
			}
			r.broken = nil
			_, gaps := r.contents("S")
			if len(gaps) != 1 {
				t.Fatalf("%d gap records, want 1", len(gaps))
			}
			if c := r.c.totals("S", 0); c.Stored != 59 || c.Dropped[GapDropOldest] != gaps[0].Count || c.Waiting != 59-gaps[0].Count || c.Forwarded != 0 {
				t.Errorf("with the gap record on flash the counters say %+v, want %d of 59 dropped", c, gaps[0].Count)
			}
			r.start()
			held, gaps := r.contents("S")
			if len(gaps) != 1 || held[0].Position != gaps[0].Last+1 {
				t.Errorf("after the start the stream begins at %d, %d gap records, want %d and 1", held[0].Position, len(gaps), gaps[0].Last+1)
			}
			r.dropped["S"] = gaps[0].Count
			r.check()
			r.mustPut("S", "a", 30, 20)
			r.check()
		})
	}
}

// TestRejectedSurvives is about the count that no stream remembers.
func TestRejectedSurvives(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	path := filepath.Join(t.TempDir(), "counters")
	open := func() *counters {
		c, _, err := openCounters(path, func() time.Time { return now })
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	c := open()
	c.reject("gps", 3)
	if err := c.writeIfDue(); err != nil {
		t.Fatal(err)
	}
	c.reject("gps", 2)
	if err := c.writeIfDue(); err != nil { // too soon
		t.Fatal(err)
	}
	if got := open().sources(); len(got) != 1 || got[0].Rejected != 3 {
		t.Errorf("after a kill within the interval: %+v, want 3 rejected", got)
	}
	now = now.Add(rejectInterval)
	if err := c.writeIfDue(); err != nil {
		t.Fatal(err)
	}
	if got := open().sources(); len(got) != 1 || got[0] != (SourceCounters{Name: "gps", Rejected: 5}) {
		t.Errorf("after a kill behind the interval: %+v, want 5 rejected", got)
	}
	c.reject("ais", 1)
	if err := c.save(); err != nil {
		t.Fatal(err)
	}
	if got := open().sources(); len(got) != 2 || got[0].Name != "ais" || got[0].Rejected != 1 {
		t.Errorf("after a stop: %+v", got)
	}
}

// TestCountersWriteSeldom makes sure that commits do not write the file each time, and that a sync only vouches for what was written before it.
func TestCountersWriteSeldom(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	c, _, err := openCounters(filepath.Join(t.TempDir(), "counters"), func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	for i := range 1000 {
		now = now.Add(100 * time.Millisecond)
		if err := c.writeIfDue(); err != nil {
			t.Fatal(err)
		}
		if err := c.committed(entry{Stream: "S", Source: "a", Epoch: 1, Seq: uint64(i + 1), Position: Position(i + 1)}); err != nil {
			t.Fatal(err)
		}
	}
	if want := uint64(100 * time.Second / counterInterval); c.writes < want || c.writes > want+1 {
		t.Errorf("%d writes in 100 s, want one each %v", c.writes, counterInterval)
	}
	now = now.Add(counterInterval)
	mark := c.mark()
	if err := c.writeIfDue(); err != nil {
		t.Fatal(err)
	}
	if err := c.synced(mark); err != nil { // began before the write
		t.Fatal(err)
	}
	if c.covered["S"].position != 0 {
		t.Errorf("covered up to %d by a sync that began before", c.covered["S"].position)
	}
	if err := c.synced(c.mark()); err != nil {
		t.Fatal(err)
	}
	if c.covered["S"].position != 1000 {
		t.Errorf("covered up to %d, want 1000", c.covered["S"].position)
	}
	writes := c.writes
	if err := c.giveUp("S", 500); err != nil { // the position is covered, the floor is not
		t.Fatal(err)
	}
	if err := c.giveUp("S", 400); err != nil {
		t.Fatal(err)
	}
	if c.writes != writes+1 || c.covered["S"].floor != 500 {
		t.Errorf("giving up cost %d writes, floor %d, want 1 and 500", c.writes-writes, c.covered["S"].floor)
	}
}

// TestCountersMadeAnew loses both copies of the file.
func TestCountersMadeAnew(t *testing.T) {
	r := newKeeperRig(t, map[string]limits{"S": {MaxMsgs: 60}})
	r.mustPut("S", "a", 100, 20)
	held, gaps := r.contents("S")
	for _, p := range []string{r.path, r.path + ".bak"} {
		if err := os.WriteFile(p, []byte("garbage"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, damaged, err := openCounters(r.path, time.Now)
	var de *DamagedError
	if !errors.As(err, &de) || len(damaged) != 2 {
		t.Fatalf("openCounters of garbage: %v, %v, want a DamagedError and two files", damaged, err)
	}
	h, err := holdStream(testContext(t), r.srv.js, "S")
	if err != nil {
		t.Fatal(err)
	}
	if rec, err := c.recover(testContext(t), "S", h); err != nil || len(rec.Lost) != 0 {
		t.Fatalf("recover = %+v, %v", rec, err)
	}
	got := c.totals("S", 0)
	if got.Waiting != uint64(len(held)) || got.Stored != got.Waiting || got.Dropped[GapDropOldest] == 0 {
		t.Errorf("counters made from the stream: %+v, want %d waiting, and what its %d gap records tell", got, len(held), len(gaps))
	}
	if epoch, seq := c.last("S", "a"); epoch != 1 || seq != 100 {
		t.Errorf("last = %d, %d", epoch, seq)
	}
}

// TestDamageIsCounted takes records out of a stream behind the store's back.
func TestDamageIsCounted(t *testing.T) {
	cases := []struct {
		name   string
		damage func(r *keeperRig, s jetstream.Stream) error
		lost   uint64 // of the 100 records at 1001 to 1100; the epoch record is at 1000
		gaps   int
	}{
		{"nothing", func(*keeperRig, jetstream.Stream) error { return nil }, 0, 0},
		{"one in the middle", func(_ *keeperRig, s jetstream.Stream) error { return s.DeleteMsg(testContext(t), 1050) }, 1, 1},
		{"two holes", func(_ *keeperRig, s jetstream.Stream) error {
			for _, at := range []uint64{1020, 1021, 1022, 1080} {
				if err := s.DeleteMsg(testContext(t), at); err != nil {
					return err
				}
			}
			return nil
		}, 4, 2},
		{"the beginning", func(_ *keeperRig, s jetstream.Stream) error {
			return s.Purge(testContext(t), jetstream.WithPurgeSequence(1041))
		}, 40, 1},
		{"the end", func(_ *keeperRig, s jetstream.Stream) error {
			for at := uint64(1091); at <= 1100; at++ {
				if err := s.DeleteMsg(testContext(t), at); err != nil {
					return err
				}
			}
			return nil
		}, 10, 1},
		{"all, and the stream is made anew above", func(r *keeperRig, _ jetstream.Stream) error {
			if err := r.srv.js.DeleteStream(testContext(t), "S"); err != nil {
				return err
			}
			r.srv.stream("S", 5000)
			return nil
		}, 100, 1},
		{"an epoch record only", func(_ *keeperRig, s jetstream.Stream) error { return s.DeleteMsg(testContext(t), 1000) }, 0, 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := newKeeperRig(t, map[string]limits{"S": {}})
			r.mustPut("S", "a", 100, 20)
			if err := r.c.save(); err != nil {
				t.Fatal(err)
			}
			s, err := r.srv.js.Stream(testContext(t), "S")
			if err != nil {
				t.Fatal(err)
			}
			if err := c.damage(r, s); err != nil {
				t.Fatal(err)
			}
			r.dropped["S"] = c.lost
			// The first start is killed after the gap records and before the counters are written; it must not count twice.
			file, err := os.ReadFile(r.path)
			if err != nil {
				t.Fatal(err)
			}
			r.start()
			for _, p := range []string{r.path, r.path + ".bak"} {
				if err := os.WriteFile(p, file, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			r.start()
			_, gaps := r.contents("S")
			var told uint64
			for _, g := range gaps {
				told += g.Count
			}
			if len(gaps) != c.gaps || told != c.lost {
				t.Errorf("gap records %+v, want %d with a count of %d", gaps, c.gaps, c.lost)
			}
			r.check()
			r.mustPut("S", "a", 10, 20)
			r.check()
		})
	}
}

// TestMovedRecordsCountOnce does what a leap does with unsent records: stores them again above, with their IDs, and removes the old ones.
func TestMovedRecordsCountOnce(t *testing.T) {
	for _, killed := range []bool{false, true} {
		r := newKeeperRig(t, map[string]limits{"S": {}})
		r.mustPut("S", "a", 30, 20)
		if err := r.c.save(); err != nil {
			t.Fatal(err)
		}
		s, err := r.srv.js.Stream(testContext(t), "S")
		if err != nil {
			t.Fatal(err)
		}
		for at := uint64(1021); at <= 1030; at++ {
			m, err := s.GetMsg(testContext(t), at)
			if err != nil {
				t.Fatal(err)
			}
			for _, h := range []string{jetstream.SequenceHeader, jetstream.StreamHeader, jetstream.SubjectHeader, jetstream.TimeStampHeaer} {
				m.Header.Del(h) // of the direct get
			}
			ack := &jetstream.PubAck{Duplicate: true}
			for ctx := testContext(t); ack.Duplicate; { // until the server has forgotten the ID
				if ack, err = r.srv.js.PublishMsg(ctx, &nats.Msg{Subject: m.Subject, Header: m.Header, Data: m.Data}); err != nil {
					t.Fatal(err)
				}
			}
			id, err := ParseID(m.Header.Get(HeaderID))
			if err != nil {
				t.Fatal(err)
			}
			if err := r.c.committed(entry{Stream: "S", Position: Position(ack.Sequence), Source: id.Source, Epoch: id.Epoch, Seq: id.Seq}); err != nil {
				t.Fatal(err)
			}
			if err := s.DeleteMsg(testContext(t), at); err != nil {
				t.Fatal(err)
			}
		}
		if killed { // and the leap, done again, tells what it moved before the stream is counted
			c, _, err := openCounters(r.path, time.Now)
			if err != nil {
				t.Fatal(err)
			}
			c.moved("S", 1021, 1030)
			if err := c.save(); err != nil {
				t.Fatal(err)
			}
			r.start()
		} else {
			r.c.moved("S", 1021, 1030)
		}
		r.check()
		if _, gaps := r.contents("S"); len(gaps) != 0 {
			t.Errorf("moving counts as loss: %+v", gaps)
		}
		if got, want := r.c.runs("S", 1000, 1045)[:2], []span{{1000, 1000, true}, {1001, 1020, false}}; !slices.Equal(got, want) {
			t.Errorf("census after the move: %v, want %v first", got, want)
		}
	}
}

// TestStreamBeginsAnew is a stream that has lost everything and begins again above what was counted, as the store sees to.
func TestStreamBeginsAnew(t *testing.T) {
	r := newKeeperRig(t, map[string]limits{"S": {}})
	r.mustPut("S", "a", 100, 20)
	if err := r.c.save(); err != nil {
		t.Fatal(err)
	}
	if err := r.srv.js.DeleteStream(testContext(t), "S"); err != nil {
		t.Fatal(err)
	}
	r.srv.stream("S", 2000)
	r.start()
	r.dropped["S"] = 100
	r.check()
	r.mustPut("S", "a", 10, 20)
	r.check()
}

func TestCountersIgnoreWhatIsCounted(t *testing.T) {
	c, _, err := openCounters(filepath.Join(t.TempDir(), "counters"), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	e := entry{Stream: "S", Source: "a", Epoch: 2, Seq: 1, Position: 10}
	gap := entry{Stream: "S", Source: GapSource, Epoch: 2, Seq: 1, Position: 12, Body: []byte("nonsense")}
	if err := c.committed(e, e, entry{Stream: "S", Position: 11}); err != nil {
		t.Fatal(err)
	}
	if err := c.committed(gap); err == nil {
		t.Error("a gap record that cannot be read was counted in silence")
	}
	if got := c.totals("S", 0); got.Stored != 1 || got.Waiting != 1 || len(got.Dropped) != 0 {
		t.Errorf("totals = %+v, want one record", got)
	}
	if captured, own := c.held("S", 0, math.MaxUint64); captured != 1 || own != 1 {
		t.Errorf("census has %d and %d", captured, own)
	}
}
