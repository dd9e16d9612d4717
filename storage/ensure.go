package storage

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// duplicateWindow is the shortest the server has. The store finds retries by itself: to a retry whose first copy the
// disk has lost, a longer window would answer "duplicate", and nothing would be stored.
const duplicateWindow = 100 * time.Millisecond

// Room that the server leaves above the configured limits. The keeper makes room before a record needs it; the server's limits are there for the
// case that the keeper is wrong. What is above is for records of our own, and for placeholders.
const (
	headroomBytes = 2 << 20
	headroomMsgs  = 2 * placeholderBatch
)

// ensureStreams makes the streams that are missing and adapts those whose configuration has changed.
func (s *Store) ensureStreams(ctx context.Context) error {
	for _, st := range s.streams {
		if err := s.ensureStream(ctx, st); err != nil {
			return fmt.Errorf("stream %s: %w", st.name(), err)
		}
	}
	_, err := s.server().JetStream.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name: probeStream, Subjects: []string{probeSubject}, Storage: jetstream.FileStorage, MaxMsgs: 1, Replicas: 1, Duplicates: duplicateWindow,
		Discard: jetstream.DiscardOld,
	})
	if err != nil {
		s.log.Warn("no scratch stream to probe the server with", "err", err) // a full disk is no reason not to start
	}
	return nil
}

func (s *Store) ensureStream(ctx context.Context, st *stream) error {
	js := s.server().JetStream
	entry, known := s.catalog.of(st.name())
	have, err := js.Stream(ctx, st.name())
	if err == nil {
		now := have.CachedInfo().Config
		if entry.FirstSeq != now.FirstSeq {
			entry.FirstSeq = now.FirstSeq
			if err := s.catalog.set(map[string]catalogEntry{st.name(): entry}); err != nil {
				return err
			}
		}
		want := st.serverConfig(now, have.CachedInfo().State)
		if reflect.DeepEqual(now, want) {
			return nil
		}
		if _, err := js.UpdateStream(ctx, want); err != nil {
			return fmt.Errorf("update: %w", err)
		}
		return nil
	}
	if !errors.Is(err, jetstream.ErrStreamNotFound) {
		return err
	}
	if !known || entry.FirstSeq == 0 && entry.Last == 0 {
		entry.FirstSeq = firstSequence(s.now())
		if blocks, _ := filepath.Glob(filepath.Join(s.streamsDir(), st.name(), "msgs", "*.blk")); len(blocks) > 0 {
			entry.FirstSeq = 0 // records without metadata, and nobody knows from where they count: anything higher would remove them
		}
		entry.Incarnation = st.incarnation
		if err := s.catalog.set(map[string]catalogEntry{st.name(): entry}); err != nil {
			return err
		}
	}
	want := st.serverConfig(jetstream.StreamConfig{FirstSeq: entry.FirstSeq}, jetstream.StreamState{})
	created, err := js.CreateStream(ctx, want)
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	if n := created.CachedInfo().State.Msgs; n > 0 {
		s.log.Log(ctx, s.options.made(), "the server had forgotten a stream: its records are back", "stream", st.name(), "records", n)
	}
	return nil
}

// firstSequence is where a new stream begins to count: unix seconds times 2^20. A store made later, after a card was wiped, begins above
// all that the hub may have seen of the one before, unless a clock was wrong; then the handshake finds out. It stays below 2^53, where JSON
// numbers end, until the year 2242.
func firstSequence(now time.Time) uint64 {
	const last = 1<<33 - 1
	return uint64(min(max(now.Unix(), 0), last)) << 20
}

// serverConfig returns the server's configuration of a stream, everything that is not ours to say being left as it is. A stream that is above its limits,
// because they were lowered, is given what it takes: the keeper needs room for gap records before it can remove anything.
func (st *stream) serverConfig(c jetstream.StreamConfig, holds jetstream.StreamState) jetstream.StreamConfig {
	c.Name = st.name()
	c.Subjects = []string{DataSubject(st.store.Leaf(), st.name(), ">"), LeapSubject(st.name())}
	c.Storage = jetstream.FileStorage
	c.Retention = jetstream.LimitsPolicy
	c.Replicas = 1
	c.Discard = jetstream.DiscardNew
	c.DiscardNewPerSubject = false
	c.MaxBytes = max(st.config().MaxBytes, int64(holds.Bytes)) + headroomBytes
	c.MaxMsgs = -1
	if st.config().MaxMsgs > 0 {
		c.MaxMsgs = max(st.config().MaxMsgs, int64(holds.Msgs)) + headroomMsgs
	}
	c.MaxAge = 0 // acts on unsent data and by a clock that may be wrong
	c.MaxMsgsPerSubject = -1
	c.MaxMsgSize = -1 // prepare checks the data alone; headers are on top
	c.MaxConsumers = -1
	c.Duplicates = duplicateWindow
	c.AllowDirect = true
	return c
}
