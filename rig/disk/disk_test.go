package disk_test

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-edge/holdfast/rig/disk"
	"github.com/holdfast-edge/holdfast/rig/poll"
)

func TestMain(m *testing.M) {
	if code, ran := disk.Main(os.Args); ran {
		os.Exit(code)
	}
	if len(os.Args) == 4 && os.Args[1] == holdArg {
		fmt.Println(hold(os.Args[2], os.Args[3]))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// newDisk starts a disk for one test, and fails the test if anything stays mounted.
func newDisk(t *testing.T, o disk.Options) *disk.Disk {
	t.Helper()
	if testing.Short() {
		t.Skip("SKIPPED, NOT TESTED: -short runs without root")
	}
	if err := disk.Available(); err != nil {
		t.Skipf("SKIPPED, NOT TESTED: %v", err)
	}
	o.Dir = t.TempDir()
	d, err := disk.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("Close() = %v", err)
		}
		assertUnmounted(t, o.Dir)
	})
	return d
}

// assertUnmounted fails the test when something is mounted in dir or a loop device uses a file in it.
func assertUnmounted(t *testing.T, dir string) {
	t.Helper()
	mounts, err := os.ReadFile("/proc/mounts")
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(mounts, []byte(dir)) {
		t.Errorf("still mounted in %s:\n%s", dir, mounts)
	}
	var used string
	free := func() bool { // the kernel lets go of a loop device a moment after its file system
		loops, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
		if err != nil {
			t.Fatal(err)
		}
		for _, loop := range loops {
			if backing, err := os.ReadFile(loop); err == nil && bytes.Contains(backing, []byte(dir)) {
				used = fmt.Sprintf("%s still uses %s", loop, backing)
				return false
			}
		}
		return true
	}
	if !poll.Wait(t.Context(), 10*time.Second, free) {
		t.Error(used)
	}
}

// write makes a file, synced or not.
func write(t *testing.T, path, data string, synced bool) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(data); err != nil {
		t.Fatal(err)
	}
	if synced {
		if err := f.Sync(); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// read returns the content of a file of an image, "" when it is not there.
func read(t *testing.T, image, name string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "image")
	m, err := disk.Open(image, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		assertUnmounted(t, dir)
	}()
	data, err := os.ReadFile(filepath.Join(m.Dir, name))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(data)
}

func TestCut(t *testing.T) {
	tests := []struct {
		name   string
		tuning disk.Tuning
		mode   disk.Mode
		synced bool
		want   bool // the file survives
	}{
		{"synced, none survives", disk.Tuning{}, disk.CutNone, true, true},
		{"synced, half survives", disk.Tuning{}, disk.CutRandom, true, true},
		{"unsynced, none survives", disk.Tuning{}, disk.CutNone, false, false},
		{"synced, but the card lies", disk.Tuning{IgnoreFlush: true}, disk.CutNone, true, false},
		{"synced, the card lies, all survives", disk.Tuning{IgnoreFlush: true}, disk.CutAll, true, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			d := newDisk(t, disk.Options{Size: 32 << 20})
			syncAll(t, d)
			if err := d.Tune(test.tuning); err != nil {
				t.Fatal(err)
			}
			data := strings.Repeat("holdfast ", 5000)
			write(t, filepath.Join(d.Dir(), "f"), data, test.synced)
			image := filepath.Join(t.TempDir(), "cut.img")
			s, err := d.Cut(image, test.mode, 1)
			if err != nil {
				t.Fatal(err)
			}
			got := read(t, image, "f")
			if survived := got == data; survived != test.want {
				t.Errorf("after a cut (%+v) the file has %d of %d bytes, want it whole: %v", s, len(got), len(data), test.want)
			}
		})
	}
}

// syncAll makes the mount itself durable, so that a test starts from a clean disk.
func syncAll(t *testing.T, d *disk.Disk) {
	t.Helper()
	write(t, filepath.Join(d.Dir(), "first"), "x", true)
}

