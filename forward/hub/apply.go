package hub

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

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

// Diff returns what Apply would do, without doing it.
func Diff(ctx context.Context, js jetstream.JetStream, p Plan) ([]Change, error) {
	return run(ctx, js, p, false)
}

// Apply makes the plan's streams and consumers, and adds to those that exist what they lack, as an administrator of the account that js is
// connected to. Limits that the plan does not name, and settings that are not its business, stay as they are. It deletes no stream and no record,
// and refuses a limit that would; it takes away what lets a revoked leaf in. It may be run again at any time. What cannot be done for one stream
// keeps it from no other: it returns what it did, and an error that names all that it did not do. Users are not its business: see Site and Plan.Config.
func Apply(ctx context.Context, js jetstream.JetStream, p Plan) ([]Change, error) {
	return run(ctx, js, p, true)
}

func run(ctx context.Context, js jetstream.JetStream, p Plan, do bool) ([]Change, error) {
	if err := checkVersion(ctx, js); err != nil {
		return nil, err
	}
	var changes []Change
	var faults []error
	away := map[string]bool{} // streams for which no server answers
	for _, want := range p.streams {
		change, err := p.ensure(ctx, js, want, do)
		if ctx.Err() != nil {
			return changes, errors.Join(append(faults, fmt.Errorf("hub stream %s and those behind it: not done for want of time: %w", want.Name, ctx.Err()))...)
		}
		if err != nil {
			away[want.Name] = errors.Is(err, ErrAway)
			faults = append(faults, fmt.Errorf("hub stream %s: %w", want.Name, err))
			continue
		}
		changes = append(changes, change)
	}
	gone, err := expelSources(ctx, js, p.spec.Revoked, p.ways(), p.streams, do) // streams that nobody else has any more
	changes, faults = append(changes, gone...), append(faults, err)
	for _, stream := range []string{Commands, Documents, Keep} {
		if away[stream] {
			n := len(slices.DeleteFunc(p.Consumers(), func(c DurableConsumer) bool { return c.Stream != stream }))
			faults = append(faults, fmt.Errorf("hub stream %s: its %d consumers are not looked at either", stream, n))
			continue
		}
		more, err := p.ensureConsumers(ctx, js, stream, do)
		changes = append(changes, more...)
		if err != nil {
			faults = append(faults, fmt.Errorf("hub stream %s: %w", stream, err))
		}
	}
	return changes, errors.Join(faults...)
}

// checkVersion looks at the server that js is connected to, and at the cluster by the API level of the one that answers for all.
func checkVersion(ctx context.Context, js jetstream.JetStream) error {
	if v := js.Conn().ConnectedServerVersion(); older(v, MinVersion) {
		return fmt.Errorf("%w: %s has nats-server %s, and %s or newer is needed on all servers", ErrTooOld, js.Conn().ConnectedServerName(), v, MinVersion)
	}
	info, err := look(ctx, js.AccountInfo)
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
	s, err := lookAt(ctx, js, want.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		change.Action, change.Detail = "create", describe(want)
		if want.Name == Commands || want.Name == Documents {
			want.FirstSeq = uint64(time.Now().Unix()) << 20 // above the numbers of one that was there before: leaves pass over those
		}
		if !do {
			return change, nil
		}
		return change, alter(ctx, func(ctx context.Context) error { _, err := js.CreateStream(ctx, want); return err })
	}
	if err != nil {
		return change, err
	}
	have := s.CachedInfo().Config
	m := merger{have: &have, want: want, state: s.CachedInfo().State, set: p.spec.settings(want.Name), revoked: p.spec.Revoked, ways: p.ways()}
	if err := m.merge(); err != nil {
		return change, err
	}
	change.Warning = strings.Join(m.warnings, "; ")
	if len(m.changes) == 0 {
		change.Action = "keep"
		return change, nil
	}
	change.Action, change.Detail = "update", strings.Join(m.changes, ", ")
	if !do {
		return change, nil
	}
	return change, alter(ctx, func(ctx context.Context) error { _, err := js.UpdateStream(ctx, have); return err })
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
