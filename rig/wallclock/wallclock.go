// Package wallclock builds programs whose wall clock is wrong, or can be stepped while they run, as gateways have them that lack a battery.
//
// A build overlay replaces time.Now, the monotonic part of it untouched, which is exactly what setting a clock does; and, in package storage, what the
// kernel says of its clock and of its boot. Nothing in the program knows of it.
package wallclock

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// Variable names the environment variable with the path of the file that Set writes. A program that runs without it has the machine's clock.
const Variable = "HOLDFAST_CLOCK"

// Build builds a package, for a test binary with the flags of `go test -c`, into output. With a shift its clock is always that much off.
func Build(output, pkg string, test bool, shift time.Duration) error {
	overlay, err := writeOverlay()
	if err != nil {
		return err
	}
	args := []string{"build"}
	if test {
		args = []string{"test", "-c"}
	}
	args = append(args, "-overlay", overlay)
	if shift != 0 {
		args = append(args, "-ldflags", fmt.Sprintf("-X time.shift=%d", int64(shift/time.Second)))
	}
	if out, err := exec.Command("go", append(args, "-o", output, pkg)...).CombinedOutput(); err != nil {
		return fmt.Errorf("build with another clock: %w\n%s", err, out)
	}
	return nil
}

// File is what a program built by Build maps into its memory at its start, so it must be there by then: Set makes it.
type File string

// Set steps the wall clock, at once, to so far from the machine's, and says what the kernel says: state is synced, unsynced or unknown, and boot its
// boot ID.
func (f File) Set(shift time.Duration, state, boot string) error {
	content := binary.NativeEndian.AppendUint64(nil, uint64(shift/time.Second))
	content = fmt.Appendf(content, "%-10s %-40s\n", state, boot)
	file, err := os.OpenFile(string(f), os.O_WRONLY|os.O_CREATE, 0o600) // in place: it is mapped
	if err != nil {
		return fmt.Errorf("set the clock: %w", err)
	}
	_, err = file.Write(content)
	if cerr := file.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("set the clock: %w", err)
	}
	return nil
}

// writeOverlay writes the overlay, always at the same place, so that what was built with it is found again in the build cache.
func writeOverlay() (string, error) {
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("ask for GOROOT: %w", err)
	}
	module, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return "", fmt.Errorf("ask for the module: %w", err)
	}
	home := strings.TrimSpace(string(module))
	dir := filepath.Join(os.TempDir(), "holdfast-time-overlay-"+runtime.Version()+"-"+strconv.Itoa(os.Getuid()))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	replace := map[string]string{}
	put := func(original, name, text string) error {
		changed := filepath.Join(dir, name)
		replace[original] = changed
		if have, err := os.ReadFile(changed); err == nil && string(have) == text {
			return nil // another test may be building with it
		}
		return os.WriteFile(changed, []byte(text), 0o644)
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
	text := strings.Replace(string(raw), before, "sec, nsec, mono := runtimeNow()\n\tsec += shiftSeconds()\n\tif mono == 0 {", 1)
	if err := put(original, "time.go", text); err != nil {
		return "", err
	}
	if err := put(filepath.Join(filepath.Dir(original), "shift.go"), "shift.go", shiftSource); err != nil {
		return "", err
	}
	if err := put(filepath.Join(home, "storage", "clock_kernel.go"), "clock_kernel.go", kernelSource); err != nil {
		return "", err
	}
	list, err := json.Marshal(map[string]map[string]string{"Replace": replace})
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "overlay-"+filepath.Base(home)+".json") // several copies of the module may be under test
	return path, os.WriteFile(path, list, 0o644)
}

// shiftSource is a file that package time gets: how far its clock is off. It is asked where no system call is allowed.
const shiftSource = `package time

import (
	"sync/atomic"
	"syscall"
	"unsafe"
)

var shift string // set by the linker

var shiftMapped = mapShift()

func mapShift() *int64 {
	name, _ := syscall.Getenv("HOLDFAST_CLOCK")
	if name == "" {
		return nil
	}
	fd, err := syscall.Open(name, syscall.O_RDONLY, 0)
	if err != nil {
		return nil
	}
	page, err := syscall.Mmap(fd, 0, 8, syscall.PROT_READ, syscall.MAP_SHARED)
	syscall.Close(fd)
	if err != nil {
		return nil
	}
	return (*int64)(unsafe.Pointer(&page[0]))
}

func shiftSeconds() int64 {
	if shift != "" {
		return parseShift(shift)
	}
	if shiftMapped == nil {
		return 0
	}
	return atomic.LoadInt64(shiftMapped)
}

func parseShift(s string) (n int64) {
	sign := int64(1)
	for _, c := range s {
		switch {
		case c == '-':
			sign = -1
		case c >= '0' && c <= '9':
			n = n*10 + int64(c-'0')
		}
	}
	return sign * n
}
`

// kernelSource stands for storage/clock_kernel.go.
const kernelSource = `package storage

import (
	"os"
	"strings"
)

const timesyncMark = "/nonexistent/synchronized"

func steppedClock() []string {
	raw, err := os.ReadFile(os.Getenv("HOLDFAST_CLOCK"))
	if err == nil && len(raw) > 8 {
		if f := strings.Fields(string(raw[8:])); len(f) == 2 {
			return f
		}
	}
	return []string{"unsynced", "stepped"}
}

func kernelClock() ClockState {
	switch steppedClock()[0] {
	case "synced":
		return ClockSynced
	case "unsynced":
		return ClockUnsynced
	}
	return ClockUnknown
}

func kernelBootID() (string, error) { return steppedClock()[1], nil }
`
