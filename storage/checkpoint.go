package storage

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"
)

// due reports whether it is time for a checkpoint. One that is wanted, or for the room it makes, has to free segments, as many as make it worth its syncfs:
// the ring is full again a moment later. Needs turn.
func (p *publisher) due() bool {
	state := p.store.ring.State()
	if p.store.failed() != nil || p.done <= state.Checkpoint || len(p.owed) > 0 {
		return false
	}
	p.mu.Lock()
	wanted, asked, all := p.wanted, p.asked, p.done >= p.appended
	p.mu.Unlock()
	frees := state.Frees(p.done)
	return asked || wanted && (frees > 0 || all) || p.unsaved >= maxUnsaved || 2*state.Used >= state.Segments && frees > 0 && 4*frees >= state.Used ||
		p.store.now().Sub(p.saved) >= checkpointInterval
}

// save gives a checkpoint if it is time, and tells those who wait for the room. Needs turn.
func (p *publisher) save(ctx context.Context) {
	if !p.due() {
		return
	}
	if err := p.checkpoint(ctx); err != nil {
		p.store.log.Warn("no checkpoint", "err", err)
	}
	p.tell()
}

// checkpoint makes durable what has been published and frees the ring up to it. Needs turn.
//
// The order matters: where the streams stand and the counters are written first, so that the sync makes them durable with what they tell of, and the
// ring gives up nothing before that.
func (p *publisher) checkpoint(ctx context.Context) error {
	s := p.store
	at := p.done
	if len(p.owed) > 0 {
		return fmt.Errorf("%w: gap records are to be written first", ErrUnavailable)
	}
	if p.unkept != nil {
		if err := p.unkept(); err != nil {
			return err
		}
		p.unkept = nil
	}
	p.mu.Lock()
	p.wanted = false
	asked := p.asked
	p.asked = false
	p.mu.Unlock()
	p.saved = s.now() // also if it fails: not again at once
	if err := s.catalog.note(s.standing(ctx)); err != nil {
		return err
	}
	if err := s.counters.writeNew(); err != nil {
		return err
	}
	if err := s.sync(); err != nil {
		return err
	}
	if err := s.ring.Checkpoint(at); err != nil {
		return s.fail(fmt.Errorf("checkpoint: %w", err))
	}
	p.unsaved = 0
	if asked {
		signal(s.keeper.wake)
	}
	return nil
}

// standing says where the streams stand.
func (s *Store) standing(ctx context.Context) map[string]catalogEntry {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	all := map[string]catalogEntry{}
	for _, st := range slices.AppendSeq(slices.Clone(s.streams), maps.Values(s.left)) { // what left the configuration may come back
		e, _ := s.catalog.of(st.name())
		e.Incarnation, e.Last = st.incarnation, st.last
		if js, err := s.wire.js.Stream(ctx, st.name()); err == nil {
			state := js.CachedInfo().State
			e.Records, e.Bytes = state.Msgs, state.Bytes
		}
		all[st.name()] = e
	}
	return all
}

// awaitRoom waits for a checkpoint that may have made room in the ring, as long as there is hope: not when streams take nothing, and not beyond the deadline.
func (p *publisher) awaitRoom(deadline time.Time) bool {
	hope := func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.running && !p.held
	}
	if !hope() || p.store.failed() != nil {
		return false
	}
	before := p.store.ring.State().Checkpoint
	p.want()
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	return p.until(ctx, func() bool { return p.store.ring.State().Checkpoint > before || !hope() }) == nil && hope()
}

// want asks for a checkpoint.
func (p *publisher) want() {
	p.mu.Lock()
	p.wanted = true
	p.mu.Unlock()
	signal(p.wake)
	signal(p.urgent)
}

// ask asks for a checkpoint that takes the account to flash, and wakes the keeper when it is given. It reports whether there will be one.
func (p *publisher) ask() bool {
	given := p.store.ring.State().Checkpoint
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.running || p.held || p.settled <= given {
		return false
	}
	p.asked = true
	signal(p.wake)
	return true
}

// drain waits until everything that is in the ring is in the streams. ErrUnavailable: a stream takes nothing.
func (p *publisher) drain(ctx context.Context) error {
	held := false
	err := p.until(ctx, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		held = p.held || !p.running
		return held || p.settled >= p.appended && !p.behind
	})
	if err == nil && held {
		err = fmt.Errorf("%w: the streams do not take what is in the journal", ErrUnavailable)
	}
	return err
}

// Settle waits until the streams have everything that was acknowledged. ErrUnavailable: a stream takes nothing, or Attach has not returned.
func (s *Store) Settle(ctx context.Context) error {
	if err := s.publisher.drain(ctx); err != nil {
		return fmt.Errorf("wait for the streams: %w", err)
	}
	return nil
}

// until waits until a condition holds, which is looked at after each step.
func (p *publisher) until(ctx context.Context, cond func() bool) error {
	for {
		c := make(chan struct{})
		p.mu.Lock()
		p.waiters = append(p.waiters, c)
		p.mu.Unlock()
		if cond() {
			return nil
		}
		signal(p.wake)
		signal(p.urgent)
		select {
		case <-c:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// tell wakes those who wait.
func (p *publisher) tell() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.waiters {
		close(c)
	}
	p.waiters = nil
}

// start begins to publish, until stop.
func (p *publisher) start() {
	ctx, cancel := context.WithCancel(context.Background())
	p.ended = make(chan struct{})
	p.mu.Lock()
	p.running = true
	p.mu.Unlock()
	go p.run(ctx)
	p.stop = func() {
		p.mu.Lock()
		p.running = false
		p.mu.Unlock()
		cancel()
		<-p.ended
		p.tell()
	}
}
