package hub

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/nats-io/nats.go/jetstream"
)

// Change is one thing that Apply does, or would do.
type Change struct {
	Stream   string `json:"stream"`
	Consumer string `json:"consumer,omitempty"` // of the stream; empty: the stream itself
	Action   string `json:"action"`             // "create", "update", "delete" or "keep"
	Detail   string `json:"detail,omitempty"`   // in words
	Warning  string `json:"warning,omitempty"`  // what is dangerous about the stream as it is
}

// String returns the change in one line, and a warning in a second one.
func (c Change) String() string {
	s := c.Action + " stream " + c.Stream
	if c.Consumer != "" {
		s = c.Action + " consumer " + c.Consumer + " of stream " + c.Stream
	}
	if c.Detail != "" {
		s += ": " + c.Detail
	}
	if c.Warning != "" {
		s += "\n  warning: " + c.Warning
	}
	return s
}

// ErrTooOld means that a server of the hub is older than MinVersion. The error that wraps it names the version found.
var ErrTooOld = errors.New("the hub's server is too old")

// applyWorkers is how many requests are with the hub at a time.
const applyWorkers = 16

// Diff returns what Apply would do, without doing it.
func Diff(ctx context.Context, js jetstream.JetStream, p Plan) ([]Change, error) {
	return run(ctx, js, p, false)
}

// Apply makes the plan's streams and consumers, and adds to those that exist what they lack, as an administrator of the account that js is
// connected to. Limits that the plan does not name, and settings that are not its business, stay as they are. It deletes no stream and no record,
// and refuses a limit that would; it takes away what lets a revoked leaf in. It may be run again at any time. It returns what it did, up to what
// failed if something does. Users are not its business: see Site and Plan.Config.
func Apply(ctx context.Context, js jetstream.JetStream, p Plan) ([]Change, error) {
	return run(ctx, js, p, true)
}

func run(ctx context.Context, js jetstream.JetStream, p Plan, do bool) ([]Change, error) {
	if err := checkVersion(ctx, js); err != nil {
		return nil, err
	}
	var changes []Change
	for _, want := range p.streams {
		change, err := p.ensure(ctx, js, want, do)
		if err != nil {
			return changes, fmt.Errorf("hub stream %s: %w", want.Name, err)
		}
		changes = append(changes, change)
	}
	gone, err := expelSources(ctx, js, p.spec.Revoked, p.streams, do) // streams that nobody else has any more
	if changes = append(changes, gone...); err != nil {
		return changes, err
	}
	for _, stream := range []string{Commands, Documents, Keep} {
		more, err := p.ensureConsumers(ctx, js, stream, do)
		changes = append(changes, more...)
		if err != nil {
			return changes, fmt.Errorf("hub stream %s: %w", stream, err)
		}
	}
	return changes, nil
}

// checkVersion looks at the server that js is connected to, and at the cluster by the API level of the one that answers for all.
func checkVersion(ctx context.Context, js jetstream.JetStream) error {
	if v := js.Conn().ConnectedServerVersion(); older(v, MinVersion) {
		return fmt.Errorf("%w: %s has nats-server %s, and %s or newer is needed on all servers", ErrTooOld, js.Conn().ConnectedServerName(), v, MinVersion)
	}
	info, err := js.AccountInfo(ctx)
	if err != nil {
		return fmt.Errorf("ask the hub for its JetStream: %w", err)
	}
	if info.API.Level < MinAPILevel {
		return fmt.Errorf("%w: the leader of its JetStream has API level %d, and level %d (nats-server %s) is needed on all servers",
			ErrTooOld, info.API.Level, MinAPILevel, MinVersion)
	}
	return nil
}

// older reports whether a version is before another, by their numbers. What is no version is taken to be new.
func older(version, than string) bool {
	numbers := func(s string) []int {
		s, _, _ = strings.Cut(strings.TrimPrefix(s, "v"), "-")
		var n []int
		for part := range strings.SplitSeq(s, ".") {
			i, err := strconv.Atoi(part)
			if err != nil {
				return nil
			}
			n = append(n, i)
		}
		return n
	}
	v := numbers(version)
	return v != nil && slices.Compare(v, numbers(than)) < 0
}

