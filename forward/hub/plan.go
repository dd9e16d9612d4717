// Package hub plans and makes what a hub needs to receive the streams of a fleet of leaves: streams, sources, and users with least rights.
package hub

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Spec lists what a hub serves. Empty fields have the defaults of this package's constants.
type Spec struct {
	Account  string // hub account of the leaves; in operator mode its public key
	Domain   string // the hub's JetStream domain
	Replicas int    // copies of each hub stream
	Leaves   []Leaf
	Revoked  []string    // names of leaves that are let in no more
	Streams  []HubStream // settings of hub streams; those that are not listed have no limits
}

// HubStream is what an operator settles for one hub stream. Zero values leave a setting as the hub has it: no limit in a new stream.
type HubStream struct {
	Name     string
	Replicas int           // default: the Spec's
	MaxBytes int64         // of the stream, of each shard if there are several
	MaxAge   time.Duration // since arrival at the hub; in a mirror since arrival at the leaf
	Full     Full          // what becomes of a record for which there is no room
	Shards   int           // more than 1: the streams <name>-1 to <name>-<shards> stand for it, see Shard
}

// Full says what a hub stream does at its limit.
type Full string

// What a full hub stream does. An empty Full is DropOldest.
const (
	DropOldest Full = "drop-oldest" // the hub keeps a window
	Refuse     Full = "refuse"      // the leaves keep what does not fit, until there is room
)

// Leaf is one leaf and how it authenticates: by user and password, or by an nkey alone.
type Leaf struct {
	Name     string
	User     string // default: Name
	Password string // as it stands in the server's configuration, preferably a bcrypt hash
	NKey     string // public user key, U...
	Streams  []Stream

	Commands  bool // takes commands from the hub
	Documents bool // takes configuration documents from the hub
}

// Stream is a captured stream of a leaf and where it goes.
type Stream struct {
	Name      string
	Mode      Mode
	HubStream string // default: Name for Source, MirrorName for Mirror
}

// Mode says how the hub takes a stream.
type Mode string

// The ways a hub takes a stream. An empty Mode is Source.
const (
	Source Mode = "source" // many leaves into one hub stream
	Mirror Mode = "mirror" // one hub stream of its own, with the leaf's sequence numbers
	None   Mode = "none"   // stays on the leaf
)

// Plan is what a Spec comes down to: hub streams, and users with their permissions. It is immutable; make one with New.
type Plan struct {
	spec      Spec
	streams   []jetstream.StreamConfig
	consumers []DurableConsumer
	users     []User
}

// DurableConsumer is a consumer that a hub stream has for a leaf.
type DurableConsumer struct {
	Stream string
	Config jetstream.ConsumerConfig
}

// User is a leaf's account on the hub: what it may publish to the hub, and what it may receive from it.
type User struct {
	Leaf      string
	Name      string
	Password  string
	NKey      string
	Publish   []string
	Subscribe []string
}

var (
	nameForm = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
	// reservedDomains cannot be JetStream domains (nats-server 2.15), and a leaf's name is its domain.
	reservedDomains = []string{"ACK", "FC", "SNAPSHOT", "EVENT", "API"}
)

// New checks a Spec and works out the plan. The error names every fault at once.
func New(spec Spec) (Plan, error) {
	if spec.Account == "" {
		spec.Account = Account
	}
	if spec.Domain == "" {
		spec.Domain = Domain
	}
	if spec.Replicas == 0 {
		spec.Replicas = Replicas
	}
	leaves := slices.Clone(spec.Leaves)
	for i := range leaves {
		leaves[i] = withDefaults(leaves[i])
	}
	spec.Leaves = leaves
	if err := check(spec); err != nil {
		return Plan{}, err
	}
	return Plan{spec: spec, streams: planStreams(spec), consumers: planConsumers(spec), users: planUsers(spec)}, nil
}

func withDefaults(l Leaf) Leaf {
	if l.User == "" && l.NKey == "" {
		l.User = l.Name
	}
	streams := make([]Stream, 0, len(l.Streams))
	for _, s := range l.Streams {
		switch {
		case s.Mode == None:
			continue
		case s.Mode == "":
			s.Mode = Source
		}
		if s.HubStream == "" && s.Mode == Mirror {
			s.HubStream = MirrorName(l.Name, s.Name)
		} else if s.HubStream == "" {
			s.HubStream = s.Name
		}
		streams = append(streams, s)
	}
	l.Streams = streams
	return l
}

