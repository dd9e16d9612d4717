// Package leak finds goroutines that a test started and nobody waited for.
package leak

import (
	"bytes"
	"context"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/rig/poll"
)

// Patience is how long goroutines may take to end after a test.
const Patience = 10 * time.Second

// Check fails the test when goroutines that were not there at this call still live Patience after the test and its later
// clean-ups: so call it before everything that registers a clean-up. It sees the whole process, so it does not fit parallel tests.
func Check(t testing.TB) {
	t.Helper()
	before := make(map[string]bool)
	for id := range stacks() {
		before[id] = true
	}
	t.Cleanup(func() {
		var left map[string]string
		ended := poll.Wait(context.Background(), Patience, func() bool {
			left = stacks()
			for id, stack := range left {
				if before[id] || tolerated(stack) {
					delete(left, id)
				}
			}
			return len(left) == 0
		})
		if ended {
			return
		}
		for _, stack := range left {
			t.Errorf("a goroutine outlived the test:\n%s", stack)
		}
	})
}

// stacks returns the stacks of all goroutines but the calling one, by goroutine id.
func stacks() map[string]string {
	buf := make([]byte, 1<<20)
	for {
		n := runtime.Stack(buf, true)
		if n < len(buf) {
			buf = buf[:n]
			break
		}
		buf = make([]byte, 2*len(buf))
	}
	all := bytes.Split(buf, []byte("\n\n"))
	found := make(map[string]string, len(all))
	for _, stack := range all[1:] { // the first is the caller
		id, _, ok := strings.Cut(strings.TrimPrefix(string(stack), "goroutine "), " ")
		if ok {
			found[id] = string(stack)
		}
	}
	return found
}

// processWide lists functions whose goroutine belongs to the process, once started, and not to a test.
var processWide = []string{
	"os/signal.loop",
	"os/signal.signal_recv",
	"testing.(*M).startAlarm",
	"testing.runFuzzing",
	"testing.(*T).Run(", // the parent, waiting for a subtest
	"testing.tRunner.func",
	"runtime.ensureSigM",
	"nats-server/v2/server/ats.Register",                 // one clock for all stores; seen to stay, rarely, behind servers that were stopped while starting
	"server.(*fileStore).flushStreamStateLoop",           // the same, alone, of a stream that was being made when its server was stopped
	"jetstream.(*jetStream).resetPendingAcksOnReconnect", // of nats.go: it begins to listen after its publisher was cleaned up, rarely, and then for ever
}

func tolerated(stack string) bool {
	for _, name := range processWide {
		if strings.Contains(stack, name) {
			return true
		}
	}
	return false
}
