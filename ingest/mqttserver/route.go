package mqttserver

import (
	"time"

	"github.com/holdfast-edge/holdfast/ingest/mqttserver/packet"
	"github.com/holdfast-edge/holdfast/ingest/topic"
)

// maxRoutes bounds the topics whose subscribers are remembered.
const maxRoutes = 4096

// route is a subscriber of a topic.
type route struct {
	to     *session
	filter packet.Filter
}

// subscribers returns who wants a topic; s.mu is held.
func (s *Source) subscribers(name string) []route {
	if list, ok := s.routes[name]; ok {
		return list
	}
	var list []route
	for _, to := range s.sessions {
		if f, ok := to.matching(name); ok {
			list = append(list, route{to, f})
		}
	}
	if len(s.routes) >= maxRoutes {
		clear(s.routes)
	}
	s.routes[name] = list
	return list
}

// pass hands a message that is stored on to its subscribers, and retains it if it says so; s.mu is held.
func (s *Source) pass(m *inbound) {
	for _, r := range s.subscribers(m.Topic) {
		if r.filter.NoLocal && r.to == m.origin {
			continue
		}
		o := s.copyFor(&m.Publish, r.filter.QoS, m.at)
		o.Retain = m.Retain && r.filter.AsPublished
		if o.QoS == 0 && r.to.conn == nil {
			continue // MQTT 3.1.1 section 3.1.2.4: kept for an absent client or not, as we like
		}
		s.enqueue(r.to, o)
	}
	if m.Retain {
		s.retain(m)
	}
}

// copyFor makes a message for a subscriber who asked for this QoS.
func (s *Source) copyFor(p *packet.Publish, qos byte, at time.Time) *outgoing {
	o := &outgoing{Publish: packet.Publish{Topic: p.Topic, Payload: p.Payload, QoS: min(p.QoS, qos, maxGranted), Properties: packet.Properties{
		Forward: p.Properties.Forward, HasExpiry: p.Properties.HasExpiry}}}
	if p.Properties.HasExpiry {
		o.expires = at.Add(time.Duration(p.Properties.Expiry) * time.Second)
	}
	return o
}

// kept is a retained message.
type kept struct {
	packet.Publish
	expires time.Time // zero: never
}

func (k *kept) size() int64 {
	return int64(len(k.Topic)+len(k.Payload)+len(k.Properties.Forward)) + overhead
}

// retain keeps a message for later subscribers; an empty payload ends that (MQTT 3.1.1 section 3.3.1.3).
func (s *Source) retain(m *inbound) {
	old := s.retained[m.Topic]
	size := s.retainedBytes
	if old != nil {
		size -= old.size()
	}
	if len(m.Payload) == 0 {
		if old != nil {
			delete(s.retained, m.Topic)
			s.retainedBytes, s.retainedDirty = size, true
		}
		return
	}
	k := &kept{Publish: packet.Publish{Topic: m.Topic, Payload: m.Payload, QoS: m.QoS, Retain: true,
		Properties: packet.Properties{Forward: m.Properties.Forward, HasExpiry: m.Properties.HasExpiry}}}
	if m.Properties.HasExpiry {
		k.expires = m.at.Add(time.Duration(m.Properties.Expiry) * time.Second)
	}
	if size+k.size() > s.cfg.MaxRetained {
		if s.notRetained.Add(1) == 1 {
			s.log.Warn("a message is stored and not retained: max_retained is reached", "retained", len(s.retained))
		}
		return
	}
	s.retained[m.Topic], s.retainedBytes, s.retainedDirty = k, size+k.size(), true
}

// sendRetained queues the retained messages that a new subscription asks for; s.mu is held.
func (s *Source) sendRetained(to *session, f packet.Filter) {
	now := time.Now()
	for name, k := range s.retained {
		if !topic.Matches(f.Filter, name) {
			continue
		}
		o := &outgoing{Publish: k.Publish, expires: k.expires}
		o.QoS = min(k.QoS, f.QoS, maxGranted)
		if !k.expires.IsZero() && !now.Before(k.expires) {
			continue // housekeeping removes it
		}
		s.enqueue(to, o)
	}
}
