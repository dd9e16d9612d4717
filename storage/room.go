package storage

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// metadata is where the copies of the streams' metadata are.
func (s *Store) metadata() metaCopies {
	return metaCopies{streams: s.streamsDir(), copies: filepath.Join(s.home, metadataFolder(account)), aside: s.aside()}
}

// restoreMetadata mends the streams' metadata, and that of local applications, before the server looks at it: a damaged consumer of theirs would keep the
// server from starting as well as one of ours.
func (s *Store) restoreMetadata() error {
	for _, m := range []metaCopies{s.metadata(), s.appMetadata()} {
		mended, err := m.mend()
		for _, m := range mended {
			if s.options.Unpacked && !m.Restored && m.Aside == "" {
				continue // there never was any
			}
			forgotten := !m.Restored && filepath.Dir(m.Path) == filepath.Join(s.appMetadata().streams, m.Stream) // by the server, with all it holds
			s.alarmOf(m.Path, m.Why, m.Aside, forgotten)
		}
		if err != nil {
			return fmt.Errorf("open store: %w", err)
		}
	}
	return nil
}

// keepMetadata copies the streams' metadata aside. Without copies the store is no worse than before, so a failure is no reason not to start.
func (s *Store) keepMetadata() {
	names := make([]string, len(s.streams))
	for i, st := range s.streams {
		names[i] = st.name()
	}
	if err := s.metadata().keep(names...); err != nil {
		s.log.Warn("no copy of the streams' metadata", "err", err)
	}
}

// openCounters reads what became of all records so far. whole: it can be relied on.
func (s *Store) openCounters() (whole bool, err error) {
	c, damaged, err := openCounters(filepath.Join(s.home, "counters"), s.now)
	if err != nil {
		var both *DamagedError
		if !errors.As(err, &both) {
			return false, fmt.Errorf("open store: %w", err)
		}
		s.log.Error("the counters are damaged: they begin again with what the streams hold", "err", err)
	}
	if len(damaged) > 0 && err == nil {
		s.log.Warn("damaged file: its copy is used", "files", damaged)
	}
	s.counters = c
	return err == nil, s.openClock()
}

// openClock opens what the file of the counters and the ledger know of former starts: the newest time, when they were, and what the device wrote.
func (s *Store) openClock() error {
	boot, err := kernelBootID()
	if err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	newest, wear := s.counters.kept()
	s.clock.raise(newest)
	s.ledger = openLedger(s.home, boot, s.log)
	if err := s.ledger.begin(s.ID(), s.Epoch()); err != nil {
		s.log.Warn("what is captured before the clock is set will have no known time if the power fails", "err", err)
	}
	s.wear = &wearMeter{
		endurance: s.options.Endurance, boot: boot, sinceBoot: sinceBoot, state: wear,
		read:    func() (string, int64, error) { return deviceWrites("/sys", "/proc", s.options.Dir) },
		records: s.counters.stored,
	}
	if !s.options.Unbound {
		s.checkRoom()
	}
	s.counters.extra = func() (time.Time, wearState) { return s.clock.moment().wall(), s.wear.kept() }
	return nil
}

// Wear says what is written to the device under the data directory, and how long it will last.
func (s *Store) Wear() Wear { return s.wear.report() }

// recount brings the counters of a stream up to what it holds. What is found missing is noted in s.lost, for storeLost.
func (s *Store) recount(ctx context.Context, st *stream) error {
	h, err := holdStream(ctx, s.server().JetStream, st.name())
	if err != nil {
		return err
	}
	if st.unread.last > 0 {
		if err := s.counters.found(ctx, st.name(), h, st.unread); err != nil {
			return fmt.Errorf("recount: %w", err)
		}
	}
	r, err := s.counters.recover(ctx, st.name(), h)
	s.clock.raise(r.Newest)
	s.lost = append(s.lost, r.Lost...)
	if err != nil {
		return fmt.Errorf("recount: %w", err)
	}
	return nil
}

// storeLost stores the gap records of what recount has found missing. The order matters, see counters.recover.
func (s *Store) storeLost(ctx context.Context) error {
	for len(s.lost) > 0 {
		g := s.lost[0]
		s.alarm(filepath.Join(s.streamsDir(), g.Stream), fmt.Sprintf("%d records between %d and %d, which were on flash, are gone", g.Count, g.First, g.Last), "")
		if err := s.Gap(ctx, g); err != nil {
			return err
		}
		s.lost = s.lost[1:]
	}
	return s.counters.save()
}

