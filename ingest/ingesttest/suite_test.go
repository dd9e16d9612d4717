package ingesttest

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/ingest"
)

// radio is a made-up device that repeats a message until it is acknowledged, and the source that reads it.
type radio struct {
	fault string // what the source does wrong

	mu     sync.Mutex // guards the fields below
	queue  []string
	acked  int
	gone   bool
	state  ingest.State
	tally  ingest.Tally
	change chan struct{}
}

func newRadio(fault string) *radio { return &radio{fault: fault, change: make(chan struct{}, 1)} }

func (r *radio) Name() string {
	if r.fault == "name" {
		return ""
	}
	return "radio"
}

func (r *radio) State() ingest.State {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state
}

func (r *radio) Counts() ingest.Counts { return r.tally.Counts() }

func (r *radio) set(f func()) {
	r.mu.Lock()
	f()
	r.mu.Unlock()
	select {
	case r.change <- struct{}{}:
	default:
	}
}

func (r *radio) device() Device {
	return Device{
		Source:       r,
		Send:         func(p string) { r.set(func() { r.queue = append(r.queue, p) }) },
		Acknowledged: func() int { r.mu.Lock(); defer r.mu.Unlock(); return r.acked },
		Break:        func() { r.set(func() { r.gone = true }) },
		Mend:         func() { r.set(func() { r.gone = false }) },
	}
}

func (r *radio) Run(ctx context.Context, deliver ingest.Deliver) error {
	if r.fault == "leak" {
		go func() { select {} }()
	}
	for {
		r.mu.Lock()
		var next []string
		if !r.gone {
			next = append(next, r.queue...)
		}
		r.look()
		r.mu.Unlock()
		if r.fault == "order" && len(next) > 1 {
			next[0], next[1] = next[1], next[0]
		}
		if len(next) > 0 {
			if err := r.pass(ctx, deliver, next); err != nil {
				return err
			}
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.change:
		}
	}
}

// look sets the state from the device; r.mu is held.
func (r *radio) look() {
	kind, cause, remedy := ingest.Running, "", ""
	if r.gone {
		kind, cause, remedy = ingest.Waiting, "no carrier", "switch the radio on"
		if r.fault == "state" {
			cause = ""
		}
	}
	if kind != r.state.Kind {
		r.state = ingest.State{Kind: kind, Cause: cause, Remedy: remedy, Since: time.Now()}
	}
}

func (r *radio) pass(ctx context.Context, deliver ingest.Deliver, next []string) error {
	var batch []ingest.Reading
	for _, p := range next {
		batch = append(batch, ingest.Reading{Time: time.Now(), Data: []byte(p)})
	}
	take := func() { r.set(func() { r.queue = r.queue[len(next):]; r.acked += len(next) }) }
	if r.fault == "ack" {
		take()
	}
	err := deliver(ctx, batch...)
	if r.fault == "stuck" && errors.Is(err, context.Canceled) {
		select {}
	}
	if r.fault == "ack" {
		return err
	}
	if r.fault == "drop" || err == nil {
		take()
	}
	if err == nil && r.fault != "counts" {
		r.tally.Deliver(len(batch))
	}
	return err
}

func TestSuitePassesGoodSource(t *testing.T) {
	Run(t, func(*testing.T) Device { return newRadio("").device() })
}

// TestSuiteFindsFault runs the suite in a child process against sources with one fault each: it must fail in the right test.
func TestSuiteFindsFault(t *testing.T) {
	if fault := os.Getenv("INGESTTEST_FAULT"); fault != "" {
		Run(t, func(*testing.T) Device { return newRadio(fault).device() })
		return
	}
	if testing.Short() {
		t.Skip("takes 20s: some faults show only by a time-out")
	}
	for _, tc := range []struct{ fault, fails string }{
		{"name", "Name"}, {"order", "Order"}, {"ack", "Acknowledge"}, {"drop", "DeliverFails"},
		{"leak", "Stop"}, {"stuck", "StopBlocked"}, {"state", "State"}, {"counts", "Counts"},
	} {
		t.Run(tc.fault, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(os.Args[0], "-test.run=^TestSuiteFindsFault$/^"+tc.fails+"$", "-test.timeout=60s")
			cmd.Env = append(os.Environ(), "INGESTTEST_FAULT="+tc.fault)
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), "FAIL: TestSuiteFindsFault/"+tc.fails) && !strings.Contains(string(out), "panic: test timed out") {
				t.Errorf("suite passed a source with the fault %q: %v\n%s", tc.fault, err, out)
			}
		})
	}
}
