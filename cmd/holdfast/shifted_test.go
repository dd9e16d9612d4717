package main

import (
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/rig/wallclock"
)

// shifted builds the daemon with a wall clock that is d away from this machine's, monotonic time untouched: what a gateway without a
// battery-backed clock shows until a time source answers.
func shifted(t *testing.T, d time.Duration) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "holdfast")
	if err := wallclock.Build(binary, ".", false, d); err != nil {
		t.Fatal(err)
	}
	return binary
}

// buildPlain builds the daemon as it is.
func buildPlain(t *testing.T, binary string) {
	t.Helper()
	if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("build the daemon: %v\n%s", err, out)
	}
}

// to1970 is the shift from now to a minute after the start of 1970.
func to1970() time.Duration { return -time.Since(time.Unix(60, 0)) }
