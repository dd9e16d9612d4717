package mqtt

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.mqtt.golang/packets"

	"github.com/holdfast-edge/holdfast/ingest"
	"github.com/holdfast-edge/holdfast/ingest/topic"
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
	if back, err := topic.Unescape(st.header(0, topic.Header)); err != nil || back != strings.Repeat("t", 2000) {
		t.Errorf("header %s = %q, %v", topic.Header, back, err)
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
