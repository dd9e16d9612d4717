package mqtt

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.mqtt.golang/packets"

	"github.com/holdfast-edge/holdfast/ingest"
	"github.com/holdfast-edge/holdfast/rig/leak"
	"github.com/holdfast-edge/holdfast/rig/poll"
)

func wantPayloads(t *testing.T, st *fakeStore, want ...string) {
	t.Helper()
	if got := st.payloads(); !reflect.DeepEqual(got, want) {
		t.Errorf("stored %q, want %q", got, want)
	}
}

func TestAcknowledgeAfterStoreInOrder(t *testing.T) {
	leak.Check(t)
	b, st := newScript(t), &fakeStore{epoch: 1}
	release := st.block()
	r := run(t, t.TempDir(), config(b.url()), st)
	p := b.session(false)
	if c := p.connect; c.CleanSession || c.ProtocolVersion != 4 || c.ClientIdentifier != r.ClientID() {
		t.Errorf("CONNECT = %v, want a kept session of MQTT 3.1.1", c)
	}
	p.publish(pub{id: 7, topic: "a/b", payload: "1"}, pub{id: 3, topic: "a/b", payload: "2"}, pub{topic: "a b", payload: "3"}, pub{id: 9, topic: "c", payload: "4"})
	p.quiet(100 * time.Millisecond)
	release()
	p.pubacks(7, 3, 9)
	wantPayloads(t, st, "1", "2", "3", "4")
	if tail := st.records[2].reading.Tail; tail != "a%20b" {
		t.Errorf("tail = %q", tail)
	}
	if q := st.header(0, HeaderQoS) + "," + st.header(2, HeaderQoS); q != ",0" {
		t.Errorf("%s of a QoS 1 and a QoS 0 message = %q", HeaderQoS, q)
	}
	r.until(ingest.Running, "")
	if c := r.Counts(); c.Received != 4 || len(c.Rejected) != 0 {
		t.Errorf("Counts = %+v", c)
	}
	r.stop()
	if _, ok := p.next().(*packets.DisconnectPacket); !ok {
		t.Error("the connection was not ended with DISCONNECT")
	}
}

func TestNoAcknowledgementWhenDeliverFails(t *testing.T) {
	leak.Check(t)
	b, st := newScript(t), &fakeStore{epoch: 1, fail: errors.New("closed")}
	r := run(t, t.TempDir(), config(b.url()), st)
	p := b.session(false)
	p.publish(pub{id: 1, topic: "a", payload: "1"}, pub{id: 2, topic: "a", payload: "2"})
	poll.Until(t, patience, func() bool { return r.log.contains("RUN ENDED: closed") }, "Run to fail")
	if c := p.next(); c != nil {
		if _, ok := c.(*packets.DisconnectPacket); !ok {
			t.Errorf("the client sent %v, want no PUBACK", c)
		}
	}
	// The same readings go first in the next run, and what comes again is recognised.
	st.mu.Lock()
	st.fail = nil
	st.mu.Unlock()
	r = start(t, r.Source, r.log, st.deliver)
	p = b.session(true)
	p.publish(pub{id: 1, topic: "a", payload: "1", dup: true}, pub{id: 2, topic: "a", payload: "2", dup: true}, pub{id: 3, topic: "a", payload: "3"})
	p.pubacks(1, 2, 3)
	wantPayloads(t, st, "1", "2", "3")
}

func TestRedeliveryIsRecognised(t *testing.T) {
	leak.Check(t)
	dir, b, st := t.TempDir(), newScript(t), &fakeStore{epoch: 1}
	r := run(t, dir, config(b.url()), st)
	p := b.session(false)
	p.mute = true // so that no acknowledgement is confirmed
	p.publish(pub{id: 1, topic: "a", payload: "1"}, pub{id: 2, topic: "a", payload: "2"}, pub{id: 3, topic: "b", payload: "3"})
	p.pubacks(1, 2, 3)
	_ = p.Close()

	t.Run("after a reconnect", func(t *testing.T) {
		p := b.session(true)
		p.mute = true
		p.publish(pub{id: 1, topic: "a", payload: "1", dup: true}, // stored
			pub{id: 2, topic: "a", payload: "other", dup: true}, // first copy lost
			pub{id: 3, topic: "b", payload: "3"},                // a new message: equal, but not flagged
			pub{id: 4, topic: "a", payload: "1", dup: true})     // equal, other packet id
		p.pubacks(1, 2, 3, 4)
		wantPayloads(t, st, "1", "2", "3", "other", "3", "1")
		_ = p.Close()
	})
	t.Run("after a restart", func(t *testing.T) {
		r.stop()
		st.reboot()
		r := run(t, dir, config(b.url()), st)
		p := b.session(true)
		p.publish(pub{id: 1, topic: "a", payload: "1", dup: true}, pub{id: 2, topic: "a", payload: "other", dup: true},
			pub{id: 3, topic: "b", payload: "4", dup: true})
		p.pubacks(1, 2, 3)
		wantPayloads(t, st, "1", "2", "3", "other", "3", "1", "4")
		if n := r.Stats().Redelivered; n != 2 {
			t.Errorf("Redelivered = %d, want 2", n)
		}
	})
}

