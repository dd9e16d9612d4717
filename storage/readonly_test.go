package storage

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// loopOf returns the name of the loop device that is mounted at dir, and the file behind it.
func loopOf(t *testing.T, dir string) (name, image string) {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 2 && f[1] == dir && strings.HasPrefix(f[0], "/dev/loop") {
			name = filepath.Base(f[0])
		}
	}
	if name == "" {
		t.Fatalf("no loop device is mounted at %s", dir)
	}
	raw, err := os.ReadFile(filepath.Join("/sys/block", name, "loop", "backing_file"))
	if err != nil {
		t.Fatal(err)
	}
	return name, strings.TrimSpace(string(raw))
}

// TestFileSystemTurnsReadOnly has the kernel find an error in the file system under a running store and make it read-only. Nothing is acknowledged from then on,
// and the state says what has happened and what to do, as does a start on it. After a check of the file system and a mount, the next start has everything
// that was acknowledged, once and in order.
func TestFileSystemTurnsReadOnly(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: mounts disks, not done with -short")
	}
	b := newBed(t)
	b.dir = ext4Disk(t, 96, "-e", "remount-ro")
	b.options.Dir = b.dir
	b.options.Budget, b.options.ReserveFree = 1<<30, 1<<20
	loop, image := loopOf(t, b.dir)
	trigger := filepath.Join("/sys/fs/ext4", loop, "trigger_fs_error")
	if _, err := os.Stat(trigger); err != nil {
		t.Skipf("SKIPPED: this kernel does not let a test trigger an error of ext4: %v", err)
	}
	s := b.start()
	b.add("a1", 1, 200)
	var acked atomic.Uint64
	done := make(chan error, 1)
	go func() {
		for {
			if err := s.Append(b.ctx(), b.record("a2", acked.Load()+1)); err != nil {
				done <- err
				return
			}
			acked.Add(1)
		}
	}()
	poll(t, "records come in", func() bool { return acked.Load() > 100 })
	if err := os.WriteFile(trigger, []byte("1"), 0o200); err != nil {
		t.Fatal(err)
	}
	err := <-done
	if !errors.Is(err, ErrFailing) || !strings.Contains(err.Error(), "is read-only") || !strings.Contains(err.Error(), "fsck") {
		t.Errorf("Append: %v, want ErrFailing, what has happened, and what to do", err)
	}
	if st := s.Streams()[0]; !errors.Is(st.Err, ErrFailing) || !errors.Is(st.Err, unix.EROFS) {
		t.Errorf("Streams: %v, want the same", st.Err)
	}
	if err := s.Probe(b.ctx()); !errors.Is(err, ErrFailing) {
		t.Errorf("Probe: %v: the service would not be started again", err)
	}
	b.crash()
	if _, err := Open(b.options); !errors.Is(err, unix.EROFS) || !strings.Contains(err.Error(), "fsck") {
		t.Errorf("Open: %v, want what has happened and what to do", err)
	}
	poll(t, "the file system can be unmounted", func() bool { return unix.Unmount(b.dir, 0) == nil })
	if out, err := exec.Command("e2fsck", "-fy", image).CombinedOutput(); err != nil {
		if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() > 1 { // 1: errors were corrected
			t.Fatalf("e2fsck: %v: %s", err, out)
		}
	}
	if out, err := exec.Command("mount", "-o", "loop", image, b.dir).CombinedOutput(); err != nil {
		t.Fatalf("mount: %v: %s", err, out)
	}
	s = b.open()
	if err := s.Mend(b.ctx(), nothingForwarded); err != nil {
		t.Fatal(err)
	}
	b.serve()
	b.attach()
	b.add("a1", 1, 10)
	seen := map[string]uint64{}
	for _, k := range b.captured("A") {
		if seen[k.Source]++; k.Epoch == 1 && k.Seq != seen[k.Source] {
			t.Fatalf("record %d of %s is number %d", seen[k.Source], k.Source, k.Seq)
		}
	}
	// One more than was acknowledged may have been on its way.
	if n := seen["a2"]; n < acked.Load() || n > acked.Load()+1 || seen["a1"] != 210 {
		t.Errorf("%d records of a2 and %d of a1 are there, acknowledged were %d and 210", n, seen["a1"], acked.Load())
	}
	if st := s.Streams()[0]; st.Off != 0 || st.Stored != seen["a1"]+seen["a2"] {
		t.Errorf("counted %+v", st.StreamCounters)
	}
	b.stop()
}
