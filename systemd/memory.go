package systemd

import (
	"io/fs"
	"math"
	"os"
	"path"
	"runtime/debug"
	"strconv"
	"strings"
)

// heapShare is the part of the service's memory limit, in percent, that the Go runtime is told to stay below. The rest is for what the
// runtime does not count: the binary's pages, stacks of the kernel, the page cache of a commit in progress.
const heapShare = 80

// LimitMemory makes the Go runtime keep within the memory limit of the service's control group (MemoryMax=), so that a large backlog makes
// the collector work harder and not the kernel kill the daemon. It returns the limit set, in bytes; 0 when the service has no limit, or
// GOMEMLIMIT says something else.
func LimitMemory() int64 {
	if os.Getenv("GOMEMLIMIT") != "" {
		return 0
	}
	limit := memoryMax(os.DirFS("/"))
	if limit == 0 {
		return 0
	}
	limit = limit / 100 * heapShare
	debug.SetMemoryLimit(limit)
	return limit
}

// memoryMax returns the lowest memory.max of this process's control group and those above it, in bytes, 0 for none: cgroups(7), version 2.
func memoryMax(root fs.FS) int64 {
	b, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		group, ok := strings.CutPrefix(strings.TrimSpace(line), "0::/")
		if !ok {
			continue
		}
		lowest := int64(math.MaxInt64)
		for dir := path.Join("sys/fs/cgroup", group); strings.HasPrefix(dir, "sys/fs/cgroup"); dir = path.Dir(dir) {
			b, err := fs.ReadFile(root, path.Join(dir, "memory.max"))
			if err != nil {
				continue // the root has none, or the controller is off
			}
			if n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil && n > 0 { // else "max"
				lowest = min(lowest, n)
			}
		}
		if lowest < math.MaxInt64 {
			return lowest
		}
	}
	return 0
}
