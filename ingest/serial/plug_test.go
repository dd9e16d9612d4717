package serial

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/holdfast-edge/holdfast/ingest"
	"github.com/holdfast-edge/holdfast/ingest/frame"
	"github.com/holdfast-edge/holdfast/rig/poll"
)

const patience = 10 * time.Second

// plug is a device that can be plugged in and out: a pseudo-terminal behind a link that stays the same.
type plug struct {
	t      testing.TB
	link   string
	master *os.File // nil: unplugged
	slave  *os.File // kept open to look at the line, which a port in exclusive use lets nobody but root open
	node   string
}

// newPlug returns a device that is plugged in.
func newPlug(t testing.TB) *plug {
	p := &plug{t: t, link: filepath.Join(t.TempDir(), "usb-Test_GPS-if00")}
	p.in()
	t.Cleanup(p.out)
	return p
}

// in plugs the device in, under another node than any that is in use.
func (p *plug) in() {
	p.t.Helper()
	master, slave, err := pty.Open()
	if err != nil {
		p.t.Fatal(err)
	}
	mode, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
	if err != nil {
		p.t.Fatal(err)
	}
	mode.Iflag, mode.Oflag, mode.Lflag = 0, 0, 0 // so that nothing is echoed before the source sets the line
	if err := unix.IoctlSetTermios(int(slave.Fd()), unix.TCSETS, mode); err != nil {
		p.t.Fatal(err)
	}
	p.master, p.slave, p.node = master, slave, slave.Name()
	_ = os.Remove(p.link + ".new")
	if err := os.Symlink(p.node, p.link+".new"); err != nil {
		p.t.Fatal(err)
	}
	if err := os.Rename(p.link+".new", p.link); err != nil {
		p.t.Fatal(err)
	}
}

// out pulls the device out.
func (p *plug) out() {
	if p.master != nil {
		_ = os.Remove(p.link)
		_ = p.slave.Close()
		_ = p.master.Close()
		p.master = nil
	}
}

// speed returns the speed that the line is set to.
func (p *plug) speed() int {
	p.t.Helper()
	mode, err := unix.IoctlGetTermios(int(p.slave.Fd()), unix.TCGETS2)
	if err != nil {
		p.t.Fatal(err)
	}
	return int(mode.Ospeed)
}

func (p *plug) send(s string) {
	p.t.Helper()
	if _, err := p.master.WriteString(s); err != nil {
		p.t.Fatal(err)
	}
}

// config is a line at 9600 8N1.
func (p *plug) config() Config {
	var c Config
	c.SetDefaults()
	c.Port = p.link
	return c
}

// run is a source that runs, and what it delivered.
type run struct {
	*Source
	log    *lockedLog
	cancel context.CancelFunc
	done   chan error

	mu   sync.Mutex // guards the fields below
	got  []ingest.Reading
	hold chan struct{} // not nil: deliver waits until it is closed
}

// lockedLog collects the log of several goroutines.
type lockedLog struct {
	mu sync.Mutex // guards b
	b  strings.Builder
}

func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

var lines = frame.Config{Type: frame.TypeLine, TrimNUL: true}

// newSource makes a source with a log of its own.
func newSource(t testing.TB, cfg Config, frames frame.Config) (*Source, *lockedLog) {
	t.Helper()
	log := &lockedLog{}
	s, err := New("gps", cfg, frames, slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelInfo})))
	if err != nil {
		t.Fatal(err)
	}
	s.framer = &ear{Framer: s.framer}
	return s, log
}

// ear counts the bytes that a framer was given.
type ear struct {
	frame.Framer
	heard atomic.Int64
}

func (e *ear) Push(p []byte, t time.Time) []frame.Frame {
	defer e.heard.Add(int64(len(p)))
	return e.Framer.Push(p, t)
}

// hears waits until the source has read n bytes in all.
func (r *run) hears(t testing.TB, n int) {
	t.Helper()
	ear := r.framer.(*ear)
	poll.Until(t, patience, func() bool { return ear.heard.Load() >= int64(n) }, "%d bytes to be read", n)
}

// start runs a source until the test ends.
func start(t testing.TB, cfg Config, frames frame.Config) *run {
	t.Helper()
	s, log := newSource(t, cfg, frames)
	r := &run{Source: s, log: log}
	r.begin(t)
	return r
}

func (r *run) begin(t testing.TB) {
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel, r.done = cancel, make(chan error, 1)
	go func() { r.done <- r.Run(ctx, r.deliver) }()
	t.Cleanup(func() { _ = r.stop() }) // the end of its context
}

// stop ends the run and returns its error.
func (r *run) stop() error {
	r.cancel()
	err := <-r.done
	r.done <- err
	return err
}

func (r *run) deliver(ctx context.Context, batch ...ingest.Reading) error {
	r.mu.Lock()
	hold := r.hold
	r.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got = append(r.got, batch...)
	return nil
}

// texts returns what was delivered.
func (r *run) texts() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for _, g := range r.got {
		out = append(out, string(g.Data))
	}
	return out
}

// wants waits until exactly these messages are delivered.
func (r *run) wants(t testing.TB, want ...string) {
	t.Helper()
	ok := poll.Wait(t.Context(), patience, func() bool { return len(r.texts()) >= len(want) })
	if got := r.texts(); !ok || strings.Join(got, "|") != strings.Join(want, "|") {
		t.Fatalf("delivered %q, want %q; state %+v; log:\n%s", got, want, r.State(), r.log)
	}
}

// becomes waits for a state and checks that it can be acted on.
func (r *run) becomes(t testing.TB, kind ingest.Kind) ingest.State {
	t.Helper()
	poll.Until(t, patience, func() bool { return r.State().Kind == kind }, "state %v; log:\n%s", kind, r.log)
	s := r.State()
	if kind != ingest.Running && (s.Cause == "" || s.Remedy == "") {
		t.Errorf("State() = %+v, want a cause and a remedy", s)
	}
	return s
}
