package serial

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-edge/holdfast/ingest"
	"github.com/holdfast-edge/holdfast/ingest/frame"
	"github.com/holdfast-edge/holdfast/ingest/ingesttest"
	sim "github.com/holdfast-edge/holdfast/rig/device"
	"github.com/holdfast-edge/holdfast/rig/leak"
	"github.com/holdfast-edge/holdfast/rig/poll"
)

func TestSource(t *testing.T) {
	ingesttest.Run(t, func(t *testing.T) ingesttest.Device {
		p := newPlug(t)
		s, _ := newSource(t, p.config(), lines)
		return ingesttest.Device{
			Source: s,
			Send:   func(payload string) { p.send(payload + "\n") },
			Ready: func() {
				poll.Until(t, patience, func() bool { return s.State().Kind == ingest.Running }, "the port to be open")
			},
			Break: p.out,
			Mend:  p.in,
		}
	})
}

// TestSlowSentences reads a receiver at the pace of 4800 baud, where a sentence takes 150 ms.
func TestSlowSentences(t *testing.T) {
	leak.Check(t)
	gps, err := sim.NewGPS(filepath.Join(t.TempDir(), "gps"), 4800)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = gps.Unplug() })
	var cfg Config
	cfg.SetDefaults()
	cfg.Port, cfg.Baud, cfg.Silence = gps.Path, 4800, time.Second
	r := start(t, cfg, frame.Config{Type: frame.TypeNMEA})
	r.becomes(t, ingest.Running)
	if err := gps.Run(t.Context(), &sim.Sentences{}, 20); err != nil {
		t.Fatal(err)
	}
	r.wants(t, gps.Sent()...)
	if c := r.Counts(); c.Received != 20 || len(c.Rejected) != 0 {
		t.Errorf("Counts() = %+v, want 20 received and none rejected", c)
	}
	if strings.Contains(r.log.String(), "silent") {
		t.Errorf("the slow line was taken for a silent one:\n%s", r.log)
	}
}

// TestFieldCases runs the cases that need a line from the file they are described in.
func TestFieldCases(t *testing.T) {
	t.Run("ING-001 hang-up", func(t *testing.T) {
		p := newPlug(t)
		dev, err := open(p.config())
		if err != nil {
			t.Fatal(err)
		}
		p.send("abc")
		p.out()
		failed := 0
		for range 4 {
			if err := dev.SetReadDeadline(time.Now().Add(patience)); err != nil {
				t.Fatal(err)
			}
			n, err := dev.Read(make([]byte, 16))
			if n < 0 || err == nil && n == 0 || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatalf("Read() = %d, %v after the hang-up", n, err)
			}
			if err != nil {
				failed++
			}
		}
		if failed < 3 {
			t.Errorf("%d reads of 4 failed, want all but one that may give abc", failed)
		}
		_ = dev.Close()

		p.in()
		r := start(t, p.config(), lines)
		r.becomes(t, ingest.Running)
		p.out()
		r.becomes(t, ingest.Waiting)
		poll.Until(t, patience, func() bool { return strings.Contains(r.State().Cause, "not there") }, "the missing node to be told")
		if n := strings.Count(r.log.String(), "state=waiting"); n != 1 {
			t.Errorf("waiting was logged %d times, want once:\n%s", n, r.log)
		}
	})
	t.Run("ING-002 empty reads without waiting", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, log := newSource(t, (&plug{link: "/dev/ttyUSB0"}).config(), lines)
			var opens, reads int
			s.open = func(Config) (device, error) { opens++; return &deadPort{reads: &reads}, nil }
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_ = s.Run(ctx, func(context.Context, ...ingest.Reading) error { return nil })
			if opens < 5 || opens > 20 || reads > opens*(deadReads+2) {
				t.Errorf("%d opens and %d reads in a minute, want a growing pause between opens", opens, reads)
			}
			if !strings.Contains(log.String(), "reads as empty") {
				t.Errorf("the cause is not in the log:\n%s", log)
			}
		})
	})
	t.Run("ING-003 time-outs", func(t *testing.T) {
		p := newPlug(t)
		cfg := p.config()
		cfg.Silence = 5 * time.Millisecond // makes the time-out of a read as short
		r := start(t, cfg, lines)
		r.becomes(t, ingest.Silent)
		<-time.After(time.Second)
		p.send("A")
		r.hears(t, 1)
		p.send("\n")
		r.wants(t, "A")
	})
	t.Run("ING-011 two readers of one port", func(t *testing.T) {
		p := newPlug(t)
		first := start(t, p.config(), lines)
		first.becomes(t, ingest.Running)
		other := filepath.Join(t.TempDir(), "by-path")
		if err := os.Symlink(p.node, other); err != nil {
			t.Fatal(err)
		}
		cfg := p.config()
		cfg.Port, cfg.Baud = other, 115200
		second := start(t, cfg, lines)
		st := second.becomes(t, ingest.Busy)
		if !strings.Contains(st.Cause, "this daemon") || !strings.Contains(st.Remedy, "ModemManager") {
			t.Errorf("State() = %+v, want it to name this daemon and, as a hint, ModemManager", st)
		}
		var want []string
		for i := range 50 {
			want = append(want, fmt.Sprintf("unit=%02d,value=4000", i))
			p.send(want[i] + "\r\n")
		}
		first.wants(t, want...)
		if n := len(second.texts()); n != 0 {
			t.Errorf("the second reader got %d lines, want none", n)
		}
		if got := p.speed(); got != 9600 {
			t.Errorf("the line runs at %d baud after the second reader tried, want 9600", got)
		}
		if err := first.stop(); !errors.Is(err, context.Canceled) {
			t.Errorf("Run() = %v, want context.Canceled", err)
		}
		second.becomes(t, ingest.Running)
	})
}

