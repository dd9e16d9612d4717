package storage

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/holdfast-edge/holdfast/storage/journal"
)

// kindRecord is the one kind of entry in the ring: a message.
const kindRecord journal.Kind = 1

// Bounds of what may be unknown after the ring was lost or damaged.
const (
	// leastEntry is less than any record of ours takes in the ring: so many sequences may be in bytes that cannot be read any more.
	leastEntry = 150
	// lostRing is how far a stream is raised whose ring is gone: more than was ever published between two checkpoints, see maxUnsaved.
	lostRing = maxUnsaved / leastEntry
)

// ringLog is the journal as the store uses it.
type ringLog interface {
	Append(group []journal.Entry) (journal.Position, error)
	AppendReserve(group []journal.Entry) (journal.Position, error)
	Checkpoint(p journal.Position) error
	Replay(from journal.Position, visit func(end journal.Position, group []journal.Entry) error) error
	State() journal.State
	GroupLimit() int
	Close() error
}

var _ ringLog = (*journal.Ring)(nil)

// openJournal opens the ring, or makes one, and finds out from it and from the catalog where every stream goes on, without asking a server.
func (s *Store) openJournal(trusted bool) error {
	dir := filepath.Join(s.home, "journal")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	ring, found, err := journal.Open(s.options.ring(dir, s.key))
	if err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	s.ring = ring
	lost := 0
	for _, d := range found.Damage {
		s.alarm(filepath.Join(dir, d.File), d.String(), "")
		lost += int(d.To - d.From)
	}
	if found.Created && !found.Resized && !s.options.Unpacked && s.haveStreams() {
		s.alarm(dir, "it was gone: what had not reached the streams yet is lost, at most what was captured since the last checkpoint", "")
	}
	if found.Resize {
		s.log.Info("the journal gets its new size when it is empty at a start")
	}
	if err := s.readRing(Position(lost / leastEntry)); err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	for _, st := range s.streams {
		trusted = !s.outgrown(st, Position(lost/leastEntry)) && trusted
	}
	for _, st := range s.streams {
		if err := s.predict(st, trusted && !found.Created, Position(lost/leastEntry)); err != nil {
			return fmt.Errorf("open store: stream %s: %w", st.name(), err)
		}
		if lost > 0 {
			st.raiseBy = Position(lost/leastEntry) + 1
		} else if found.Created {
			st.raiseBy = lostRing
		}
	}
	s.publisher.appended, s.publisher.behind = ring.State().Tail, true
	s.publisher.opened = s.publisher.appended
	return s.catalog.set(s.young)
}

// haveStreams reports whether the server has streams of captured records.
func (s *Store) haveStreams() bool {
	return slices.ContainsFunc(s.streams, func(st *stream) bool {
		_, err := os.Stat(filepath.Join(s.streamsDir(), st.name()))
		return err == nil
	})
}

// readRing looks through the entries of the ring: which sequences they have, and what was counted before. Streams get their incarnation. So many entries, at
// most, cannot be read any more: those between two that can are counted, and a recount finds them missing.
func (s *Store) readRing(lost Position) error {
	for _, st := range s.streams {
		e, _ := s.catalog.of(st.name())
		st.incarnation = e.Incarnation
		if e.Incarnation != 0 && e.FirstSeq > 1 {
			s.counters.pass(st.name(), Position(e.FirstSeq-1)) // there is nothing to count below
		}
	}
	return s.ring.Replay(0, func(_ journal.Position, group []journal.Entry) error {
		for i := range group {
			r, m, err := s.locate(&group[i])
			if err != nil || r.st == nil {
				continue // the publisher sets it aside
			}
			id, _ := ParseID(m.header1(headerStart))
			again := m.header1("\r\n"+HeaderPutBack+": ") != ""
			if again {
				s.putBackIDs[id] = r.at
			}
			if stamp, err := ParseStamp(m.header1("\r\n" + HeaderTime + ": ")); err == nil {
				s.clock.raise(stamp.Wall)
			}
			if r.st.first == 0 {
				r.st.first = r.at
				r.st.known = s.counters.position(r.st.name()) >= r.at-1
			}
			if hole := r.at - min(r.st.next, r.at); hole > 0 && hole <= lost && r.st.next > 0 && r.st.known {
				s.counters.lost(r.st.name(), r.st.next, r.at-1)
			}
			r.st.next = max(r.st.next, r.at+1)
			r.st.wait(1, r.size())
			if id.Store == s.ID() {
				s.newest = max(s.newest, id.Epoch)
				s.marks.keep(id, m.mark)
			}
			if r.st.known {
				s.counted(entry{Stream: m.stream, Position: r.at, Source: id.Source, Epoch: id.Epoch, Seq: id.Seq, Body: m.data, Again: again})
			}
		}
		return nil
	})
}

