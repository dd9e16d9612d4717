package hub

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go/jetstream"
)

// Expel takes leaves that are revoked out of the hub, as an administrator of the account that js is connected to: their sources out of hub streams, and their
// consumers. What they have sent stays, and so do mirrors, which hold nothing else. It returns what it did, up to what failed if something does.
func Expel(ctx context.Context, js jetstream.JetStream, leaves []string) ([]Change, error) {
	changes, err := expelSources(ctx, js, leaves, nil, true)
	p := Plan{spec: Spec{Revoked: leaves}}
	for _, stream := range []string{Commands, Documents, Keep} {
		more, cerr := p.ensureConsumers(ctx, js, stream, true)
		changes, err = append(changes, more...), errors.Join(err, cerr)
	}
	return changes, err
}

// expelSources takes the sources of leaves out of all hub streams but some.
func expelSources(ctx context.Context, js jetstream.JetStream, leaves []string, but []jetstream.StreamConfig, do bool) ([]Change, error) {
	if len(leaves) == 0 {
		return nil, nil
	}
	var changes []Change
	list := js.ListStreams(ctx)
	var found []jetstream.StreamConfig
	for info := range list.Info() {
		if !slices.ContainsFunc(but, func(c jetstream.StreamConfig) bool { return c.Name == info.Config.Name }) {
			found = append(found, info.Config)
		}
	}
	if err := list.Err(); err != nil && !errors.Is(err, jetstream.ErrEndOfData) {
		return nil, fmt.Errorf("list the hub's streams: %w", err)
	}
	for _, cfg := range found {
		m := merger{have: &cfg, want: jetstream.StreamConfig{Name: cfg.Name}, revoked: leaves}
		m.dropRevoked()
		if len(m.changes) == 0 {
			continue
		}
		for _, what := range m.changes {
			changes = append(changes, Change{Stream: cfg.Name, Action: "update", Detail: what})
		}
		if !do {
			continue
		}
		if _, err := js.UpdateStream(ctx, cfg); err != nil {
			return changes, fmt.Errorf("hub stream %s: %w", cfg.Name, err)
		}
	}
	return changes, nil
}