func (p Plan) ensure(ctx context.Context, js jetstream.JetStream, want jetstream.StreamConfig, do bool) (Change, error) {
	change := Change{Stream: want.Name}
	s, err := js.Stream(ctx, want.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		change.Action, change.Detail = "create", describe(want)
		if do {
			_, err = js.CreateStream(ctx, want)
		} else {
			err = nil
		}
		return change, err
	}
	if err != nil {
		return change, err
	}
	have := s.CachedInfo().Config
	m := merger{have: &have, want: want, state: s.CachedInfo().State, set: p.spec.settings(want.Name), revoked: p.spec.Revoked}
	if err := m.merge(); err != nil {
		return change, err
	}
	change.Warning = strings.Join(m.warnings, "; ")
	if len(m.changes) == 0 {
		change.Action = "keep"
		return change, nil
	}
	change.Action, change.Detail = "update", strings.Join(m.changes, ", ")
	if do {
		_, err = js.UpdateStream(ctx, have)
	}
	return change, err
}

// ensureConsumers makes the consumers of a stream that leaves take from, and deletes those of revoked leaves. Those that are as they should be
// are not told of.
func (p Plan) ensureConsumers(ctx context.Context, js jetstream.JetStream, stream string, do bool) ([]Change, error) {
	have := map[string]jetstream.ConsumerConfig{}
	s, err := js.Stream(ctx, stream)
	if err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, err
	}
	if err == nil {
		list := s.ListConsumers(ctx)
		for info := range list.Info() {
			have[info.Name] = info.Config
		}
		if err := list.Err(); err != nil && !errors.Is(err, jetstream.ErrEndOfData) {
			return nil, fmt.Errorf("list consumers: %w", err)
		}
	}
	var changes []Change
	var jobs []func() error
	for _, c := range p.consumers {
		if c.Stream != stream {
			continue
		}
		name := c.Config.Durable
		old, there := have[name]
		switch {
		case !there:
			changes = append(changes, Change{Stream: stream, Consumer: name, Action: "create"})
			jobs = append(jobs, func() error { _, err := js.CreatePushConsumer(ctx, stream, c.Config); return err })
		case old.DeliverSubject != c.Config.DeliverSubject || old.FilterSubject != c.Config.FilterSubject || old.AckPolicy != c.Config.AckPolicy:
			return changes, fmt.Errorf("its consumer %s is not what the plan wants; delete it if nothing that it holds is still to be delivered", name)
		}
	}
	for name, cfg := range have {
		_, rest, _ := strings.Cut(cfg.DeliverSubject, ".") // up.<leaf>.<stream>, down.<leaf>.<stream>
		leaf, _, _ := strings.Cut(rest, ".")
		if slices.Contains(p.spec.Revoked, leaf) {
			changes = append(changes, Change{Stream: stream, Consumer: name, Action: "delete", Detail: "leaf " + leaf + " is revoked"})
			jobs = append(jobs, func() error { return js.DeleteConsumer(ctx, stream, name) })
		}
	}
	if !do {
		return changes, nil
	}
	return changes, inParallel(jobs)
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

func sameAPI(a, b *jetstream.StreamSource) bool {
	return a.External != nil && b.External != nil && a.External.APIPrefix == b.External.APIPrefix
}

// same compares what makes a source; transforms and the like are the operator's.
func same(a, b *jetstream.StreamSource) bool {
	return a.Name == b.Name && sameAPI(a, b) && reflect.DeepEqual(a.Consumer, b.Consumer)
}

// describe says what a new stream is.
func describe(c jetstream.StreamConfig) string {
	var what string
	switch {
	case c.Mirror != nil:
		what = "mirror of " + label(c.Mirror)
	case len(c.Sources) > 12:
		what = fmt.Sprintf("%d sources", len(c.Sources))
	case len(c.Sources) > 0:
		labels := make([]string, 0, len(c.Sources))
		for _, s := range c.Sources {
			labels = append(labels, label(s))
		}
		what = "sources " + strings.Join(labels, " ")
	default:
		what = "subjects " + strings.Join(c.Subjects, " ")
	}
	return fmt.Sprintf("%s, %d replicas", what, c.Replicas)
}

// label names a leaf's stream as "leaf/stream".
func label(s *jetstream.StreamSource) string { return leafOf(s) + "/" + s.Name }

// leafOf returns the leaf that a source takes from.
func leafOf(s *jetstream.StreamSource) string {
	if s.External == nil {
		return ""
	}
	return strings.TrimSuffix(strings.TrimPrefix(s.External.APIPrefix, "$JS."), ".API")
}
