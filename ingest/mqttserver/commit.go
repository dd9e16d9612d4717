package mqttserver

import (
	"context"
	"encoding/json"
	"time"

	"github.com/holdfast-edge/holdfast/ingest"
	"github.com/holdfast-edge/holdfast/ingest/mqttserver/packet"
	"github.com/holdfast-edge/holdfast/ingest/seen"
	"github.com/holdfast-edge/holdfast/ingest/topic"
	"github.com/holdfast-edge/holdfast/storage"
)

// Limits of a batch that is delivered at once.
const (
	batchMessages = 1024
	batchBytes    = 1 << 20
)

// item is a message and what is to be done with it.
type item struct {
	*inbound
	store   bool
	reading ingest.Reading
	slot    int // of the mark, above 0 with QoS 1 and 2
	mark    seen.Mark
}

// commit delivers what comes until ctx ends or Deliver fails. What Deliver did not take stays in the batch.
func (s *Source) commit(ctx context.Context, deliver ingest.Deliver) error {
	for {
		s.forgetSettled()
		if len(s.batch) == 0 {
			known := map[seen.Digest]bool{} // messages of the batch
			for _, m := range s.intake.take(batchMessages, batchBytes) {
				s.batch = append(s.batch, s.judge(m, known))
			}
		}
		if len(s.batch) > 0 {
			if err := s.flush(ctx, deliver); err != nil {
				return err
			}
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.intake.ready:
		case list := <-s.settled:
			s.forgetMarks(list)
		}
	}
}

// judge decides what to do with a message. One with DUP is a redelivery only if the last message under its packet id is stored,
// is the same, and its acknowledgement has not reached the client.
func (s *Source) judge(m *inbound, known map[seen.Digest]bool) item {
	it := item{inbound: m}
	switch {
	case m.refuse != nil, m.repeat:
		return it
	case m.QoS > 0 && m.Dup && !m.will && (known[m.digest] || s.ring.Find(m.digest)):
		m.repeat = true
		s.redelivered.Add(1)
		return it
	}
	it.store = true
	tail, reversible := topic.Map(m.Topic)
	it.reading = ingest.Reading{Time: m.at, Tail: tail, Data: m.Payload, Header: s.header(m, reversible)}
	if m.QoS > 0 && !m.will {
		s.ring.Forget(m.digest) // the packet id is used again
		known[m.digest] = true
		it.slot, it.mark = s.ring.Place(m.digest)
		slot, mark := it.slot, it.mark
		it.reading.Note = func(id storage.ID) ([]byte, error) { return s.ring.Note(slot, mark, id), nil }
	}
	return it
}

// header returns the headers of a message's record, nil for none.
func (s *Source) header(m *inbound, reversible bool) map[string]string {
	var h map[string]string
	set := func(key, value string) {
		if h == nil {
			h = map[string]string{}
		}
		h[key] = value
	}
	if !reversible {
		set(topic.Header, topic.Escape(m.Topic))
	}
	if m.QoS == 0 {
		set(HeaderQoS, "0")
	}
	if m.will {
		set(HeaderWill, "1")
	}
	if s.cfg.Identify {
		set(HeaderClient, topic.Escape(m.client))
		if m.user != "" {
			set(HeaderUser, topic.Escape(m.user))
		}
	}
	if p := describe(&m.Properties); p != "" {
		set(HeaderProperties, p)
	}
	return h
}

// describe writes what a client of MQTT 5 says about its message as JSON in ASCII; empty for nothing.
func describe(p *packet.Properties) string {
	if len(p.Forward) == 0 && !p.HasExpiry {
		return ""
	}
	var d struct {
		Type     string      `json:"type,omitempty"`
		Response string      `json:"response,omitempty"`
		Corr     []byte      `json:"correlation,omitempty"`
		Expiry   *uint32     `json:"expiry,omitempty"`
		User     [][2]string `json:"user,omitempty"`
	}
	d.Type, d.Response, d.Corr = p.ContentType, p.ResponseTopic, p.Correlation
	if p.HasExpiry {
		d.Expiry = &p.Expiry
	}
	for _, u := range p.User {
		d.User = append(d.User, [2]string{u.Name, u.Value})
	}
	text, err := json.Marshal(d)
	if err != nil || string(text) == "{}" {
		return "" // strings and numbers can always be written
	}
	return asciiJSON(text)
}

// flush delivers the batch, then acknowledges its messages in order (MQTT 3.1.1 section 4.6) and hands them on.
func (s *Source) flush(ctx context.Context, deliver ingest.Deliver) error {
	readings := make([]ingest.Reading, 0, len(s.batch))
	for i := range s.batch {
		if s.batch[i].store {
			readings = append(readings, s.batch[i].reading)
		}
	}
	if len(readings) > 0 {
		if err := deliver(ctx, readings...); err != nil {
			return err
		}
		s.tally.Deliver(len(readings))
		s.heard.Store(int64(time.Since(s.began)))
	}
	s.mu.Lock()
	for i := range s.batch {
		it := &s.batch[i]
		if it.slot > 0 {
			s.ring.Store(it.slot, it.mark)
		}
		if it.refuse != nil {
			s.reject(it.inbound)
		}
		s.acknowledge(it.inbound)
		if it.store {
			s.pass(it.inbound)
		}
	}
	s.mu.Unlock()
	for i := range s.batch {
		s.intake.release(s.batch[i].size)
	}
	clear(s.batch) // let go of the payloads
	s.batch = s.batch[:0]
	return nil
}

// acknowledge tells the client that its message is stored, or need not be; s.mu is held.
func (s *Source) acknowledge(m *inbound) {
	if m.QoS == 0 || m.session == nil {
		return
	}
	x := m.session
	if x.pending[m.ID] == m {
		delete(x.pending, m.ID)
	}
	reason := packet.Success
	if m.refuse != nil {
		reason = m.refuse.code
	}
	kind := packet.PUBACK
	if m.QoS == 2 {
		kind = packet.PUBREC
		if m.refuse == nil || m.conn == nil || m.conn.version != packet.V5 {
			x.released[m.ID] = true
		}
	}
	c := m.conn
	if c == nil {
		return // it will be sent again
	}
	if kind == packet.PUBACK || c.version != packet.V5 || m.refuse != nil || m.repeat {
		c.unacked--
	}
	m.conn = nil
	c.putMarked(func(b []byte) []byte { return packet.AppendAck(b, kind, c.version, m.ID, reason) }, m.digest)
	c.goOn()
	if len(x.released) > maxReleased {
		c.leave(packet.QuotaExceeded)
	}
}

// maxReleased bounds the packet ids with QoS 2 that a client does not release.
const maxReleased = 8192

// forgetMarks voids the marks of messages whose acknowledgements have reached the client's side: it will not send them again.
func (s *Source) forgetMarks(list []seen.Digest) {
	for _, d := range list {
		if s.ring.Find(d) {
			s.ring.Forget(d)
		}
	}
}

// forgetSettled does that for all that is known by now.
func (s *Source) forgetSettled() {
	for {
		select {
		case list := <-s.settled:
			s.forgetMarks(list)
		default:
			return
		}
	}
}
