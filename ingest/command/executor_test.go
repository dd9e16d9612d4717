package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/ingest"
	"github.com/holdfast-edge/holdfast/rig/poll"
	"github.com/holdfast-edge/holdfast/storage"
)

// TestCommandsInOrder gives one source more than it can do at once, and lets another hang: the one's are executed in order and one
// at a time, and the other keeps it from nothing. What is executed leaves the stream.
func TestCommandsInOrder(t *testing.T) {
	b := newBench(t)
	release := make(chan struct{})
	busy := 0
	gps := &device{bench: b, name: "gps", do: func(context.Context, ingest.Command) ingest.Outcome {
		b.mu.Lock()
		busy++
		if busy > 1 {
			t.Errorf("%d commands at a time", busy)
		}
		b.mu.Unlock()
		defer func() { b.mu.Lock(); busy--; b.mu.Unlock() }()
		return ingest.Outcome{State: ingest.OutcomeDone}
	}}
	slow := &device{bench: b, name: "slow", do: func(ctx context.Context, _ ingest.Command) ingest.Outcome {
		select {
		case <-release:
		case <-ctx.Done():
		}
		return ingest.Outcome{State: ingest.OutcomeDone}
	}}
	e, _ := b.start(gps, slow)
	b.order(ingest.Command{ID: "s1", Source: "slow"})
	var want []string
	for i := range 20 {
		id := fmt.Sprintf("c%02d", i)
		want = append(want, id+"=done")
		b.order(ingest.Command{ID: id, Source: "gps", Tail: "x.y", Data: []byte(id)})
	}
	if got := states(b.outcomes(20)); got != strings.Join(want, " ") {
		t.Errorf("outcomes %s, want %s", got, want)
	}
	close(release)
	b.outcomes(21)
	id, out, err := e.Do(t.Context(), ingest.Command{Source: "gps", Data: []byte("now")})
	if err != nil || out.State != ingest.OutcomeDone || !strings.HasPrefix(id, "gw.00c0ffee00.") {
		t.Errorf("Do() = %s, %+v, %v", id, out, err)
	}
	s, err := b.js.Stream(t.Context(), Stream)
	if err != nil {
		t.Fatal(err)
	}
	poll.Until(t, patience, func() bool {
		info, err := s.Info(t.Context())
		return err == nil && info.State.Msgs <= 3
	}, "executed commands to leave the stream")
}

