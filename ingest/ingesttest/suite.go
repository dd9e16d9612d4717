// Package ingesttest holds the tests that every ingest.Source must pass.
package ingesttest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/ingest"
	"github.com/holdfast-edge/holdfast/rig/leak"
)

// Device is a source that has not run yet, and the means to play the device it reads.
type Device struct {
	Source ingest.Source

	// Send makes the device send one message whose Data is payload: printable ASCII without blanks, at most 40 bytes. It may
	// be called before the source runs only after Ready returned. It starts no goroutine that outlives it.
	Send func(payload string)
	// Ready waits until the source hears the device; nil when a message sent before that is kept by the device.
	Ready func()
	// Acknowledged returns how many messages the device has seen acknowledged; nil for a device that knows no acknowledgement.
	Acknowledged func() int
	// Break takes the device away and Mend gives it back; both nil when that cannot be played.
	Break, Mend func()
}

const (
	wait       = 20 * time.Second // bounds everything the suite waits for
	stopWithin = 5 * time.Second  // how long a source may take to stop
)

// Run runs the suite. newDevice makes a new source and its device, and registers with t.Cleanup what takes the device down.
func Run(t *testing.T, newDevice func(t *testing.T) Device) {
	t.Run("Name", func(t *testing.T) { testName(t, newDevice(t)) })
	t.Run("Order", func(t *testing.T) { testOrder(t, newDevice(t)) })
	t.Run("Acknowledge", func(t *testing.T) { testAcknowledge(t, newDevice(t)) })
	t.Run("DeliverFails", func(t *testing.T) { testDeliverFails(t, newDevice(t)) })
	t.Run("Stop", func(t *testing.T) { testStop(t, newDevice(t)) })
	t.Run("StopBlocked", func(t *testing.T) { testStopBlocked(t, newDevice(t)) })
	t.Run("RunAgain", func(t *testing.T) { testRunAgain(t, newDevice(t)) })
	t.Run("State", func(t *testing.T) { testState(t, newDevice(t)) })
	t.Run("Counts", func(t *testing.T) { testCounts(t, newDevice(t)) })
}

func testName(t *testing.T, d Device) {
	name := d.Source.Name()
	if name == "" {
		t.Fatal("Name() is empty")
	}
	h := start(t, d)
	h.send("x")
	h.want(t, "x")
	if got := d.Source.Name(); got != name {
		t.Errorf("Name() = %q while running, was %q", got, name)
	}
	h.stop(t)
	if got := d.Source.Name(); got != name {
		t.Errorf("Name() = %q after running, was %q", got, name)
	}
}

func testOrder(t *testing.T, d Device) {
	h := start(t, d)
	sent := h.sendMany("order", 200)
	h.want(t, sent...)
	for i, r := range h.readings() {
		if r.Time.IsZero() {
			t.Fatalf("reading %d has no time", i)
		}
	}
}

// testAcknowledge holds deliver back: the device must see nothing acknowledged until it returns.
func testAcknowledge(t *testing.T, d Device) {
	if d.Acknowledged == nil {
		t.Skip("this device knows no acknowledgement")
	}
	h := start(t, d)
	release := h.hold()
	sent := h.sendMany("ack", 5)
	until(t, "deliver to be called", func() bool { return h.waiting() > 0 })
	settle(t)
	if n := d.Acknowledged(); n != 0 {
		t.Fatalf("device saw %d acknowledgements while deliver had not returned, want 0", n)
	}
	release()
	h.want(t, sent...)
	until(t, "all to be acknowledged", func() bool { return d.Acknowledged() >= len(sent) })
}

// testDeliverFails lets deliver fail: what it was given must come again, before anything newer.
func testDeliverFails(t *testing.T, d Device) {
	h := start(t, d)
	h.send("first")
	h.want(t, "first")
	acked := 0
	if d.Acknowledged != nil {
		until(t, "the first to be acknowledged", func() bool { return d.Acknowledged() >= 1 })
		acked = d.Acknowledged()
	}
	h.fail(errors.New("store does not answer"))
	h.send("second")
	until(t, "deliver to fail", func() bool { return h.failed() > 0 })
	settle(t)
	if d.Acknowledged != nil && d.Acknowledged() > acked {
		t.Errorf("device saw %d acknowledgements after deliver had failed, want %d", d.Acknowledged(), acked)
	}
	h.fail(nil)
	h.sendMany("third", 3)
	h.want(t, "first", "second", "third-000", "third-001", "third-002")
}

func testStop(t *testing.T, d Device) {
	leak.Check(t)
	h := start(t, d)
	h.send("x")
	h.want(t, "x")
	h.stop(t)
}

func testStopBlocked(t *testing.T, d Device) {
	leak.Check(t)
	h := start(t, d)
	_ = h.hold()
	h.send("x")
	until(t, "deliver to be called", func() bool { return h.waiting() > 0 })
	h.stop(t)
}

// testRunAgain stops a source while deliver holds a message: the next run must bring that message.
func testRunAgain(t *testing.T, d Device) {
	h := start(t, d)
	h.send("one")
	h.want(t, "one")
	_ = h.hold()
	h.send("two")
	until(t, "deliver to be called", func() bool { return h.waiting() > 0 })
	h.stop(t)

	again := start(t, d)
	again.want(t, "two")
	again.send("three")
	again.want(t, "two", "three")
}

func testState(t *testing.T, d Device) {
	s, ok := d.Source.(ingest.Stater)
	if !ok {
		t.Skip("this source has no State")
	}
	h := start(t, d)
	h.send("x")
	h.want(t, "x")
	until(t, "state running", func() bool { return s.State().Kind == ingest.Running })
	if st := s.State(); st.Cause != "" || st.Since.IsZero() {
		t.Errorf("State() = %+v while running, want no cause, and since when", st)
	}
	if d.Break == nil {
		return
	}
	d.Break()
	until(t, "a state other than running", func() bool { return s.State().Kind > ingest.Running })
	if st := s.State(); st.Cause == "" || st.Remedy == "" || st.Since.IsZero() {
		t.Errorf("State() = %+v without the device, want a cause, a remedy, and since when", st)
	}
	d.Mend()
	h.ready()
	h.send("y")
	h.want(t, "x", "y")
	until(t, "state running again", func() bool { return s.State().Kind == ingest.Running })
}

func testCounts(t *testing.T, d Device) {
	c, ok := d.Source.(ingest.Counter)
	if !ok {
		t.Skip("this source has no Counts")
	}
	h := start(t, d)
	h.want(t, h.sendMany("count", 20)...)
	until(t, "20 to be counted", func() bool {
		got := c.Counts()
		n := got.Received
		for _, r := range got.Rejected {
			n -= r
		}
		return n == 20
	})
	h.stop(t)
	if n := c.Counts().Received; n < 20 {
		t.Errorf("Counts().Received = %d after the run, want the 20 from before", n)
	}
}

// start runs the source of a device as the Runner does, and waits until it hears the device.
func start(t *testing.T, d Device) *host {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	h := &host{device: d, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(h.done)
		h.run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		select {
		case <-h.done:
		case <-time.After(stopWithin):
		}
	})
	h.ready()
	return h
}

func (h *host) ready() {
	if h.device.Ready != nil {
		h.device.Ready()
	}
}

func (h *host) send(payload string) { h.device.Send(payload) }

func (h *host) sendMany(prefix string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("%s-%03d", prefix, i)
		h.device.Send(out[i])
	}
	return out
}
