package storage

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// What makes starts a loop of crashes that the store may be the reason of.
const (
	crashLimit = 5               // starts in a row
	crashSpan  = 3 * time.Minute // that they take at least: a shortage of memory that passes is over by then
)

// maxCrashReport is how much of a crash report is kept, in bytes.
const maxCrashReport = 64 << 10

// Start is one start of the daemon, among those in a row that ended in a crash. The store is set aside after crashLimit of them, so that capture goes on in a
// new one; if that crashes as often it was not the store's fault, and the old one is put back.
//
// What counts is a start that neither came to run for a while nor was told to end, that left a crash report (CrashReport), and that was in this
// boot of the machine. A power cut, a kill by hand and a slow start do not, however often they come.
type Start struct {
	dir  string
	log  *slog.Logger
	file *stateFile
	last string // why the run before this one crashed; empty: it did not

	mu    sync.Mutex // guards the field below
	state startState
}

// startState is the content of the file starts, in the data directory and not in the store, which may be at fault.
type startState struct {
	Boot    string        `json:"boot"`              // of the machine, at the newest start
	Began   bool          `json:"began"`             // that start has neither come to run nor been told to end
	Crashes int           `json:"crashes,omitempty"` // in a row
	First   time.Duration `json:"first,omitempty"`   // when the first of them was seen, since boot
	Cause   string        `json:"cause,omitempty"`   // of the newest one
	Aside   string        `json:"aside,omitempty"`   // where the store was set aside for them, from the data directory
	Back    bool          `json:"back,omitempty"`    // and was put back, since the new one crashed as well
	To      string        `json:"to,omitempty"`      // a move of the store that is under way, to where
	From    string        `json:"from,omitempty"`    // and from where another takes its place; empty: none
}

// CrashReport is where a crash leaves its report: the Go runtime, through debug.SetCrashOutput, and the service manager when the kernel has killed the
// daemon for want of memory. Empty or absent: there was none.
func CrashReport(dir string) string { return filepath.Join(dir, "crash") }

// BeginStart notes that a start on a data directory begins, and sets its store aside if too many before it have crashed. It comes before Open. It
// needs no store, and what it cannot do it logs: nothing of this may keep capture from beginning.
func BeginStart(o Options) *Start {
	s := &Start{dir: o.Dir, log: o.Log, file: newStateFile(filepath.Join(o.Dir, "starts"))}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if err := errors.Join(os.MkdirAll(o.Dir, 0o700), removeTemps(o.Dir)); err != nil {
		s.log.Warn("starts cannot be counted", "err", err)
		return s // Open says it better
	}
	if err := loadState(s.file, &s.state, s.log); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.log.Warn("starts are counted anew", "err", err)
		s.state = startState{}
	}
	boot, err := kernelBootID()
	if err != nil {
		s.log.Warn("starts cannot be counted", "err", err)
		return s
	}
	report := s.takeReport()
	s.last = crashCause(report)
	counts := s.last != ""
	if aborted(report) {
		counts, s.last = false, "ended by a signal to abort, as the service manager's watchdog does when the disk or the daemon hangs"
	}
	if s.last != "" {
		s.log.Error("the run before this one crashed", "err", s.last, "report", CrashReport(s.dir)+".last")
	}
	next, loop := s.state.next(counts, s.last, boot, sinceBoot())
	s.state = next
	if s.state.To != "" { // a power cut came between
		s.finish(s.move())
	} else if loop {
		s.finish(s.outOfTheWay(orDefault(o.Journal.Size, defaultJournal)))
	}
	s.save()
	return s
}

// next is the state of the start that begins, and whether it is one too many.
func (s startState) next(crashed bool, cause, boot string, now time.Duration) (startState, bool) {
	same := s.Boot == boot
	if crashed && s.Began && same {
		if s.Crashes++; s.Crashes == 1 {
			s.First = now
		}
		s.Cause = cause
	}
	if !same {
		s.First = now // how long ago it was is not known
	}
	s.Boot, s.Began = boot, true
	return s, s.Crashes >= crashLimit && now-s.First >= crashSpan && !s.Back
}

