package mqttserver

import (
	"fmt"
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
