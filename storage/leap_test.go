package storage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// otherBoot makes the next start believe that the kernel was started anew.
func (b *bed) otherBoot() {
	b.t.Helper()
	if err := writeBoot(filepath.Join(b.dir, "store"), bootRecord{BootID: "another"}); err != nil {
		b.t.Fatal(err)
	}
}

// reserved reads the reserve of a stream from disk.
func (b *bed) reserved(stream string) Position {
	b.t.Helper()
	r, err := openReserve(filepath.Join(b.dir, "store"), newBed(b.t).quiet())
	if err != nil {
		b.t.Fatal(err)
	}
	return r.of(stream).Reserve
}

// TestLeapAtStart stops in several ways and looks where the stream goes on.
func TestLeapAtStart(t *testing.T) {
	home := func(b *bed, name string) string { return filepath.Join(b.dir, "store", name) }
	remove := func(b *bed, names ...string) {
		for _, n := range names {
			if err := os.Remove(home(b, n)); err != nil {
				b.t.Fatal(err)
			}
		}
	}
	cases := []struct {
		name  string
		end   func(b *bed)
		after func(last, reserve Position) Position // lowest sequence of the first record of the next start
	}{
		{"clean stop", func(b *bed) { b.stop() }, func(last, _ Position) Position { return last + 1 }},
		{"clean stop, then another boot", func(b *bed) {
			b.stop()
			raw, err := os.ReadFile(home(b, "boot"))
			if err != nil {
				b.t.Fatal(err)
			}
			if string(raw[len(raw)-len(`"clean":true}`)-1:]) != "\"clean\":true}\n" {
				b.t.Fatalf("boot file %q after a clean stop", raw)
			}
		}, func(last, _ Position) Position { return last + 1 }},
		{"killed", func(b *bed) { b.kill() }, func(last, _ Position) Position { return last + 1 }},
		{"power cut", func(b *bed) { b.kill(); b.otherBoot() }, func(_, reserve Position) Position { return reserve + 1 }},
		{"power cut, boot file gone", func(b *bed) { b.kill(); remove(b, "boot") }, func(_, reserve Position) Position { return reserve + 1 }},
		{"power cut, boot file damaged", func(b *bed) {
			b.kill()
			if err := os.WriteFile(home(b, "boot"), nil, 0o600); err != nil {
				b.t.Fatal(err)
			}
		}, func(_, reserve Position) Position { return reserve + 1 }},
		{"power cut, reserve gone", func(b *bed) { b.kill(); b.otherBoot(); remove(b, "reserve", "reserve.bak") },
			func(last, _ Position) Position { return last + reserveChunk + 1 }},
		{"power cut, reserve damaged", func(b *bed) {
			b.kill()
			b.otherBoot()
			for _, f := range []string{"reserve", "reserve.bak"} {
				if err := os.WriteFile(home(b, f), []byte("x"), 0o600); err != nil {
					b.t.Fatal(err)
				}
			}
		}, func(last, _ Position) Position { return last + reserveChunk + 1 }},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			b := newBed(t)
			b.start()
			b.add("a1", 1, 20)
			last := b.last("A")
			c.end(b)
			reserve := b.reserved("A")
			if reserve == 0 {
				reserve = last + reserveChunk
			}
			b.start()
			all := b.read("A")
			next := all[21] // behind the epoch record and twenty others
			if want := c.after(last, reserve); next.Position != want || next.Source != EpochSource {
				t.Errorf("the next start begins with %v at %d, want an epoch record at %d (last was %d)", next.ID, next.Position, want, last)
			}
			for _, k := range all {
				if k.Subject == LeapSubject("A") {
					t.Errorf("a placeholder is left at %d", k.Position)
				}
			}
			if st := b.s.Streams()[0]; st.Stored != 20 || st.Waiting != 20 {
				t.Errorf("counted %+v, want 20 stored and waiting", st.StreamCounters)
			}
			b.add("a1", 1, 1)
			if got := b.captured("A"); len(got) != 21 {
				t.Errorf("%d records, want 21", len(got))
			}
		})
	}
}

// TestLeapIsRemembered cuts the power after every step of a start that leaps: the next start must not fall behind what this one may have shown.
func TestLeapIsRemembered(t *testing.T) {
	b := newBed(t)
	b.start()
	b.add("a1", 1, 3)
	b.kill()
	highest := b.reserved("A")
	for range 3 {
		b.otherBoot()
		b.start()
		b.add("a1", 1, 2)
		got := b.captured("A")
		first := got[len(got)-2].Position
		if first <= highest {
			t.Fatalf("went on at %d, not above %d", first, highest)
		}
		highest = b.reserved("A")
		b.kill()
	}
	// Attach fails after the leap, before anything else; the same kernel goes on.
	b.otherBoot()
	b.open()
	b.serve()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := b.s.Attach(ctx, b.server()); err == nil {
		t.Fatal("Attach succeeded with a dead context")
	}
	b.kill()
	b.start()
	b.add("a1", 1, 1)
	got := b.captured("A")
	if at := got[len(got)-1].Position; at <= highest {
		t.Errorf("after a start that was interrupted the next went on at %d, not above %d", at, highest)
	}
}

