package mqttserver

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/ingest/mqttserver/packet"
	"github.com/holdfast-edge/holdfast/rig/leak"
	"github.com/holdfast-edge/holdfast/rig/poll"
)

func TestRedeliveryIsRecognised(t *testing.T) {
	leak.Check(t)
	dir, cfg := stateDir(t), config(t)
	r := run(t, cfg, dir)
	d, _ := connect(t, r.Source, login{id: "a", keep: true})
	release := r.st.block()
	d.publish(qos1(1, "d/x", "1"))
	d.publish(qos1(2, "d/x", "2"))
	poll.Until(t, patience, func() bool { r.st.mu.Lock(); defer r.st.mu.Unlock(); return r.st.calls > 0 }, "deliver to be called")
	_ = d.Close()
	// While they are under way, and again when they are stored.
	d, present := connect(t, r.Source, login{id: "a", keep: true})
	if !present {
		t.Error("the session was not there")
	}
	again := func(id uint16, topic, payload string) packet.Publish {
		p := qos1(id, topic, payload)
		p.Dup = true
		return p
	}
	d.publish(again(1, "d/x", "1"))
	d.publish(again(2, "d/x", "2"))
	d.publish(qos1(3, "d/x", "3"))
	d.quiet(50 * time.Millisecond)
	release()
	d.acks(packet.PUBACK, 1, 2, 3)
	r.st.want(t, "1", "2", "3")

	// After a crash that took what was known of the acknowledgements.
	r.stop()
	d2, _ := newDaemonOn(t, cfg, dir, r.st)
	d, present = connect(t, d2.Source, login{id: "a", keep: true})
	if !present {
		t.Error("the session was not there after the restart")
	}
	d.publish(again(3, "d/x", "3"))
	d.publish(again(2, "d/x", "other"))
	d.publish(qos1(1, "d/x", "1"))
	d.acks(packet.PUBACK, 3, 2, 1)
	got := fmt.Sprint(d2.st.payloads())
	if want := "[1 2 3 other 1]"; got != want && got != "[1 2 3 3 other 1]" {
		t.Errorf("stored %s, want %s", got, want)
	}
}

// newDaemonOn starts a source anew on a directory, with the store of the one before.
func newDaemonOn(t *testing.T, cfg Config, dir string, st *shelf) (*running, *Source) {
	t.Helper()
	s := newSource(t, cfg, dir)
	s.last = func() (uint64, uint64) { return 1, st.seq }
	return start(t, s, st), s
}

func TestSessionOutlivesRestart(t *testing.T) {
	leak.Check(t)
	for _, version := range []byte{packet.V311, packet.V5} {
		dir, cfg := stateDir(t), config(t)
		r := run(t, cfg, dir)
		sub, _ := connect(t, r.Source, login{id: "sub", version: version, keep: true})
		sub.subscribe(1, "d/#", 1)
		pub, _ := connect(t, r.Source, login{id: "pub"})
		pub.publish(qos1(1, "d/x", "live"))
		pub.acks(packet.PUBACK, 1)
		m := sub.message() // and no PUBACK for it
		_ = sub.Close()
		poll.Until(t, patience, func() bool { return r.Stats().Connected == 1 }, "the subscriber to be away")
		keep := qos1(2, "d/kept", "kept")
		keep.Retain = true
		pub.publish(keep)
		pub.publish(packet.Publish{Topic: "d/x", Payload: []byte("nobody waits for QoS 0")})
		pub.acks(packet.PUBACK, 2)
		r.stop()

		r, _ = newDaemonOn(t, cfg, dir, r.st)
		sub, present := connect(t, r.Source, login{id: "sub", version: version, keep: true})
		if !present {
			t.Fatal("the session was not there after a restart")
		}
		if again := sub.message(); again.ID != m.ID || !again.Dup || string(again.Payload) != "live" {
			t.Errorf("sent again: %+v, want message %d with DUP", again, m.ID)
		}
		sub.puback(m.ID)
		if k := sub.message(); string(k.Payload) != "kept" || k.Retain || k.Dup {
			t.Errorf("waiting message %+v", k)
		} else {
			sub.puback(k.ID)
		}
		other, _ := connect(t, r.Source, login{id: "other", version: version})
		other.subscribe(1, "d/+", 1)
		if k := other.message(); string(k.Payload) != "kept" || !k.Retain {
			t.Errorf("retained message %+v", k)
		}
		// A clean start ends all that.
		clean, present := connect(t, r.Source, login{id: "sub", version: version})
		if present {
			t.Error("a clean start found its session")
		}
		if version == packet.V5 {
			if got := sub.closed(); len(got) != 1 || got[0][0] != 0xE0 || got[0][1] != byte(packet.SessionTakenOver) {
				t.Errorf("the connection that was taken over got % x", got)
			}
		} else {
			sub.closed()
		}
		clean.quiet(50 * time.Millisecond)
		r.stop()
	}
}

