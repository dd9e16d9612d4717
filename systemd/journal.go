package systemd

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coreos/go-systemd/v22/journal"
)

// maxLines is how many log lines may wait for a journal that does not take them. What comes on top is dropped and counted: a log never
// holds up what it tells of.
const maxLines = 1024

// Journal is a slog.Handler that sends lines to journald with their attributes as fields: MESSAGE holds the text with all attributes, as a
// person reads it, and an attribute such as source is HOLDFAST_SOURCE as well, for journalctl and for machines.
type Journal struct {
	level  slog.Level
	prefix string      // of keys, by WithGroup
	attrs  []slog.Attr // of WithAttrs, their keys complete
	pipe   *pipe       // shared by all that came of one OpenJournal
}

type line struct {
	text     string
	priority journal.Priority
	fields   map[string]string
}

// pipe takes lines to journald.
type pipe struct {
	send    func(text string, priority journal.Priority, fields map[string]string) error
	queue   chan line // closed by close
	done    chan struct{}
	dropped atomic.Uint64

	mu     sync.RWMutex // guards the field below, and the queue's being open
	closed bool
}

// OpenJournal returns a handler for what is at level or above, and true, when standard error is connected to journald; else false. Close
// ends it.
func OpenJournal(level slog.Level) (*Journal, bool) {
	if connected, err := journal.StderrIsJournalStream(); err != nil || !connected || !journal.Enabled() {
		return nil, false
	}
	return newJournal(level, journal.Send), true
}

func newJournal(level slog.Level, send func(string, journal.Priority, map[string]string) error) *Journal {
	p := &pipe{send: send, queue: make(chan line, maxLines), done: make(chan struct{})}
	go p.run()
	return &Journal{level: level, pipe: p}
}

// Close sends what waits, for a second at most, and ends the handler. Lines that come later are dropped.
func (j *Journal) Close() {
	j.pipe.mu.Lock()
	if !j.pipe.closed {
		j.pipe.closed = true
		close(j.pipe.queue)
	}
	j.pipe.mu.Unlock()
	select {
	case <-j.pipe.done:
	case <-time.After(time.Second): // journald is stuck, and the process ends anyway
	}
}

func (p *pipe) run() {
	defer close(p.done)
	for l := range p.queue {
		if p.send(l.text, l.priority, l.fields) != nil {
			p.dropped.Add(1)
			continue
		}
		if n := p.dropped.Swap(0); n > 0 {
			text := fmt.Sprintf("log lines were lost, since journald did not take them lines=%d", n)
			if p.send(text, journal.PriWarning, map[string]string{"HOLDFAST_LINES": fmt.Sprint(n)}) != nil {
				p.dropped.Add(n)
			}
		}
	}
}

func (p *pipe) put(l line) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.closed {
		return
	}
	select {
	case p.queue <- l:
	default:
		p.dropped.Add(1)
	}
}

// Enabled implements slog.Handler.
func (j *Journal) Enabled(_ context.Context, level slog.Level) bool { return level >= j.level }

// Handle implements slog.Handler. It never waits and never fails.
func (j *Journal) Handle(_ context.Context, r slog.Record) error {
	var text strings.Builder
	text.WriteString(r.Message)
	fields := make(map[string]string, len(j.attrs)+r.NumAttrs())
	add := func(a slog.Attr) { write(&text, fields, a) }
	for _, a := range j.attrs {
		add(a)
	}
	r.Attrs(func(a slog.Attr) bool {
		a.Key = j.prefix + a.Key
		add(a)
		return true
	})
	j.pipe.put(line{text.String(), priority(r.Level), fields})
	return nil
}

// write adds one attribute to the text and to the fields.
func write(text *strings.Builder, fields map[string]string, a slog.Attr) {
	v := a.Value.Resolve()
	if v.Kind() == slog.KindGroup {
		for _, part := range v.Group() {
			part.Key = a.Key + "." + part.Key
			write(text, fields, part)
		}
		return
	}
	s := v.String()
	if s == "" {
		return // an empty cause says nothing to a person
	}
	if strings.ContainsAny(s, " =\"\n") {
		fmt.Fprintf(text, " %s=%q", a.Key, s)
	} else {
		fmt.Fprintf(text, " %s=%s", a.Key, s)
	}
	fields[fieldName(a.Key)] = s
}

// fieldName makes a field name of a key: capitals, digits and underscores only, see systemd.journal-fields(7).
func fieldName(key string) string {
	return "HOLDFAST_" + strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r - 'a' + 'A'
		case r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			return r
		}
		return '_'
	}, key)
}

func priority(level slog.Level) journal.Priority {
	switch {
	case level >= slog.LevelError:
		return journal.PriErr
	case level >= slog.LevelWarn:
		return journal.PriWarning
	case level >= slog.LevelInfo:
		return journal.PriInfo
	}
	return journal.PriDebug
}

// WithAttrs implements slog.Handler.
func (j *Journal) WithAttrs(attrs []slog.Attr) slog.Handler {
	next := *j
	next.attrs = append([]slog.Attr{}, j.attrs...)
	for _, a := range attrs {
		a.Key = j.prefix + a.Key
		next.attrs = append(next.attrs, a)
	}
	return &next
}

// WithGroup implements slog.Handler.
func (j *Journal) WithGroup(name string) slog.Handler {
	next := *j
	next.prefix += name + "."
	return &next
}

var _ slog.Handler = (*Journal)(nil)