// TestRedeliveryOfUncommitted kills the daemon between the note and the commit: what was noted must not be acknowledged.
func TestRedeliveryOfUncommitted(t *testing.T) {
	dir, b, st := t.TempDir(), newScript(t), &fakeStore{epoch: 1}
	r := run(t, dir, config(b.url()), st)
	p := b.session(false)
	p.mute = true
	p.publish(pub{id: 1, topic: "a", payload: "1"})
	p.pubacks(1)
	st.mu.Lock()
	st.fail = errors.New("killed")
	st.mu.Unlock()
	p.publish(pub{id: 2, topic: "a", payload: "2"})
	poll.Until(t, patience, func() bool { return r.log.contains("RUN ENDED") }, "Run to fail")
	r.stop()

	for range 2 { // the second start must not take the note for one of a committed record either
		st.reboot()
		r = run(t, dir, config(b.url()), st)
		p = b.session(true)
		p.mute = true
		st.mu.Lock()
		st.fail = nil
		st.mu.Unlock()
		p.publish(pub{id: 1, topic: "a", payload: "1", dup: true}, pub{id: 9, topic: "a", payload: "9"})
		p.pubacks(1, 9)
		r.stop()
	}
	st.reboot()
	run(t, dir, config(b.url()), st)
	p = b.session(true)
	p.publish(pub{id: 2, topic: "a", payload: "2", dup: true})
	p.pubacks(2)
	wantPayloads(t, st, "1", "9", "9", "2")
}

// TestEqualReadingIsNotLost is the danger of recognising by packet id and content: the broker has our acknowledgement, uses
// the packet id again for an equal reading, and its first copy is lost.
func TestEqualReadingIsNotLost(t *testing.T) {
	leak.Check(t)
	dir, b, st := t.TempDir(), newScript(t), &fakeStore{epoch: 1}
	r := run(t, dir, config(b.url()), st)
	p := b.session(false)
	p.publish(pub{id: 1, topic: "door", payload: "shut"})
	p.pubacks(1)
	answer(p)
	untilConfirmed(t, r, 0)
	check := func(want ...string) {
		t.Helper()
		p := b.session(true)
		p.mute = true
		p.publish(pub{id: 1, topic: "door", payload: "shut", dup: true})
		p.pubacks(1)
		wantPayloads(t, st, want...)
		_ = p.Close()
	}
	r.stop()
	st.reboot()
	r = run(t, dir, config(b.url()), st)
	check("shut", "shut")
	// That one is not confirmed, so it is known now, also after a restart.
	check("shut", "shut")
	r.stop()
	st.reboot()
	run(t, dir, config(b.url()), st)
	check("shut", "shut")
}

// answer answers pings until the connection ends.
func answer(p *peer) {
	go func() {
		for {
			c, err := packets.ReadPacket(p)
			if err != nil {
				return
			}
			if _, ok := c.(*packets.PingreqPacket); ok {
				_ = packets.NewControlPacket(packets.Pingresp).Write(p) // it may be closed
			}
		}
	}()
}

// untilConfirmed waits until a ping has confirmed all acknowledgements but so many.
func untilConfirmed(t *testing.T, r *running, but int) {
	t.Helper()
	poll.Until(t, patience, func() bool {
		r.delivered.mu.Lock()
		defer r.delivered.mu.Unlock()
		return len(r.delivered.marks) == but
	}, "all but %d marks to be void", but)
}

// TestConfirmComesAfterWhatWasSentBefore sends a repeated message in front of the answer to a ping.
func TestConfirmComesAfterWhatWasSentBefore(t *testing.T) {
	b, st := newScript(t), &fakeStore{epoch: 1}
	run(t, t.TempDir(), config(b.url()), st)
	p := b.session(false)
	p.publish(pub{id: 1, topic: "a", payload: "1"})
	p.pubacks(1)
	for {
		c, err := packets.ReadPacket(p)
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := c.(*packets.PingreqPacket); ok {
			break
		}
	}
	p.publish(pub{id: 1, topic: "a", payload: "1", dup: true})
	p.send(packets.NewControlPacket(packets.Pingresp))
	p.pubacks(1)
	wantPayloads(t, st, "1")
}

func TestSessionLost(t *testing.T) {
	dir, b, st := t.TempDir(), newScript(t), &fakeStore{epoch: 1}
	r := run(t, dir, config(b.url()), st)
	p := b.session(false)
	p.mute = true
	p.publish(pub{id: 1, topic: "a", payload: "1"})
	p.pubacks(1)
	if r.Stats().Forgotten != 0 {
		t.Error("the first session counts as forgotten")
	}
	_ = p.Close()
	p = b.session(false)
	p.publish(pub{id: 1, topic: "a", payload: "1", dup: true}) // of a new session, so another message
	p.pubacks(1)
	wantPayloads(t, st, "1", "1")
	if r.Stats().Forgotten != 1 || !r.log.contains("broker has lost our session") {
		t.Errorf("Forgotten = %d, want 1 and a warning", r.Stats().Forgotten)
	}
}

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

