package storage

import (
	"errors"
	"fmt"
	"time"
)

// cureInterval is the shortest time between two restarts of JetStream.
const cureInterval = 5 * time.Second

// fullDisk is how little free space explains that the server cannot write, whatever reserve_free says.
const fullDisk = 1 << 20

// needsCure reports whether an outcome of a publish is one that a restart of JetStream ends. A write error stays in the server after the disk has
// space again; stopping and starting JetStream in the same process clears it and reads the streams anew, with nothing lost that was
// acknowledged (nats-server 2.15: about 1 ms and the time to open the streams).
func needsCure(err error) bool {
	return errors.Is(err, errNoReply) || errors.Is(err, errStuck) || errors.Is(err, errNoStream)
}

// cure restarts JetStream if that may end what an outcome shows, unless it was tried a moment ago, and reports whether it did. The caller holds
// publisher.turn and looks afterwards what the streams hold.
func (s *Store) cure(st *stream, outcome error) bool {
	restart := s.server().Restart
	now := s.now()
	if !needsCure(outcome) || restart == nil || (!s.cured.IsZero() && now.Sub(s.cured) < cureInterval) {
		return false
	}
	s.log.Warn("the server does not store", "stream", st.name(), "err", outcome)
	s.cured = now
	s.useSpare() // JetStream does not start where it cannot make a file
	if err := restart(); err != nil {
		s.log.Error("JetStream does not restart", "err", err)
		return false
	}
	s.log.Warn("JetStream restarted", "dur", s.now().Sub(now))
	return true
}

// explain classifies an outcome; if the server could not write and the disk is full, it says so.
func (s *Store) explain(err error) error {
	if needsCure(err) || errors.Is(err, ErrUnavailable) {
		if fsys, ferr := fileSystemOf(s.jetstream()); ferr == nil && fsys.FreeBytes < fullDisk {
			return fmt.Errorf("%w: the disk has %d bytes left: %w", ErrFull, fsys.FreeBytes, err)
		}
	}
	return classify(err)
}
