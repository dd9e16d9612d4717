package storage

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/storage/journal"
)

// account is the server's account that the captured streams are in; its name is a folder of the server's store.
const account = "CAPTURE"

// probeStream is the scratch stream of Probe.
const (
	probeStream  = "hf_probe"
	probeSubject = "hf.probe"
)

// Server is the embedded server as the store sees it.
type Server struct {
	JetStream jetstream.JetStream                  // as the daemon's user of account CAPTURE
	Restart   func() error                         // stops and starts JetStream in place; nil: the store waits for somebody else to do it
	Pause     func(while func()) error             // stops JetStream, calls while, and starts it again; nil: damage that is found while it runs stays
	Forwarded func(stream string) (Position, bool) // how far the hub has proven to hold a stream; nil or false: unknown, so nothing counts as forwarded
}

// Attach brings the streams up on a running server, and what the journal has into them, while records are taken. In this order:
//   - makes and adapts the streams, the stream that a move was interrupted in first being put right;
//   - makes sure that no record is from this epoch or a later one, and finds the newest record of every source of the streams that have waited;
//   - raises streams that end below what the journal begins with: see raiseAtStart;
//   - publishes what the journal has and the streams do not, each record at the sequence that it was promised;
//   - puts all of it on flash with a checkpoint, the streams themselves included: a young stream whose files were never synced vanishes whole;
//   - counts, and lets in records of the streams that have waited, their epoch record first;
//   - starts the publisher and the keeper.
//
// Remotes stay disabled until it has returned. After an error it may be called again.
func (s *Store) Attach(ctx context.Context, srv Server) (err error) {
	s.attachMu.Lock()
	defer s.attachMu.Unlock()
	s.mu.Lock()
	if s.state != stateOpen {
		state := s.state
		s.mu.Unlock()
		if state == stateClosed {
			return ErrClosed
		}
		return errors.New("attach store: it is attached already")
	}
	s.state = stateAttaching
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		switch {
		case s.state != stateAttaching: // closed meanwhile
			err = errors.Join(err, ErrClosed)
		case err == nil:
			s.state = stateAttached
			close(s.attached)
		default:
			s.state = stateOpen
			err = fmt.Errorf("attach store: %w", err)
		}
	}()
	s.serving.Store(&srv)
	if s.wire != nil && s.wire.js != srv.JetStream { // of a server that was given up
		_ = s.wire.close() // with its connection
		s.wire = nil
	}
	if s.wire == nil {
		if s.wire, err = newWire(srv.JetStream); err != nil {
			return err
		}
	}
	s.publisher.turn <- struct{}{}
	err = s.bringUp(ctx)
	<-s.publisher.turn
	if err != nil {
		return err
	}
	if err := s.storeLost(ctx); err != nil {
		return err
	}
	if err := s.attachKeeper(ctx); err != nil {
		return err
	}
	s.publisher.start()
	s.startKeeper()
	debug.FreeOSMemory() // a start reads a lot that nobody needs again
	return nil
}

// bringUp does what Attach does before the publisher goes on by itself. Needs publisher.turn.
func (s *Store) bringUp(ctx context.Context) error {
	if err := s.ensureStreams(ctx); err != nil {
		return err
	}
	for _, st := range s.streams {
		if err := s.resumeMove(ctx, st); err != nil {
			return fmt.Errorf("finish moving stream %s: %w", st.name(), err)
		}
		if err := s.recall(ctx, st); err != nil {
			return err
		}
		if err := s.raiseAtStart(ctx, st); err != nil {
			return fmt.Errorf("raise stream %s: %w", st.name(), err)
		}
	}
	if err := s.adoptLeft(ctx); err != nil {
		return err
	}
	s.publisher.catchUp(ctx)
	if err := s.findLeft(ctx); err != nil {
		return err
	}
	if n := s.publisher.back; n > 0 {
		s.log.Info("records were brought back by the journal", "records", n)
	}
	if err := errors.Join(s.failed(), ctx.Err()); err != nil {
		return err
	}
	for _, st := range s.streams {
		if err := s.recount(ctx, st); err != nil {
			return err
		}
	}
	if err := s.publisher.checkpoint(ctx); err != nil && !noRoom(err) { // without it the journal keeps what it has
		return err
	}
	var waited []*stream
	for _, st := range s.streams {
		if !st.begun() {
			s.counters.pass(st.name(), st.next-1)
			st.began = st.next
			waited = append(waited, st)
		}
	}
	if err := s.writeEpochs(waited); err != nil {
		return err
	}
	for _, st := range waited {
		st.begin()
	}
	s.putBack()
	s.keepMetadata()
	if !s.options.Unpacked { // they are not made yet
		s.KeepAppMetadata()
	}
	return nil
}

