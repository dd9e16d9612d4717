package ingesttest

import (
	"context"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/ingest"
	"github.com/holdfast-edge/holdfast/rig/poll"
)

// host stands in for the Runner: it runs a source again and again and keeps what is delivered.
type host struct {
	device Device
	cancel context.CancelFunc
	done   chan struct{} // closed by run's goroutine when it has ended

	mu    sync.Mutex // guards the fields below
	got   []ingest.Reading
	gate  chan struct{} // not nil: deliver waits until it is closed
	inUse int           // calls of deliver that wait
	err   error         // not nil: what deliver returns
	bad   int           // calls of deliver that failed
}

func (h *host) run(ctx context.Context) {
	for ctx.Err() == nil {
		_ = h.device.Source.Run(ctx, h.deliver) // a source may end when deliver fails
		t := time.NewTimer(10 * time.Millisecond)
		select {
		case <-ctx.Done():
		case <-t.C:
		}
		t.Stop()
	}
}

func (h *host) deliver(ctx context.Context, batch ...ingest.Reading) error {
	h.mu.Lock()
	gate := h.gate
	h.inUse++
	h.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.inUse--
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if h.err != nil {
		h.bad++
		return h.err
	}
	for _, r := range batch {
		r.Data = append([]byte(nil), r.Data...)
		h.got = append(h.got, r)
	}
	return nil
}

// hold makes deliver wait until the function it returns is called, or until the source is stopped.
func (h *host) hold() (release func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	gate := make(chan struct{})
	h.gate = gate
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.gate = nil
		close(gate)
	}
}

// fail makes deliver return err from now on; nil: it works again.
func (h *host) fail(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.err = err
}

func (h *host) waiting() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.inUse
}

func (h *host) failed() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.bad
}

func (h *host) readings() []ingest.Reading {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]ingest.Reading(nil), h.got...)
}

// want waits until the payloads are delivered, in order and nothing else.
func (h *host) want(t *testing.T, payloads ...string) {
	t.Helper()
	var got []string
	defer func() {
		if t.Failed() {
			t.Logf("delivered %s\nwant %s", strings.Join(got, " "), strings.Join(payloads, " "))
		}
	}()
	until(t, "all readings", func() bool {
		got = got[:0]
		for i, r := range h.readings() {
			got = append(got, string(r.Data))
			if i >= len(payloads) || payloads[i] != got[i] {
				t.Fatalf("reading %d is %q, not what the device sent", i, r.Data)
			}
		}
		return len(got) == len(payloads)
	})
}

// stop ends the source and checks that it ends soon.
func (h *host) stop(t *testing.T) {
	t.Helper()
	h.cancel()
	select {
	case <-h.done:
	case <-time.After(stopWithin):
		t.Fatalf("Run had not returned %s after its context ended:\n%s", stopWithin, stacks())
	}
}

// until polls cond until it holds.
func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	poll.Until(t, wait, cond, "%s", what)
}

// settle gives a wrong acknowledgement the time to show.
func settle(t *testing.T) {
	t.Helper()
	<-time.After(300 * time.Millisecond)
}

func stacks() string {
	buf := make([]byte, 1<<20)
	return string(buf[:runtime.Stack(buf, true)])
}
