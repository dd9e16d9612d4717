package mqttserver

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-edge/holdfast/ingest/mqttserver/packet"
	"github.com/holdfast-edge/holdfast/ingest/topic"
)

// Limits of what a client may ask for.
const (
	maxGranted       = 1   // highest QoS of messages to clients
	maxSubscriptions = 100 // of one session
	maxFilter        = 4096
)

// errLeft ends a connection whose client said goodbye, or that another one has taken over.
var errLeft = errors.New("the client left")

// handle does what a packet other than PUBLISH asks for.
func (c *conn) handle(h packet.Header, body []byte) error {
	switch h.Type {
	case packet.PINGREQ:
		if len(body) > 0 {
			return &packet.Error{Reason: packet.MalformedPacket, Text: "ping with a body"}
		}
		c.put(packet.AppendPingresp)
		return nil
	case packet.PUBACK, packet.PUBREC, packet.PUBREL, packet.PUBCOMP:
		a, err := packet.DecodeAck(c.version, body)
		if err != nil {
			return err
		}
		return c.acknowledged(h.Type, a)
	case packet.SUBSCRIBE:
		sub, err := packet.DecodeSubscribe(c.version, body)
		if err != nil {
			return err
		}
		return c.subscribe(sub)
	case packet.UNSUBSCRIBE:
		sub, err := packet.DecodeUnsubscribe(c.version, body)
		if err != nil {
			return err
		}
		return c.unsubscribe(sub)
	case packet.DISCONNECT:
		d, err := packet.DecodeDisconnect(c.version, body)
		if err != nil {
			return err
		}
		return c.goodbye(d)
	}
	return &packet.Error{Reason: packet.ProtocolError, Text: fmt.Sprintf("packet of type %d from a client", h.Type)}
}

// mine runs f under Source.mu while the session is this connection's; else it returns errLeft.
func (c *conn) mine(f func() error) error {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if c.session.conn != c {
		return errLeft
	}
	return f()
}

// publish takes a message, for which so many bytes are reserved. It is refused when refuse says so.
func (c *conn) publish(p packet.Publish, size int64, refuse *refusal) error {
	m := &inbound{Publish: p, at: time.Now(), user: c.session.user, client: c.session.client, conn: c, session: c.session,
		origin: c.session, size: size, refuse: refuse}
	if p.QoS > 0 {
		m.digest = c.session.digestOf(&m.Publish)
	}
	pushed := false // from then on it is the committer's
	err := c.mine(func() (err error) {
		if p.Properties.HasTopicAlias {
			return &packet.Error{Reason: packet.TopicAliasInvalid, Text: "topic alias, of which none was offered"}
		}
		if m.refuse == nil {
			m.refuse = c.session.rights.judge(&m.Publish)
		}
		if pushed = true; p.QoS > 0 {
			pushed, err = c.expect(m)
		}
		if pushed {
			c.s.intake.push(m)
		}
		return err
	})
	if !pushed {
		c.s.intake.release(size)
	}
	return err
}

// expect notes a message with QoS 1 or 2 as one that is to be acknowledged. It is not fresh when the same is under way already: a
// client sends it again on a new connection. Source.mu is held.
func (c *conn) expect(m *inbound) (fresh bool, err error) {
	x := c.session
	if m.QoS == 2 && x.released[m.ID] {
		m.repeat = true // acknowledged before, and not released: the same message (MQTT 3.1.1 section 4.3.3)
	}
	if old := x.pending[m.ID]; old != nil && m.Dup && old.digest == m.digest && old.QoS == m.QoS {
		if old.conn != c {
			old.conn = c
			c.unacked++
		}
		return false, nil
	}
	if c.version == packet.V5 && c.unacked >= c.s.cfg.Window {
		return false, errTooMany
	}
	c.unacked++
	x.pending[m.ID] = m
	return true, nil
}

// judge says why a message is not stored; nil: it is.
func (r rights) judge(p *packet.Publish) *refusal {
	switch {
	case p.Topic == "":
		return &refusal{ReasonTopic, packet.TopicNameInvalid, len(p.Payload)}
	case !packet.ValidText(p.Topic), topic.HasWildcard(p.Topic):
		return &refusal{ReasonTopic, packet.TopicNameInvalid, len(p.Payload)}
	case !r.mayPublish(p.Topic):
		return &refusal{ReasonDenied, packet.NotAuthorized, len(p.Payload)}
	}
	return nil
}

