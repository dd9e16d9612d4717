package storage

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

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

// TestDiskFilledByOthers lets somebody else fill the disk, which the server answers with silence, and makes room again.
func TestDiskFilledByOthers(t *testing.T) {
	b := newBed(t)
	b.dir = smallDisk(t, "32m")
	b.options.Dir = b.dir
	b.options.Budget, b.options.ReserveFree = 1<<30, 0 // so that the keeper does not refuse before the server fails
	b.options.Streams = b.options.Streams[:1]
	delete(b.options.Sources, "b1")
	s := b.start()
	b.add("a1", 1, 10)
	hurry := func() {
		s.committer.gate <- struct{}{}
		s.wire.patience, s.wire.limit = 50*time.Millisecond, 2*time.Second
		s.cured = time.Time{}
		<-s.committer.gate
	}
	hurry()
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
	large := b.record("a2", 1)
	large.Data = make([]byte, 30_000)
	for range 2 {
		if err := s.Append(b.ctx(), large, b.record("a2", 2)); !errors.Is(err, ErrFull) {
			t.Fatalf("Append on a full disk: %v, want ErrFull", err)
		}
	}
	if st := s.Streams()[0]; !st.Full {
		t.Errorf("Streams: %+v, want full", st)
	}
	if b.restarts == 0 {
		t.Error("JetStream was not restarted: the server did not fail, so nothing was tested")
	}
	if err := os.Remove(fill); err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(0); err != nil {
		t.Fatal(err)
	}
	hurry()
	if err := s.Append(b.ctx(), large, b.record("a2", 2)); err != nil {
		t.Fatalf("Append after room was made: %v", err)
	}
	b.add("a1", 11, 12)
	if got := b.captured("A"); len(got) != 14 || got[10].Source != "a2" || got[10].Seq != 1 || got[11].Seq != 2 {
		t.Errorf("the stream holds %d records, want 14 in order", len(got))
	}
	if st := s.Streams()[0]; st.Full || st.Err != nil || st.Stored != 14 {
		t.Errorf("Streams: %+v, want 14 stored and room", st)
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