// deadPort reads as empty at once, for ever.
type deadPort struct {
	device
	reads *int
}

func (d *deadPort) Read([]byte) (int, error)        { *d.reads++; return 0, nil }
func (d *deadPort) SetReadDeadline(time.Time) error { return nil }
func (d *deadPort) Gone() error                     { return nil }
func (d *deadPort) Close() error                    { return nil }

func TestReplug(t *testing.T) {
	leak.Check(t)
	p := newPlug(t)
	r := start(t, p.config(), lines)
	r.becomes(t, ingest.Running)
	p.send("one\n")
	r.wants(t, "one")
	first := p.node

	// Pulled out in the middle of a line, and in again as another node: the line in hand is no message.
	p.send("half")
	r.hears(t, len("one\nhalf"))
	p.out()
	r.becomes(t, ingest.Waiting)
	p.in()
	at := time.Now()
	r.becomes(t, ingest.Running)
	if d := time.Since(at); d > 2*time.Second {
		t.Errorf("running again %s after the device came back, want 2s at most", d)
	}
	p.send("two\n")
	r.wants(t, "one", "two")
	if c := r.Counts(); c.Rejected["cut off by loss of the port"] != 1 || c.RejectedBytes["cut off by loss of the port"] != 4 || c.Received != 3 {
		t.Errorf("Counts() = %+v, want the half line counted", c)
	}

	// In again as another node while the old one stays open and says nothing: only the link tells.
	oldMaster, oldSlave := p.master, p.slave
	t.Cleanup(func() { _, _ = oldMaster.Close(), oldSlave.Close() })
	p.in()
	if p.node == first {
		t.Fatal("the node did not change")
	}
	at = time.Now()
	poll.Until(t, patience, func() bool { return strings.Contains(r.log.String(), "another device") }, "the new device to be seen; log:\n%s", r.log)
	r.becomes(t, ingest.Running)
	if d := time.Since(at); d > 2*time.Second {
		t.Errorf("running on the new device after %s, want 2s at most", d)
	}
	p.send("three\n")
	r.wants(t, "one", "two", "three")
}

func TestSilence(t *testing.T) {
	p := newPlug(t)
	cfg := p.config()
	cfg.Silence = 200 * time.Millisecond
	r := start(t, cfg, frame.Config{Type: frame.TypeNMEA})
	r.becomes(t, ingest.Running)
	if st := r.becomes(t, ingest.Silent); !strings.Contains(st.Remedy, "cable") {
		t.Errorf("State() = %+v, want a hint at the cable", st)
	}
	p.send("no sentence\r\n")
	poll.Until(t, patience, func() bool { return strings.Contains(r.State().Remedy, "baud") }, "a hint at the baud rate")
	p.send("$GPRMC,120000.000,A,5000.79K,D*3D\r\n")
	r.becomes(t, ingest.Running)
	r.wants(t, "$GPRMC,120000.000,A,5000.79K,D*3D")
	r.becomes(t, ingest.Silent)
	if n := strings.Count(r.log.String(), "state=silent"); n != 2 {
		t.Errorf("silence was logged %d times, want twice:\n%s", n, r.log)
	}
}

