package mqttserver

import (
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/ingest/mqttserver/packet"
	"github.com/holdfast-edge/holdfast/rig/leak"
)

func TestAcknowledgeAfterStoreInOrder(t *testing.T) {
	for _, version := range []byte{packet.V311, packet.V5} {
		leak.Check(t)
		r := run(t, config(t), stateDir(t))
		d, present := connect(t, r.Source, login{id: "a", version: version, keep: true})
		if present {
			t.Error("a first session was there")
		}
		release := r.st.block()
		d.publish(qos1(7, "d/x", "1"))
		d.publish(packet.Publish{Topic: "d/x", Payload: []byte("2")})
		d.publish(qos1(3, "d/y z", "3"))
		d.publish(packet.Publish{QoS: 2, ID: 9, Topic: "d/x", Payload: []byte("4")})
		d.quiet(100 * time.Millisecond)
		release()
		d.acks(packet.PUBACK, 7, 3)
		d.acks(packet.PUBREC, 9)
		d.send(packet.AppendAck(nil, packet.PUBREL, version, 9, 0))
		d.acks(packet.PUBCOMP, 9)
		r.st.want(t, "1", "2", "3", "4")
		recs := r.st.readings()
		if recs[2].Tail != "d.y%20z" || recs[0].Header != nil || recs[1].Header[HeaderQoS] != "0" {
			t.Errorf("records %+v", recs)
		}
		d.send([]byte{0xC0, 0})
		if first, _ := d.next(); first != 0xD0 {
			t.Errorf("a ping was answered by %#x", first)
		}
		r.stop()
	}
}
