package disk

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-edge/holdfast/rig/leak"
)

// TestNetworkCut lets qemu's own client write to the disk, and takes the power away.
func TestNetworkCut(t *testing.T) {
	leak.Check(t)
	client, err := exec.LookPath("qemu-io")
	if err != nil {
		t.Skip("SKIPPED, NOT TESTED: qemu-io is not installed (Debian: qemu-utils)")
	}
	socket := filepath.Join(t.TempDir(), "disk")
	disk, err := Serve(socket, 1<<20, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := disk.Close(); err != nil {
			t.Error(err)
		}
	})
	run := func(commands ...string) string {
		t.Helper()
		// Cached, so that only what is asked for is flushed; the client flushes once more when it leaves orderly, which abort prevents.
		args := []string{"-t", "writeback", "-f", "raw"}
		for _, c := range commands {
			args = append(args, "-c", c)
		}
		out, _ := exec.Command(client, append(args, "nbd+unix:///?socket="+socket)...).CombinedOutput() // an abort is an error
		return string(out)
	}
	run("write -P 1 0 8k", "flush", "write -P 2 4k 8k", "write -f -P 3 64k 4k", "write -P 4 128k 4k", "abort")
	if s := disk.Stats(); s.Flushes < 2 || s.Dirty != 1 {
		t.Fatalf("the disk saw %+v, want two flushes and one block not flushed", s)
	}
	lost, err := disk.Cut(CutNone, 1, func() {})
	if err != nil || lost.Dirty != 1 || lost.Kept != 0 {
		t.Errorf("Cut = %+v, %v", lost, err)
	}
	out := run("read -P 1 0 4k", "read -P 2 4k 8k", "read -P 3 64k 4k", "read -P 0 128k 4k", "read 2M 4k")
	if strings.Contains(out, "verification failed") || strings.Count(out, "read 4096/4096") != 3 {
		t.Errorf("after the cut:\n%s", out)
	}
	if _, err := disk.Cut("half", 1, func() {}); err == nil {
		t.Error("a cut of an unknown mode is no error")
	}
}
