package hub

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
)

// Change is one thing that Apply does, or would do.
type Change struct {
	Stream string `json:"stream"`
	Action string `json:"action"`           // "create", "update" or "keep"
	Detail string `json:"detail,omitempty"` // in words
}

// String returns the change in one line.
func (c Change) String() string {
	s := c.Action + " stream " + c.Stream
	if c.Detail != "" {
		s += ": " + c.Detail
	}
	return s
}

// ErrTooOld means that a server of the hub is older than MinVersion. The error that wraps it names the version found.
var ErrTooOld = errors.New("the hub's server is too old")

// Diff returns what Apply would do, without doing it.
func Diff(ctx context.Context, js jetstream.JetStream, p Plan) ([]Change, error) {
	return run(ctx, js, p, false)
}

// Apply makes the plan's streams, and adds to those that exist what they lack, as an administrator of the account that js is
// connected to. Sources, limits and settings that are not the plan's stay as they are, and nothing is ever deleted: it may be run
// again at any time. It returns what it did, up to the stream that failed if it fails. Users are not its business: see Plan.Config.
func Apply(ctx context.Context, js jetstream.JetStream, p Plan) ([]Change, error) {
	return run(ctx, js, p, true)
}

func run(ctx context.Context, js jetstream.JetStream, p Plan, do bool) ([]Change, error) {
	if err := checkVersion(ctx, js); err != nil {
		return nil, err
	}
	var changes []Change
	for _, want := range p.streams {
		change, err := ensure(ctx, js, want, do)
		if err != nil {
			return changes, fmt.Errorf("hub stream %s: %w", want.Name, err)
		}
		changes = append(changes, change)
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

func ensure(ctx context.Context, js jetstream.JetStream, want jetstream.StreamConfig, do bool) (Change, error) {
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
	added, err := merge(&have, want)
	if err != nil {
		return change, err
	}
	if len(added) == 0 {
		change.Action = "keep"
		return change, nil
	}
	change.Action, change.Detail = "update", strings.Join(added, ", ")
	if do {
		_, err = js.UpdateStream(ctx, have)
	}
	return change, err
}

// merge adds to an existing stream what a plan wants of it, and returns what that is, in words.
func merge(have *jetstream.StreamConfig, want jetstream.StreamConfig) ([]string, error) {
	var added []string
	if (have.Mirror == nil) != (want.Mirror == nil) || want.Mirror != nil && !same(have.Mirror, want.Mirror) {
		return nil, errors.New("it exists and is not what the plan wants: a stream cannot become a mirror, or a mirror of another stream; choose another hub_stream, or delete it")
	}
	for _, w := range want.Sources {
		at := slices.IndexFunc(have.Sources, func(h *jetstream.StreamSource) bool { return h.Name == w.Name && sameAPI(h, w) })
		switch {
		case at < 0:
			have.Sources = append(have.Sources, w)
			added = append(added, "source "+label(w))
		case !same(have.Sources[at], w):
			return nil, fmt.Errorf("it has a source %s of other settings than the plan's (consumer %s); remove that source first", label(w), w.Consumer.Name)
		}
	}
	if !have.AllowDirect {
		have.AllowDirect = true
		added = append(added, "direct reads, which the handshake needs")
	}
	return added, nil
}

func sameAPI(a, b *jetstream.StreamSource) bool {
	return a.External != nil && b.External != nil && a.External.APIPrefix == b.External.APIPrefix
}

// same compares what makes a source; transforms and the like are the operator's.
func same(a, b *jetstream.StreamSource) bool {
	return a.Name == b.Name && sameAPI(a, b) && reflect.DeepEqual(a.Consumer, b.Consumer)
}

func describe(c jetstream.StreamConfig) string {
	if c.Mirror != nil {
		return fmt.Sprintf("mirror of %s, %d replicas", label(c.Mirror), c.Replicas)
	}
	labels := make([]string, 0, len(c.Sources))
	for _, s := range c.Sources {
		labels = append(labels, label(s))
	}
	return fmt.Sprintf("sources %s, %d replicas", strings.Join(labels, " "), c.Replicas)
}

// label names a leaf's stream as "leaf/stream".
func label(s *jetstream.StreamSource) string {
	leaf := ""
	if s.External != nil {
		leaf = strings.TrimSuffix(strings.TrimPrefix(s.External.APIPrefix, "$JS."), ".API")
	}
	return leaf + "/" + s.Name
}
