package storage

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/nats-io/nats.go/jetstream"
)

// former is a name that the leaf had before. Records that were captured under it keep it in their subjects, and the hub does not ask for them.
type former struct {
	Leaf   string              `json:"leaf"`
	Proven map[string]Position `json:"proven,omitempty"` // how far the hub was proven to hold each stream when the name was given up
}

// rename notes, on flash, that the leaf has another name now. One that it had before and gets back is no former one any more.
func (id *identity) rename(leaf string) error {
	id.mu.Lock()
	defer id.mu.Unlock()
	p := id.person
	id.log.Warn("the leaf has another name now: what waits under the old one stays until it has that name again", "was", p.Leaf, "now", leaf)
	p.Former = slices.DeleteFunc(slices.Clone(p.Former), func(f former) bool { return f.Leaf == leaf })
	p.Former = append(p.Former, former{Leaf: p.Leaf})
	p.Leaf = leaf
	if err := id.who.save(p); err != nil {
		return fmt.Errorf("note the leaf's new name: %w", err)
	}
	id.person = p
	return nil
}

// proven returns how far the hub held a stream when a name was given up, and notes it, on flash, if that is not known yet.
func (id *identity) proven(leaf, stream string, now Position) (Position, error) {
	id.mu.Lock()
	defer id.mu.Unlock()
	p := id.person
	i := slices.IndexFunc(p.Former, func(f former) bool { return f.Leaf == leaf })
	if i < 0 {
		return now, nil
	}
	if at, known := p.Former[i].Proven[stream]; known {
		return at, nil
	}
	p.Former = slices.Clone(p.Former)
	all := maps.Clone(p.Former[i].Proven)
	if all == nil {
		all = map[string]Position{}
	}
	all[stream] = now
	p.Former[i].Proven = all
	if err := id.who.save(p); err != nil {
		return 0, fmt.Errorf("note how far the hub has what was captured as %s: %w", leaf, err)
	}
	id.person = p
	return now, nil
}

// formerNames returns the names that the leaf had before.
func (id *identity) formerNames() []string {
	id.mu.Lock()
	defer id.mu.Unlock()
	var names []string
	for _, f := range id.person.Former {
		names = append(names, f.Leaf)
	}
	return names
}

// Former says under which name records of a stream were captured that wait for the hub and that it does not ask for, since the leaf has another name now.
type Former struct {
	Leaf  string
	Proof Position // the hub was proven to hold the stream up to here
}

// recallFormer finds out whether records of a former name wait in a stream.
func (s *Store) recallFormer(ctx context.Context, st *stream, js jetstream.Stream) error {
	for _, name := range s.identity.formerNames() {
		newest, err := lastID(ctx, js, DataSubject(name, st.name(), ">"))
		if err != nil {
			return fmt.Errorf("read the newest record of stream %s that was captured as %s: %w", st.name(), name, err)
		}
		if newest.at == 0 {
			continue
		}
		var now Position
		if ask := s.server().Forwarded; ask != nil {
			now, _ = ask(st.name())
		}
		proven, err := s.identity.proven(name, st.name(), now)
		if err != nil {
			return err
		}
		if was := st.former.Load(); newest.at > proven && (was == nil || proven < was.Proof) {
			st.former.Store(&Former{name, proven})
		}
	}
	return nil
}
