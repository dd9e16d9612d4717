// Package poll waits in tests for what other goroutines, servers and processes bring about.
package poll

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// Interval is the pause between two looks at a condition.
const Interval = 10 * time.Millisecond

// Until waits until cond is true and fails the test with the message, formatted with args, when that takes longer than timeout.
// cond runs on the calling goroutine, at least once, and once more after the deadline.
func Until(t testing.TB, timeout time.Duration, cond func() bool, format string, args ...any) {
	t.Helper()
	if !Wait(context.Background(), timeout, cond) {
		t.Fatalf("not within %v: %s", timeout, fmt.Sprintf(format, args...))
	}
}

// Wait returns true as soon as cond is true and false when timeout has passed or ctx has ended before that.
func Wait(ctx context.Context, timeout time.Duration, cond func() bool) bool {
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()
	tick := time.NewTicker(Interval)
	defer tick.Stop()
	for {
		if cond() {
			return true
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			return cond()
		case <-ctx.Done():
			return false
		}
	}
}
