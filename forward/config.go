// Package forward brings what the streams hold to the hub, once and in order, and knows how far that is proven.
package forward

import (
	"fmt"
	"regexp"
)

// Ways in which the hub takes a stream.
const (
	ModeSource = "source" // many leaves into one hub stream
	ModeMirror = "mirror" // a hub stream of its own, with the leaf's sequence numbers
	ModeNone   = "none"   // stays on the leaf
)

// Config is the forward section of a stream.
type Config struct {
	Mode      string `yaml:"mode,scalar" enum:"source,mirror,none" doc:"how the hub takes the stream: as a source of a stream that many leaves share, as a mirror of its own, or not at all"`
	HubStream string `yaml:"hub_stream" doc:"stream at the hub; empty: the name of the stream, for a mirror <leaf>_<stream>"`
}

// SetDefaults sets what the file may leave out.
func (c *Config) SetDefaults() { c.Mode = ModeSource }

var hubStreamForm = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// Validate reports every fault of the section.
func (c Config) Validate(fault func(key, problem, remedy string)) {
	switch {
	case c.HubStream == "":
	case c.Mode == ModeNone:
		fault("hub_stream", "is set although the stream is not forwarded", "remove it, or choose mode source or mirror")
	case !hubStreamForm.MatchString(c.HubStream):
		fault("hub_stream", fmt.Sprintf("%q is not the name of a stream", c.HubStream), "use 1 to 64 letters, digits, - and _")
	}
}