// locate reads an entry of the ring. st is nil if its stream is not configured, or is another one of the same name by now.
func (s *Store) locate(e *journal.Entry) (pending, message, error) {
	m, err := parseMessage(e.Payload)
	if err != nil || e.Kind != kindRecord {
		return pending{}, m, errNoMessage
	}
	r := pending{at: Position(e.Sequence), payload: e.Payload}
	st := s.byName[m.stream]
	if st == nil {
		st = s.left[m.stream]
	}
	if st == nil {
		return r, m, nil
	}
	if st.incarnation == 0 {
		st.incarnation = e.Incarnation // the catalog is gone
	}
	if st.incarnation == e.Incarnation {
		r.st = st
	}
	return r, m, nil
}

// predict decides whether a stream's next sequence is known, so that it can take records before there is a server. If not it waits for Attach, which asks
// the stream itself: when its files are there and nobody knows from what they were made, when its counters are behind what the ring no longer has,
// when a move of it was interrupted, when the ring is new beside it, and when a stream has more than the ring knows.
func (s *Store) predict(st *stream, trusted bool, lost Position) error {
	e, known := s.catalog.of(st.name())
	_, err := os.Stat(filepath.Join(s.streamsDir(), st.name()))
	if !known && st.next == 0 && errors.Is(err, os.ErrNotExist) {
		e = catalogEntry{FirstSeq: firstSequence(s.now()), Incarnation: newIncarnation()}
		s.young[st.name()] = e
		st.incarnation, st.next = e.Incarnation, Position(max(e.FirstSeq, 1))
		st.first = st.next
		s.counters.pass(st.name(), st.next-1)
		st.begin()
		return nil
	}
	st.next = max(st.next, e.Last+1, Position(e.FirstSeq), 1)
	if st.first == 0 {
		st.first = st.next
		st.known = s.counters.position(st.name()) >= st.next-1
	}
	if st.incarnation == 0 {
		st.incarnation = newIncarnation()
		e.Incarnation = st.incarnation
		s.young[st.name()] = e
		return nil
	}
	moving, err := s.moving(st)
	if err != nil || moving || !trusted || !known || !st.known {
		return err
	}
	if lost > 0 {
		st.unread = span{first: st.next, last: st.next + lost}
		st.next += lost + 1
	}
	st.begin()
	return nil
}

// begin lets records of a stream into the ring: its next sequence is known.
func (st *stream) begin() {
	if !st.begun() {
		if st.began == 0 {
			st.began = st.next
		}
		close(st.ready)
	}
}

func (st *stream) begun() bool {
	select {
	case <-st.ready:
		return true
	default:
		return false
	}
}

// inscribe puts records into the ring, in order, and hands them to the publisher: when it returns they are on flash. It returns those that are not, and
// why. spare: the reserve of the ring may be used.
func (s *Store) inscribe(items []*item, spare bool) ([]*item, error) {
	s.committer.gate <- struct{}{}
	defer func() { <-s.committer.gate }()
	for len(items) > 0 {
		if err := s.failed(); err != nil {
			return items, err
		}
		n, err := s.inscribeGroup(items, spare)
		if err != nil {
			return items, err
		}
		items = items[n:]
	}
	return nil, nil
}

