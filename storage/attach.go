package storage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/nats-io/nats.go/jetstream"
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

// Attach brings the streams up on a running server and lets records in. In this order:
//   - makes and adapts the streams, the stream that a move was interrupted in first being put right;
//   - finds the newest record of every source, and that no record is from this epoch or a later one;
//   - after a power cut raises every stream to its reserve: see reserve;
//   - puts a fresh reserve, and with the same syncfs the streams themselves, on flash: a young stream whose files were never synced vanishes whole;
//   - notes that the stop is not clean from now on;
//   - starts the committer and writes the epoch record of every stream, then lets Append through.
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
	s.server = srv
	if s.wire == nil {
		if s.wire, err = newWire(srv.JetStream); err != nil {
			return err
		}
	}
	s.committer.gate <- struct{}{}
	err = s.bringUp(ctx)
	<-s.committer.gate
	if err != nil {
		return err
	}
	s.committer.start()
	for _, st := range s.streams {
		if err := s.writeEpoch(ctx, st); err != nil {
			s.log.Error("no epoch record", "stream", st.name(), "err", err)
			if errors.Is(err, ErrFailing) || ctx.Err() != nil {
				return fmt.Errorf("epoch record of stream %s: %w", st.name(), err)
			}
		}
	}
	if err := s.storeLost(ctx); err != nil {
		return err
	}
	if s.keeper, err = s.newKeeper(ctx); err != nil {
		return err
	}
	s.startKeeper()
	return nil
}

// bringUp does what Attach does before anything is published.
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
		if err := s.leapAtStart(ctx, st); err != nil {
			return fmt.Errorf("raise stream %s: %w", st.name(), err)
		}
		if err := s.recount(ctx, st); err != nil {
			return err
		}
	}
	reserves := map[string]reserved{}
	for _, st := range s.streams {
		reserves[st.name()] = reserved{Reserve: st.last + reserveChunk, Last: st.last}
	}
	if err := s.reserve.set(reserves); err != nil {
		return err
	}
	if err := s.sync(); err != nil {
		return err
	}
	for _, st := range s.streams {
		st.committed.Store(uint64(st.last))
	}
	boot, err := kernelBootID()
	if err != nil {
		return err
	}
	if err := writeBoot(s.home, bootRecord{BootID: boot}); err != nil {
		return err
	}
	s.keepMetadata()
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
	for name, src := range s.sources {
		if src.stream != st {
			continue
		}
		last := record.Last[name]
		if epoch, seq := s.counters.last(st.name(), name); (recordNo{epoch, seq}).after(last) {
			last = recordNo{epoch, seq}
		}
		for _, subject := range []string{name, name + ".>"} {
			r, err := lastID(ctx, js, DataSubject(s.Leaf(), st.name(), subject))
			if err != nil {
				return fmt.Errorf("read the newest record of source %s: %w", name, err)
			}
			if (recordNo{r.id.Epoch, r.id.Seq}).after(last) {
				last = recordNo{Epoch: r.id.Epoch, Seq: r.id.Seq}
			}
		}
		src.mu.Lock()
		src.last = last
		src.mu.Unlock()
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
// fail only if our own files are older than the streams, or gone.
func (s *Store) reconcile(newest ID) error {
	if newest.Store == "" {
		return nil
	}
	if !s.Knows(newest.Store) {
		if err := s.Adopt(newest.Store); err != nil {
			return err
		}
	}
	if newest.Store == s.ID() && newest.Epoch >= s.Epoch() {
		s.log.Error("the epoch file is older than the streams", "epoch", s.Epoch(), "found", newest.Epoch)
		return s.identity.setEpoch(newest.Epoch + 1)
	}
	return nil
}

// Last returns the newest record of a source that is on flash from earlier epochs; zeros if there is none. Valid after Attach.
func (s *Store) Last(source string) (epoch, seq uint64) {
	src := s.source(source)
	if src == nil {
		return 0, 0
	}
	src.mu.Lock()
	defer src.mu.Unlock()
	return src.last.Epoch, src.last.Seq
}

// epochRecord is the body, in JSON, of the first record of every epoch in every stream. docs/WIRE.md is its contract.
type epochRecord struct {
	Epoch    uint64              `json:"epoch"`
	Previous uint64              `json:"previous,omitempty"` // of this store; absent in its first
	Boot     string              `json:"boot"`               // the kernel's boot ID
	Version  string              `json:"version"`            // of the program
	Last     map[string]recordNo `json:"last"`               // newest record of each source before this epoch
}

// writeEpoch stores a stream's epoch record.
func (s *Store) writeEpoch(ctx context.Context, st *stream) error {
	if st.epoch.stored.high > 0 {
		return nil // by an Attach that failed later
	}
	boot, err := kernelBootID()
	if err != nil {
		return err
	}
	r := epochRecord{Epoch: s.Epoch(), Previous: s.Epoch() - 1, Boot: boot, Version: version(), Last: map[string]recordNo{}}
	for name, src := range s.sources {
		if epoch, seq := s.Last(name); src.stream == st && epoch > 0 {
			r.Last[name] = recordNo{epoch, seq}
		}
	}
	body, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	return s.write(ctx, st.epoch, body)
}

// version is the program's, as the linker noted it.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return info.Main.Version
	}
	return ""
}

// write stores a record of our own, through the committer like any other, and returns when it is on flash.
func (s *Store) write(ctx context.Context, src *source, body []byte) error {
	c := &call{items: make([]item, 1), done: make(chan error, 1)}
	s.mu.Lock()
	s.own[src.name]++
	seq := s.own[src.name]
	s.mu.Unlock()
	id := ID{Leaf: s.Leaf(), Store: s.ID(), Source: src.name, Epoch: s.Epoch(), Seq: seq}
	c.items[0].fill(&Record{Seq: seq}, src, id, s.clock.stamp(time.Time{}).String(), body)
	return s.committer.submit(ctx, c)
}

// Gap stores a gap record in its stream and returns when it is on flash.
func (s *Store) Gap(ctx context.Context, g GapRecord) error {
	st := s.byName[g.Stream]
	if st == nil {
		return fmt.Errorf("gap record: stream %q is not there", g.Stream)
	}
	body, err := g.Encode()
	if err != nil {
		return err
	}
	if err := s.write(ctx, st.gap, body); err != nil {
		return fmt.Errorf("gap record of stream %s: %w", g.Stream, err)
	}
	return nil
}

// Probe writes to a scratch stream and reads it back: an error means that the server does not store, whatever the reason. It asks for no flush,
// and what it leaves behind is one small record.
func (s *Store) Probe(ctx context.Context) error {
	select {
	case <-s.attached:
	case <-s.closing:
		return ErrClosed
	default:
		return fmt.Errorf("probe store: %w: not attached yet", ErrUnavailable)
	}
	if err := s.failed(); err != nil {
		return fmt.Errorf("probe store: %w", err)
	}
	js := s.server.JetStream
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

// maxPayload is the server's limit of a message with headers; zero before Attach.
func (s *Store) maxPayload() int64 {
	select {
	case <-s.attached:
		return s.server.JetStream.Conn().MaxPayload()
	default:
		return 0
	}
}

func (s *Store) streamsDir() string {
	return filepath.Join(s.jetstream(), account, "streams")
}