// TestCommandIsJudged sends commands that must not reach the device.
func TestCommandIsJudged(t *testing.T) {
	soon, past := time.Now().Add(time.Hour), time.Now().Add(-time.Minute)
	for _, tc := range []struct {
		name  string
		clock storage.ClockState
		c     ingest.Command
		more  []string
		state string
		cause string
	}{
		{"in time", storage.ClockSynced, ingest.Command{NotAfter: soon}, nil, ingest.OutcomeDone, ""},
		{"expired", storage.ClockSynced, ingest.Command{NotAfter: past}, nil, ingest.OutcomeExpired, "had to begin before"},
		{"untrusted clock", storage.ClockUnsynced, ingest.Command{NotAfter: soon}, nil, ingest.OutcomeRefused, "clock is unsynced"},
		{"unknown clock", storage.ClockUnknown, ingest.Command{NotAfter: past}, nil, ingest.OutcomeRefused, "clock is unknown"},
		{"untrusted clock, no limit", storage.ClockUnsynced, ingest.Command{}, nil, ingest.OutcomeDone, ""},
		{"bad time", storage.ClockSynced, ingest.Command{}, []string{HeaderNotAfter, "tomorrow"}, ingest.OutcomeRefused, "tomorrow"},
		{"bad timeout", storage.ClockSynced, ingest.Command{}, []string{HeaderTimeout, "-5s"}, ingest.OutcomeRefused, "-5s"},
		{"long timeout", storage.ClockSynced, ingest.Command{}, []string{HeaderTimeout, "1000h"}, ingest.OutcomeRefused, "1000h"},
		{"too large", storage.ClockSynced, ingest.Command{Data: make([]byte, maxCommand+1)}, nil, ingest.OutcomeRefused, "262145 bytes"},
		{"no commander", storage.ClockSynced, ingest.Command{Source: "deaf"}, nil, ingest.OutcomeRefused, "takes no commands"},
		{"no such source", storage.ClockSynced, ingest.Command{Source: "gsp"}, nil, ingest.OutcomeRefused, `no source "gsp"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t)
			b.clock = tc.clock
			b.start(deaf{}, &device{bench: b, name: "gps"})
			tc.c.ID = "c1"
			if tc.c.Source == "" {
				tc.c.Source = "gps"
			}
			b.order(tc.c, tc.more...)
			o := b.outcomes(1)[0]
			if o.State != tc.state || !strings.Contains(o.Cause, tc.cause) || o.Command != "c1" || o.Source != tc.c.Source {
				t.Errorf("outcome %+v, want %s: %s", o, tc.state, tc.cause)
			}
			if last, err := b.js.Stream(t.Context(), "S"); tc.c.Source == "gsp" && err == nil {
				if m, err := last.GetMsg(t.Context(), 1); err != nil || m.Subject != "data.gw.S.gps.outcome" {
					t.Errorf("the outcome is on %v, %v", m, err)
				}
			}
			if touched := len(b.sent) > 0; touched != (tc.state == ingest.OutcomeDone) {
				t.Errorf("device touched: %t", touched)
			}
		})
	}
}

// TestCommandTimeoutAndPanic lets a device hang, and one panic: both have an outcome, and the next command is executed.
func TestCommandTimeoutAndPanic(t *testing.T) {
	b := newBench(t)
	b.start(&device{bench: b, name: "gps", do: func(ctx context.Context, c ingest.Command) ingest.Outcome {
		switch string(c.Data) {
		case "hang":
			<-ctx.Done()
			return ingest.Outcome{State: ingest.OutcomeUnknown, Cause: ctx.Err().Error()}
		case "panic":
			panic("out of range")
		}
		return ingest.Outcome{State: ingest.OutcomeDone, Reply: bytes.Repeat([]byte("x"), 2*maxReply)}
	}})
	b.order(ingest.Command{ID: "c1", Source: "gps", Data: []byte("hang"), Timeout: 50 * time.Millisecond})
	b.order(ingest.Command{ID: "c2", Source: "gps", Data: []byte("panic")})
	b.order(ingest.Command{ID: "c3", Source: "gps"})
	got := b.outcomes(3)
	if states(got) != "c1=unknown c2=unknown c3=done" || !strings.Contains(got[0].Cause, "deadline") || !strings.Contains(got[1].Cause, "out of range") {
		t.Errorf("outcomes %+v", got)
	}
	if len(got[2].Reply) != maxReply {
		t.Errorf("a reply of %d bytes is kept, want %d", len(got[2].Reply), maxReply)
	}
}

// TestCommandOnceThroughCrash ends the daemon at every point of a command's life, by the mark it would leave. The device is never
// touched twice, every command has one outcome, and the next one is executed.
func TestCommandOnceThroughCrash(t *testing.T) {
	for _, tc := range []struct {
		name  string
		crash func(b *bench, m *mark)
		want  string
		sent  string
	}{
		{"before the mark", func(*bench, *mark) {}, "c1=done c2=done", "c1 c2"},
		{"device may be touched", func(b *bench, m *mark) { b.must(m.begin(1, ingest.Command{ID: "c1", Source: "gps"})) }, "c1=unknown c2=done", "c2"},
		{"answered, not recorded", func(b *bench, m *mark) {
			b.must(m.answer(1, outcome(ingest.Command{ID: "c1", Source: "gps"}, ingest.Outcome{State: ingest.OutcomeDone})))
		}, "c1=done c2=done", "c2"},
		{"answered and recorded", func(b *bench, m *mark) {
			o := outcome(ingest.Command{ID: "c1", Source: "gps"}, ingest.Outcome{State: ingest.OutcomeDone})
			b.must(m.answer(1, o))
			r, err := o.reading()
			b.must(err)
			b.must(b.record(context.Background(), "gps", r))
		}, "c1=done c2=done", "c2"},
		{"finished", func(b *bench, m *mark) {
			o := outcome(ingest.Command{ID: "c1", Source: "gps"}, ingest.Outcome{State: ingest.OutcomeDone})
			r, err := o.reading()
			b.must(err)
			b.must(b.record(context.Background(), "gps", r))
			b.must(m.answer(1, o))
			b.must(m.finish())
		}, "c1=done c2=done", "c2"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t)
			_, stop := b.start()
			stop()
			e := New(Options{Leaf: "gw", JetStream: b.js})
			if _, err := e.stream(t.Context()); err != nil {
				t.Fatal(err)
			}
			b.order(ingest.Command{ID: "c1", Source: "gps"})
			b.order(ingest.Command{ID: "c2", Source: "gps"})
			m, err := openMark(b.dir, "gps")
			b.must(err)
			tc.crash(b, m)
			b.start(&device{bench: b, name: "gps"})
			if got := states(b.outcomes(2)); got != tc.want {
				t.Errorf("outcomes %s, want %s", got, tc.want)
			}
			if got := strings.Join(b.sent, " "); got != tc.sent {
				t.Errorf("the device was told %q, want %q", got, tc.sent)
			}
		})
	}
}

// TestCommandComesAgain gives a command twice, and once more from a stream that was made anew with lower sequences: it is executed once.
func TestCommandComesAgain(t *testing.T) {
	b := newBench(t)
	_, stop := b.start(&device{bench: b, name: "gps"})
	b.order(ingest.Command{ID: "c0", Source: "gps"})
	b.order(ingest.Command{ID: "c1", Source: "gps"})
	b.outcomes(2)
	stop()
	b.must(b.js.DeleteStream(t.Context(), Stream))
	b.start(&device{bench: b, name: "gps"})
	b.order(ingest.Command{ID: "c1", Source: "gps"})
	b.order(ingest.Command{ID: "c2", Source: "gps"})
	if got := states(b.outcomes(3)); got != "c0=done c1=done c2=done" {
		t.Errorf("outcomes %s", got)
	}
	if got := strings.Join(b.sent, " "); got != "c0 c1 c2" {
		t.Errorf("the device was told %q", got)
	}
}

// TestCommandWaitsForTheStore stops an executor whose outcome cannot be stored: after the next start it is, once.
func TestCommandWaitsForTheStore(t *testing.T) {
	b := newBench(t)
	b.full = true
	e, stop := b.start(&device{bench: b, name: "gps"})
	b.order(ingest.Command{ID: "c1", Source: "gps"})
	b.order(ingest.Command{ID: "c2", Source: "gps"})
	poll.Until(t, patience, func() bool {
		m, err := openMark(b.dir, "gps")
		return err == nil && m.Phase == answered
	}, "the device to answer")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, _, err := e.Do(ctx, ingest.Command{ID: "c3", Source: "gps"}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Do() = %v while the store takes nothing, want a time-out", err)
	}
	stop()
	b.full = false
	b.start(&device{bench: b, name: "gps"})
	if got := states(b.outcomes(3)); got != "c1=done c2=done c3=done" {
		t.Errorf("outcomes %s", got)
	}
	if got := strings.Join(b.sent, " "); got != "c1 c2 c3" {
		t.Errorf("the device was told %q", got)
	}
}

func TestSubmitRefuses(t *testing.T) {
	b := newBench(t)
	e, _ := b.start(&device{bench: b, name: "gps"}, deaf{})
	for _, c := range []ingest.Command{{Source: "gsp"}, {Source: "deaf"}} {
		if _, err := e.Submit(t.Context(), c); !errors.Is(err, ErrNoSource) {
			t.Errorf("Submit(%+v) = %v, want ErrNoSource", c, err)
		}
	}
	if _, err := e.Submit(t.Context(), ingest.Command{Source: "gps", Data: make([]byte, maxCommand+1)}); err == nil {
		t.Error("Submit takes a command that is too large")
	}
}

// TestSetSources changes the sources while commands are in hand: one that stays is not disturbed, one that goes ends with an outcome, and
// one that takes its place executes what follows, once.
func TestSetSources(t *testing.T) {
	b := newBench(t)
	release := make(chan struct{})
	wait := func(ctx context.Context, _ ingest.Command) ingest.Outcome {
		select {
		case <-release:
			return ingest.Outcome{State: ingest.OutcomeDone}
		case <-ctx.Done():
			return ingest.Outcome{State: ingest.OutcomeUnknown, Cause: "ended"}
		}
	}
	stays := ingest.Entry{Source: &device{bench: b, name: "stays", do: wait}, Stream: "S"}
	e, _ := b.start(stays.Source, &device{bench: b, name: "goes", do: wait})
	b.order(ingest.Command{ID: "s1", Source: "stays"})
	b.order(ingest.Command{ID: "g1", Source: "goes"})
	poll.Until(t, patience, func() bool { b.mu.Lock(); defer b.mu.Unlock(); return len(b.sent) == 2 }, "both commands to be in hand")
	e.Set([]ingest.Entry{stays})
	if got := states(b.outcomes(1)); got != "g1=unknown" {
		t.Errorf("outcomes %s", got)
	}
	e.Set([]ingest.Entry{stays, {Source: &device{bench: b, name: "goes"}, Stream: "S"}})
	b.order(ingest.Command{ID: "g2", Source: "goes"})
	if got := states(b.outcomes(2)); got != "g1=unknown g2=done" {
		t.Errorf("outcomes %s", got)
	}
	close(release)
	if got := states(b.outcomes(3)); got != "g1=unknown g2=done s1=done" {
		t.Errorf("outcomes %s", got)
	}
}