func check(spec Spec) error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	leaves, users := map[string]bool{}, map[string]string{}
	shards := checkHubStreams(spec.Streams, fault)
	takers := map[string]string{} // hub stream -> "" when sourced, else the leaf stream it mirrors
	for _, l := range spec.Leaves {
		if !nameForm.MatchString(l.Name) || slices.Contains(reservedDomains, l.Name) || l.Name == spec.Domain {
			fault("leaf %q: a name has 1 to 64 letters, digits, - and _, and is not %q or a word reserved by the server", l.Name, spec.Domain)
		}
		for _, s := range l.Streams {
			if s.HubStream == Commands || s.HubStream == Documents {
				fault("leaf %q stream %q: hub stream %s is for what is sent to leaves", l.Name, s.Name, s.HubStream)
			}
		}
		if leaves[l.Name] {
			fault("leaf %q: listed twice; names are unique in a fleet", l.Name)
		}
		leaves[l.Name] = true
		key := l.User + l.NKey
		if other, ok := users[key]; ok && other != l.Name {
			fault("leaf %q: same user as leaf %q; each leaf needs one of its own", l.Name, other)
		}
		users[key] = l.Name
		if l.NKey != "" && (l.Password != "" || l.User != "") {
			fault("leaf %q: has an nkey and a user or password; give one", l.Name)
		}
		names := map[string]bool{}
		for _, s := range l.Streams {
			checkStream(l, s, names, takers, fault)
			if set := spec.settings(s.HubStream); s.Mode == Mirror && set.MaxAge > 0 {
				fault("hub stream %q: max_age of a mirror counts from the arrival at the leaf, so that it deletes late backlog on arrival; use max_bytes", s.HubStream)
			}
			if set := spec.settings(s.HubStream); s.Mode == Mirror && set.Full == Refuse {
				fault("hub stream %q: when_full: refuse is without effect in a mirror, which grows beyond its limits then (nats-server 2.15); use drop-oldest, or mode source", s.HubStream)
			}
			if n := shards[s.HubStream]; n > 1 {
				fault("leaf %q stream %q: hub stream %s has %d shards; enrol the leaf, or name one of them, such as %s", l.Name, s.Name, s.HubStream, n, Shard(s.HubStream, 1))
			}
		}
	}
	return errors.Join(faults...)
}

// checkHubStreams returns the number of shards by hub stream.
func checkHubStreams(streams []HubStream, fault func(string, ...any)) map[string]int {
	shards := map[string]int{}
	for _, s := range streams {
		if _, twice := shards[s.Name]; twice {
			fault("hub stream %q: listed twice", s.Name)
		}
		shards[s.Name] = s.Shards
		if !nameForm.MatchString(s.Name) {
			fault("hub stream %q: a name has 1 to 64 letters, digits, - and _", s.Name)
		}
		if s.MaxBytes < 0 || s.MaxAge < 0 || s.Shards < 0 || s.Replicas < 0 {
			fault("hub stream %q: a limit is below zero", s.Name)
		}
		if s.Full != "" && s.Full != DropOldest && s.Full != Refuse {
			fault("hub stream %q: %q is not %s or %s", s.Name, s.Full, DropOldest, Refuse)
		}
	}
	return shards
}

func checkStream(l Leaf, s Stream, names map[string]bool, takers map[string]string, fault func(string, ...any)) {
	if !nameForm.MatchString(s.Name) || !nameForm.MatchString(s.HubStream) {
		fault("leaf %q stream %q to hub stream %q: a name has 1 to 64 letters, digits, - and _", l.Name, s.Name, s.HubStream)
	}
	if names[s.Name] {
		fault("leaf %q stream %q: listed twice", l.Name, s.Name)
	}
	names[s.Name] = true
	if s.Mode != Source && s.Mode != Mirror {
		fault("leaf %q stream %q: mode %q is not source, mirror or none", l.Name, s.Name, s.Mode)
	}
	taker := ""
	if s.Mode == Mirror {
		taker = l.Name + "/" + s.Name
	}
	other, taken := takers[s.HubStream]
	if taken && (taker != "" || other != "") {
		fault("leaf %q stream %q: hub stream %q is a mirror and cannot take a second stream; give one of them another hub_stream", l.Name, s.Name, s.HubStream)
	}
	takers[s.HubStream] = taker
}