// newKeeper makes a keeper for the streams as far as they are known without a server.
func (s *Store) newKeeper() *keeper {
	k := newKeeper(s.counters, s.log)
	k.forwarded = s.forwarded
	k.appendGap = s.Gap
	k.age = func(r heldRecord) (time.Duration, bool) { return s.ledger.ageOf(r, s.clock.moment()) }
	k.timeOf = s.ledger.timeOf
	k.now = s.now
	k.free = func() (int64, uint64, error) { return freeOn(s.jetstream()) }
	k.budget, k.reserve = s.options.Budget, s.options.ReserveFree
	k.ask = s.publisher.ask
	k.detached = true
	k.settle = func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, ringPatience)
		defer cancel()
		_ = s.publisher.drain(ctx) // whoever looks sees what is there
	}
	for _, st := range s.streams {
		k.keep(st.name(), st.limits(s.options.TTL), &lateStream{s: s, name: st.name()})
		e, _ := s.catalog.of(st.name())
		kept := k.byName[st.name()]
		kept.pending = st.waiting
		kept.view = streamView{Last: e.Last, Messages: e.Records, Bytes: e.Bytes}
		kept.since = st.waiting()
	}
	return k
}

// attachKeeper lets the keeper look at the streams.
func (s *Store) attachKeeper(ctx context.Context) error {
	if err := s.keeper.attach(ctx); err != nil {
		return err
	}
	next, first := map[string]Position{}, map[string]Position{}
	for _, st := range s.streams {
		next[st.name()], first[st.name()] = st.began, s.keeper.seen(s.keeper.byName[st.name()]).First
	}
	if err := s.ledger.reach(next, first); err != nil {
		s.log.Warn("cannot note where this boot begins", "err", err)
	}
	return nil
}

// limits returns what the keeper holds a stream to. ttl is by source; all sources of a stream have the same.
func (st *stream) limits(ttl map[string]time.Duration) limits {
	c := st.config()
	l := limits{MaxBytes: c.MaxBytes, MaxMsgs: c.MaxMsgs, Keep: c.KeepForwarded, KeepAll: forEver, Priority: c.Priority, Refuse: c.WhenFull == Refuse}
	if c.MaxAge > 0 {
		l.Keep = min(l.Keep, c.MaxAge)
		if c.ExpireUnsent {
			l.KeepAll = c.MaxAge
		}
	}
	for name, src := range st.store.sources {
		if d := ttl[name]; src.stream == st && d > 0 {
			l.Keep, l.KeepAll = min(l.Keep, d), min(l.KeepAll, d)
		}
	}
	return l
}

// forwarded asks how far the hub is proven to hold a stream: never beyond what waits under a former name of the leaf.
func (s *Store) forwarded(stream string) (Position, bool) {
	ask := s.server().Forwarded
	if ask == nil {
		return 0, false
	}
	at, known := ask(stream)
	if st := s.byName[stream]; st != nil {
		if f := st.former.Load(); f != nil && at > f.Proof {
			return f.Proof, known
		}
	}
	return at, known
}

// startKeeper lets the keeper work on its own, until stopKeeper.
func (s *Store) startKeeper() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.keeper.run(ctx)
	}()
	ticked := make(chan struct{})
	go func() {
		defer close(ticked)
		tick := time.NewTicker(rejectInterval)
		defer tick.Stop()
		for {
			s.tell(ctx)
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	}()
	s.stopKeeper = func() {
		cancel()
		<-done
		<-ticked
	}
}

// tell looks after what changes by itself while nothing is captured: the counters of rejects, the wear of the device, the clock.
func (s *Store) tell(ctx context.Context) {
	if s.wear.due() {
		if err := s.wear.sample(); err != nil {
			s.log.Debug("no wear", "err", err)
		}
		s.counters.touch()
	}
	s.writeCounters()
	s.keepSpare()
	if err := s.tellClock(ctx); err != nil && ctx.Err() == nil {
		s.log.Warn("no clock record", "err", err)
	}
}

