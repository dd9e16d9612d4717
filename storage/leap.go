package storage

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Bounds of a leap by placeholders. They are stored and removed again, about 50 bytes and a few microseconds each.
const (
	placeholderBatch = 8192    // at once in the stream
	maxPlaceholders  = 1 << 18 // beyond, the stream is moved instead, see move
	leapPatience     = 10 * time.Second
)

// raiseAtStart raises a stream to where what the ring has begins, and if the ring was lost, as far as it may have reached.
func (s *Store) raiseAtStart(ctx context.Context, st *stream) error {
	if err := s.purgePlaceholders(ctx, st); err != nil {
		return err
	}
	to := st.first - 1
	if !st.begun() {
		if st.raiseBy > 0 && s.holds(ctx, st) {
			to = max(to, st.last, st.next-1) + st.raiseBy
		}
		st.next = max(st.next, st.last+1, to+1)
	}
	if to <= st.last {
		return nil
	}
	s.log.Log(ctx, s.options.made(), "the stream is raised: it may have had more records", "stream", st.name(), "seq", st.last, "to", to)
	return s.raise(ctx, st, st.last, to)
}

// holds reports whether a stream has ever held anything.
func (s *Store) holds(ctx context.Context, st *stream) bool {
	js, err := s.wire.js.Stream(ctx, st.name())
	if err != nil {
		return true
	}
	info := js.CachedInfo()
	return info.State.Msgs > 0 || info.State.LastSeq >= max(info.Config.FirstSeq, 1)
}

// raise brings the last sequence of a stream from last to at least to, without touching its records. What it stores goes to a subject that no consumer
// of the uplink sees and is purged at once; the server's limits leave room for it (see headroomBytes). Needs publisher.turn.
func (s *Store) raise(ctx context.Context, st *stream, last, to Position) error {
	if last >= to {
		return nil
	}
	js, err := s.wire.js.Stream(ctx, st.name())
	if err != nil {
		return err
	}
	if js.CachedInfo().State.Msgs == 0 {
		if err := js.Purge(ctx, jetstream.WithPurgeSequence(uint64(to+1))); err != nil {
			return fmt.Errorf("purge up to %d: %w", to, err)
		}
		s.raised(st, to)
		return nil
	}
	for last < to {
		n := min(to-last, placeholderBatch)
		if err := s.placeholders(st, last, n); err != nil {
			return err
		}
		last += n
		if err := s.purgePlaceholders(ctx, st); err != nil {
			return err
		}
	}
	s.raised(st, last)
	return nil
}

// raised notes where a stream has been brought.
func (s *Store) raised(st *stream, to Position) {
	st.reached(to)
	if !st.begun() {
		st.next = max(st.next, to+1)
	}
}

// placeholders stores n of them and waits until they are in.
func (s *Store) placeholders(st *stream, last, n Position) error {
	subject := LeapSubject(st.name())
	m := nats.Msg{Subject: subject}
	var ticket uint64
	for i := range n {
		if i == n-1 {
			ticket = s.wire.ticket(&m)
		}
		if err := s.wire.nc.PublishMsg(&m); err != nil {
			return fmt.Errorf("publish placeholders: %w", err)
		}
	}
	a := s.wire.await(ticket, st.fence())
	if a.err != nil {
		return fmt.Errorf("publish placeholders: %w", classify(a.err))
	}
	if a.seq < last+n {
		return fmt.Errorf("publish placeholders: stream is at %d, want %d", a.seq, last+n)
	}
	return nil
}

// purgePlaceholders removes placeholders, also those that a crash left.
func (s *Store) purgePlaceholders(ctx context.Context, st *stream) error {
	js, err := s.wire.js.Stream(ctx, st.name())
	if err != nil {
		return err
	}
	if err := js.Purge(ctx, jetstream.WithPurgeSubject(LeapSubject(st.name()))); err != nil {
		return fmt.Errorf("purge placeholders: %w", err)
	}
	return nil
}

// Leap raises a stream so that its next record gets a sequence above the given one, the hub's newest. keep is the first sequence whose record the
// hub does not have; such records at or below above would be ignored by the hub for ever, so they are moved, in order, with their IDs and headers,
// to sequences above it. Records below keep stay where they are if the distance is small, and are given up if it is large: the hub has them.
//
// Nothing is published meanwhile; Append waits. The work survives a crash at any point: see move. On return everything is on flash.
func (s *Store) Leap(ctx context.Context, stream string, above, keep Position) error {
	st := s.byName[stream]
	if st == nil {
		return fmt.Errorf("leap: stream %q is not there", stream)
	}
	select {
	case <-s.attached:
	case <-s.closing:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
	release, err := s.keeper.hold(ctx) // before the gate: the keeper may be waiting for a gap record to be stored
	if err != nil {
		return err
	}
	defer release()
	if err := s.leapHeld(ctx, st, above, keep); err != nil {
		return fmt.Errorf("leap stream %s above %d: %w", stream, above, err)
	}
	if err := s.storeLost(ctx); err != nil {
		return err
	}
	return s.keeper.refresh(ctx)
}

// leapHeld keeps everybody else from writing and publishing, brings what the ring has into the streams, and leaps.
func (s *Store) leapHeld(ctx context.Context, st *stream, above, keep Position) error {
	p := s.publisher
	select {
	case s.committer.gate <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-s.committer.gate }()
	patience, cancel := context.WithTimeout(ctx, leapPatience)
	defer cancel()
	if err := p.drain(patience); err != nil {
		return fmt.Errorf("%w: publish what is in the journal: %w", ErrUnavailable, err)
	}
	p.turn <- struct{}{}
	defer func() { <-p.turn }()
	if err := p.checkpoint(ctx); err != nil { // so that the ring has nothing of positions that records are moved away from
		return err
	}
	st.unsure = true
	if err := s.leap(ctx, st, above, keep); err != nil {
		return err
	}
	st.next = max(st.next, st.last+1)
	s.counters.pass(st.name(), st.next-1)
	if err := s.catalog.set(s.standing(ctx)); err != nil {
		return err
	}
	st.unsure = false
	return nil
}

func (s *Store) leap(ctx context.Context, st *stream, above, keep Position) error {
	if err := s.resumeMove(ctx, st); err != nil { // of a Leap that failed
		return err
	}
	js, err := s.wire.js.Stream(ctx, st.name())
	if err != nil {
		return err
	}
	state := js.CachedInfo().State
	st.reached(max(st.last, Position(state.LastSeq)))
	behind, err := s.anyBetween(ctx, js, st, max(keep, Position(state.FirstSeq)), above)
	if err != nil {
		return err
	}
	if !behind && st.last >= above {
		return nil
	}
	s.log.Info("leap above the hub", "stream", st.name(), "seq", st.last, "to", above, "moving", behind)
	if behind || state.Msgs > 0 && above > st.last+maxPlaceholders {
		return s.move(ctx, st, max(above, st.last), keep)
	}
	if err := s.raise(ctx, st, st.last, above); err != nil {
		return err
	}
	return s.sync()
}

// anyBetween reports whether a stream holds a captured record between two positions, both inclusive.
func (s *Store) anyBetween(ctx context.Context, js jetstream.Stream, st *stream, first, last Position) (bool, error) {
	if first > last {
		return false, nil
	}
	m, err := js.GetMsg(ctx, uint64(max(first, 1)), jetstream.WithGetMsgSubject(DataSubject(s.Leaf(), st.name(), ">")))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read stream %s at %d: %w", st.name(), first, err)
	}
	return Position(m.Sequence) <= last, nil
}
