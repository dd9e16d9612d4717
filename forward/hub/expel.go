package hub

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
)

// Expel takes leaves that are revoked out of the hub, as an administrator of the account that js is connected to: their sources out of hub streams, and their
// consumers. What they have sent stays, and so do mirrors, which hold nothing else. What cannot be done for one
// stream keeps it from no other: it returns what it did, and an error that names all that it did not do.
func Expel(ctx context.Context, js jetstream.JetStream, leaves []string) ([]Change, error) {
	changes, err := expelSources(ctx, js, leaves, nil, nil, true)
	p := Plan{spec: Spec{Revoked: leaves}}
	for _, stream := range []string{Commands, Documents, Keep} {
		more, cerr := p.ensureConsumers(ctx, js, stream, true)
		changes = append(changes, more...)
		if cerr != nil {
			err = errors.Join(err, fmt.Errorf("hub stream %s: %w", stream, cerr))
		}
	}
	return changes, err
}

// expelSources takes the sources of leaves, and those that go elsewhere, out of all hub streams but some.
func expelSources(ctx context.Context, js jetstream.JetStream, leaves []string, ways ways, but []jetstream.StreamConfig, do bool) ([]Change, error) {
	if len(leaves)+len(ways) == 0 {
		return nil, nil
	}
	var changes []Change
	found, faults, err := streamsBut(ctx, js, but)
	if err != nil {
		return nil, err
	}
	for _, cfg := range found {
		m := merger{have: &cfg, want: jetstream.StreamConfig{Name: cfg.Name}, revoked: leaves, ways: ways}
		if mirror := cfg.Mirror; mirror != nil {
			if to := ways[label(mirror)]; to != "" && to != cfg.Name {
				changes = append(changes, Change{Stream: cfg.Name, Action: "keep",
					Warning: fmt.Sprintf("it is still a mirror of %s, which goes to hub stream %s now: both take its records; delete it when what it holds is not needed any more", label(mirror), to)})
			}
		}
		m.dropGone()
		if len(m.changes) == 0 {
			continue
		}
		if do {
			if err := alter(ctx, func(ctx context.Context) error { _, err := js.UpdateStream(ctx, cfg); return err }); err != nil {
				faults = append(faults, fmt.Errorf("hub stream %s: %s: %w", cfg.Name, strings.Join(m.changes, ", "), err))
				continue
			}
		}
		for _, what := range m.changes {
			changes = append(changes, Change{Stream: cfg.Name, Action: "update", Detail: what})
		}
	}
	return changes, errors.Join(faults...)
}

// streamsBut returns all streams of the hub but some and but Keep, which has no sources, and a fault for each that no server answers for.
func streamsBut(ctx context.Context, js jetstream.JetStream, but []jetstream.StreamConfig) (found []jetstream.StreamConfig, faults []error, err error) {
	names, err := look(ctx, func(ctx context.Context) (all []string, err error) {
		list := js.StreamNames(ctx)
		for name := range list.Name() {
			all = append(all, name)
		}
		return all, list.Err()
	})
	if err != nil && !errors.Is(err, jetstream.ErrEndOfData) {
		return nil, nil, fmt.Errorf("list the hub's streams: %w", err)
	}
	for _, name := range names {
		if name == Keep || slices.ContainsFunc(but, func(c jetstream.StreamConfig) bool { return c.Name == name }) {
			continue
		}
		s, err := lookAt(ctx, js, name)
		switch {
		case ctx.Err() != nil:
			return nil, nil, fmt.Errorf("look at the hub's stream %s: %w", name, ctx.Err())
		case errors.Is(err, jetstream.ErrStreamNotFound):
		case err != nil:
			faults = append(faults, fmt.Errorf("hub stream %s: its sources are not looked at: %w", name, err))
		default:
			found = append(found, s.CachedInfo().Config)
		}
	}
	return found, faults, nil
}
