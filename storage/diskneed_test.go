package storage

import (
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestDiskNeed compares what streams may come to take with what a disk has, in the words of check and of a start.
func TestDiskNeed(t *testing.T) {
	const gib = 1 << 30
	stream := func(bytes int64) StreamConfig { return StreamConfig{MaxBytes: bytes} }
	cases := []struct {
		name    string
		config  Config
		streams []StreamConfig
		has     int64
		says    string // empty: it is enough
	}{
		{"enough", Config{Budget: 4 * gib}, []StreamConfig{stream(gib)}, 2 * gib, ""},
		{"streams", Config{Budget: 4 * gib, ReserveFree: gib / 10}, []StreamConfig{stream(2 * gib), stream(gib)}, 2 * gib, "need 3.1 GiB, and the disk has 2.0 GiB"},
		{"the budget holds them back", Config{Budget: gib}, []StreamConfig{stream(2 * gib), stream(gib)}, 2 * gib, ""},
		{"reserve_free", Config{Budget: gib, ReserveFree: 2 * gib}, []StreamConfig{stream(gib)}, 2 * gib, "need 3.0 GiB"},
		{"absurd numbers", Config{Budget: 1 << 62}, []StreamConfig{stream(1 << 62), stream(1 << 62)}, gib, "the disk has 1.0 GiB"},
	}
	for _, c := range cases {
		err := c.config.Short(c.has, c.streams...)
		if err == nil != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", c.name, err, c.says)
		}
	}
}

// TestStartOnSmallDisk starts a store whose streams may come to take more than the disk has: it says so, and captures.
func TestStartOnSmallDisk(t *testing.T) {
	b := newBed(t)
	b.dir = smallDisk(t, "64m")
	b.options.Dir = b.dir
	b.options.Budget, b.options.Streams[0].MaxBytes = 1<<30, 1<<30
	s := b.start()
	if err := s.DiskShort(); err == nil || !strings.Contains(err.Error(), "and the disk has 0.1 GiB") {
		t.Errorf("DiskShort = %v", err)
	}
	b.add("a1", 1, 10)
	b.stop()
	b.options.Budget, b.options.Streams[0].MaxBytes, b.options.Streams[1].MaxBytes = 8<<20, 4<<20, 4<<20
	if s = b.start(); s.DiskShort() != nil {
		t.Errorf("DiskShort = %v, and there is room", s.DiskShort())
	}
	b.stop()
}

// TestSpaceIsBackAfterForwarding has the hub confirm everything: with nothing kept for its own sake the room on the disk is free again without anybody asking for
// it. The keeper looks every 45 s, which leaves the rest of a minute for its work.
func TestSpaceIsBackAfterForwarding(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: waits for the keeper's turn, not done with -short")
	}
	t.Parallel()
	if keeperInterval > 45*time.Second {
		t.Errorf("the keeper looks every %v", keeperInterval)
	}
	b := newBed(t)
	b.open()
	b.serve()
	var proven atomic.Uint64
	srv := b.server()
	srv.Forwarded = func(stream string) (Position, bool) {
		at := Position(proven.Load())
		return at, stream == "A" && at > 0
	}
	if err := b.s.Attach(b.ctx(), srv); err != nil {
		t.Fatal(err)
	}
	for n := uint64(1); n <= 2000; n += 100 {
		var recs []Record
		for i := range uint64(100) {
			r := b.record("a1", n+i)
			r.Data = make([]byte, 5000)
			recs = append(recs, r)
		}
		if err := b.s.Append(b.ctx(), recs...); err != nil {
			t.Fatal(err)
		}
	}
	at := b.last("A")
	streams := filepath.Join(b.dir, "jetstream")
	full := taken(streams)
	proven.Store(uint64(at))
	began := time.Now()
	poll := time.NewTicker(100 * time.Millisecond)
	defer poll.Stop()
	for taken(streams) > full/3 { // the newest block stays
		if time.Since(began) > 3*time.Minute {
			t.Fatalf("%d of %d bytes are still taken %v after the hub has everything", taken(streams), full, time.Since(began))
		}
		<-poll.C
	}
	t.Logf("%d of %d bytes are free again %v after the hub has everything", full-taken(streams), full, time.Since(began).Round(time.Second))
	if st := b.s.Streams()[0]; st.Forwarded != 2000 || st.Waiting != 0 || len(st.Dropped) > 0 {
		t.Errorf("counted %+v, want all forwarded", st.StreamCounters)
	}
}
