package mqtt

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.mqtt.golang/packets"

	"github.com/holdfast-edge/holdfast/rig/leak"
	"github.com/holdfast-edge/holdfast/rig/poll"
)

// TestBlockedStoreKeepsConnection blocks the store for several keepalives.
func TestBlockedStoreKeepsConnection(t *testing.T) {
	leak.Check(t)
	b, st := newScript(t), &fakeStore{epoch: 1}
	release := st.block()
	run(t, t.TempDir(), config(b.url()), st, func(s *Source) { s.cfg.KeepAlive = time.Second; s.timing.ping = 500 * time.Millisecond })
	p := b.session(false)
	var ids []uint16
	for i := range uint16(2000) {
		p.publish(pub{id: i + 1, topic: "a", payload: fmt.Sprint(i)})
		ids = append(ids, i+1)
	}
	p.quiet(2500 * time.Millisecond)
	if p.pings < 1 {
		t.Errorf("%d pings in 2.5 s with a keepalive of 1 s", p.pings)
	}
	release()
	p.pubacks(ids...)
	if st.len() != 2000 {
		t.Errorf("%d records, want 2000", st.len())
	}
}

// TestQueueFull lets a broker send more than the queue holds.
func TestQueueFull(t *testing.T) {
	leak.Check(t)
	b, st := newScript(t), &fakeStore{epoch: 1}
	release := st.block()
	cfg := config(b.url())
	cfg.Queue, cfg.MaxMessage = 100_000, 10_000
	r := run(t, t.TempDir(), cfg, st)
	p := b.session(false)
	payload := func(i int) string { return fmt.Sprintf("%04d", i) + strings.Repeat("x", 996) }
	const n = 400
	for i := range n {
		p.publish(pub{id: uint16(i + 1), topic: "a", payload: payload(i)})
	}
	p.publish(pub{topic: "a", payload: payload(n)})
	poll.Until(t, patience, func() bool { return r.Counts().Rejected[ReasonQueueFull] == 1 }, "the QoS 0 message to be counted")
	if q := r.Stats(); q.QueuedBytes > cfg.Queue {
		t.Errorf("%d bytes wait, want at most %d", q.QueuedBytes, cfg.Queue)
	}
	p.quiet(50 * time.Millisecond) // the connection lives on
	p.leaving = true
	release()

	acked := map[uint16]bool{}
	for {
		c, ok := p.next().(*packets.PubackPacket)
		if !ok {
			break // DISCONNECT
		}
		acked[c.MessageID] = true
	}
	if len(acked) == 0 || len(acked) == n {
		t.Fatalf("%d of %d were acknowledged on the first connection, want some", len(acked), n)
	}
	for len(acked) < n { // as often as needed: what is not acknowledged comes again
		p = b.session(true)
		p.leaving = true
		for i := range n {
			if !acked[uint16(i+1)] {
				p.publish(pub{id: uint16(i + 1), topic: "a", payload: payload(i), dup: true})
			}
		}
		for len(acked) < n {
			c, ok := p.next().(*packets.PubackPacket)
			if !ok {
				break
			}
			acked[c.MessageID] = true
		}
	}
	got := st.payloads()
	for i := range n {
		if i >= len(got) || got[i] != payload(i) {
			t.Fatalf("record %d of %d is wrong: all must be there once and in order", i, len(got))
		}
	}
	if len(got) != n {
		t.Errorf("%d records, want %d", len(got), n)
	}
}

// TestQueueFullBeforeSubscribe fills the queue before the source knows its connection.
func TestQueueFullBeforeSubscribe(t *testing.T) {
	b, st := newScript(t), &fakeStore{epoch: 1}
	cfg := config(b.url())
	cfg.MaxMessage, cfg.Queue = 1000, 1000
	run(t, t.TempDir(), cfg, st, func(s *Source) { s.timing.confirm = time.Hour }) // nothing else makes the worker look
	p := b.accept()
	p.leaving = true
	p.connack(0, true)
	for i := range 2000 {
		p.publish(pub{id: uint16(i + 1), topic: "a", payload: "x"})
	}
	for c := p.next(); c != nil; c = p.next() {
		if s, ok := c.(*packets.SubscribePacket); ok {
			_, _ = p.Write([]byte{0x90, 3, byte(s.MessageID >> 8), byte(s.MessageID), 1}) // it may be gone
		}
	}
	b.session(true)
}
