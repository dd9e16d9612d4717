package storage

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go/jetstream"
)

// Left is a stream that left the configuration and holds records that the hub was not proven to have. Nobody forwards or removes them.
type Left struct {
	Name    string
	Records uint64 // about; some may be the store's own
}

// Lefts returns the streams that left the configuration with records that the hub does not have, by name. It is known once Attach has returned.
func (s *Store) Lefts() []Left {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.behind)
}

// findLeft looks for them. The publisher has to have brought into them what the ring has.
func (s *Store) findLeft(ctx context.Context) error {
	var behind []Left
	for _, name := range s.catalog.names() {
		if s.byName[name] != nil {
			continue
		}
		js, err := s.wire.js.Stream(ctx, name)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			continue
		}
		if err != nil {
			return fmt.Errorf("look at stream %s, which left the configuration: %w", name, err)
		}
		state := js.CachedInfo().State
		var proven Position
		if s.proofs != nil {
			proven, _ = s.proofs(name)
		}
		if state.Msgs == 0 || Position(state.LastSeq) <= proven {
			continue
		}
		n := min(state.Msgs, state.LastSeq-uint64(proven))
		s.log.Warn("a stream that left the configuration holds records that the hub does not have: they stay, and nothing is done with them", "stream", name, "records", n)
		behind = append(behind, Left{name, n})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.behind = behind
	return nil
}
