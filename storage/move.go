package storage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Bounds of a move.
const (
	moveChunk   = 1024                // records published between two acknowledgements
	moveDeletes = 10_000              // beyond, records are removed by a purge, which takes those below keep along
	moveSettle  = 3 * duplicateWindow // until the server has forgotten the IDs that are to be stored again
	moveTries   = 5
)

// moveMarker is the content of the file move-<stream>: there while a stream is being moved and its side stream is whole and on flash.
type moveMarker struct {
	To      Position `json:"to"`      // records are moved above it
	Keep    Position `json:"keep"`    // first record that was copied
	History bool     `json:"history"` // the records below keep stay
}

func sideStream(stream string) string  { return "hf_move_" + stream }
func sideSubject(stream string) string { return "hf.move." + stream + "." }

func (s *Store) markerFile(st *stream) *stateFile {
	return newStateFile(filepath.Join(s.home, "move-"+st.name()))
}

// move gives the records of a stream from keep on new sequences above to, in order, with their IDs and headers. The caller holds committer.gate and publisher.turn, and the ring has nothing of the stream. It is
// done so that a crash at any point leaves something that resumeMove can finish or undo:
//
//  1. The records are copied to a side stream. Crash: the stream is untouched; the side stream is removed at the next start.
//  2. syncfs, then the marker, on flash. From here the side stream is the truth about these records, and the move is finished, not undone.
//  3. The originals are removed and the stream is raised to the sequence: both can be done again.
//  4. The copies are stored above it. Crash: those that are there are counted, and the rest follows; nothing else is stored meanwhile.
//  5. syncfs, the counters are told and saved, then the side stream and the marker are removed. Crash between: everything is found to be there already.
//
// The uplink must not read the stream meanwhile: it calls Leap before it makes its consumer.
func (s *Store) move(ctx context.Context, st *stream, to, keep Position) error {
	js := s.wire.js
	if err := s.dropSide(ctx, st); err != nil {
		return err
	}
	side, err := js.CreateStream(ctx, jetstream.StreamConfig{
		Name: sideStream(st.name()), Subjects: []string{sideSubject(st.name()) + ">"}, Storage: jetstream.FileStorage, Replicas: 1,
		Duplicates: duplicateWindow, MaxBytes: -1, MaxMsgs: -1,
	})
	if err != nil {
		return fmt.Errorf("create side stream: %w", err)
	}
	if err := s.copyOut(ctx, st, side, keep); err != nil {
		return fmt.Errorf("copy to side stream: %w", err)
	}
	if err := s.allThere(ctx, st, side, keep); err != nil {
		return fmt.Errorf("copy to side stream: %w", err)
	}
	if err := s.sync(); err != nil {
		return err
	}
	main, err := js.Stream(ctx, st.name())
	if err != nil {
		return err
	}
	state := main.CachedInfo().State
	first, last := Position(state.FirstSeq), Position(state.LastSeq)
	m := moveMarker{To: to, Keep: keep, History: first < keep && last < keep+moveDeletes && to < last+maxPlaceholders}
	if err := s.markerFile(st).save(m); err != nil {
		return err
	}
	return s.finishMove(ctx, st, m)
}

// moving reports whether a move of a stream was interrupted behind its marker.
func (s *Store) moving(st *stream) (bool, error) {
	f := s.markerFile(st)
	for i := range 2 {
		if _, err := os.Stat(f.copyPath(i)); err == nil {
			return true, nil
		} else if !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
	}
	return false, nil
}

// resumeMove finishes a move that was interrupted behind its marker, and removes what one before it has left.
func (s *Store) resumeMove(ctx context.Context, st *stream) error {
	var m moveMarker
	err := loadState(s.markerFile(st), &m, s.log)
	if errors.Is(err, fs.ErrNotExist) {
		return s.dropSide(ctx, st)
	}
	if err != nil {
		return err // both copies damaged: the side stream may be all there is, so nothing is touched
	}
	s.log.Info("an interrupted move goes on", "stream", st.name(), "to", m.To)
	return s.finishMove(ctx, st, m)
}