func TestUnsubscribeAndSessionEnd(t *testing.T) {
	r := run(t, config(t), stateDir(t))
	d, _ := connect(t, r.Source, login{id: "a", keep: true})
	d.subscribe(1, "d/#", 1)
	d.send(pkt(0xA2, append([]byte{0, 5}, str("d/#")...)))
	d.acks(packet.UNSUBACK, 5)
	d.publish(qos1(1, "d/x", "1"))
	d.acks(packet.PUBACK, 1)
	d.quiet(50 * time.Millisecond)
	d.send([]byte{0xE0, 0})
	d.closed()
	if n := r.Stats().Sessions; n != 1 {
		t.Errorf("%d sessions after goodbye, want the one that is kept", n)
	}
	r.expire(time.Now().Add(DefaultSessionExpiry + time.Hour))
	if n := r.Stats().Sessions; n != 0 {
		t.Errorf("%d sessions after their time, want none", n)
	}
	r.saver.clean()
	if _, present := connect(t, r.Source, login{id: "a", keep: true}); present {
		t.Error("a session whose time is over was there")
	}
}

func TestWills(t *testing.T) {
	leak.Check(t)
	r := run(t, config(t), stateDir(t))
	will := func(text string) *packet.Publish {
		return &packet.Publish{QoS: 1, Topic: "d/will", Payload: []byte(text)}
	}
	end := func(id string, version byte, keep bool, w *packet.Publish, end func(*device)) {
		t.Helper()
		d, _ := connect(t, r.Source, login{id: id, version: version, keep: keep, will: w})
		before := r.Stats().Connected
		end(d)
		poll.Until(t, patience, func() bool { return r.Stats().Connected < before }, "%s to be gone", id)
	}
	lost := func(d *device) { _ = d.Close() }
	end("a", 4, false, will("lost"), lost)
	end("b", 4, false, will("goodbye"), func(d *device) { d.send([]byte{0xE0, 0}) })
	end("c", 5, false, will("goodbye with will"), func(d *device) { d.send([]byte{0xE0, 1, 4}) })
	end("d", 4, false, will("protocol"), func(d *device) { d.send([]byte{0x00, 0}) })
	denied := will("not allowed")
	denied.Topic = "other/will"
	end("e", 4, false, denied, lost)
	late := will("late")
	late.Properties.WillDelay = 3600
	end("f", 5, true, late, lost)
	r.st.want(t, "lost", "goodbye with will", "protocol")
	if h := r.st.readings()[0].Header[HeaderWill]; h != "1" {
		t.Errorf("%s = %q", HeaderWill, h)
	}
	poll.Until(t, patience, func() bool { return r.Counts().Rejected[ReasonDenied] == 1 }, "the will on another topic to be refused")
	// Back in time: no will.
	f, _ := connect(t, r.Source, login{id: "f", version: 5, keep: true, will: late})
	_ = f.Close()
	poll.Until(t, patience, func() bool { return r.Stats().Connected == 0 }, "f to be gone")
	r.expire(time.Now().Add(30 * time.Minute))
	r.st.want(t, "lost", "goodbye with will", "protocol")
	r.expire(time.Now().Add(2 * time.Hour))
	r.st.want(t, "lost", "goodbye with will", "protocol", "late")
	// A stop of the server is not a loss of the client.
	g, _ := connect(t, r.Source, login{id: "g", will: will("stop")})
	r.stop()
	g.closed()
	if got := len(r.st.readings()); got != 4 {
		t.Errorf("%d records after the stop, want 4", got)
	}
}

