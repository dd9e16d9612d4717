package leaf

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

const (
	repeatWindow = time.Minute // a line that was logged is counted for so long instead of logged again
	repeatLines  = 64          // lines remembered for that
)

// tap is the server's log: it passes lines on to slog, collapses repeated ones, and lets the link hear those that concern it.
type tap struct {
	log  *slog.Logger
	now  func() time.Time
	link func(level slog.Level, line string) bool // true: the line is the link's, which reports it itself. Must not block or call the server

	mu        sync.Mutex // guards the fields below
	seen      map[string]*repeat
	lastFatal string
}

type repeat struct {
	logged time.Time
	held   int // lines since then
}

var _ server.Logger = (*tap)(nil)

func newTap(log *slog.Logger) *tap {
	return &tap{log: log, now: time.Now, link: func(slog.Level, string) bool { return false }, seen: make(map[string]*repeat)}
}

// Noticef takes what the server thinks worth noticing; here only its debugging is.
func (t *tap) Noticef(format string, v ...any) { t.line(slog.LevelDebug, format, v...) }

// Warnf takes a warning.
func (t *tap) Warnf(format string, v ...any) { t.line(slog.LevelWarn, format, v...) }

// Errorf takes an error. Most concern one connection and pass by themselves.
func (t *tap) Errorf(format string, v ...any) { t.line(slog.LevelWarn, format, v...) }

// Fatalf takes what ends a server that is a process of its own.
func (t *tap) Fatalf(format string, v ...any) {
	t.mu.Lock()
	t.lastFatal = scrub(fmt.Sprintf(format, v...))
	t.mu.Unlock()
	t.line(slog.LevelError, format, v...)
}

// Debugf takes nothing: the server is not asked to debug.
func (t *tap) Debugf(format string, v ...any) {}

// Tracef takes nothing: the server is not asked to trace.
func (t *tap) Tracef(format string, v ...any) {}

// fatal returns the last fatal line as an error, nil when there was none.
func (t *tap) fatal() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lastFatal == "" {
		return nil
	}
	return errors.New(t.lastFatal)
}

func (t *tap) line(level slog.Level, format string, v ...any) {
	text := scrub(fmt.Sprintf(format, v...))
	if t.link(level, text) {
		level = slog.LevelDebug
	}
	if !t.log.Enabled(context.Background(), level) {
		return
	}
	if held, show := t.collapse(text); show {
		attrs := []slog.Attr{slog.String("line", text)}
		if held > 0 {
			attrs = append(attrs, slog.Int("repeated", held))
		}
		t.log.LogAttrs(context.Background(), level, "server log", attrs...)
	}
}

// collapse says whether a line is to be logged, and how many like it were not since the last.
func (t *tap) collapse(text string) (held int, show bool) {
	key := varying.ReplaceAllString(text, "#")
	now := t.now()
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.seen[key]
	if r != nil && now.Sub(r.logged) < repeatWindow {
		r.held++
		return 0, false
	}
	if r == nil {
		if len(t.seen) >= repeatLines {
			clear(t.seen)
		}
		r = &repeat{}
		t.seen[key] = r
	}
	held = r.held
	r.logged, r.held = now, 0
	return held, true
}

// varying is what differs between lines that say the same: ports, connection numbers, counts.
var varying = regexp.MustCompile(`[0-9]+`)

// userinfo is a user and perhaps a password in a URL.
var userinfo = regexp.MustCompile(`//[^/@\s"]+@`)

// scrub takes passwords out of a line.
func scrub(line string) string { return userinfo.ReplaceAllString(line, "//***@") }
