package mqttserver

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"slices"
	"time"

	"github.com/holdfast-edge/holdfast/ingest/mqttserver/packet"
	"github.com/holdfast-edge/holdfast/ingest/seen"
	"github.com/holdfast-edge/holdfast/ingest/topic"
)

// outWindow is how many messages with QoS 1 a client is sent before it acknowledges one.
const outWindow = 16

// session is what is known of a client, connected or not. Source.mu guards all of it but id, client and user.
type session struct {
	id     string // random; a client that begins anew gets another
	client string
	user   string
	expiry time.Duration // how long it outlives its connection; 0: not at all
	conn   *conn         // nil while the client is away
	left   time.Time     // when it went
	rights rights

	// From the client.
	pending  map[uint16]*inbound // messages with QoS 1 and 2 that are not acknowledged
	released map[uint16]bool     // packet ids of QoS 2 that are acknowledged, until PUBREL

	// To the client.
	subs    map[string]packet.Filter
	queue   []*outgoing // not sent yet
	flight  []*outgoing // sent with QoS 1 and not acknowledged, in order
	nextID  uint16
	dropped uint64 // messages there was no room for
	unsaved bool   // queue or flight have changed since they were saved
	saved   int    // how many messages the file holds

	will  *inbound  // to be said when the client is lost
	after time.Time // when a will that waits is due; zero: it does not wait
}

// outgoing is a message for one client.
type outgoing struct {
	packet.Publish
	expires time.Time          // zero: never
	done    func(acknowledged) // told once what became of it; nil: nobody asks
}

// acknowledged is what is known of a message for a client.
type acknowledged uint8

const (
	lost      acknowledged = iota // it never went out
	inDoubt                       // it went out, and nothing came back
	confirmed                     // the client has it
)

func newSession(client, user string) *session {
	var id [8]byte
	rand.Read(id[:])
	return &session{id: hex.EncodeToString(id[:]), client: client, user: user, pending: map[uint16]*inbound{},
		released: map[uint16]bool{}, subs: map[string]packet.Filter{}}
}

// digestKey is how many bytes of a digest say which session and packet id it is of.
const digestKey = 6

// digestOf returns by what a message is recognised: session and packet id, then topic and payload.
func (s *session) digestOf(p *packet.Publish) (d seen.Digest) {
	var id [2]byte
	binary.BigEndian.PutUint16(id[:], p.ID)
	who, what := seen.DigestOf([]byte(s.id), id[:]), seen.DigestOf([]byte(p.Topic), p.Payload)
	copy(d[:digestKey], who[:])
	copy(d[digestKey:], what[:])
	return d
}

func (o *outgoing) size() int64 {
	return int64(len(o.Topic)+len(o.Payload)+len(o.Properties.Forward)) + overhead
}

func (o *outgoing) end(a acknowledged) {
	if o.done != nil {
		o.done(a)
		o.done = nil
	}
}

// enqueue puts a message into the client's queue; false means that there was no room.
func (s *Source) enqueue(to *session, o *outgoing) bool {
	if len(to.queue)+len(to.flight) >= s.cfg.MaxQueued || s.outgoing+o.size() > s.cfg.Outgoing {
		to.dropped++
		s.dropped.Add(1)
		if to.dropped == 1 || to.dropped%1000 == 0 {
			s.log.Warn("message for a client dropped, too many wait", "client", to.client, "waiting", len(to.queue), "dropped", to.dropped)
		}
		o.end(lost)
		return false
	}
	s.outgoing += o.size()
	to.queue, to.unsaved = append(to.queue, o), true
	if to.conn != nil {
		to.conn.nudge()
	}
	return true
}

// fill appends messages for the client to b, up to about limit bytes and as many as may be under way.
func (s *Source) fill(c *conn, b []byte, limit int) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	to := c.session
	if to == nil || to.conn != c {
		return b
	}
	now := time.Now()
	for len(to.queue) > 0 && len(b) < limit {
		o := to.queue[0]
		if o.QoS > 0 && len(to.flight) >= c.sendWindow {
			break
		}
		to.queue, to.unsaved = to.queue[1:], true
		if !o.expires.IsZero() {
			left := o.expires.Sub(now)
			if left <= 0 {
				s.forget(o, lost)
				continue
			}
			o.Properties.Expiry = uint32(left/time.Second) + 1
		}
		if o.QoS > 0 {
			o.ID = to.freeID()
		}
		start := len(b)
		b = o.Append(b, c.version)
		switch {
		case c.maxPacket > 0 && len(b)-start > int(c.maxPacket): // MQTT 5 section 3.1.2.11.4
			b = b[:start]
			s.forget(o, lost)
		case o.QoS > 0:
			to.flight = append(to.flight, o)
		default:
			s.forget(o, inDoubt)
		}
	}
	return b
}

// forget takes a message out of the account.
func (s *Source) forget(o *outgoing, a acknowledged) {
	s.outgoing -= o.size()
	o.end(a)
}

// freeID returns a packet id that is not under way.
func (to *session) freeID() uint16 {
	for {
		if to.nextID++; to.nextID == 0 {
			to.nextID = 1
		}
		if !slices.ContainsFunc(to.flight, func(o *outgoing) bool { return o.ID == to.nextID }) {
			return to.nextID
		}
	}
}

// resend puts what the client did not acknowledge in front of its queue, to be sent again in the old order and with the old
// packet ids (MQTT 3.1.1 section 4.4). It returns the packets.
func (to *session) resend(b []byte, version byte) []byte {
	for _, o := range to.flight {
		o.Dup = true
		b = o.Append(b, version)
	}
	return b
}

// settle is called when the client has acknowledged a message.
func (s *Source) settle(to *session, id uint16) {
	for i, o := range to.flight {
		if o.ID == id {
			to.flight, to.unsaved = slices.Delete(to.flight, i, i+1), true
			s.forget(o, confirmed)
			return
		}
	}
}

// drop forgets everything that waits for a client.
func (s *Source) drop(to *session) {
	for _, o := range to.queue {
		s.forget(o, lost)
	}
	for _, o := range to.flight {
		s.forget(o, inDoubt)
	}
	to.queue, to.flight, to.unsaved = nil, nil, true
}

// end removes a session; s.mu is held.
func (s *Source) end(x *session) {
	if s.sessions[x.client] == x {
		delete(s.sessions, x.client)
	}
	s.drop(x)
	clear(s.routes)
	for _, m := range x.pending {
		m.conn = nil
	}
}

// matching returns the best QoS with which a session wants a topic.
func (to *session) matching(name string) (best packet.Filter, ok bool) {
	for _, f := range to.subs {
		if topic.Matches(f.Filter, name) && (!ok || f.QoS > best.QoS || f.QoS == best.QoS && best.NoLocal) {
			best, ok = f, true
		}
	}
	return best, ok
}