func (s *Store) finishMove(ctx context.Context, st *stream, m moveMarker) error {
	js := s.wire.js
	side, err := js.Stream(ctx, sideStream(st.name()))
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return s.dropMarker(st) // removed in step 5
	}
	if err != nil {
		return err
	}
	// The originals must be counted, on flash, before they are removed: the copies are taken for counted ones.
	s.counters.moved(st.name(), m.Keep, m.To)
	if err := errors.Join(s.recount(ctx, st), s.counters.save()); err != nil {
		return err
	}
	if err := s.clearBelow(ctx, st, m); err != nil {
		return err
	}
	timer := time.NewTimer(moveSettle)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := s.copyBack(ctx, st, side, m.To); err != nil {
		return fmt.Errorf("copy back: %w", err)
	}
	if err := s.sync(); err != nil {
		return err
	}
	if err := errors.Join(s.countMoved(ctx, st, side, m), s.counters.save()); err != nil {
		return err
	}
	if err := s.dropSide(ctx, st); err != nil {
		return err
	}
	return s.dropMarker(st)
}

// countMoved counts the records at their new places. A server in trouble may say that there is nothing to read: what is passed over then would be
// missing in the account from now on.
func (s *Store) countMoved(ctx context.Context, st *stream, side jetstream.Stream, m moveMarker) error {
	info, err := side.Info(ctx)
	if err != nil {
		return err
	}
	for range moveTries {
		s.counters.moved(st.name(), m.Keep, m.To)
		if err := s.recount(ctx, st); err != nil {
			return err
		}
		captured, own := s.counters.held(st.name(), m.To+1, ^Position(0))
		if captured+own > 0 || info.State.Msgs == 0 {
			return nil
		}
		timer := time.NewTimer(moveSettle)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
	return fmt.Errorf("%w: %d records were moved, and the stream gives back none", ErrUnavailable, info.State.Msgs)
}

// allThere makes sure, before the originals are removed, that the side stream has as many records as were counted: a server in trouble may say that there is
// nothing to read. If it has fewer the stream is counted anew, which finds out whether they are gone.
func (s *Store) allThere(ctx context.Context, st *stream, side jetstream.Stream, keep Position) error {
	info, err := side.Info(ctx)
	if err != nil {
		return err
	}
	fewer := func() error {
		captured, own := s.counters.held(st.name(), keep, ^Position(0))
		if info.State.Msgs < captured+own {
			return fmt.Errorf("%w: %d records were copied, and the stream has %d", ErrUnavailable, info.State.Msgs, captured+own)
		}
		return nil
	}
	if fewer() == nil {
		return nil
	}
	if err := s.recount(ctx, st); err != nil {
		return err
	}
	return fewer()
}

func (s *Store) dropSide(ctx context.Context, st *stream) error {
	err := s.wire.js.DeleteStream(ctx, sideStream(st.name()))
	if err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("remove side stream: %w", err)
	}
	return nil
}

func (s *Store) dropMarker(st *stream) error {
	f := s.markerFile(st)
	for i := range 2 {
		if err := os.Remove(f.copyPath(i)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove marker: %w", err)
		}
	}
	return syncDir(s.home)
}

// run is a number of messages that are stored one behind the other.
type run struct {
	s    *Store
	st   *stream  // whose fence shows that the server has dealt with it
	last Position // where the messages before it lie
	msgs []*nats.Msg
}

// add takes a message, and stores what there is if it is enough.
func (r *run) add(m *nats.Msg) error {
	if r.msgs = append(r.msgs, m); len(r.msgs) < moveChunk {
		return nil
	}
	return r.flush()
}

// flush stores the messages and waits for the acknowledgement.
func (r *run) flush() error {
	if len(r.msgs) == 0 {
		return nil
	}
	w := r.s.wire
	var ticket uint64
	for i, m := range r.msgs {
		var err error
		order(m, r.last+Position(i))
		if ticket, err = w.send(m, i == len(r.msgs)-1); err != nil {
			return classify(err)
		}
	}
	a := w.await(ticket, r.st.fence())
	if a.err != nil {
		return r.s.explain(a.err)
	}
	if r.last += Position(len(r.msgs)); a.seq != r.last {
		return fmt.Errorf("%w: the stream is at %d, want %d", ErrUnavailable, a.seq, r.last)
	}
	r.msgs = r.msgs[:0]
	return nil
}

// copyOut copies the captured records from keep on.
func (s *Store) copyOut(ctx context.Context, st *stream, side jetstream.Stream, keep Position) error {
	out := &run{s: s, st: st}
	err := s.read(ctx, st.name(), DataSubject(s.Leaf(), st.name(), ">"), keep, func(m jetstream.Msg) error {
		return out.add(&nats.Msg{Subject: sideSubject(st.name()) + m.Subject(), Header: m.Headers(), Data: m.Data()})
	})
	if err != nil {
		return err
	}
	return out.flush()
}

