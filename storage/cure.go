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

// cure restarts JetStream, unless that was tried a moment ago. The caller holds committer.gate and looks afterwards what the streams hold.
func (s *Store) cure() {
	now := s.now()
	if s.server.Restart == nil || (!s.cured.IsZero() && now.Sub(s.cured) < cureInterval) {
		return
	}
	s.cured = now
	if err := s.server.Restart(); err != nil {
		s.log.Error("JetStream does not restart", "err", err)
		return
	}
	s.log.Warn("JetStream restarted", "dur", s.now().Sub(now))
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
