package leaf

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"
)

func newTestTap(level slog.Level) (*tap, *bytes.Buffer, *time.Time) {
	var out bytes.Buffer
	clock := time.Unix(1_000_000, 0)
	tap := newTap(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: level})))
	tap.now = func() time.Time { return clock }
	return tap, &out, &clock
}

func TestLogCollapsesRepeatedLines(t *testing.T) {
	tap, out, clock := newTestTap(slog.LevelInfo)
	for i := range 50 {
		tap.Warnf("127.0.0.1:%d - cid:%d - slow consumer", 40000+i, i)
		*clock = clock.Add(time.Second)
	}
	tap.Warnf("something else")
	if n := strings.Count(out.String(), "slow consumer"); n != 1 {
		t.Errorf("50 alike lines in 50 seconds were logged %d times, want once:\n%s", n, out)
	}
	*clock = clock.Add(repeatWindow)
	tap.Warnf("127.0.0.1:1 - cid:1 - slow consumer")
	if n := strings.Count(out.String(), "slow consumer"); n != 2 || !strings.Contains(out.String(), "repeated=49") {
		t.Errorf("after the window the line was logged %d times, want twice and with repeated=49:\n%s", n, out)
	}
	if !strings.Contains(out.String(), "something else") {
		t.Error("another line was not logged")
	}
	for i := range 10 * repeatLines {
		tap.Warnf("%s", strings.Repeat("x", i+1))
	}
	if len(tap.seen) > repeatLines {
		t.Errorf("%d lines remembered, want at most %d", len(tap.seen), repeatLines)
	}
}

func TestLogLevels(t *testing.T) {
	tap, out, _ := newTestTap(slog.LevelInfo)
	tap.Noticef("banner")
	tap.Debugf("debug")
	tap.Tracef("trace")
	if out.Len() > 0 {
		t.Errorf("chatter was logged: %s", out)
	}
	if err := tap.fatal(); err != nil {
		t.Errorf("fatal() = %v before any", err)
	}
	tap.Fatalf("cannot use %s", "disk")
	if err := tap.fatal(); err == nil || err.Error() != "cannot use disk" || !strings.Contains(out.String(), "level=ERROR") {
		t.Errorf("fatal() = %v, log %s", err, out)
	}
}

func TestLogShowsNoPassword(t *testing.T) {
	tap, out, _ := newTestTap(slog.LevelDebug)
	tap.Warnf("dial %q failed", "nats-leaf://leaf:hunter2@hub:7422")
	tap.Noticef("remote urls=[tls://leaf:hunter2@a:1,tls://token2@b:2]")
	if strings.Contains(out.String(), "hunter2") || strings.Contains(out.String(), "token2") {
		t.Errorf("a password was logged:\n%s", out)
	}
	if !strings.Contains(out.String(), "hub:7422") {
		t.Errorf("the address was lost:\n%s", out)
	}
}

func TestLinkLinesAreLeftToTheLink(t *testing.T) {
	tap, out, _ := newTestTap(slog.LevelInfo)
	l := newLink(slog.New(slog.DiscardHandler), "leaf1", true)
	tap.link = l.hear
	l.enable(true)
	tap.Errorf("Error trying to connect as leafnode to remote server %q (attempt %v): %v", "hub:7422", 3, "dial tcp 1.2.3.4:7422: connect: connection refused")
	if out.Len() > 0 {
		t.Errorf("the server's line was logged as well: %s", out)
	}
	l.settle(nil)
	if s := l.current(); s.State != LinkDown || s.Reason != ReasonTCP || s.Remote != "hub:7422" {
		t.Errorf("link = %+v", s)
	}
}
