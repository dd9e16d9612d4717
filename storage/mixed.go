package storage

import (
	"fmt"

	"github.com/holdfast-edge/holdfast/storage/journal"
)

// placeOlder is why a record could not keep the place that it was promised: the store's own files were brought back from an older copy than the streams.
const placeOlder = "the stream goes beyond what the store's own files know: they are from an older copy than the stream"

// outgrown reports whether a stream's index tells of more than the journal and the catalog know. Then they are from an older copy of the card than the stream,
// or a power cut came at the end of a move, and what they predict is wrong for all streams: records wait for Attach. It reads one small file.
func (s *Store) outgrown(st *stream, lost Position) bool {
	e, known := s.catalog.of(st.name())
	if !known {
		return false // it waits anyway
	}
	index, err := s.files(st).Index()
	have := max(st.next, e.Last+1, 1) + lost
	if err != nil || Position(index.Last) < have {
		return false // nobody knows: overtaken is for that
	}
	s.log.Warn("a stream goes beyond what the store's own files know: records wait until it was asked", "stream", st.name(), "seq", index.Last, "known", have-1)
	return true
}

// overtaken sets aside what was taken since Open if the stream, which could not be asked by then, turns out to have other records at those places, and goes on
// behind them. Needs publisher.turn.
func (s *Store) overtaken(st *stream) error {
	if st.recalled || !st.begun() {
		return nil
	}
	s.committer.gate <- struct{}{}
	defer func() { <-s.committer.gate }()
	if st.last >= st.began {
		err := s.ring.Replay(0, func(_ journal.Position, group []journal.Entry) error {
			for i := range group {
				r, m, err := s.locate(&group[i])
				if err != nil || r.st != st || r.at < st.began || r.at > st.last {
					continue
				}
				if err := s.quarantined(&group[i], m, placeOlder); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("keep what stream %s has no place for: %w", st.name(), err)
		}
		st.next = max(st.next, st.last+1)
	}
	st.recalled = true
	return nil
}
