package mqttserver

import (
	"fmt"
	"time"

	"github.com/holdfast-edge/holdfast/ingest"
	"github.com/holdfast-edge/holdfast/ingest/topic"
)

// reject counts a message that is not stored.
func (s *Source) reject(m *inbound) {
	s.tally.Reject(m.refuse.reason, m.refuse.bytes)
	s.note("message of client %q on topic %q refused: %s", m.client, short(m.Topic), m.refuse.reason)
}

// refuseLoudly counts a message that its client is thrown out for.
func (s *Source) refuseLoudly(reason string, bytes int) { s.tally.Reject(reason, bytes) }

// short writes a topic for a log line.
func short(name string) string {
	const most = 100
	if name = topic.Escape(name); len(name) > most {
		return name[:most] + "…"
	}
	return name
}

// noteTime is how long a refusal shows in the state, and how often one is logged at most.
const (
	noteTime = time.Minute
	logTime  = 10 * time.Second
)

// note remembers what was refused, for the state, and logs it now and then.
func (s *Source) note(format string, args ...any) {
	s.noteMu.Lock()
	defer s.noteMu.Unlock()
	s.notes++
	now := time.Now()
	s.noted, s.noteAt = fmt.Sprintf(format, args...), now
	if now.Sub(s.logAt) >= logTime {
		s.logAt = now
		s.log.Warn("refused", "cause", s.noted, "total", s.notes)
	}
}

// show sets the state while there is a listener.
func (s *Source) show() {
	if len(s.Addrs()) == 0 {
		return
	}
	s.noteMu.Lock()
	noted, at := s.noted, s.noteAt
	s.noteMu.Unlock()
	quiet := time.Since(s.began) - time.Duration(s.heard.Load())
	switch {
	case s.cfg.Silence > 0 && quiet >= s.cfg.Silence:
		s.state.Set(ingest.Silent, fmt.Sprintf("no message for more than %v, from %d clients", s.cfg.Silence, s.Stats().Connected),
			"check that the devices are on and reach this gateway, and that their users and topics are in the configuration")
	case noted != "" && time.Since(at) < noteTime:
		s.state.Set(ingest.Running, noted, "correct the settings of the device, or users and access of this source")
	default:
		s.state.Set(ingest.Running, "", "")
	}
}
