// Package command executes what a stream of commands orders, in order per source and once, and stores what became of it.
package command

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/ingest"
)

// Stream is the name of the stream of commands on the leaf.
const Stream = "COMMANDS"

// Headers of commands, and of outcome records. docs/WIRE.md describes them.
const (
	HeaderNotAfter = "Holdfast-Not-After" // of a command: RFC 3339, when it must have begun
	HeaderTimeout  = "Holdfast-Timeout"   // of a command: how long the execution may take, such as 5s
	HeaderCommand  = "Holdfast-Command"   // of an outcome record: the command's ID
)

// TailOutcome is the token behind the source in the subject of outcome records.
const TailOutcome = "outcome"

// Bounds of the stream of commands: what waits for a device that takes none.
const (
	maxWaiting      = 10_000
	maxWaitingBytes = 16 << 20
	maxCommand      = 256 << 10 // bytes of one command
	maxReply        = 32 << 10  // bytes of a reply that an outcome record holds
)

// Subject returns the subject of commands for a source; tail is empty for none.
func Subject(leaf, source, tail string) string {
	s := "cmd." + leaf + "." + source
	if tail != "" {
		s += "." + tail
	}
	return s
}

// Outcome is the content of an outcome record, as JSON.
type Outcome struct {
	Command string    `json:"command"`         // the command's ID
	Source  string    `json:"source"`          // the source it was for
	Tail    string    `json:"tail,omitempty"`  // subject tokens behind the source
	State   string    `json:"state"`           // one of the ingest.Outcome constants
	Cause   string    `json:"cause,omitempty"` // why it is not done
	Reply   []byte    `json:"reply,omitempty"` // what the device answered, in base64; the first 32 KiB of it
	Time    time.Time `json:"time"`            // when that was known, by the gateway's clock
}

// outcome makes the content of an outcome record.
func outcome(c ingest.Command, o ingest.Outcome) Outcome {
	return Outcome{Command: c.ID, Source: c.Source, Tail: c.Tail, State: o.State, Cause: o.Cause,
		Reply: o.Reply[:min(len(o.Reply), maxReply)], Time: time.Now()}
}

// reading makes the record.
func (o Outcome) reading() (ingest.Reading, error) {
	data, err := json.Marshal(o)
	if err != nil {
		return ingest.Reading{}, fmt.Errorf("write the outcome of command %s: %w", o.Command, err)
	}
	return ingest.Reading{Time: o.Time, Tail: TailOutcome, Data: data, Header: map[string]string{HeaderCommand: o.Command}}, nil
}

// Message makes the message of a command on its way into the stream.
func Message(leaf string, c ingest.Command) *nats.Msg {
	m := nats.NewMsg(Subject(leaf, c.Source, c.Tail))
	m.Data = c.Data
	for k, v := range c.Header {
		m.Header.Set(k, v)
	}
	m.Header.Set(jetstream.MsgIDHeader, c.ID)
	if !c.NotAfter.IsZero() {
		m.Header.Set(HeaderNotAfter, c.NotAfter.UTC().Format(time.RFC3339Nano))
	}
	if c.Timeout > 0 {
		m.Header.Set(HeaderTimeout, c.Timeout.String())
	}
	return m
}

// parse reads a message of the stream. A command without an ID of its own gets one of its place in the stream. The error says why the
// command cannot be executed; the rest of it is right all the same.
func parse(leaf, store string, m jetstream.Msg, seq uint64) (c ingest.Command, err error) {
	source, tail, _ := strings.Cut(strings.TrimPrefix(m.Subject(), Subject(leaf, "", "")), ".")
	c = ingest.Command{ID: m.Headers().Get(jetstream.MsgIDHeader), Source: source, Tail: tail, Data: m.Data(), Timeout: ingest.DefaultCommandTimeout}
	if c.ID == "" {
		c.ID = fmt.Sprintf("%s.%s.%s.%d", leaf, store, Stream, seq)
	}
	for k, v := range m.Headers() {
		switch {
		case k == HeaderNotAfter:
			if c.NotAfter, err = time.Parse(time.RFC3339Nano, v[0]); err != nil {
				return c, fmt.Errorf("%s %q is no time as 2006-01-02T15:04:05Z", HeaderNotAfter, v[0])
			}
		case k == HeaderTimeout:
			if c.Timeout, err = time.ParseDuration(v[0]); err != nil || c.Timeout <= 0 || c.Timeout > ingest.MaxCommandTimeout {
				return c, fmt.Errorf("%s %q is no duration up to %s, such as 5s", HeaderTimeout, v[0], ingest.MaxCommandTimeout)
			}
		case !strings.HasPrefix(k, "Nats-"):
			if c.Header == nil {
				c.Header = map[string]string{}
			}
			c.Header[k] = v[0]
		}
	}
	if len(c.Data) > maxCommand {
		return c, fmt.Errorf("it has %d bytes, and %d are allowed", len(c.Data), maxCommand)
	}
	return c, nil
}