// inscribeGroup puts as many records into the ring as one group holds. What is in the ring already, or can never be, is passed over.
func (s *Store) inscribeGroup(items []*item, spare bool) (n int, err error) {
	s.group, s.taken = s.group[:0], s.taken[:0]
	size, limit := 0, s.ring.GroupLimit()
	for ; n < len(items); n++ {
		it := items[n]
		length := journal.EntrySize(len(it.payload))
		if len(s.group) > 0 && size+length > limit {
			break
		}
		if !it.wanted() {
			continue
		}
		size += length
		st := it.source.stream
		s.group = append(s.group, journal.Entry{Kind: kindRecord, Incarnation: st.incarnation, Sequence: uint64(st.next), Payload: it.payload})
		s.taken = append(s.taken, it)
		st.next++
	}
	if len(s.group) == 0 {
		return n, nil
	}
	write := s.ring.Append
	if spare {
		write = s.ring.AppendReserve
	}
	end, err := write(s.group)
	s.jammed.Store(errors.Is(err, journal.ErrRingFull))
	if err != nil {
		for _, it := range s.taken {
			it.source.stream.next--
			it.source.current = it.source.stored.high // it may come again
		}
		return 0, s.ringError(err)
	}
	s.inscribed(end)
	return n, nil
}

// inscribed notes that the group is on flash.
func (s *Store) inscribed(end journal.Position) {
	recs := make([]pending, len(s.taken))
	s.entries = s.entries[:0]
	epoch := s.Epoch()
	for i, it := range s.taken {
		src := it.source
		recs[i] = pending{st: src.stream, at: Position(s.group[i].Sequence), payload: it.payload}
		it.done = true
		src.stored.add(it.seq)
		e := entry{Stream: src.stream.name(), Position: recs[i].at, Source: src.name, Epoch: epoch, Seq: it.seq}
		if src.name == GapSource {
			e.Body = it.body
		}
		if it.whose.Source != "" {
			e.Source, e.Epoch, e.Seq, e.Again = it.whose.Source, it.whose.Epoch, it.whose.Seq, true
		}
		s.entries = append(s.entries, e)
		src.stream.wait(1, recs[i].size())
	}
	s.counted(s.entries...)
	clear(s.group)
	clear(s.taken)
	s.publisher.push(end, recs)
}

// counted counts records that are on flash.
func (s *Store) counted(entries ...entry) {
	if err := s.counters.committed(entries...); err != nil {
		s.log.Error("a gap record does not count", "err", err)
	}
}

// ringError turns an error of the ring into one of Append's.
func (s *Store) ringError(err error) error {
	switch {
	case errors.Is(err, journal.ErrRingFull):
		return fmt.Errorf("%w: %w", ErrFull, err)
	case errors.Is(err, journal.ErrClosed):
		return ErrClosed
	case errors.Is(err, journal.ErrTooLarge):
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return s.fail(err)
}

// wanted reports whether the record still has to be stored, and otherwise says so in the item. Needs committer.gate.
func (it *item) wanted() bool {
	yes, passed := it.source.stored.has(it.seq)
	it.err = nil
	switch {
	case yes:
		it.done = true
	case it.source.stream.unsure:
		it.err = fmt.Errorf("%w: stream %s is being moved", ErrUnavailable, it.source.stream.name())
	case passed:
		it.err = &InvalidError{Source: it.source.name, Seq: it.seq, Reason: fmt.Sprintf("records up to %d of its source are stored already", it.source.stored.high)}
	case it.seq == it.source.current:
		it.err = fmt.Errorf("%w: record %d of source %q is being stored by another call", ErrUnavailable, it.seq, it.source.name)
	case it.seq < it.source.current:
		it.err = &InvalidError{Source: it.source.name, Seq: it.seq, Reason: fmt.Sprintf("it comes behind record %d of its source", it.source.current)}
	default:
		it.source.current = it.seq
		return true
	}
	return false
}