// TestWillsInBoundedMemory loses clients with wills again and again while the store takes nothing: what the queue has no room for is counted.
func TestWillsInBoundedMemory(t *testing.T) {
	const lost, room = 200, 40
	c := config(t, func(c *Config) { c.MaxMessage, c.Queue = 4<<10, room<<10 })
	r := run(t, c, stateDir(t))
	release := r.st.block()
	defer release()
	will := &packet.Publish{Topic: "d/will", Payload: make([]byte, 1<<10)}
	for range lost {
		d, _ := connect(t, r.Source, login{id: "a", will: will})
		_ = d.Close()
		poll.Until(t, patience, func() bool { return r.Stats().Connected == 0 }, "the client to be gone")
	}
	d, _ := connect(t, r.Source, login{id: "a", will: &packet.Publish{Topic: "d/will", Payload: make([]byte, 5<<10)}})
	_ = d.Close()
	poll.Until(t, patience, func() bool { return r.Counts().Rejected[ReasonTooLarge] == 1 }, "a will longer than max_message to be refused")
	refused := int(r.Counts().Rejected[ReasonQueueFull])
	if refused < lost-room || refused == lost {
		t.Errorf("%d of %d wills refused, with room for %d at most", refused, lost, room)
	}
	release()
	poll.Until(t, patience, func() bool { return len(r.st.readings()) == lost-refused }, "%d wills to be stored", lost-refused)
	d, _ = connect(t, r.Source, login{id: "a"})
	d.publish(qos1(1, "d/x", "there is room again"))
	d.acks(packet.PUBACK, 1)
}

// TestSavingIsTriedAgain takes the state directory away while messages are to be saved, and gives it back.
func TestSavingIsTriedAgain(t *testing.T) {
	c, dir := config(t), stateDir(t)
	r := run(t, c, dir)
	d, _ := connect(t, r.Source, login{id: "absent", keep: true})
	d.subscribe(1, "d/#", 1)
	_ = d.Close()
	poll.Until(t, patience, func() bool { return r.Stats().Connected == 0 }, "the client to be gone")
	d, _ = connect(t, r.Source, login{id: "sender"})
	p := qos1(1, "d/x", "kept")
	p.Retain = true
	d.publish(p)
	d.acks(packet.PUBACK, 1)
	poll.Until(t, patience, func() bool { return r.Stats().Outgoing > 0 }, "the message to wait")
	for _, to := range [][2]string{{dir, dir + ".away"}, {dir + ".away", dir}} {
		if err := os.Rename(to[0], to[1]); err != nil {
			t.Fatal(err)
		}
		r.saver.saveAll()
	}
	saved := newSource(t, c, dir) // as a crash would leave it
	saved.saver.load()
	if x := saved.sessions["absent"]; x == nil || len(x.queue) != 1 || saved.retained["d/x"] == nil {
		t.Errorf("saved: session %+v, retained %v", x, saved.retained)
	}
}