func TestQoS2(t *testing.T) {
	b, st := newScript(t), &fakeStore{epoch: 1}
	cfg := config(b.url())
	cfg.QoS = 2
	release := st.block()
	r := run(t, t.TempDir(), cfg, st)
	p := b.session(false)
	p.mute = true
	send := func(id uint16, payload string, dup bool) {
		c := packets.NewControlPacket(packets.Publish).(*packets.PublishPacket)
		c.MessageID, c.TopicName, c.Payload, c.Dup, c.Qos = id, "a", []byte(payload), dup, 2
		p.send(c)
	}
	received := func(id uint16) {
		t.Helper()
		if c, ok := p.next().(*packets.PubrecPacket); !ok || c.MessageID != id {
			t.Fatalf("the client sent %v, want PUBREC %d", c, id)
		}
	}
	send(1, "1", false)
	p.quiet(50 * time.Millisecond)
	release()
	received(1)
	rel := packets.NewControlPacket(packets.Pubrel).(*packets.PubrelPacket)
	rel.MessageID = 1
	p.send(rel)
	if c, ok := p.next().(*packets.PubcompPacket); !ok || c.MessageID != 1 {
		t.Fatalf("the client sent %v, want PUBCOMP 1", c)
	}
	send(2, "2", false)
	received(2)
	_ = p.Close() // before PUBREL
	p = b.session(true)
	send(2, "2", true)
	received(2)
	wantPayloads(t, st, "1", "2")
	p.mute = false
	answer(p)
	untilConfirmed(t, r, 1) // of the first message nothing is heard any more, since its PUBREC was on another connection
}

func TestRetained(t *testing.T) {
	for _, tt := range []struct {
		mode string
		want []string
		skip uint64
	}{
		{RetainedOnce, []string{"old", "live", "live", "new", "next"}, 0},
		{RetainedAll, []string{"old", "live", "live", "old", "new", "old", "next"}, 0},
		{RetainedSkip, []string{"live", "live", "next"}, 2},
	} {
		t.Run(tt.mode, func(t *testing.T) {
			dir, b, st := t.TempDir(), newScript(t), &fakeStore{epoch: 1}
			cfg := config(b.url())
			cfg.Retained = tt.mode
			r := run(t, dir, cfg, st)
			p := b.session(false)
			p.publish(pub{id: 1, topic: "a", payload: "old", retain: true}, pub{id: 2, topic: "a", payload: "live"}, pub{id: 3, topic: "a", payload: "live"},
				pub{id: 4, topic: "a", payload: "old", retain: true})
			p.pubacks(1, 2, 3, 4)
			if tt.mode != RetainedSkip && st.header(0, HeaderRetained)+st.header(1, HeaderRetained) != "1" {
				t.Errorf("%s of a retained and a live message = %q, %q", HeaderRetained, st.header(0, HeaderRetained), st.header(1, HeaderRetained))
			}
			if n := r.Counts().Rejected[ReasonRetained]; n != tt.skip {
				t.Errorf("Rejected = %d, want %d", n, tt.skip)
			}
			r.stop()
			st.reboot()
			run(t, dir, cfg, st)
			p = b.session(true)
			p.publish(pub{id: 5, topic: "a", payload: "new", retain: true}, pub{topic: "a", payload: "old", retain: true}, pub{id: 6, topic: "a", payload: "next"})
			p.pubacks(5, 6)
			wantPayloads(t, st, tt.want...)
		})
	}
}

func TestPayloadTooLarge(t *testing.T) {
	b, st := newScript(t), &fakeStore{epoch: 1}
	cfg := config(b.url())
	cfg.MaxMessage = 1000
	r := run(t, t.TempDir(), cfg, st)
	p := b.session(false)
	at, over := strings.Repeat("x", 1000), strings.Repeat("y", 1001)
	p.publish(pub{id: 1, topic: "a", payload: over}, pub{topic: "a", payload: over}, pub{id: 2, topic: strings.Repeat("t", 2000), payload: at}, pub{id: 3, topic: "a", payload: ""})
	p.pubacks(1, 2, 3)
	wantPayloads(t, st, at, "")
	if topic, err := UnescapeTopic(st.header(0, HeaderTopic)); err != nil || topic != strings.Repeat("t", 2000) {
		t.Errorf("header %s = %q, %v", HeaderTopic, topic, err)
	}
	if c := r.Counts(); c.Rejected[ReasonTooLarge] != 2 || c.RejectedBytes[ReasonTooLarge] != 2002 || c.Received != 4 {
		t.Errorf("Counts = %+v", c)
	}
}

func TestSilence(t *testing.T) {
	b, st := newScript(t), &fakeStore{epoch: 1}
	cfg := config(b.url())
	cfg.Silence = 300 * time.Millisecond
	r := run(t, t.TempDir(), cfg, st)
	p := b.session(false)
	r.until(ingest.Running, "")
	r.until(ingest.Silent, "no message")
	p.publish(pub{topic: "a", payload: "1"})
	r.until(ingest.Running, "")
}