// TestOverrun keeps the store from taking anything: the line is read on, and what does not fit is counted.
func TestOverrun(t *testing.T) {
	p := newPlug(t)
	cfg := p.config()
	cfg.Buffer = minBuffer
	s, log := newSource(t, cfg, lines)
	hold := make(chan struct{})
	r := &run{Source: s, log: log, hold: hold}
	r.begin(t)
	r.becomes(t, ingest.Running)
	const n = 200
	var sent []string
	for i := range n {
		sent = append(sent, fmt.Sprintf("line %03d of more than fit", i))
		p.send(sent[i] + "\n")
	}
	poll.Until(t, patience, func() bool { return int(r.Counts().Rejected[ingest.ReasonOverrun])+r.buffer.Len() == n }, "all lines to be read")
	over := int(r.Counts().Rejected[ingest.ReasonOverrun])
	if over == 0 || over > n-15 {
		t.Fatalf("%d of %d lines were overrun, want most, and some kept", over, n)
	}
	close(hold)
	r.wants(t, sent[:n-over]...)
	poll.Until(t, patience, func() bool { return r.Counts().Received == n }, "received = delivered + rejected")
	p.send("after\n")
	r.wants(t, append(sent[:n-over:n-over], "after")...)
}

// TestStopDeliversWhatWasRead stops a source while its messages wait for the store: they are delivered by that stop.
func TestStopDeliversWhatWasRead(t *testing.T) {
	p := newPlug(t)
	s, log := newSource(t, p.config(), lines)
	r := &run{Source: s, log: log, hold: make(chan struct{})}
	r.begin(t)
	r.becomes(t, ingest.Running)
	p.send("one\ntwo\nhalf")
	r.hears(t, len("one\ntwo\nhalf"))
	r.mu.Lock()
	hold := r.hold
	r.hold = nil // deliver works again, but for the call that waits
	r.mu.Unlock()
	if err := r.stop(); !errors.Is(err, context.Canceled) {
		t.Errorf("Run() = %v, want context.Canceled", err)
	}
	close(hold)
	r.wants(t, "one", "two")
	if c := r.Counts(); c.Received != 3 || c.Rejected["cut off by a stop"] != 1 {
		t.Errorf("Counts() = %+v, want two delivered and the half line counted", c)
	}
}

// TestPanicEndsRunOnly lets each goroutine of a run panic: Run returns it and can be called again.
func TestPanicEndsRunOnly(t *testing.T) {
	leak.Check(t)
	p := newPlug(t)
	for _, where := range []string{"frame", "deliver"} {
		t.Run(where, func(t *testing.T) {
			s, _ := newSource(t, p.config(), lines)
			deliver := func(context.Context, ...ingest.Reading) error { return nil }
			if where == "frame" {
				s.framer = panicky{s.framer}
			} else {
				deliver = func(context.Context, ...ingest.Reading) error { panic("in deliver") }
			}
			done := make(chan error, 1)
			go func() { done <- s.Run(t.Context(), deliver) }()
			poll.Until(t, patience, func() bool { return s.State().Kind == ingest.Running }, "the port to be open")
			p.send("x\n")
			select {
			case err := <-done:
				var pan *ingest.Panic
				if !errors.As(err, &pan) || !strings.Contains(err.Error(), where) {
					t.Errorf("Run() = %v, want the panic in %s", err, where)
				}
			case <-time.After(patience):
				t.Fatal("Run did not return after a panic")
			}
			dev, err := open(p.config())
			if err != nil {
				t.Fatalf("the port was left open by the panic: %v", err)
			}
			_ = dev.Close()
		})
	}
}

type panicky struct{ frame.Framer }

func (panicky) Push([]byte, time.Time) []frame.Frame { panic("in frame") }

func TestTagBecomesHeader(t *testing.T) {
	p := newPlug(t)
	r := start(t, p.config(), frame.Config{Type: frame.TypeNMEA})
	r.becomes(t, ingest.Running)
	p.send(`\g:1-2-1234*5A\!AIVDM,2,2,3,B,1@0000000000000,2*55` + "\r\n")
	r.wants(t, "!AIVDM,2,2,3,B,1@0000000000000,2*55")
	if got := r.got[0].Header[HeaderTag]; got != `\g:1-2-1234*5A\` {
		t.Errorf("header %s = %q", HeaderTag, got)
	}
}

// TestGap reads messages that only a silence ends: each comes soon after it, not with the next one, and keeps the source from being
// silent.
func TestGap(t *testing.T) {
	leak.Check(t)
	p := newPlug(t)
	cfg := p.config()
	cfg.Silence = time.Hour // a second between ticks, were it not for the gap
	r := start(t, cfg, frame.Config{Type: frame.TypeGap, Gap: 20 * time.Millisecond})
	r.becomes(t, ingest.Running)
	began := time.Now()
	var want []string
	for i := range 3 {
		want = append(want, fmt.Sprintf("message %d", i))
		p.send(want[i])
		r.wants(t, want...)
	}
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("three messages took %s, want each about 20ms after its end", took)
	}
}