// acknowledged takes an answer of the client.
func (c *conn) acknowledged(t packet.Type, a packet.Ack) error {
	return c.mine(func() error {
		x := c.session
		switch t {
		case packet.PUBACK:
			c.s.settle(x, a.ID)
			c.nudge()
		case packet.PUBREL:
			if x.released[a.ID] {
				delete(x.released, a.ID)
				if c.version == packet.V5 {
					c.unacked = max(0, c.unacked-1)
				}
			}
			c.put(func(b []byte) []byte { return packet.AppendAck(b, packet.PUBCOMP, c.version, a.ID, packet.Success) })
		default: // we send nothing with QoS 2
		}
		return nil
	})
}

// subscribe notes what the client wants. A subscription of a session that outlives its connection is on flash before the answer.
func (c *conn) subscribe(sub packet.Subscribe) error {
	if sub.SubscriptionID > 0 {
		return &packet.Error{Reason: packet.SubIDNotSupported, Text: "subscription identifier, which was not offered"}
	}
	codes := make([]packet.Reason, len(sub.Filters))
	fresh := make([]bool, len(sub.Filters))
	changed := false
	err := c.mine(func() error {
		x := c.session
		for i, f := range sub.Filters {
			old, known := x.subs[f.Filter]
			fresh[i] = !known
			if codes[i] = c.allow(f, known); codes[i] >= packet.UnspecifiedError {
				continue
			}
			f.QoS = byte(codes[i])
			x.subs[f.Filter] = f
			changed = changed || !known || old != f
		}
		clear(c.s.routes)
		return nil
	})
	if err != nil {
		return err
	}
	if changed {
		if err := c.s.saver.save(c.session); err != nil {
			c.s.log.Error("subscription refused, it cannot be saved", "client", c.session.client, "err", err)
			return c.takeBack(sub, codes)
		}
	}
	return c.mine(func() error {
		c.put(func(b []byte) []byte { return packet.AppendSuback(b, c.version, sub.ID, codes) })
		for i, f := range sub.Filters {
			if codes[i] < packet.UnspecifiedError && (f.RetainHandling == 0 || f.RetainHandling == 1 && fresh[i]) {
				f.QoS = byte(codes[i])
				c.s.sendRetained(c.session, f)
			}
		}
		return nil
	})
}

// takeBack removes subscriptions that could not be saved and refuses them.
func (c *conn) takeBack(sub packet.Subscribe, codes []packet.Reason) error {
	return c.mine(func() error {
		for i, f := range sub.Filters {
			if codes[i] < packet.UnspecifiedError {
				delete(c.session.subs, f.Filter)
				codes[i] = packet.UnspecifiedError
			}
		}
		clear(c.s.routes)
		c.put(func(b []byte) []byte { return packet.AppendSuback(b, c.version, sub.ID, codes) })
		return nil
	})
}

// allow returns the QoS that a subscription is granted, or why it is refused.
func (c *conn) allow(f packet.Filter, known bool) packet.Reason {
	switch {
	case strings.HasPrefix(f.Filter, "$share/"):
		return packet.SharedNotSupported
	case topic.CheckFilter(f.Filter) != nil:
		return packet.TopicFilterInvalid
	case !c.session.rights.maySubscribe(f.Filter):
		c.s.note("client %q may not subscribe to %q", c.session.client, f.Filter)
		return packet.NotAuthorized
	case len(f.Filter) > maxFilter, !known && len(c.session.subs) >= maxSubscriptions:
		return packet.QuotaExceeded
	}
	return packet.Reason(min(f.QoS, maxGranted))
}

func (c *conn) unsubscribe(sub packet.Subscribe) error {
	codes := make([]packet.Reason, len(sub.Filters))
	err := c.mine(func() error {
		for i, f := range sub.Filters {
			if _, ok := c.session.subs[f.Filter]; !ok {
				codes[i] = packet.NoSubscription
			}
			delete(c.session.subs, f.Filter)
		}
		clear(c.s.routes)
		return nil
	})
	if err != nil {
		return err
	}
	if err := c.s.saver.save(c.session); err != nil {
		c.s.log.Warn("a subscription that was ended may come back after a restart", "client", c.session.client, "err", err)
	}
	c.put(func(b []byte) []byte { return packet.AppendUnsuback(b, c.version, sub.ID, codes) })
	return nil
}

// goodbye ends the connection as the client wants it.
func (c *conn) goodbye(d packet.Disconnect) error {
	return c.mine(func() error {
		if d.Properties.HasSessionExpiry {
			if c.session.expiry == 0 && d.Properties.SessionExpiry > 0 {
				return &packet.Error{Reason: packet.ProtocolError, Text: "a session that ends with its connection cannot be kept after all"}
			}
			c.session.expiry = c.s.expiry(d.Properties.SessionExpiry)
		}
		if c.graceful = d.Reason != packet.WithWill; c.graceful {
			c.session.will = nil
		}
		return errLeft
	})
}
