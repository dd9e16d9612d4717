package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// shifted builds the daemon with a wall clock that is d away from this machine's, monotonic time untouched: what a gateway without a
// battery-backed clock shows until a time source answers. Only time.Now is changed, by a build overlay; nothing in the daemon knows of it.
func shifted(t *testing.T, d time.Duration) string {
	t.Helper()
	dir := overlayDir(t)
	binary := filepath.Join(t.TempDir(), "holdfast")
	cmd := exec.Command("go", "build", "-overlay", filepath.Join(dir, "overlay.json"),
		"-ldflags", fmt.Sprintf("-X time.shift=%d", int64(d/time.Second)), "-o", binary, ".")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the daemon with a shifted clock: %v\n%s", err, out)
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

var overlay struct {
	once sync.Once
	dir  string
	err  error
}

// overlayDir writes the overlay into the build cache's neighbourhood, always at the same place, so that what was built with it is found again.
func overlayDir(t *testing.T) string {
	t.Helper()
	overlay.once.Do(func() { overlay.dir, overlay.err = writeOverlay() })
	if overlay.err != nil {
		t.Fatal(overlay.err)
	}
	return overlay.dir
}

func writeOverlay() (string, error) {
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("ask for GOROOT: %w", err)
	}
	original := filepath.Join(strings.TrimSpace(string(root)), "src", "time", "time.go")
	raw, err := os.ReadFile(original)
	if err != nil {
		return "", err
	}
	const before = "sec, nsec, mono := runtimeNow()\n\tif mono == 0 {"
	if strings.Count(string(raw), before) != 1 {
		return "", fmt.Errorf("time.Now of %s is not as expected: adapt the overlay", runtime.Version())
	}
	text := strings.Replace(string(raw), before, "sec, nsec, mono := runtimeNow()\n\tsec += shiftSeconds()\n\tif mono == 0 {", 1) + `
var shift string // set by the linker

func shiftSeconds() (n int64) {
	sign := int64(1)
	for _, c := range shift {
		if c == '-' {
			sign = -1
		} else {
			n = n*10 + int64(c-'0')
		}
	}
	return sign * n
}
`
	dir := filepath.Join(os.TempDir(), "holdfast-time-overlay-"+runtime.Version())
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	changed := filepath.Join(dir, "time.go")
	if err := os.WriteFile(changed, []byte(text), 0o644); err != nil {
		return "", err
	}
	list, err := json.Marshal(map[string]map[string]string{"Replace": {original: changed}})
	if err != nil {
		return "", err
	}
	return dir, os.WriteFile(filepath.Join(dir, "overlay.json"), list, 0o644)
}
