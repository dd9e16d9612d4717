package storage

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// publish puts the records of a group into their streams, in order, and notes in each item whether it is in its stream or why not. The caller
// holds committer.gate.
func (s *Store) publish(group []*call) {
	var touched []*stream
	for _, c := range group {
		for i := range c.items {
			it := &c.items[i]
			st := it.source.stream
			if len(st.run) == 0 {
				touched = append(touched, st)
			}
			st.run = append(st.run, it)
		}
	}
	clear(s.wire.early)
	// Every stream's run is under way before the first acknowledgement is waited for.
	var sent []flight
	for len(touched) > 0 {
		sent = sent[:0]
		for _, st := range touched {
			sent = append(sent, s.send(st))
		}
		left := touched[:0]
		for i, st := range touched {
			if len(sent[i].batch) > 0 {
				s.settle(st, sent[i])
			}
			if len(st.run) > 0 {
				left = append(left, st)
			}
		}
		touched = left
	}
	for _, c := range group {
		for i := range c.items {
			src := c.items[i].source
			src.current = src.stored.high // what was not stored may come again
		}
	}
}

// maxFlightBytes bounds what is published between two acknowledgements: the server queues 128 MB per stream and drops the rest.
const maxFlightBytes = 4 << 20

// flight is a run of records that was published.
type flight struct {
	batch  []*item
	ticket uint64 // of the last of them
	err    error  // publishing ended early
}

// send publishes the next records of a stream's run and takes them off it.
func (s *Store) send(st *stream) flight {
	if err := s.failed(); err != nil {
		st.giveUp(err)
		return flight{}
	}
	if len(st.doubt) > 0 {
		if err := s.lookUp(st); err != nil {
			st.giveUp(err)
			return flight{}
		}
	}
	batch := make([]*item, 0, min(len(st.run), maxGroupRecords))
	taken, bytes := 0, 0
	for _, it := range st.run {
		if len(batch) == maxGroupRecords || bytes > maxFlightBytes {
			break
		}
		taken++
		if it.wanted() {
			batch = append(batch, it)
			bytes += len(it.msg.Data)
		}
	}
	if st.run = st.run[taken:]; len(batch) == 0 {
		return flight{}
	}
	if err := s.cover(st, st.last+Position(len(batch))); err != nil {
		for _, it := range batch {
			it.err = err
		}
		st.giveUp(err)
		return flight{}
	}
	f := flight{batch: batch}
	f.ticket, f.err = s.wire.publish(batch)
	return f
}

