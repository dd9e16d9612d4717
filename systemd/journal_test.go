package systemd

import (
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coreos/go-systemd/v22/journal"

	"github.com/holdfast-edge/holdfast/rig/leak"
)

// taken collects what journald would get.
type taken struct {
	mu    sync.Mutex // guards the fields below
	lines []line
	err   error
	hold  chan struct{} // when set, a send waits until it is closed
}

func (s *taken) send(text string, p journal.Priority, fields map[string]string) error {
	if s.hold != nil {
		<-s.hold
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	s.lines = append(s.lines, line{text, p, fields})
	return nil
}

func TestJournalLine(t *testing.T) {
	leak.Check(t)
	var got taken
	j := newJournal(slog.LevelInfo, got.send)
	log := slog.New(j).With("leaf", "pump-07").WithGroup("link").With("hub", "a b")
	log.Warn("link down", "err", errors.New("no route"), "cause", "", slog.Group("round", "ms", 12))
	log.Debug("not asked for")
	j.Close()
	log.Error("after the end")
	want := []line{{
		text: `link down leaf=pump-07 link.hub="a b" link.err="no route" link.round.ms=12`, priority: journal.PriWarning,
		fields: map[string]string{"HOLDFAST_LEAF": "pump-07", "HOLDFAST_LINK_HUB": "a b", "HOLDFAST_LINK_ERR": "no route", "HOLDFAST_LINK_ROUND_MS": "12"},
	}}
	if !reflect.DeepEqual(got.lines, want) {
		t.Errorf("journald got %+v, want %+v", got.lines, want)
	}
}

func TestJournalPriority(t *testing.T) {
	for level, want := range map[slog.Level]journal.Priority{
		slog.LevelDebug: journal.PriDebug, slog.LevelInfo: journal.PriInfo, slog.LevelWarn: journal.PriWarning,
		slog.LevelError: journal.PriErr, slog.LevelError + 4: journal.PriErr,
	} {
		if got := priority(level); got != want {
			t.Errorf("priority(%v) = %v, want %v", level, got, want)
		}
	}
}

// TestJournalThatHangs shows that a journald which takes nothing holds up nobody, and that what was lost is told.
func TestJournalThatHangs(t *testing.T) {
	leak.Check(t)
	got := taken{hold: make(chan struct{})}
	j := newJournal(slog.LevelInfo, got.send)
	log := slog.New(j)
	logged := make(chan struct{})
	go func() {
		defer close(logged)
		for i := range 2 * maxLines {
			log.Info("line", "seq", i)
		}
	}()
	select {
	case <-logged:
	case <-time.After(10 * time.Second):
		t.Fatal("logging waits for journald")
	}
	close(got.hold)
	j.Close()
	text := fmt.Sprint(got.lines)
	if !strings.Contains(text, "log lines were lost") {
		t.Error("nothing tells of the lost lines")
	}
}
