package mqtt

import (
	"errors"
	"testing"

	"github.com/eclipse/paho.mqtt.golang/packets"

	"github.com/holdfast-edge/holdfast/rig/leak"
	"github.com/holdfast-edge/holdfast/rig/poll"
)

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