// TestYoungStreamVanishes removes a stream's files, as a power cut may do whose files were never synced, but keeps what the store had synced.
func TestYoungStreamVanishes(t *testing.T) {
	b := newBed(t)
	b.start()
	b.add("a1", 1, 5)
	b.stop()
	b.otherBoot()
	reserve := b.reserved("A")
	if err := os.RemoveAll(filepath.Join(b.dir, "jetstream", account, "streams", "A")); err != nil {
		t.Fatal(err)
	}
	b.start()
	if first := b.read("A")[0]; first.Position != reserve+2 && first.Position != reserve+1 {
		t.Errorf("the new stream begins at %d, want just above the reserve %d", first.Position, reserve)
	}
	var gaps int
	for _, k := range b.read("A") {
		if k.Source == GapSource {
			gaps++
		}
	}
	if st := b.s.Streams()[0]; st.Stored != 5 || st.Dropped[GapDamage] != 5 || gaps != 1 {
		t.Errorf("counted %+v with %d gap records, want the 5 records accounted for as damage", st.StreamCounters, gaps)
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

// TestDamagedEnd cuts the newest block short. The last sequence goes back, and so does not count.
func TestDamagedEnd(t *testing.T) {
	b := newBed(t)
	b.start()
	b.add("a1", 1, 50)
	last := b.last("A")
	b.stop()
	blocks, err := filepath.Glob(filepath.Join(b.dir, "jetstream", account, "streams", "A", "msgs", "*.blk"))
	if err != nil || len(blocks) != 1 {
		t.Fatalf("blocks %v, %v", blocks, err)
	}
	info, err := os.Stat(blocks[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Truncate(blocks[0], info.Size()-2000), os.Remove(filepath.Join(filepath.Dir(blocks[0]), "index.db"))); err != nil {
		t.Fatal(err)
	}
	b.start()
	b.add("a1", 1, 1)
	got := b.captured("A")
	if at := got[len(got)-1].Position; at <= last {
		t.Errorf("went on at %d, which was given out before (last was %d)", at, last)
	}
	st := b.s.Streams()[0]
	if lost := uint64(51 - len(got)); lost == 0 || st.Dropped[GapDamage] != lost || st.Stored != 51 || st.Waiting != 51-lost {
		t.Errorf("counted %+v with %d records left, want the lost ones accounted for as damage", st.StreamCounters, len(got))
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

// TestReserveThatCannotBeWritten fails to write a reserve. No sync may vouch for it.
func TestReserveThatCannotBeWritten(t *testing.T) {
	home := filepath.Join(t.TempDir(), "store")
	if err := os.Mkdir(home, 0o700); err != nil {
		t.Fatal(err)
	}
	r, err := openReserve(home, newBed(t).quiet())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.ahead("A", 110, 100); err != nil {
		t.Fatal(err)
	}
	if have := r.of("A").Reserve; have != 0 {
		t.Errorf("the reserve is %d before any sync", have)
	}
	if err := r.covered(r.mark()); err != nil {
		t.Fatal(err)
	}
	want := Position(100 + reserveChunk)
	if have := r.of("A").Reserve; have != want {
		t.Errorf("the reserve is %d after the sync, want %d", have, want)
	}
	if err := os.RemoveAll(home); err != nil {
		t.Fatal(err)
	}
	if _, err := r.ahead("A", 100+reserveChunk, 90+reserveChunk); err == nil {
		t.Fatal("writing into a directory that is gone succeeded")
	}
	if err := os.Mkdir(home, 0o700); err != nil {
		t.Fatal(err)
	}
	mark := r.mark()
	if err := r.covered(mark); err != nil {
		t.Fatal(err)
	}
	if have := r.of("A").Reserve; have != want {
		t.Errorf("the reserve is %d although it was not written, want %d", have, want)
	}
	// A write after the sync began is not vouched for by it.
	if _, err := r.ahead("A", 100+reserveChunk, 90+reserveChunk); err != nil {
		t.Fatal(err)
	}
	if err := r.covered(mark); err != nil {
		t.Fatal(err)
	}
	if have := r.of("A").Reserve; have != want {
		t.Errorf("the reserve is %d by a sync that began before it was written, want %d", have, want)
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

// TestLimitsChange lowers the limits of a stream that holds more, and cuts the power, so that the leap finds no room.
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
	b.kill()
	b.otherBoot()
	reserve := b.reserved("A")
	b.options.Streams[0].MaxBytes = 1 << 20
	b.options.Streams[0].MaxMsgs = 20
	b.start()
	if last := b.last("A"); last <= reserve {
		t.Errorf("the stream is at %d, not above its reserve %d", last, reserve)
	}
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
