package forward

import (
	"fmt"
	"log/slog"
	"regexp"

	"github.com/holdfast-edge/holdfast/forward/hub"
	"github.com/holdfast-edge/holdfast/leaf"
	"github.com/holdfast-edge/holdfast/storage"
)

// The ways a stream goes to the hub, as words of the configuration.
const (
	ModeSource = string(hub.Source) // many leaves into one hub stream
	ModeMirror = string(hub.Mirror) // one hub stream of its own, with the same sequence numbers
	ModeNone   = string(hub.None)   // it stays here
)

// The lanes, as words of the configuration.
const (
	LaneLive = "live" // goes ahead of bulk
	LaneBulk = "bulk" // takes what live leaves, and never less than a tenth of the link
)

// Config is the forward section of one stream.
type Config struct {
	Mode      string `yaml:"mode,scalar" enum:"source,mirror,none" doc:"how the hub takes the stream: as a source of a stream that many leaves share, as a mirror of its own, or not at all"`
	Lane      string `yaml:"lane,scalar" enum:"live,bulk" doc:"what goes first when streams wait for the link: live before bulk, which keeps a tenth of the link"`
	HubStream string `yaml:"hub_stream" doc:"stream at the hub; empty: the name of the stream, for a mirror <leaf>_<stream>"`
}

// SetDefaults fills in what an entry that says nothing means.
func (c *Config) SetDefaults() { c.Mode, c.Lane = ModeSource, LaneBulk }

// weight is the stream's part of a link that does not carry all.
func (c Config) weight() float64 {
	if c.Lane == LaneLive {
		return weightLive
	}
	return weightBulk
}

var streamName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// Validate reports impossible values. Key is relative to the section.
func (c Config) Validate(fault func(key, problem, remedy string)) {
	switch c.Mode {
	case ModeSource, ModeMirror, ModeNone:
	default:
		fault("mode", fmt.Sprintf("is %q", c.Mode), "choose source, mirror or none")
	}
	if c.Lane != LaneLive && c.Lane != LaneBulk {
		fault("lane", fmt.Sprintf("is %q", c.Lane), "choose live or bulk")
	}
	if c.HubStream != "" && !streamName.MatchString(c.HubStream) {
		fault("hub_stream", fmt.Sprintf("is %q", c.HubStream), "use 1 to 64 letters, digits, - and _")
	}
	if c.HubStream != "" && c.Mode == ModeNone {
		fault("hub_stream", "is given although nothing is forwarded", "leave it out, or choose another mode")
	}
}

// Options are what New needs.
type Options struct {
	Leaf    string                      // name of this gateway
	Domain  string                      // the hub's JetStream domain; empty: hub.Domain
	Dir     string                      // where the progress shown while offline is kept; empty: nowhere
	Streams map[string]Config           // by stream name; an empty Mode is ModeSource
	Needs   map[string]storage.Position // by stream name, what the hub must have already; less, and nothing is sent
	Demand  *leaf.OnDemand              // when the link is opened; nil: it is always wanted, and not the uplink's business
	Rate    int64                       // bytes of records per second, on average and before compression; 0: no limit

	Commands  bool         // feed the stream of commands, which the executor makes, from the hub
	Documents bool         // keep the hub's configuration documents
	Log       *slog.Logger // nil: no log
}
