package leak

import (
	"context"
	"strings"
	"testing"

	"github.com/holdfast-edge/holdfast/rig/poll"
)

func TestStacksShowNewGoroutine(t *testing.T) {
	Check(t)
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		waitHere(stop)
	}()
	seen := func() bool {
		for _, stack := range stacks() {
			if strings.Contains(stack, "leak.waitHere") && !tolerated(stack) {
				return true
			}
		}
		return false
	}
	if !poll.Wait(context.Background(), Patience, seen) {
		t.Error("a running goroutine does not show")
	}
	close(stop)
	<-ended
	if !poll.Wait(context.Background(), Patience, func() bool { return !seen() }) {
		t.Error("an ended goroutine still shows")
	}
}

func waitHere(c chan struct{}) { <-c }
