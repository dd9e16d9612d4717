package storage

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// ext4Disk makes a small ext4 on a loop device.
func ext4Disk(t *testing.T, mib int, options ...string) string {
	t.Helper()
	image, dir := filepath.Join(t.TempDir(), "image"), t.TempDir()
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, int64(mib)<<20); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"-q", "-F", "-m", "0"}, options...)
	if out, err := exec.Command("mkfs.ext4", append(args, image)...).CombinedOutput(); err != nil {
		t.Skipf("SKIPPED: a full ext4 needs mkfs.ext4: %v: %s", err, out)
	}
	if out, err := exec.Command("mount", "-o", "loop", image, dir).CombinedOutput(); err != nil {
		t.Skipf("SKIPPED: a full ext4 needs root and a loop device: %v: %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("umount", "-l", dir).Run() })
	return dir
}

// fillBytes takes all bytes of a disk but so many, and returns what gives them back.
func fillBytes(t *testing.T, dir string, left int64) func() {
	t.Helper()
	path := filepath.Join(dir, "fill")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	for size := 1 << 20; size >= 512; size /= 2 {
		for {
			free, _, err := freeOn(dir)
			if err != nil {
				t.Fatal(err)
			}
			if left > 0 && free-int64(size) < left {
				break
			}
			if _, err := f.Write(make([]byte, size)); err != nil {
				if !errors.Is(err, unix.ENOSPC) {
					t.Fatal(err)
				}
				break
			}
		}
	}
	if err := f.Close(); err != nil && !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		unix.Sync()
	}
}

// fillInodes makes files until there can be no more, and returns what removes them.
func fillInodes(t *testing.T, dir string) func() {
	t.Helper()
	folder := filepath.Join(dir, "files")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	for n := 0; ; n++ {
		f, err := os.Create(filepath.Join(folder, fmt.Sprint(n)))
		if errors.Is(err, unix.ENOSPC) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return func() {
		t.Helper()
		if err := os.RemoveAll(folder); err != nil {
			t.Fatal(err)
		}
	}
}

// TestStartOnFullDisk opens, attaches and closes a store on a disk without a byte, or without an inode, again and again: no epoch is used twice, everything
// can be read, forwarded records can be removed, and when there is room again records come in without a restart.
func TestStartOnFullDisk(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: fills disks, not done with -short")
	}
	for _, c := range []struct {
		name string
		disk func(t *testing.T) string
		fill func(t *testing.T, dir string) func()
	}{
		{"ext4, no byte free", func(t *testing.T) string { return ext4Disk(t, 160) }, func(t *testing.T, dir string) func() { return fillBytes(t, dir, 0) }},
		{"ext4, no inode free", func(t *testing.T) string { return ext4Disk(t, 160, "-N", "512") }, fillInodes},
		{"tmpfs, no byte free", func(t *testing.T) string { return smallDisk(t, "160m") }, func(t *testing.T, dir string) func() { return fillBytes(t, dir, 0) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBed(t)
			b.dir = c.disk(t)
			b.options.Dir = b.dir
			b.options.Budget, b.options.ReserveFree = 1<<30, 1<<20
			b.start()
			b.add("a1", 1, 500)
			b.stop()
			if err := os.Truncate(filepath.Join(b.dir, "store", "lock"), 0); err != nil { // as if another had taken its room
				t.Fatal(err)
			}
			empty := c.fill(t, b.dir)
			epochs := map[uint64]bool{}
			for range 3 {
				s := b.open()
				if epochs[s.Epoch()] {
					t.Errorf("epoch %d is used twice", s.Epoch())
				}
				epochs[s.Epoch()] = true
				b.serve()
				b.attach()
				if got := len(b.captured("A")); got != 500 {
					t.Errorf("%d records can be read, want 500", got)
				}
				b.kill()
			}
			b.open()
			b.serve()
			b.attach()
			empty()
			poll(t, "records come in", func() bool { return b.s.Append(b.ctx(), b.record("a1", 1)) == nil })
			b.add("b1", 1, 10)
			if st := b.s.Streams()[0]; st.Off != 0 || st.Stored != 501 {
				t.Errorf("Streams: %+v, want 501 stored", st)
			}
			b.stop()
		})
	}
}