// wanted reports whether the record still has to be stored, and otherwise says so in the item.
func (it *item) wanted() bool {
	yes, passed := it.source.stored.has(it.seq)
	switch {
	case yes:
		it.done = true
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

// giveUp ends a stream's run with an error for all that is left of it.
func (st *stream) giveUp(err error) {
	for _, it := range st.run {
		it.err = err
	}
	st.run = st.run[:0]
}

// cover makes sure that a reserve at or above position to is on flash.
func (s *Store) cover(st *stream, to Position) error {
	have, err := s.reserve.ahead(st.name(), to, st.last)
	if err == nil && have < to {
		if err = s.sync(); err == nil {
			if have = s.reserve.of(st.name()).Reserve; have < to {
				err = fmt.Errorf("sequence reserve of stream %s is %d, want %d", st.name(), have, to)
			}
		}
	}
	if err != nil {
		return classify(err)
	}
	return nil
}

// publish sends a run of one stream's records; only the last asks for an acknowledgement.
func (w *wire) publish(batch []*item) (ticket uint64, err error) {
	for i, it := range batch {
		it.msg.Reply = ""
		if i == len(batch)-1 {
			ticket = w.ticket(&it.msg)
		}
		if err = w.nc.PublishMsg(&it.msg); err != nil {
			return w.serial, err
		}
	}
	return ticket, nil
}

// settle waits for the acknowledgement of a run and notes what was stored. Anything but the expected sequence goes the slow and exact way.
func (s *Store) settle(st *stream, f flight) {
	cause := f.err
	if cause == nil {
		a := s.wire.await(f.ticket, st.fence())
		if a.err == nil && !a.duplicate && a.seq == st.last+Position(len(f.batch)) {
			st.reached(a.seq)
			st.mu.Lock()
			for i, it := range f.batch {
				it.storedLocked(a.seq - Position(len(f.batch)-1-i))
			}
			st.mu.Unlock()
			st.setErr(nil)
			return
		}
		cause = a.err
	}
	st.doubt = f.batch
	s.sortOut(st, f.batch, cause)
}

// stored notes that the record is in its stream.
func (it *item) stored(at Position) {
	st := it.source.stream
	st.mu.Lock()
	it.storedLocked(at)
	st.mu.Unlock()
}

// storedLocked is stored for the holder of the stream's mu.
func (it *item) storedLocked(at Position) {
	it.done = true
	it.source.stored.add(it.seq)
	if it.source.moving {
		return
	}
	e := entry{Stream: it.source.stream.name(), Position: at, Source: it.source.name, Epoch: it.source.stream.store.Epoch(), Seq: it.seq}
	if it.source.name == GapSource {
		e.Body = it.msg.Data
	}
	it.source.stream.fresh = append(it.source.stream.fresh, e)
}

// sortOut finds out which records of a run are in the stream and publishes the others one by one, in order, until the server's answer to one says
// why not. The error that brought us here is nil if the server took the last record under a sequence that shows that others are missing.
func (s *Store) sortOut(st *stream, batch []*item, cause error) {
	if needsCure(cause) {
		s.log.Warn("the server does not store", "stream", st.name(), "err", cause)
		s.cure()
	}
	stop := s.lookUp(st) // what keeps the rest of the run out
	if stop != nil && needsCure(cause) {
		stop = s.explain(stop)
	}
	for _, it := range batch {
		if it.done {
			continue
		}
		if stop != nil {
			it.err = stop
			continue
		}
		err := s.publishOne(st, it, true)
		if errors.Is(err, ErrInvalid) {
			it.err = &InvalidError{Source: it.source.name, Seq: it.seq, Reason: err.Error()}
			continue
		}
		it.err, stop = err, err
	}
	if stop != nil {
		st.giveUp(stop) // what comes behind must not overtake
	}
	st.setErr(stop)
}

// publishOne stores one record and classifies what the server says. again: if need be twice.
func (s *Store) publishOne(st *stream, it *item, again bool) error {
	if err := s.cover(st, st.last+1); err != nil {
		return err
	}
	ticket, err := s.wire.publish([]*item{it})
	if err != nil {
		return classify(err)
	}
	a := s.wire.await(ticket, st.fence())
	if a.err != nil {
		var api *jetstream.APIError
		if !errors.As(a.err, &api) {
			st.doubt = []*item{it}
		}
		return s.explain(a.err)
	}
	if a.duplicate || a.seq != st.last+1 {
		st.doubt = []*item{it}
		if err := s.lookUp(st); err != nil {
			return err
		}
		switch {
		case it.done:
			return nil
		case a.duplicate && again:
			// It was taken out again a moment ago, see found, and the server still remembers its ID.
			<-time.After(3 * duplicateWindow)
			return s.publishOne(st, it, false)
		}
		return fmt.Errorf("%w: stream %s answered with sequence %d for a record that is not there", ErrUnavailable, st.name(), a.seq)
	}
	st.reached(a.seq)
	it.stored(a.seq)
	return nil
}

// lookUp reads from the stream what became of the records in doubt, after the server has dealt with all of them.
//
// A record that is there although one of its source before it is not would be stored out of order: it was never acknowledged, so it is taken out
// again, to be published behind the missing one.
func (s *Store) lookUp(st *stream) error {
	if err := s.wire.pass(st.fence()); err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.wire.limit)
	defer cancel()
	js, err := s.wire.js.Stream(ctx, st.name())
	if err != nil {
		return fmt.Errorf("%w: look at stream %s: %w", ErrUnavailable, st.name(), err)
	}
	last := Position(js.CachedInfo().State.LastSeq)
	if last < st.last {
		s.log.Error("stream lost acknowledged records", "stream", st.name(), "seq", st.last, "have", last)
		if err := s.raise(ctx, st, last, st.last); err != nil {
			return fmt.Errorf("%w: raise stream %s again: %w", ErrUnavailable, st.name(), err)
		}
		last = st.last
	}
	waiting := map[*source][]*item{}
	for _, it := range st.doubt {
		if !it.done {
			waiting[it.source] = append(waiting[it.source], it)
		}
	}
	for seq := st.last + 1; seq <= last; seq++ {
		m, err := js.GetMsg(ctx, uint64(seq))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue
		}
		if err != nil {
			return fmt.Errorf("%w: read record %d of stream %s: %w", ErrUnavailable, seq, st.name(), err)
		}
		if err := s.found(ctx, js, m, waiting); err != nil {
			return fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
	}
	st.reached(last)
	st.doubt = nil
	return nil
}

// found matches a record of the stream with those whose outcome is in doubt.
func (s *Store) found(ctx context.Context, js jetstream.Stream, m *jetstream.RawStreamMsg, waiting map[*source][]*item) error {
	text := m.Header.Get(HeaderID)
	for src, items := range waiting {
		for i, it := range items {
			if it.msg.Header.Get(HeaderID) != text {
				continue
			}
			if i > 0 {
				if err := js.DeleteMsg(ctx, m.Sequence); err != nil {
					return fmt.Errorf("remove record %d, which overtook another: %w", m.Sequence, err)
				}
				return nil
			}
			it.stored(Position(m.Sequence))
			waiting[src] = items[1:]
			return nil
		}
	}
	return nil
}