// TestTakeover is also ING-077: two devices with one client id are named.
func TestTakeover(t *testing.T) {
	leak.Check(t)
	r := run(t, config(t, func(c *Config) { c.MaxConnections = 1 }), stateDir(t))
	old, _ := connect(t, r.Source, login{id: "a", keep: true})
	release := r.st.block()
	old.publish(qos1(1, "d/x", "1"))
	poll.Until(t, patience, func() bool { r.st.mu.Lock(); defer r.st.mu.Unlock(); return r.st.calls > 0 }, "deliver to be called")
	d, _ := connect(t, r.Source, login{id: "a", keep: true}) // although there is room for one only
	if got := old.closed(); len(got) > 0 {
		t.Errorf("the old connection got % x", got)
	}
	p := qos1(1, "d/x", "1")
	p.Dup = true
	d.publish(p)
	release()
	d.acks(packet.PUBACK, 1)
	r.st.want(t, "1")
	for range 5 {
		d, _ = connect(t, r.Source, login{id: "a", keep: true})
	}
	r.show()
	if st := r.State(); st.Cause == "" {
		t.Error("nothing is said of a client id that two devices seem to have")
	}
	if _, err := tryConnect(t, r.Addrs()[0], login{id: "b"}); err == nil {
		t.Error("a second client was let in, where there is room for one")
	}
	d.publish(qos1(9, "d/x", "2"))
	d.acks(packet.PUBACK, 9)
}

// TestING103AbandonedSessionsAreBounded leaves sessions that never come back, with messages that wait for them.
func TestING103AbandonedSessionsAreBounded(t *testing.T) {
	r := run(t, config(t, func(c *Config) {
		c.MaxConnections, c.MaxSessions, c.MaxQueued, c.MaxMessage, c.Queue, c.Outgoing = 4, 8, 50, 4096, 1<<20, 64<<10
	}), stateDir(t))
	for i := range 20 {
		d, _ := connect(t, r.Source, login{id: fmt.Sprint("gone-", i), keep: true})
		d.subscribe(1, "d/#", 1)
		_ = d.Close()
		poll.Until(t, patience, func() bool { return r.Stats().Connected == 0 }, "the client to be gone")
	}
	d, _ := connect(t, r.Source, login{id: "pub"})
	for i := range uint16(200) {
		d.publish(qos1(i+1, "d/x", "1"))
		d.acks(packet.PUBACK, i+1)
	}
	if s := r.Stats(); s.Sessions > 8 || s.Outgoing > 64<<10 || s.Dropped == 0 {
		t.Errorf("Stats = %+v", s)
	}
	r.saver.saveAll()
	files, err := os.ReadDir(r.saver.dir)
	if err != nil || len(files) > 8 {
		t.Errorf("%d files of sessions, %v", len(files), err)
	}
}

func TestPropertiesAndIdentity(t *testing.T) {
	r := run(t, config(t, func(c *Config) { c.Identify = true }), stateDir(t))
	sub, _ := connect(t, r.Source, login{id: "sub", version: 5})
	sub.subscribe(1, "d/#", 1)
	d, _ := connect(t, r.Source, login{id: "a b", version: 5})
	forward := append(append([]byte{3}, str("text/ä")...), append(append([]byte{0x26}, str("k")...), str("\U0001F321")...)...)
	p := qos1(1, "d/x", "1")
	p.Properties = packet.Properties{Forward: forward, HasExpiry: true, Expiry: 60}
	d.publish(p)
	d.acks(packet.PUBACK, 1)
	h := r.st.readings()[0].Header
	if got := h[HeaderProperties]; got != `{"type":"text/\u00e4","expiry":60,"user":[["k","\ud83c\udf21"]]}` {
		t.Errorf("%s: %s", HeaderProperties, got)
	}
	if h[HeaderClient] != "a%20b" || h[HeaderUser] != "" {
		t.Errorf("headers %v", h)
	}
	m := sub.message()
	if string(m.Properties.Forward) != string(forward) || !m.Properties.HasExpiry || m.Properties.Expiry > 60 {
		t.Errorf("handed on: %+v", m)
	}
}