// clearBelow removes the originals and raises the stream to the marker's sequence.
func (s *Store) clearBelow(ctx context.Context, st *stream, m moveMarker) error {
	js, err := s.wire.js.Stream(ctx, st.name())
	if err != nil {
		return err
	}
	if !m.History {
		if err := s.counters.giveUp(st.name(), m.Keep); err != nil { // the hub has what is below
			return err
		}
		if err := js.Purge(ctx, jetstream.WithPurgeSequence(uint64(m.To+1))); err != nil {
			return fmt.Errorf("purge up to %d: %w", m.To, err)
		}
		s.counters.purged(st.name())
		return nil
	}
	var originals []uint64
	err = s.read(ctx, st.name(), DataSubject(s.Leaf(), st.name(), ">"), m.Keep, func(r jetstream.Msg) error {
		meta, err := r.Metadata()
		if err == nil && Position(meta.Sequence.Stream) <= m.To {
			originals = append(originals, meta.Sequence.Stream)
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, seq := range originals {
		if err := js.DeleteMsg(ctx, seq); err != nil {
			return fmt.Errorf("remove original %d: %w", seq, err)
		}
	}
	return s.raise(ctx, st, Position(js.CachedInfo().State.LastSeq), m.To)
}

// copyBack stores the copies that are not above the sequence yet.
func (s *Store) copyBack(ctx context.Context, st *stream, side jetstream.Stream, to Position) error {
	var err error
	for range moveTries {
		var again bool
		if again, err = s.copyBackOnce(ctx, st, side, to); err == nil || !again {
			return err
		}
		timer := time.NewTimer(moveSettle)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
	return err
}

func (s *Store) copyBackOnce(ctx context.Context, st *stream, side jetstream.Stream, to Position) (again bool, err error) {
	js, err := s.wire.js.Stream(ctx, st.name())
	if err != nil {
		return false, err
	}
	st.reached(Position(js.CachedInfo().State.LastSeq))
	back := uint64(0)
	if st.last > to {
		err := s.read(ctx, st.name(), DataSubject(s.Leaf(), st.name(), ">"), to+1, func(jetstream.Msg) error { back++; return nil })
		if err != nil {
			return false, err
		}
		if back != uint64(st.last-to) {
			return true, fmt.Errorf("%w: the stream is at %d, and %d records are there above %d", ErrUnavailable, st.last, back, to)
		}
	}
	info, err := side.Info(ctx)
	if err != nil {
		return false, err
	}
	in := &run{s: s, st: st, last: st.last}
	prefix := sideSubject(st.name())
	n := uint64(0)
	err = s.read(ctx, sideStream(st.name()), ">", 1, func(m jetstream.Msg) error {
		if n++; n <= back {
			return nil
		}
		return in.add(&nats.Msg{Subject: strings.TrimPrefix(m.Subject(), prefix), Header: m.Headers(), Data: m.Data()})
	})
	if err == nil {
		err = in.flush()
	}
	st.reached(in.last)
	if err == nil && n < info.State.Msgs {
		err = fmt.Errorf("%w: %d records of the side stream were read, and it has %d", ErrUnavailable, n, info.State.Msgs)
	}
	return errors.Is(err, ErrUnavailable), err
}

// read calls fn for every record of a stream below a subject from a sequence on, in order.
func (s *Store) read(ctx context.Context, stream, subject string, from Position, fn func(jetstream.Msg) error) error {
	cons, err := s.wire.js.OrderedConsumer(ctx, stream, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{subject}, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: uint64(max(from, 1)),
	})
	if err != nil {
		return fmt.Errorf("read stream %s: %w", stream, err)
	}
	if cons.CachedInfo().NumPending == 0 {
		return nil
	}
	msgs, err := cons.Messages()
	if err != nil {
		return fmt.Errorf("read stream %s: %w", stream, err)
	}
	defer msgs.Stop()
	for {
		m, err := msgs.Next(jetstream.NextContext(ctx))
		if err != nil {
			return fmt.Errorf("read stream %s: %w", stream, err)
		}
		meta, err := m.Metadata()
		if err != nil {
			return fmt.Errorf("read stream %s: %w", stream, err)
		}
		if err := fn(m); err != nil {
			return err
		}
		if meta.NumPending == 0 {
			return nil
		}
	}
}
