package systemd

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// manager stands for the service manager: a datagram socket named in the environment.
func manager(t *testing.T) (receive func() string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Setenv("NOTIFY_SOCKET", path)
	return func() string {
		t.Helper()
		if err := conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 4096)
		n, err := conn.Read(b)
		if err != nil {
			t.Fatalf("waiting for a message: %v", err)
		}
		return string(b[:n])
	}
}

func TestNotify(t *testing.T) {
	receive := manager(t)
	n := New(slog.New(slog.DiscardHandler))
	n.Ready()
	n.Status("all safe,\n 0 waiting")
	n.Status("all safe, 0 waiting") // the same line is not sent again
	n.Status("12 waiting")
	n.Stopping()
	for _, want := range []string{"READY=1", "STATUS=all safe, 0 waiting", "STATUS=12 waiting", "STOPPING=1"} {
		if got := receive(); got != want {
			t.Errorf("message = %q, want %q", got, want)
		}
	}
	n.Reloading()
	lines := strings.Split(receive(), "\n")
	if len(lines) != 2 || lines[0] != "RELOADING=1" {
		t.Fatalf("message = %q, want RELOADING=1 and a time", lines)
	}
	if usec, err := strconv.ParseInt(strings.TrimPrefix(lines[1], "MONOTONIC_USEC="), 10, 64); err != nil || usec <= 0 {
		t.Errorf("time of the reload = %q, want MONOTONIC_USEC above 0", lines[1])
	}
	n.Status(strings.Repeat("ä", maxStatus))
	if got, want := receive(), "STATUS="+strings.Repeat("ä", maxStatus/2)+"…"; got != want {
		t.Errorf("long status = %q, want %q", got, want)
	}
}

func TestNotifyNobody(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	t.Setenv("WATCHDOG_USEC", "")
	var log bytes.Buffer
	n := New(slog.New(slog.NewTextHandler(&log, nil)))
	n.Ready()
	n.Status("x")
	n.Reloading()
	n.Stopping()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := n.Watchdog(ctx, func(context.Context) error { t.Error("probed without a watchdog"); return nil }); err != nil {
		t.Errorf("Watchdog = %v, want nil", err)
	}
	if log.Len() > 0 {
		t.Errorf("log = %s, want nothing", log.String())
	}
}

func TestNotifyLogsTheFirstFailure(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "gone"))
	var log bytes.Buffer
	n := New(slog.New(slog.NewTextHandler(&log, nil)))
	n.Status("x")
	n.Status("x")
	n.Ready()
	if got := strings.Count(log.String(), "the service manager cannot be told"); got != 1 {
		t.Errorf("failures logged = %d, want 1:\n%s", got, log.String())
	}
}

func TestWatchdogOverSocket(t *testing.T) {
	receive := manager(t)
	t.Setenv("WATCHDOG_USEC", "60000")
	t.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid()))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- New(nil).Watchdog(ctx, func(context.Context) error { return nil }) }()
	for range 3 {
		if got := receive(); got != "WATCHDOG=1" {
			t.Errorf("message = %q, want WATCHDOG=1", got)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Watchdog = %v, want nil", err)
	}
}

func TestWatchdogOfAnotherProcess(t *testing.T) {
	t.Setenv("WATCHDOG_USEC", "60000")
	t.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid()+1))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := New(nil).Watchdog(ctx, func(context.Context) error { t.Error("probed for another process"); return nil }); err != nil {
		t.Errorf("Watchdog = %v, want nil", err)
	}
}

func TestWatchdogRefusesNonsense(t *testing.T) {
	t.Setenv("WATCHDOG_USEC", "soon")
	if err := New(nil).Watchdog(t.Context(), func(context.Context) error { return nil }); err == nil {
		t.Error("Watchdog with WATCHDOG_USEC=soon = nil, want an error")
	}
}

// TestWatchdogFeedsOnlyAfterProbe walks through a probe that succeeds, fails, recovers, is slow, hangs, and recovers again.
func TestWatchdogFeedsOnlyAfterProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var log bytes.Buffer
		var fed []time.Duration
		n := &Notifier{
			log:      slog.New(slog.NewTextHandler(&log, nil)),
			send:     func(string) (bool, error) { fed = append(fed, time.Since(start)); return true, nil },
			watchdog: func() (time.Duration, error) { return 30 * time.Second, nil },
		}
		ctx, cancel := context.WithCancel(t.Context())
		tries := 0
		err := n.Watchdog(ctx, func(ctx context.Context) error {
			tries++
			switch tries {
			case 2, 3:
				return errors.New("disk gone")
			case 5: // slow, and blind to its context
				select {
				case <-time.After(25 * time.Second):
				case <-t.Context().Done():
				}
			case 6: // hangs until it is told
				<-ctx.Done()
				return ctx.Err()
			case 8:
				cancel()
			}
			return nil
		})
		if err != nil {
			t.Errorf("Watchdog = %v, want nil", err)
		}
		// tries: 1 at 0 s, 2 at 10, 3 at 20, 4 at 30, 5 from 40 to 65, 6 from 65 (a tick was missed) to 85, 7 at once, 8 at 90
		want := []time.Duration{0, 30 * time.Second, 85 * time.Second}
		if !reflect.DeepEqual(fed, want) {
			t.Errorf("fed at %v, want %v", fed, want)
		}
		if got := strings.Count(log.String(), "the probe failed"); got != 2 {
			t.Errorf("failures logged = %d, want 2 edges:\n%s", got, log.String())
		}
		if !strings.Contains(log.String(), "the probe succeeds again\" dur=20s") {
			t.Errorf("log does not say for how long the probe failed:\n%s", log.String())
		}
	})
}
