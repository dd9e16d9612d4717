package storage

import (
	"path/filepath"
	"slices"
	"time"
)

// Alarm is one damage that was found in the data directory since the start.
type Alarm struct {
	Where   string    // file, from the data directory
	Problem string    // in words
	Aside   string    // where what was damaged is kept, from the data directory; empty if there was nothing to keep
	Lost    bool      // data of local applications is gone: what is gone of captured records is counted in StreamCounters
	At      time.Time // by the wall clock
}

// maxAlarms bounds what is remembered; the log has them all.
const maxAlarms = 100

// alarm logs damage that was found and dealt with, and remembers it for Alarms.
func (s *Store) alarm(where, problem, aside string) { s.alarmOf(where, problem, aside, false) }

func (s *Store) alarmOf(where, problem, aside string, lost bool) {
	s.log.Error("damage in the data directory", "path", where, "err", problem, "aside", aside, "lost", lost)
	a := Alarm{Where: s.relative(where), Problem: problem, Aside: s.relative(aside), Lost: lost, At: s.now()}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.alarms) < maxAlarms || lost && len(s.alarms) < 2*maxAlarms {
		s.alarms = append(s.alarms, a)
	}
}

// Alarms returns the damage found since the start, the first hundred, and a hundred losses more.
func (s *Store) Alarms() []Alarm {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.alarms)
}

// relative names a file from the data directory.
func (s *Store) relative(path string) string {
	if rel, err := filepath.Rel(s.options.Dir, path); err == nil && path != "" {
		return rel
	}
	return path
}

// aside is where damaged things go.
func (s *Store) aside() string { return filepath.Join(s.home, "damaged") }