// TestCutWhileWriting cuts again and again while a writer appends and syncs and another writes without: what was synced before the cut is in the image,
// whatever else survives.
func TestCutWhileWriting(t *testing.T) {
	d := newDisk(t, disk.Options{Size: 32 << 20})
	f, err := os.Create(filepath.Join(d.Dir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }() // a test's file on a disk that goes away
	want := ""
	var sum disk.Survivors
	for i := range 12 {
		for range 20 {
			line := fmt.Sprintf("line %d of the log\n", len(want))
			if _, err := f.WriteString(line); err != nil {
				t.Fatal(err)
			}
			if err := f.Sync(); err != nil {
				t.Fatal(err)
			}
			want += line
		}
		writeBack(t, filepath.Join(d.Dir(), fmt.Sprintf("other%d", i)))
		image := filepath.Join(t.TempDir(), "cut.img")
		s, err := d.Cut(image, disk.CutRandom, uint64(i))
		if err != nil {
			t.Fatal(err)
		}
		sum.Dirty, sum.Kept, sum.Torn = sum.Dirty+s.Dirty, sum.Kept+s.Kept, sum.Torn+s.Torn
		if got := read(t, image, "log"); !strings.HasPrefix(got, want) {
			t.Fatalf("cut %d (%+v): %d bytes of the log, want %d", i, s, len(got), len(want))
		}
	}
	if sum.Kept == 0 || sum.Torn == 0 || sum.Kept == sum.Dirty {
		t.Errorf("the cuts found %+v: nothing was at stake", sum)
	}
}

// writeBack writes a file and makes the kernel send it to the disk, without a flush.
func writeBack(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }() // not meant to be durable
	if _, err := f.WriteString(strings.Repeat("y", 256<<10)); err != nil {
		t.Fatal(err)
	}
	const all = unix.SYNC_FILE_RANGE_WAIT_BEFORE | unix.SYNC_FILE_RANGE_WRITE | unix.SYNC_FILE_RANGE_WAIT_AFTER
	if err := unix.SyncFileRange(int(f.Fd()), 0, 0, all); err != nil {
		t.Fatal(err)
	}
}

// TestNewFromImage goes through two power cuts in a row: the second life starts from what the first one left.
func TestNewFromImage(t *testing.T) {
	first := newDisk(t, disk.Options{Size: 32 << 20})
	write(t, filepath.Join(first.Dir(), "a"), "first life", true)
	image := filepath.Join(t.TempDir(), "1.img")
	if _, err := first.Cut(image, disk.CutNone, 1); err != nil {
		t.Fatal(err)
	}
	second := newDisk(t, disk.Options{Image: image})
	write(t, filepath.Join(second.Dir(), "b"), "second life", true)
	image = filepath.Join(t.TempDir(), "2.img")
	if _, err := second.Cut(image, disk.CutNone, 2); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"a": "first life", "b": "second life"} {
		if got := read(t, image, name); got != want {
			t.Errorf("after two cuts %s holds %q, want %q", name, got, want)
		}
	}
	if s, err := second.Stats(); err != nil || s.Flushes == 0 || s.Bytes == 0 {
		t.Errorf("Stats() = %+v, %v, want writes and flushes", s, err)
	}
}

// TestParentKilled kills -9 a process that has a disk, or an image, with an open file on it: everything must be taken down all the same.
func TestParentKilled(t *testing.T) {
	newDisk(t, disk.Options{Size: 16 << 20}) // or skip
	for _, what := range []string{"disk", "image"} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			parent := exec.Command(self, holdArg, what, dir)
			out, err := parent.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := parent.Start(); err != nil {
				t.Fatal(err)
			}
			if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
				t.Fatalf("the parent did not get its %s: %v", what, err)
			}
			if err := parent.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = parent.Wait() // killed, as meant
			poll.Until(t, 20*time.Second, func() bool { return !mounted(t, dir) }, "everything in %s unmounted", dir)
			assertUnmounted(t, dir)
		})
	}
}

// holdArg makes the test program a parent that gets killed: see hold.
const holdArg = "hold"

// hold keeps a disk or an image with an open file until it is killed.
func hold(what, dir string) error {
	var m *disk.Mount
	if what == "disk" {
		d, err := disk.New(disk.Options{Dir: dir, Size: 16 << 20})
		if err != nil {
			return err
		}
		m = d.Mount()
	} else {
		image := filepath.Join(dir, "image")
		err := disk.Create(image, 16<<20)
		if err != nil {
			return err
		}
		if m, err = disk.Open(image, filepath.Join(dir, "mnt")); err != nil {
			return err
		}
	}
	f, err := os.Create(filepath.Join(m.Dir, "open"))
	if err != nil {
		return err
	}
	fmt.Println("holding", f.Name())
	select {}
}

func mounted(t *testing.T, dir string) bool {
	t.Helper()
	mounts, err := os.ReadFile("/proc/mounts")
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Contains(mounts, []byte(dir))
}
