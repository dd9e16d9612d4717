package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-edge/holdfast/cmd/holdfast/status"
	"github.com/holdfast-edge/holdfast/rig/device"
)

// TestCaptureWhereTheServerDoesNotStart starts the daemon on a disk without an inode, where the embedded server does not come up. A device that connects
// is acknowledged all the same, READY is said, and when there is room everything is in its stream, without a restart.
func TestCaptureWhereTheServerDoesNotStart(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: builds a daemon and fills a disk, not done with -short")
	}
	image, dir := filepath.Join(t.TempDir(), "image"), t.TempDir()
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, 256<<20)); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"mkfs.ext4", "-q", "-F", "-m", "0", "-N", "512", image}, {"mount", "-o", "loop", image, dir}} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Skipf("SKIPPED: a full ext4 needs mkfs.ext4, root and a loop device: %v: %s", err, out)
		}
	}
	t.Cleanup(func() { _ = exec.Command("umount", "-l", dir).Run() })
	s := newScaleWithin(t, dir, "", 1, "16MiB", "100MiB")
	d, _ := s.start(0)
	d.until(30*time.Second, "running", running)
	d.stop()
	if err := os.RemoveAll(filepath.Join(s.data, "store", "spare")); err != nil {
		t.Fatal(err)
	}
	for n := 0; ; n++ {
		f, err := os.Create(filepath.Join(dir, fmt.Sprint("file", n)))
		if errors.Is(err, unix.ENOSPC) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		closing(t, f.Close())
	}
	socket, conn := notifySocket(t)
	t.Setenv("NOTIFY_SOCKET", socket)
	d, first := s.start(0)
	t.Logf("the first acknowledgement came after %.2f s", first.Seconds())
	awaitReady(t, conn, time.Minute)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	sensor, err := device.NewSensor(ctx, "tcp://"+s.mqtt, "probe") // has a session, as devices have
	if err != nil {
		t.Fatal(err)
	}
	defer sensor.Close()
	if err := sensor.Publish(ctx, "full", 20, messages(500)); err != nil {
		t.Fatal(err)
	}
	if r, ok := d.status(); ok && r.Streams[0].Waits == "" { // there is no inode for the control socket either
		t.Error("the server has come up: nothing was tested")
	}
	files, err := filepath.Glob(filepath.Join(dir, "file*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if err := os.Remove(f); err != nil {
			t.Fatal(err)
		}
	}
	d.until(time.Minute, "everything is stored", func(r status.Report) bool { return running(r) && storedBy(r, "devices") == 502 && r.Verdict.Safe })
	d.stop()
}
