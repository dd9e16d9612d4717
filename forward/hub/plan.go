// Package hub plans and makes what a hub needs to receive the streams of a fleet of leaves: streams, sources, and users with least rights.
package hub

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
)

// Spec lists what a hub serves. Empty fields have the defaults of this package's constants.
type Spec struct {
	Account  string // hub account of the leaves; in operator mode its public key
	Domain   string // the hub's JetStream domain
	Replicas int    // copies of each hub stream
	Leaves   []Leaf
}

// Leaf is one leaf and how it authenticates: by user and password, or by an nkey alone.
type Leaf struct {
	Name     string
	User     string // default: Name
	Password string // as it stands in the server's configuration, preferably a bcrypt hash
	NKey     string // public user key, U...
	Streams  []Stream
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
	spec    Spec
	streams []jetstream.StreamConfig
	users   []User
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
	return Plan{spec: spec, streams: planStreams(spec), users: planUsers(spec)}, nil
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
	takers := map[string]string{} // hub stream -> "" when sourced, else the leaf stream it mirrors
	for _, l := range spec.Leaves {
		if !nameForm.MatchString(l.Name) || slices.Contains(reservedDomains, l.Name) || l.Name == spec.Domain {
			fault("leaf %q: a name has 1 to 64 letters, digits, - and _, and is not %q or a word reserved by the server", l.Name, spec.Domain)
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
		}
	}
	return errors.Join(faults...)
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

func planStreams(spec Spec) []jetstream.StreamConfig {
	byName := map[string]*jetstream.StreamConfig{}
	for _, l := range spec.Leaves {
		for _, s := range l.Streams {
			src := &jetstream.StreamSource{
				Name:     s.Name,
				External: &jetstream.ExternalStream{APIPrefix: "$JS." + l.Name + ".API"},
				Consumer: &jetstream.StreamConsumerSource{Name: Consumer(l.Name, s.Name), DeliverSubject: DeliverSubject(l.Name, s.Name)},
			}
			cfg := byName[s.HubStream]
			if cfg == nil {
				cfg = &jetstream.StreamConfig{Name: s.HubStream, Storage: jetstream.FileStorage, Replicas: spec.Replicas, AllowDirect: true}
				byName[s.HubStream] = cfg
			}
			if s.Mode == Mirror {
				cfg.Mirror = src
			} else {
				cfg.Sources = append(cfg.Sources, src)
			}
		}
	}
	names := slices.Sorted(maps.Keys(byName))
	streams := make([]jetstream.StreamConfig, 0, len(names))
	for _, name := range names {
		streams = append(streams, *byName[name])
	}
	return streams
}

func planUsers(spec Spec) []User {
	users := make([]User, 0, len(spec.Leaves))
	hubHash, leafHash := AccountHash(spec.Account), AccountHash(LeafAccount)
	for _, l := range spec.Leaves {
		u := User{Leaf: l.Name, Name: l.User, Password: l.Password, NKey: l.NKey}
		u.Publish = []string{"$JS." + spec.Domain + ".API.INFO"}
		u.Subscribe = []string{InboxPrefix(l.Name) + ".>"}
		for _, s := range l.Streams {
			consumer := Consumer(l.Name, s.Name)
			u.Publish = append(u.Publish,
				DeliverSubject(l.Name, s.Name),                                               // records, heartbeats
				"$JSC.R."+l.Name+"."+hubHash+"."+s.Name+"."+consumer+".*",                    // the answer to RESET
				"$JS."+spec.Domain+".API.DIRECT.GET."+s.HubStream+"."+Filter(l.Name, s.Name)) // the handshake: newest record of ours
			u.Subscribe = append(u.Subscribe,
				"$JS."+l.Name+".API.CONSUMER.RESET."+s.Name+"."+consumer, // the hub attaches
				"$JS.FC."+l.Name+"."+leafHash+"."+s.Name+".*.*")          // the hub acknowledges; each consumer has a name of its own
		}
		users = append(users, u)
	}
	return users
}

// Streams returns the hub streams, sorted by name. The caller owns the result, but not what its pointers lead to.
func (p Plan) Streams() []jetstream.StreamConfig { return slices.Clone(p.streams) }

// Users returns the leaves' users in the order of the Spec. The caller owns the result, but not its lists.
func (p Plan) Users() []User { return slices.Clone(p.users) }

// Config returns the plan's users as the `accounts` block of a nats-server configuration. Every hub server needs it, and the
// feature flags that it mentions; users of the operator's own go into the same account.
func (p Plan) Config() string {
	var b strings.Builder
	b.WriteString("# Each hub server needs nats-server " + MinVersion + " or newer, `jetstream { domain: " + p.spec.Domain + " }` and\n")
	b.WriteString("# feature_flags { js_ack_fc_v2: true, js_api_reply_v2: true }\n")
	b.WriteString("accounts {\n  SYS: {} # give it an administrator of the servers; name it as system_account\n  " + p.spec.Account + ": {\n    jetstream: enabled\n    users: [\n")
	b.WriteString("      # add an administrator here, who runs `holdfast hub apply`, and your applications\n")
	for _, u := range p.users {
		b.WriteString("      # leaf " + u.Leaf + "\n      { ")
		if u.NKey != "" {
			b.WriteString("nkey: " + quote(u.NKey))
		} else {
			b.WriteString("user: " + quote(u.Name) + ", password: " + quote(u.Password))
		}
		b.WriteString(", allowed_connection_types: [\"LEAFNODE\", \"LEAFNODE_WS\"], permissions: {\n")
		writeList(&b, "publish", u.Publish)
		writeList(&b, "subscribe", u.Subscribe)
		b.WriteString("      } }\n")
	}
	b.WriteString("    ]\n  }\n}\n")
	return b.String()
}

func writeList(b *strings.Builder, key string, subjects []string) {
	b.WriteString("        " + key + ": [\n")
	for _, s := range subjects {
		b.WriteString("          " + quote(s) + "\n")
	}
	b.WriteString("        ]\n")
}

// quote writes a value so that the server's configuration parser takes it as one string, "$" included.
func quote(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}
