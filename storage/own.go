package storage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/holdfast-edge/holdfast/storage/journal"
)

// epochRecord is the body, in JSON, of the first record of every epoch in every stream. docs/WIRE.md is its contract.
type epochRecord struct {
	Epoch    uint64                `json:"epoch"`
	Previous uint64                `json:"previous,omitempty"` // of this store; absent in its first
	Boot     string                `json:"boot"`               // the kernel's boot ID
	Version  string                `json:"version"`            // of the program
	Known    []StoreID             `json:"known,omitempty"`    // stores that this one is the successor of
	Last     map[string]lastRecord `json:"last"`               // newest record of each source before this epoch
}

// lastRecord is the newest record of a source before an epoch.
type lastRecord struct {
	recordNo
	Store StoreID `json:"store,omitempty"` // whose it is, if it was taken over from another store
}

// writeEpochs puts the epoch records of streams into the ring, in one group. Without them nothing is lost but what they tell: a full ring is no
// reason not to start.
func (s *Store) writeEpochs(streams []*stream) error {
	if len(streams) == 0 {
		return nil
	}
	boot, err := kernelBootID()
	if err != nil {
		return fmt.Errorf("epoch record: %w", err)
	}
	items := make([]*item, len(streams))
	for i, st := range streams {
		r := epochRecord{Epoch: s.Epoch(), Previous: s.Epoch() - 1, Boot: boot, Version: version(), Known: s.Known(), Last: map[string]lastRecord{}}
		for name, src := range s.sources {
			// What was taken over is told of once, when it is: by then it is known whose it is.
			if last := src.before(); src.stream == st && last.Epoch > 0 && (last.Store != "" || last.Epoch >= s.identity.since()) {
				r.Last[name] = last
			}
		}
		body, err := json.Marshal(r)
		if err != nil {
			return fmt.Errorf("epoch record: %w", err)
		}
		items[i] = s.ownItem(st.epoch, body)
	}
	if _, err := s.inscribe(items, true); errors.Is(err, journal.ErrRingFull) {
		s.log.Error("no epoch records", "err", err)
	} else if err != nil {
		return fmt.Errorf("epoch record: %w", err)
	}
	return nil
}

// version is the program's, as the linker noted it.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return info.Main.Version
	}
	return ""
}

// ownItem makes a record of our own.
func (s *Store) ownItem(src *source, body []byte) *item {
	s.mu.Lock()
	s.own[src.name]++
	seq := s.own[src.name]
	s.mu.Unlock()
	it := &item{source: src, body: body}
	id := ID{Leaf: s.Leaf(), Store: s.ID(), Source: src.name, Epoch: s.Epoch(), Seq: seq}
	it.fill(nil, &Record{Seq: seq, Data: body}, id, s.clock.stamp(time.Time{}))
	return it
}

// Gap stores a gap record in its stream and returns when it is on flash. It may use the reserve of the journal: often it must be there before there is room.
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

// write stores a record of our own and returns when it is on flash.
func (s *Store) write(ctx context.Context, src *source, body []byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.ownMu.Lock() // so that they come in the order of their numbers
	defer s.ownMu.Unlock()
	it := s.ownItem(src, body)
	_, err := s.inscribe([]*item{it}, true)
	return errors.Join(err, it.err)
}