// tellClock puts it on flash when this boot of the machine was, in the streams and then in the ledger, as soon as the clock can be trusted, and again when
// it turns out that it was off. A crash between the two makes it tell once more.
func (s *Store) tellClock(ctx context.Context) error {
	now := s.clock.moment()
	if now.state != ClockSynced {
		return nil
	}
	before := s.ledger.zero()
	zero := now.zero()
	if !before.IsZero() && zero.Sub(before).Abs() < stepTolerance {
		return nil
	}
	body, err := clockRecord{Epoch: s.Epoch(), Boot: s.ledger.boot, Zero: zero.UTC()}.encode()
	if err != nil {
		return err
	}
	for _, st := range s.streams {
		if err := s.write(ctx, st.clock, body); err != nil {
			return fmt.Errorf("stream %s: %w", st.name(), err)
		}
	}
	s.log.Info("the clock is set", "boot", zero, "before", before)
	return s.ledger.settle(zero)
}

// writeCounters writes the counters if it is time, without a flush.
func (s *Store) writeCounters() {
	if err := s.counters.writeIfDue(); err != nil && !errors.Is(err, unix.ENOSPC) {
		s.log.Warn("cannot write the counters", "err", err)
	}
}

// admit lets a call's records in, or says why there is no room for them.
func (s *Store) admit(ctx context.Context, c *call) error {
	for i := range c.items {
		name, size := c.items[i].source.stream.name(), int64(c.items[i].size)
		n := len(c.needs) - 1
		if n < 0 || c.needs[n].Stream != name {
			c.needs = append(c.needs, need{Stream: name})
			n++
		}
		c.needs[n].Records++
		c.needs[n].Bytes += size
	}
	err := s.keeper.admit(ctx, c.needs...)
	if err != nil && ctx.Err() == nil {
		return classify(err) // the keeper may have asked a server that does not answer
	}
	return err
}

// Reject counts readings of a source that were refused for good before they came to Append.
func (s *Store) Reject(source string, n uint64) {
	if s.source(source) != nil && n > 0 {
		s.counters.reject(source, n)
	}
}

// Sources returns the totals of all sources that ever brought a record, over all starts.
func (s *Store) Sources() []SourceCounters { return s.counters.sources() }

// StreamState is a stream as a status report shows it.
type StreamState struct {
	Name           string
	First, Last    Position // of what it holds
	Messages       uint64   // of any kind
	Captured       uint64   // of Messages those that count: no epoch, gap or clock records and no placeholders
	Bytes          uint64   // on disk, as the limits count them
	StreamCounters          // of captured records
	Full           bool     // it refuses records for want of room
	Err            error    // why records are refused at the moment; nil if they are taken
	Waits          error    // why those that are taken wait in the journal at the moment; nil if they do not
	Former         *Former  // records of a former name of the leaf wait; nil: none do
	Unbalanced     bool     // the account was found wrong: see the log
}

// Streams returns the state of all streams, in the order of the configuration. It asks the server, but not for long: what the server does not
// say in time is zero.
func (s *Store) Streams() []StreamState {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	attached := false
	select {
	case <-s.attached:
		attached = true
	default:
	}
	all := make([]StreamState, len(s.streams))
	for i, st := range s.streams {
		proven, _ := s.forwarded(st.name())
		state := StreamState{Name: st.name(), StreamCounters: s.counters.totals(st.name(), proven), Former: st.former.Load()}
		st.mu.Lock()
		state.Waits = st.err
		st.mu.Unlock()
		if s.jammed.Load() && state.Waits != nil {
			state.Err = state.Waits
		}
		if attached {
			if full := s.keeper.full(st.name()); full != nil {
				state.Err = full
			}
			state.Unbalanced = s.keeper.unbalanced(st.name())
			if h, err := holdStream(ctx, s.server().JetStream, st.name()); err == nil {
				if v, err := h.view(ctx); err == nil {
					state.First, state.Last, state.Messages, state.Bytes = v.First, v.Last, v.Messages, v.Bytes
					state.Captured, _ = s.counters.held(st.name(), v.First, v.Last) // the daemon's own records do not count
				}
			}
		}
		state.Full = errors.Is(state.Err, ErrFull)
		if err := s.failed(); err != nil {
			state.Err = err
		}
		all[i] = state
	}
	return all
}
