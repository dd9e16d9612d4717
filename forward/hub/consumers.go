package hub

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats.go/jetstream"
)

// applyWorkers is how many requests are with the hub at a time.
const applyWorkers = 16

// ensureConsumers makes the consumers of a stream that leaves take from, and deletes those of revoked leaves. Those that are as they should be
// are not told of.
func (p Plan) ensureConsumers(ctx context.Context, js jetstream.JetStream, stream string, do bool) ([]Change, error) {
	have := map[string]jetstream.ConsumerConfig{}
	s, err := lookAt(ctx, js, stream)
	if err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, fmt.Errorf("its consumers are not looked at: %w", err)
	}
	if err == nil {
		if have, err = consumersOf(ctx, s); err != nil {
			return nil, fmt.Errorf("its consumers are not looked at: %w", err)
		}
	}
	var changes []Change
	var jobs []func(context.Context) error
	var faults []error
	for _, c := range p.consumers {
		if c.Stream != stream {
			continue
		}
		name := c.Config.Durable
		old, there := have[name]
		switch {
		case !there:
			changes = append(changes, Change{Stream: stream, Consumer: name, Action: "create"})
			jobs = append(jobs, func(ctx context.Context) error { _, err := js.CreatePushConsumer(ctx, stream, c.Config); return err })
		case old.DeliverSubject != c.Config.DeliverSubject || old.FilterSubject != c.Config.FilterSubject || old.AckPolicy != c.Config.AckPolicy:
			faults = append(faults, fmt.Errorf("its consumer %s is not what the plan wants; delete it if nothing that it holds is still to be delivered", name))
		}
	}
	for name, cfg := range have {
		_, rest, _ := strings.Cut(cfg.DeliverSubject, ".") // up.<leaf>.<stream>, down.<leaf>.<stream>
		leaf, _, _ := strings.Cut(rest, ".")
		if slices.Contains(p.spec.Revoked, leaf) {
			changes = append(changes, Change{Stream: stream, Consumer: name, Action: "delete", Detail: "leaf " + leaf + " is revoked"})
			jobs = append(jobs, func(ctx context.Context) error {
				err := js.DeleteConsumer(ctx, stream, name)
				if errors.Is(err, jetstream.ErrConsumerNotFound) { // the list was of a moment before
					return nil
				}
				return err
			})
		}
	}
	if do {
		var done []Change
		done, err = alterAll(ctx, changes, jobs)
		return done, errors.Join(append(faults, err)...)
	}
	return changes, errors.Join(faults...)
}

// consumersOf returns the consumers of a stream by name.
func consumersOf(ctx context.Context, s jetstream.Stream) (map[string]jetstream.ConsumerConfig, error) {
	return look(ctx, func(ctx context.Context) (map[string]jetstream.ConsumerConfig, error) {
		have := map[string]jetstream.ConsumerConfig{}
		list := s.ListConsumers(ctx)
		for info := range list.Info() {
			have[info.Name] = info.Config
		}
		if err := list.Err(); err != nil && !errors.Is(err, jetstream.ErrEndOfData) {
			return nil, fmt.Errorf("list consumers: %w", err)
		}
		return have, nil
	})
}

// alterAll does changes by their jobs, some at a time, until no server answers for one. It returns those that are done, and says how many are not.
func alterAll(ctx context.Context, changes []Change, jobs []func(context.Context) error) ([]Change, error) {
	errs := make([]error, len(jobs))
	var away atomic.Bool
	tries := make([]func() error, len(jobs))
	for i, job := range jobs {
		tries[i] = func() error {
			if away.Load() {
				errs[i] = ErrAway
				return nil
			}
			errs[i] = alter(ctx, job)
			if errors.Is(errs[i], ErrAway) {
				away.Store(true)
			}
			return nil
		}
	}
	_ = inParallel(tries) // each keeps its own
	var done []Change
	var faults []error
	lost := 0
	for i, c := range changes {
		switch {
		case errs[i] == nil:
			done = append(done, c)
		case errors.Is(errs[i], ErrAway):
			lost++
		default:
			faults = append(faults, fmt.Errorf("%s consumer %s: %w", c.Action, c.Consumer, errs[i]))
		}
	}
	if lost > 0 {
		faults = append(faults, fmt.Errorf("%d of its consumers are not made or deleted: %w", lost, ErrAway))
	}
	return done, errors.Join(faults...)
}

// inParallel runs jobs, some at a time, and returns their errors.
func inParallel(jobs []func() error) error {
	var wg sync.WaitGroup
	errs := make([]error, len(jobs))
	slots := make(chan struct{}, applyWorkers)
	for i, job := range jobs {
		slots <- struct{}{}
		wg.Go(func() {
			errs[i] = job()
			<-slots
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
