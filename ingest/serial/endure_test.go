package serial

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-edge/holdfast/ingest"
	"github.com/holdfast-edge/holdfast/rig/poll"
)

// minute runs TestFullSpeedWithSlowStore for as long as it says, as make soak does.
var minute = flag.Bool("minute", false, "run a line at full speed for a minute")

// late is a device that says one line after it was opened.
type late struct {
	device
	mu    sync.Mutex // guards the fields below
	until time.Time
	said  bool
}

func (l *late) SetReadDeadline(t time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.until = t
	return nil
}

func (l *late) Read(p []byte) (int, error) {
	l.mu.Lock()
	said, until := l.said, l.until
	l.said = true
	l.mu.Unlock()
	if !said {
		return copy(p, "late\n"), nil
	}
	<-time.After(time.Until(until)) // nobody may wait for mu meanwhile, or time stands still
	return 0, os.ErrDeadlineExceeded
}

func (l *late) Gone() error  { return nil }
func (l *late) Close() error { return nil }

// TestAbsentForLong starts without the device, which comes a day later: it is found within two seconds, and its absence was logged once.
func TestAbsentForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, log := newSource(t, (&plug{link: "/dev/serial/by-id/usb-late"}).config(), lines)
		there := time.Now().Add(24 * time.Hour)
		opens := 0
		s.open = func(c Config) (device, error) {
			opens++
			if time.Now().Before(there) {
				return nil, absent(c.Port, os.ErrNotExist)
			}
			return &late{}, nil
		}
		ctx, cancel := context.WithCancel(context.Background())
		got := make(chan time.Time, 1)
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = s.Run(ctx, func(context.Context, ...ingest.Reading) error { got <- time.Now(); return nil }) // ends by cancel
		}()
		if d := (<-got).Sub(there); d < 0 || d > 2*time.Second {
			t.Errorf("heard %s after it came", d)
		}
		if n := strings.Count(log.String(), "state=waiting"); n != 1 {
			t.Errorf("its absence was logged %d times", n)
		}
		if opens > 2*24*3600 {
			t.Errorf("looked for %d times in a day", opens)
		}
		cancel()
		<-done
	})
}

// TestFullSpeedWithSlowStore sends at 115200 baud, without waiting for anybody as a device does, while the store takes a third of a second
// for each batch: no byte is lost. It takes a second, or a minute with -minute.
func TestFullSpeedWithSlowStore(t *testing.T) {
	const baud, tickEvery = 115200, 10 * time.Millisecond
	last := time.Second
	if *minute {
		last = time.Minute
	}
	p := newPlug(t)
	if err := unix.SetNonblock(int(p.master.Fd()), true); err != nil {
		t.Fatal(err)
	}
	cfg := p.config()
	cfg.Baud = baud
	s, log := newSource(t, cfg, lines)
	var mu sync.Mutex
	var got []string
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Run(ctx, func(ctx context.Context, batch ...ingest.Reading) error { // ends by cancel
			if err := ingest.Pause(ctx, 300*time.Millisecond); err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			for _, r := range batch {
				got = append(got, string(r.Data))
			}
			return nil
		})
	}()
	t.Cleanup(func() { cancel(); <-done })
	poll.Until(t, patience, func() bool { return s.State().Kind == ingest.Running }, "the port to be open")

	var want []string
	var stream []byte
	for n := 0; len(stream) < int(last/time.Second)*baud/10; n++ {
		want = append(want, fmt.Sprintf("%06d %s", n, strings.Repeat("x", n%200)))
		stream = append(stream, want[n]+"\r\n"...)
	}
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	began := time.Now()
	for sent := 0; sent < len(stream); {
		<-tick.C
		due := min(int(time.Since(began).Seconds()*baud/10), len(stream))
		for sent < due { // a byte that finds no room in the line would be lost
			n, err := unix.Write(int(p.master.Fd()), stream[sent:min(due, sent+1024)])
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil {
				t.Fatalf("byte %d finds the line full: %v", sent, err)
			}
			sent += n
		}
	}
	poll.Until(t, patience, func() bool { mu.Lock(); defer mu.Unlock(); return len(got) >= len(want) }, "all lines; log:\n%s", log)
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("line %d is %q, want %q", i, got[i], want[i])
		}
	}
	if c := s.Counts(); len(c.Rejected) != 0 {
		t.Errorf("Counts() = %+v, want nothing rejected", c)
	}
}
