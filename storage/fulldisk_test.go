package storage

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// smallDisk mounts a small file system in memory.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("a full disk needs a mount, which needs root: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// TestDiskFilledByOthers lets somebody else fill the disk, which the server answers with silence. Capture goes on in the journal until that is full, too, and
// everything goes on by itself when there is room again.
func TestDiskFilledByOthers(t *testing.T) {
	b := newBed(t)
	b.dir = smallDisk(t, "32m")
	b.options.Dir = b.dir
	b.options.Budget, b.options.ReserveFree = 1<<30, 0 // so that the keeper does not refuse before the server fails
	b.options.Journal.Size = 2 << 20
	b.options.Streams = b.options.Streams[:1]
	delete(b.options.Sources, "b1")
	s := b.start()
	b.add("a1", 1, 10)
	b.settle()
	b.impatient()
	fill := filepath.Join(b.dir, "fill")
	f, err := os.Create(fill)
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	n := uint64(0)
	large := func() error {
		r := b.record("a2", n+1)
		r.Data = make([]byte, 30_000)
		return s.Append(b.ctx(), r)
	}
	for err = nil; err == nil; {
		if err = large(); err == nil {
			n++
		}
	}
	if !errors.Is(err, ErrFull) || n < 20 {
		t.Fatalf("Append after %d records on a full disk: %v, want ErrFull when the journal is full", n, err)
	}
	if st := s.Streams()[0]; !st.Full || !errors.Is(st.Err, ErrFull) {
		t.Errorf("Streams: %+v, want full", st)
	}
	if b.restarts == 0 {
		t.Error("JetStream was not restarted: the server did not fail, so nothing was tested")
	}
	if err := errors.Join(os.Remove(fill), f.Truncate(0)); err != nil {
		t.Fatal(err)
	}
	b.impatient()
	poll(t, "there is room", func() bool { return large() == nil })
	n++
	b.add("a1", 11, 12)
	poll(t, "everything is in the stream", func() bool { return len(b.captured("A")) == int(n)+12 })
	for i, k := range b.captured("A")[10 : 10+n] {
		if k.Source != "a2" || k.Seq != uint64(i+1) {
			t.Fatalf("record %d is %v", i+11, k.ID)
		}
	}
	if st := s.Streams()[0]; st.Full || st.Err != nil || st.Waits != nil || st.Stored != n+12 {
		t.Errorf("Streams: %+v, want %d stored and room", st, n+12)
	}
}

// TestReserveFree refuses before the disk is full, and lets records in when others have made room.
func TestReserveFree(t *testing.T) {
	b := newBed(t)
	b.dir = smallDisk(t, "32m")
	b.options.Dir = b.dir
	b.options.Budget, b.options.ReserveFree = 1<<30, 24<<20
	for i := range b.options.Streams {
		b.options.Streams[i].WhenFull = Refuse
	}
	s := b.start()
	b.add("a1", 1, 1)
	fill := filepath.Join(b.dir, "fill")
	if err := os.WriteFile(fill, make([]byte, 12<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Append(b.ctx(), b.record("a1", 2)); !errors.Is(err, ErrFull) {
		t.Fatalf("Append: %v, want ErrFull", err)
	}
	if err := os.Remove(fill); err != nil {
		t.Fatal(err)
	}
	b.add("a1", 2, 2)
	b.expect("A", "a1 1", "a1 2")
}
