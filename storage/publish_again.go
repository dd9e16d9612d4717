package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/holdfast-edge/holdfast/storage/journal"
)

// catchUp publishes what is in the ring and not in the streams. Needs turn.
func (p *publisher) catchUp(ctx context.Context) {
	s := p.store
	for ctx.Err() == nil {
		for _, st := range s.streams {
			st.stuck = false
		}
		for _, st := range s.left {
			st.stuck = false
		}
		p.mu.Lock()
		p.held = false
		p.mu.Unlock()
		to := s.ring.State().Tail
		if err := p.replay(ctx); err != nil {
			s.log.Error("the journal cannot be read", "err", err)
			p.hold(nil)
			return
		}
		p.settle(to)
		p.mu.Lock()
		p.behind = p.appended > to
		again := p.behind && !p.held
		if !p.held {
			p.pause = 0
		}
		p.mu.Unlock()
		if !again {
			return
		}
	}
}

// replay goes through the ring from where everything before is in its stream. Checkpoints are given meanwhile: a long way would keep the ring full.
func (p *publisher) replay(ctx context.Context) error {
	s := p.store
	var batch []pending
	var whole journal.Position // behind the groups of which all is in the batch
	size, limit := 0, min(maxFlightBytes, int(s.ring.State().Segment))
	flush := func() {
		p.publish(ctx, batch)
		batch, size = batch[:0], 0
		p.settle(whole)
		p.save(ctx)
	}
	err := s.ring.Replay(p.done, func(end journal.Position, group []journal.Entry) error {
		if len(batch)+len(group) > maxGroupRecords || size >= limit {
			flush()
		}
		for i := range group {
			r, m, err := s.locate(&group[i])
			if err != nil || r.st == nil {
				if err := s.setEntryAside(&group[i], m, err); err != nil {
					return err
				}
				continue
			}
			if r.at <= r.st.last {
				r.passed()
				continue
			}
			if r.st.stuck {
				continue
			}
			if end <= p.opened {
				p.back++
			}
			r.payload = bytes.Clone(r.payload)
			batch = append(batch, r)
			size += len(r.payload)
		}
		whole = end
		return ctx.Err()
	})
	if err != nil {
		whole = 0 // of the last group not all may be in the batch
	}
	flush()
	return err
}

// hold notes that a stream takes nothing for the time being; nil: nobody can.
func (p *publisher) hold(st *stream) {
	if st != nil {
		st.stuck = true
		st.run = nil
	}
	p.mu.Lock()
	first := !p.held
	p.held = true
	p.mu.Unlock()
	if first {
		p.pause = min(max(2*p.pause, firstRetry), lastRetry)
		p.retry = p.store.now().Add(p.pause)
	}
}

// resolve finds out how much of a stream's run is in it, and asks the server about the first record that is not.
func (p *publisher) resolve(ctx context.Context, st *stream, cause error) {
	s := p.store
	s.cure(st, cause)
	last, err := s.position(ctx, st)
	if err != nil {
		if needsCure(cause) {
			err = s.explain(err)
		}
		p.refused(st, err)
		return
	}
	if last < st.last {
		p.rewind(st, last)
		return
	}
	n := 0
	for n < len(st.run) && st.run[n].at <= last {
		n++
	}
	p.arrived(st, n)
	if len(st.run) == 0 {
		return
	}
	err = p.publishOne(ctx, st)
	if s.cure(st, err) || errors.Is(err, ErrFull) && !needsCure(err) && s.makeRoom(ctx, st) {
		err = p.publishOne(ctx, st)
	}
	if errors.Is(err, ErrInvalid) {
		err = s.replace(ctx, st, st.run[0], err)
		if err == nil {
			p.arrived(st, 1)
			return
		}
	}
	if err != nil {
		p.refused(st, err)
	}
}

// rewind notes that a stream has lost records that it had acknowledged: what the ring has of them is stored again.
func (p *publisher) rewind(st *stream, last Position) {
	p.store.log.Error("stream lost records that it had acknowledged", "stream", st.name(), "seq", st.last, "have", last)
	st.reached(last)
	p.done = 0
	p.mu.Lock()
	p.behind, p.settled = true, 0
	p.mu.Unlock()
	p.hold(st)
	p.retry = p.store.now()
}

// publishOne stores the first record of a stream's run alone, so that the server's answer is about this one, and classifies it.
func (p *publisher) publishOne(ctx context.Context, st *stream) error {
	s := p.store
	if first := st.run[0].at; first != st.last+1 {
		if err := s.raise(ctx, st, st.last, first-1); err != nil {
			return classify(err)
		}
	}
	ticket, err := s.wire.publish(st.run[:1])
	if err != nil {
		return classify(err)
	}
	a := s.wire.await(ticket, st.fence())
	switch {
	case a.err != nil:
		return s.explain(a.err)
	case a.seq != st.run[0].at:
		return fmt.Errorf("%w: stream %s answered with sequence %d for the record that belongs to %d", ErrUnavailable, st.name(), a.seq, st.run[0].at)
	}
	p.arrived(st, 1)
	return nil
}

// position asks the server for a stream's last sequence, after it has dealt with everything that was published to it.
func (s *Store) position(ctx context.Context, st *stream) (Position, error) {
	if err := s.wire.pass(st.fence()); err != nil {
		return 0, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	ctx, cancel := context.WithTimeout(ctx, s.wire.limit)
	defer cancel()
	js, err := s.wire.js.Stream(ctx, st.name())
	if err != nil {
		return 0, fmt.Errorf("%w: look at stream %s: %w", ErrUnavailable, st.name(), err)
	}
	return Position(js.CachedInfo().State.LastSeq), nil
}