// TestDiskFullWhileRunning fills a disk under a running store. Records go on to be taken, and wait in the journal, which status says; when that is full,
// too, they are refused, which it says as well. With room everything goes on, with nothing lost, by itself.
func TestDiskFullWhileRunning(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: fills disks, not done with -short")
	}
	bytes := func(t *testing.T, dir string) func() { return fillBytes(t, dir, 0) }
	for _, c := range []struct {
		name    string
		disk    []string
		fill    func(t *testing.T, dir string) func()
		reserve int64
	}{
		{"no byte free, the server fails", nil, bytes, 0},
		{"no byte free, held back before that", nil, bytes, 32 << 20},
		{"no inode free", []string{"-N", "512"}, fillInodes, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBed(t)
			b.dir = ext4Disk(t, 160, c.disk...)
			b.options.Dir = b.dir
			b.options.Budget, b.options.ReserveFree = 1<<30, c.reserve
			b.options.Journal.Size = 4 << 20
			s := b.start()
			b.add("a1", 1, 200)
			b.settle()
			b.impatient()
			empty := c.fill(t, b.dir)
			n := uint64(0)
			put := func() error {
				r := b.record("a2", n+1)
				r.Data = make([]byte, 20_000)
				err := s.Append(b.ctx(), r)
				if err == nil {
					n++
				}
				return err
			}
			var err error
			for waits := false; err == nil; err = put() {
				if st := s.Streams()[0]; !waits && st.Waits != nil && st.Err == nil {
					waits = true
					t.Logf("%d records taken when status says: %v", n, st.Waits)
				}
				if n > 5000 {
					t.Fatal("the journal does not become full")
				}
				if n > 20 && !waits {
					poll(t, "status says that records wait", func() bool { return s.Streams()[0].Waits != nil })
				}
			}
			if !errors.Is(err, ErrFull) || n < 50 {
				t.Fatalf("after %d records: %v, want ErrFull when the journal is full", n, err)
			}
			if st := s.Streams()[0]; !st.Full || st.Off != 0 {
				t.Errorf("Streams: %+v, want full", st)
			}
			if err := s.Probe(b.ctx()); err != nil {
				t.Errorf("Probe: %v: the service would be restarted", err)
			}
			if got := len(b.captured("A")); got < 200 {
				t.Errorf("%d records can be read", got)
			}
			empty()
			b.impatient()
			poll(t, "records are taken", func() bool { return put() == nil })
			b.add("a1", 201, 210)
			poll(t, "everything is in the stream", func() bool { return len(b.captured("A")) == int(n)+210 })
			seen := uint64(0)
			for _, k := range b.captured("A") {
				if k.Source == "a2" {
					if seen++; k.Seq != seen {
						t.Fatalf("record %d of a2 is number %d", seen, k.Seq)
					}
				}
			}
			if st := s.Streams()[0]; st.Full || st.Err != nil || st.Waits != nil || st.Stored != n+210 {
				t.Errorf("Streams: %+v, want %d stored and room", st, n+210)
			}
		})
	}
}

// TestForwardedFreesAFullDisk fills a disk to the last byte under a store that has data for the hub. The hub confirms it; it is removed, and that is room
// enough to go on.
func TestForwardedFreesAFullDisk(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: fills disks, not done with -short")
	}
	b := newBed(t)
	b.dir = ext4Disk(t, 160)
	b.options.Dir = b.dir
	b.options.Budget, b.options.ReserveFree = 1<<30, 8<<20
	b.options.Journal.Size = 4 << 20
	b.open()
	b.serve()
	var proven atomic.Uint64
	srv := b.server()
	srv.Forwarded = func(stream string) (Position, bool) {
		return Position(proven.Load()), stream == "A" && proven.Load() > 0
	}
	if err := b.s.Attach(b.ctx(), srv); err != nil {
		t.Fatal(err)
	}
	b.impatient()
	put := func(n uint64) error {
		r := b.record("a1", n)
		r.Data = make([]byte, 20_000)
		return b.s.Append(b.ctx(), r)
	}
	n := uint64(0)
	for n < 1500 { // 30 MB: some blocks of the server
		if n++; put(n) != nil {
			t.Fatal("put")
		}
	}
	b.settle()
	last := b.last("A")
	fillBytes(t, b.dir, 0)
	var err error
	for err == nil {
		if err = put(n + 1); err == nil {
			n++
		}
	}
	if !errors.Is(err, ErrFull) {
		t.Fatal(err)
	}
	proven.Store(uint64(last))
	poll(t, "what the hub has is removed, and records are taken", func() bool {
		release, err := b.s.keeper.hold(b.ctx())
		if err != nil {
			t.Fatal(err)
		}
		_ = b.s.keeper.round(b.ctx(), true) // the next one goes on
		release()
		if put(n+1) != nil {
			return false
		}
		n++
		return true
	})
	poll(t, "all of it is in the stream", func() bool { return b.s.Streams()[0].Waits == nil })
	b.settle()
	if st := b.s.Streams()[0]; st.Stored != n || st.Off != 0 || len(st.Dropped) > 0 {
		t.Errorf("Streams: %+v, want %d stored and nothing dropped", st, n)
	}
}

// TestStreamsFillTheDisk gives streams limits that the disk has no room for, and captures more than it holds: the oldest records go, with gap
// records, reserve_free stays free or nearly so, and nothing is refused for good.
func TestStreamsFillTheDisk(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: fills disks, not done with -short")
	}
	b := newBed(t)
	b.dir = ext4Disk(t, 128)
	b.options.Dir = b.dir
	b.options.Budget, b.options.ReserveFree = 1<<40, 40<<20
	b.options.Journal.Size = 4 << 20
	for i := range b.options.Streams {
		b.options.Streams[i].MaxBytes = 1 << 35
	}
	s := b.start()
	b.impatient()
	const size, each = 20_000, 20
	least := int64(1 << 40)
	for n := uint64(0); n < 160_000_000/size; n += each {
		var recs []Record
		for i := range uint64(each) {
			r := b.record("a1", n+i+1)
			r.Data = make([]byte, size)
			recs = append(recs, r)
		}
		poll(t, "records are taken", func() bool { return s.Append(b.ctx(), recs...) == nil })
		free, _, err := freeOn(b.dir)
		if err != nil {
			t.Fatal(err)
		}
		least = min(least, free)
	}
	b.settle()
	st := s.Streams()[0]
	if st.Off != 0 || st.Dropped[GapDropOldest] == 0 || st.Stored != 160_000_000/size {
		t.Errorf("Streams: %+v", st)
	}
	t.Logf("%d stored, %d dropped; %d MB were free at least", st.Stored, st.Dropped[GapDropOldest], least/1e6)
	if least < 5<<20 {
		t.Errorf("%d bytes were free at least, of a reserve of 40 MiB", least)
	}
}
