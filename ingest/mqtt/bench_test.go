package mqtt

import (
	"bufio"
	"github.com/holdfast-edge/holdfast/ingest/topic"
	"io"
	"strings"
	"testing"

	"github.com/eclipse/paho.mqtt.golang/packets"

	"github.com/holdfast-edge/holdfast/rig/cost"
	"github.com/holdfast-edge/holdfast/rig/poll"
)

// BenchmarkSource takes rounds of messages from a broker that sends as fast as it can, into a store that costs nothing.
func BenchmarkSource(b *testing.B) {
	const round = 10_000
	payload := []byte(strings.Repeat("x", 200))
	s, st := newScript(b), &fakeStore{epoch: 1, keep: true}
	run(b, b.TempDir(), config(s.url()), st)
	p := s.session(false)
	go func() { _, _ = io.Copy(io.Discard, p) }() // acknowledgements, until the connection ends
	w := bufio.NewWriterSize(p, 1<<16)
	b.SetBytes(round * int64(len(payload)))
	sent := 0
	m := cost.Start()
	for b.Loop() {
		for range round {
			sent++
			c := packets.NewControlPacket(packets.Publish).(*packets.PublishPacket)
			c.MessageID, c.TopicName, c.Payload, c.Qos = uint16(sent%65535+1), "plant/line-1/sensor", payload, 1
			if err := c.Write(w); err != nil {
				b.Fatal(err)
			}
		}
		if err := w.Flush(); err != nil {
			b.Fatal(err)
		}
		poll.Until(b, patience, func() bool { return st.len() >= sent }, "%d records", sent)
	}
	m.Report(b, sent)
}

func BenchmarkMap(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		topic.Map("zigbee2mqtt/Living Room/temperature")
	}
}