// adoptLeft finds the streams that left the configuration and that the ring still has records of: what was promised is published if they are still there.
func (s *Store) adoptLeft(ctx context.Context) error {
	if s.catalog.size() <= len(s.streams) {
		return nil // none ever left
	}
	names := map[string]uint64{}
	err := s.ring.Replay(0, func(_ journal.Position, group []journal.Entry) error {
		for i := range group {
			if m, err := parseMessage(group[i].Payload); err == nil && s.byName[m.stream] == nil {
				names[m.stream] = group[i].Incarnation
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for name, incarnation := range names {
		if e, known := s.catalog.of(name); !known || e.Incarnation != incarnation || s.left[name] != nil {
			continue
		}
		js, err := s.wire.js.Stream(ctx, name)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			continue
		}
		if err != nil {
			return fmt.Errorf("look at stream %s, which left the configuration: %w", name, err)
		}
		st := newStream(s, StreamConfig{Name: name})
		st.incarnation = incarnation
		st.reached(Position(js.CachedInfo().State.LastSeq))
		s.left[name] = st
	}
	return nil
}

// recall finds what a stream holds of us: its last sequence, the newest record of every source, and whether its records know us.
func (s *Store) recall(ctx context.Context, st *stream) error {
	js, err := s.wire.js.Stream(ctx, st.name())
	if err != nil {
		return fmt.Errorf("look at stream %s: %w", st.name(), err)
	}
	st.reached(Position(js.CachedInfo().State.LastSeq))
	newest, err := lastID(ctx, js, DataSubject(s.Leaf(), st.name(), ">"))
	if err != nil {
		return fmt.Errorf("read the newest record of stream %s: %w", st.name(), err)
	}
	if err := s.reconcile(newest.id); err != nil {
		return err
	}
	if err := errors.Join(s.overtaken(st), s.recallFormer(ctx, st, js)); err != nil {
		return err
	}
	if st.begun() {
		return nil // what is below needs another block of the stream, which the server keeps in memory for a while
	}
	var record epochRecord
	epoch, err := lastID(ctx, js, DataSubject(s.Leaf(), st.name(), EpochSource))
	if err != nil {
		return fmt.Errorf("read the epoch record of stream %s: %w", st.name(), err)
	}
	if len(epoch.data) > 0 {
		if err := json.Unmarshal(epoch.data, &record); err != nil {
			s.log.Warn("unreadable epoch record", "stream", st.name(), "seq", epoch.at, "err", err)
		}
	}
	whose := epoch.id.Store
	for name, src := range s.sources {
		if src.stream != st {
			continue
		}
		epoch, seq := s.counters.last(st.name(), name)
		last := lastRecord{recordNo: recordNo{epoch, seq}}
		newer := func(r lastRecord) {
			if r.Epoch == 0 || last.after(r.recordNo) {
				return
			}
			if last = r; last.Store == s.ID() {
				last.Store = ""
			}
		}
		said := record.Last[name]
		said.Store = cmp.Or(said.Store, whose)
		newer(said)
		for _, subject := range []string{name, name + ".>"} {
			r, err := lastID(ctx, js, DataSubject(s.Leaf(), st.name(), subject))
			if err != nil {
				return fmt.Errorf("read the newest record of source %s: %w", name, err)
			}
			newer(lastRecord{recordNo{r.id.Epoch, r.id.Seq}, r.id.Store})
		}
		src.setLast(last)
	}
	return nil
}

// foundRecord is a record read back.
type foundRecord struct {
	id   ID
	at   Position
	data []byte
}

// lastID reads the newest record below a subject; zero if there is none, and a zero id if it has none.
func lastID(ctx context.Context, js jetstream.Stream, subject string) (foundRecord, error) {
	m, err := js.GetLastMsgForSubject(ctx, subject)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return foundRecord{}, nil
	}
	if err != nil {
		return foundRecord{}, err
	}
	id, _ := ParseID(m.Header.Get(HeaderID)) // what has no ID is not ours
	return foundRecord{id: id, at: Position(m.Sequence), data: m.Data}, nil
}

// reconcile makes sure that the epoch is above that of every stored record, and that the store knows the stores its records come from: both can
// fail only if our own files are older than the streams, or gone, and in a store that was just made beside streams of others.
func (s *Store) reconcile(newest ID) error {
	if newest.Store == "" {
		return nil
	}
	if !s.Knows(newest.Store) {
		if err := s.Adopt(newest.Store); err != nil {
			return err
		}
	}
	if newest.Store != s.ID() && newest.Epoch >= s.identity.since() {
		return s.identity.takeOver(newest.Epoch)
	}
	if newest.Store == s.ID() && newest.Epoch >= s.Epoch() {
		s.log.Error("the epoch file is older than the streams", "epoch", s.Epoch(), "found", newest.Epoch)
		return s.identity.setEpoch(newest.Epoch + 1)
	}
	return nil
}

// Last returns the newest record of a source that is on flash from earlier epochs; zeros if there is none. For a stream that has to wait for Attach it does
// so, too, or returns zeros when the store is closed.
func (s *Store) Last(source string) (epoch, seq uint64) {
	src := s.source(source)
	if src == nil {
		return 0, 0
	}
	select {
	case <-src.stream.ready:
	case <-s.closing:
		return 0, 0
	}
	last := src.before()
	return last.Epoch, last.Seq
}

// before returns the newest record of earlier epochs.
func (src *source) before() lastRecord {
	src.mu.Lock()
	defer src.mu.Unlock()
	return src.last
}

func (src *source) setLast(r lastRecord) {
	src.mu.Lock()
	defer src.mu.Unlock()
	src.last = r
}

// Probe writes to a scratch stream and reads it back: an error means that the server does not store, whatever the reason. It asks for no flush,
// and what it leaves behind is one small record. Before Attach has returned it is enough that the journal takes records.
func (s *Store) Probe(ctx context.Context) error {
	if err := s.failed(); err != nil {
		return fmt.Errorf("probe store: %w", err)
	}
	if s.DiskFull() != nil {
		return nil // a state, not a fault that a restart would end
	}
	select {
	case <-s.attached:
	case <-s.closing:
		return ErrClosed
	default:
		select {
		case s.committer.gate <- struct{}{}: // nobody is stuck in a write
			<-s.committer.gate
			return nil
		case <-ctx.Done():
			return fmt.Errorf("probe store: the journal takes nothing: %w", ctx.Err())
		}
	}
	js := s.server().JetStream
	want := s.clock.stamp(time.Time{}).String()
	ack, err := js.Publish(ctx, probeSubject, []byte(want), jetstream.WithRetryAttempts(0))
	if err != nil {
		return fmt.Errorf("probe store: write: %w", err)
	}
	st, err := js.Stream(ctx, probeStream)
	if err != nil {
		return fmt.Errorf("probe store: %w", err)
	}
	m, err := st.GetMsg(ctx, ack.Sequence)
	if err != nil {
		return fmt.Errorf("probe store: read back: %w", err)
	}
	if string(m.Data) != want {
		return fmt.Errorf("probe store: read %q, wrote %q", m.Data, want)
	}
	return nil
}

func (s *Store) streamsDir() string {
	return filepath.Join(s.jetstream(), account, "streams")
}