// takeReport returns the report of a crash, if there is one, and keeps it beside where the next one goes.
func (s *Start) takeReport() []byte {
	f, err := os.Open(CrashReport(s.dir))
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }() // only read
	b := make([]byte, maxCrashReport)
	n, _ := f.Read(b) // what cannot be read says nothing
	if b = bytes.TrimSpace(b[:n]); len(b) == 0 {
		return nil
	}
	if err := writeOrOverwrite(CrashReport(s.dir)+".last", append(b, '\n'), false); err != nil {
		s.log.Warn("the crash report is not kept", "err", err)
	}
	if err := os.Truncate(CrashReport(s.dir), 0); err != nil {
		s.log.Warn("the crash report is not removed", "err", err)
	}
	return b
}

// crashCause is the first line of a report, shortened.
func crashCause(report []byte) string {
	const most = 200
	line, _, _ := strings.Cut(string(report), "\n")
	if len(line) > most {
		line = strings.ToValidUTF8(line[:most], "") + "…"
	}
	return strings.TrimSpace(line)
}

// aborted tells that somebody else ended the process, as the service manager's watchdog does. A disk that stalls would do so under another store, too.
func aborted(report []byte) bool {
	return bytes.HasPrefix(report, []byte("SIGABRT")) || bytes.HasPrefix(report, []byte("SIGQUIT"))
}

// Crashed returns why the run before this one crashed, in a line; empty if it did not.
func (s *Start) Crashed() string { return s.last }

// Running says that the gateway has run for a while, so what comes now is no crash at start.
func (s *Start) Running() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = startState{Boot: s.state.Boot}
	s.save()
}

// Told says that the process ends because it was told to, or with an error that it reports.
func (s *Start) Told() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state.Began {
		s.state.Began = false
		s.save()
	}
}

func (s *Start) save() {
	if err := s.file.saveOne(s.state); err != nil {
		s.log.Warn("starts cannot be counted", "err", err)
	}
}

// CrashLoop returns how many starts in a row have crashed on a data directory, and why the newest did. For when no daemon answers.
func CrashLoop(dir string) (crashes int, cause string) {
	var s startState
	if _, err := newStateFile(filepath.Join(dir, "starts")).load(&s); err != nil {
		return 0, ""
	}
	return s.Crashes, s.Cause
}

// finish notes how a move of the store ended.
func (s *Start) finish(err error) {
	if err != nil {
		s.log.Error("the store cannot be set aside", "err", err)
		return
	}
	if from := s.state.From; from == "" {
		s.log.Error("the store crashed too many starts and was set aside; capture goes on in a new one", "path", s.state.To, "crashes", s.state.Crashes, "err", s.state.Cause)
		s.state.Aside = s.state.To
	} else {
		s.log.Error("the new store crashes as well: the one before is back in its place", "path", s.state.To, "crashes", s.state.Crashes, "err", s.state.Cause)
		s.state.Aside, s.state.Back = "", true
	}
	s.state.To, s.state.From, s.state.Crashes = "", "", 0
}

// outOfTheWay moves the store to a folder of its own, and the one that was moved before it back, if there is one. The journal of the next takes room.
func (s *Start) outOfTheWay(room int64) error {
	const beside = 32 << 20
	free, inodes, err := freeOn(s.dir)
	if err != nil {
		return err
	}
	if free < room+beside || inodes < 100 {
		return fmt.Errorf("a new store needs %d bytes and 100 files, and the disk has room for %d and %d: make room", room+beside, free, inodes)
	}
	for n := 1; ; n++ {
		s.state.To = filepath.Join(asideFolder, fmt.Sprint(n))
		if _, err := os.Lstat(filepath.Join(s.dir, s.state.To)); errors.Is(err, fs.ErrNotExist) {
			break
		} else if err != nil {
			return err
		}
	}
	s.state.From = s.state.Aside
	if err := s.file.save(s.state); err != nil {
		s.state.To, s.state.From = "", "" // nothing has moved
		return err
	}
	return s.move()
}

// move does, or finishes, what the state says.
func (s *Start) move() error {
	why := fmt.Sprintf("%d starts in a row crashed: %s", s.state.Crashes, s.state.Cause)
	if s.state.From != "" {
		why = "the new store crashed as the one before it, which is back in its place: " + s.state.Cause
	}
	if err := moveStore(s.dir, filepath.Join(s.dir, s.state.To), why); err != nil {
		return err
	}
	if s.state.From != "" {
		return putBack(filepath.Join(s.dir, s.state.From), s.dir)
	}
	return nil
}
