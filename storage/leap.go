package storage

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Bounds of a leap by placeholders. They are stored and removed again, about 50 bytes and a few microseconds each.
const (
	placeholderBatch = reserveChunk // at once in the stream
	maxPlaceholders  = 1 << 18      // beyond, the stream is moved instead, see move
)

// leapAtStart raises a stream to its reserve if the hub may have seen records that are gone here:
//   - the machine stopped without a clean stop of the store (see bootRecord), or
//   - the stream has less than was on flash once: its end is damaged.
func (s *Store) leapAtStart(ctx context.Context, st *stream) error {
	if err := s.purgePlaceholders(ctx, st); err != nil {
		return err
	}
	r := s.reserve.of(st.name())
	damaged := !s.unclean && st.last < r.Last
	if damaged {
		s.log.Error("stream lost records that were on flash", "stream", st.name(), "seq", r.Last, "have", st.last)
	}
	if !s.unclean && !damaged {
		return nil
	}
	to := r.Reserve
	if to == 0 {
		to = st.last + reserveChunk // see reserve for why this is enough
	}
	if to <= st.last {
		return nil
	}
	s.log.Info("leap after an unclean stop", "stream", st.name(), "seq", st.last, "to", to)
	if to-st.last > maxPlaceholders && !s.empty(ctx, st) {
		return s.move(ctx, st, to, 1)
	}
	return s.raise(ctx, st, st.last, to)
}

// empty reports whether a stream certainly holds nothing.
func (s *Store) empty(ctx context.Context, st *stream) bool {
	js, err := s.wire.js.Stream(ctx, st.name())
	return err == nil && js.CachedInfo().State.Msgs == 0
}

// raise brings the last sequence of a stream from last to at least to, without touching its records. What it stores goes to a subject that no consumer
// of the uplink sees and is purged at once; the server's limits leave room for it (see headroomBytes). The caller holds committer.gate or has not
// started the committer yet, and sees to it that a reserve covers what comes above.
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
		st.reached(to)
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
	st.reached(last)
	return nil
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

// leapHeld keeps everybody else from publishing, and leaps.
func (s *Store) leapHeld(ctx context.Context, st *stream, above, keep Position) error {
	select {
	case s.committer.gate <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-s.committer.gate }()
	if err := s.commit(); err != nil { // so that nothing is left to be counted at the positions it is moved away from
		return err
	}
	return s.leap(ctx, st, above, keep)
}

func (s *Store) leap(ctx context.Context, st *stream, above, keep Position) error {
	if len(st.doubt) > 0 {
		if err := s.lookUp(st); err != nil {
			return err
		}
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
	if err := s.reserveAbove(st, above); err != nil {
		return err
	}
	if err := s.raise(ctx, st, st.last, above); err != nil {
		return err
	}
	return s.sync()
}

// reserveAbove puts a reserve on flash that covers what will be stored above a position.
func (s *Store) reserveAbove(st *stream, above Position) error {
	if err := s.reserve.set(map[string]reserved{st.name(): {Reserve: above + reserveChunk, Last: st.last}}); err != nil {
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
