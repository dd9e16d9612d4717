package mqttserver

import (
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/ingest/mqttserver/packet"
	"github.com/holdfast-edge/holdfast/ingest/topic"
	"github.com/holdfast-edge/holdfast/rig/leak"
	"github.com/holdfast-edge/holdfast/rig/poll"
)

// topics are those on which other brokers were seen to fail: they close the connection, and the device comes again for ever.
var topics = []string{
	"d", "d/a", "/a", "a/", "/", "d//b", "d/a.b", "d/..", "d/ ", "d/a b", "d/\t", "d/\r", "d/\n", "d/\f", "d/\x7f", "d/\x01", "d/\v", "d/\u0085",
	"d/\u00a0", "d/\u2028", "d/\ufeff", "d/\U0001F321", "d/*/t", "d/>", "d/%41", "$SYS/x", "$JS/API/STREAM/DELETE/X", "$share/g/d", "d/$x",
	"d/" + strings.Repeat("x", 5000), "d/" + strings.Repeat("y/", 1000), "", "d/+", "d/#", "#", "d/\x00", "d/\xff", "d/\xed\xa0\x80", "D/x", "d/ä", "d/a\u0308",
}

// TestEveryTopicIsAnswered publishes all of them on one connection: each is stored or refused with a reason, and nobody is thrown out. It is
// the field cases ING-094 (blank), ING-095 (dot), ING-097 (empty levels), ING-098 (long) and ING-099 ($JS/API) for the server.
func TestEveryTopicIsAnswered(t *testing.T) {
	for _, version := range []byte{packet.V311, packet.V5} {
		for _, allow := range []string{"d/#", "#"} {
			r := run(t, config(t, func(c *Config) { c.Access[0].Publish = []string{allow} }), stateDir(t))
			d, _ := connect(t, r.Source, login{id: "a", version: version})
			stored := map[string]bool{}
			for i, name := range topics {
				d.publish(qos1(uint16(i+1), name, fmt.Sprint(i)))
				first, body := d.next()
				if first != 0x40 || int(body[1]) != i+1 {
					t.Fatalf("topic %q was answered by %#x % x", name, first, body)
				}
				ok := packet.ValidText(name) && name != "" && !topic.HasWildcard(name) && name[0] != '$' && (allow == "#" || name == "d" || strings.HasPrefix(name, "d/"))
				if said := len(body) > 2 && body[2] >= 0x80; version == packet.V5 && said == ok {
					t.Errorf("topic %q: stored %v, and the device was told % x", name, ok, body)
				}
				stored[fmt.Sprint(i)] = ok
			}
			refused := 0
			got := map[string]bool{}
			for _, rec := range r.st.readings() {
				got[string(rec.Data)] = true
				if strings.HasPrefix(rec.Tail, "$") || strings.ContainsAny(rec.Tail, "*> ") {
					t.Errorf("subject tail %q", rec.Tail)
				}
			}
			for i := range topics {
				if got[fmt.Sprint(i)] != stored[fmt.Sprint(i)] {
					t.Errorf("topic %q stored: %v", topics[i], got[fmt.Sprint(i)])
				}
				if !stored[fmt.Sprint(i)] {
					refused++
				}
			}
			c := r.Counts()
			if n := c.Rejected[ReasonTopic] + c.Rejected[ReasonDenied]; int(n) != refused {
				t.Errorf("%d counted as rejected, want %d: %v", n, refused, c.Rejected)
			}
			r.stop()
		}
	}
}

// TestMalformedPackets sends what is no MQTT, before and after the login. The server lives, and others are served.
func TestMalformedPackets(t *testing.T) {
	leak.Check(t)
	r := run(t, config(t), stateDir(t))
	good, _ := connect(t, r.Source, login{id: "good"})
	hello := login{id: "bad"}.bytes()
	for name, raw := range map[string][]byte{
		"HTTP":                    []byte("GET / HTTP/1.1\r\n\r\n"),
		"type 0":                  {0, 0},
		"endless length":          {0x10, 0xff, 0xff, 0xff, 0xff, 0xff},
		"a huge CONNECT":          {0x10, 0xff, 0xff, 0xff, 0x7f},
		"CONNECT cut off":         pkt(0x10, hello[2:8]),
		"CONNECT with more":       pkt(0x10, append(append([]byte{}, hello[2:]...), 1)),
		"reserved flag":           pkt(0x10, append(append([]byte{}, hello[2:9]...), append([]byte{3}, hello[10:]...)...)),
		"will with QoS 3":         pkt(0x10, append(str("MQTT"), 4, 0x1e, 0, 0, 0, 0)),
		"PUBLISH first":           pkt(0x30, str("d/x")),
		"CONNECT twice":           append(append([]byte{}, hello...), hello...),
		"SUBACK":                  append(append([]byte{}, hello...), 0x90, 3, 0, 1, 0),
		"AUTH":                    append(append([]byte{}, hello...), 0xf0, 0),
		"QoS 3":                   append(append([]byte{}, hello...), pkt(0x36, append(str("d/x"), 0, 1))...),
		"packet id 0":             append(append([]byte{}, hello...), pkt(0x32, append(str("d/x"), 0, 0))...),
		"DUP with QoS 0":          append(append([]byte{}, hello...), pkt(0x38, str("d/x"))...),
		"topic cut off":           append(append([]byte{}, hello...), pkt(0x30, []byte{0, 9, 'd'})...),
		"SUBSCRIBE without":       append(append([]byte{}, hello...), pkt(0x82, []byte{0, 1})...),
		"SUBSCRIBE with QoS 3":    append(append([]byte{}, hello...), pkt(0x82, append(append([]byte{0, 1}, str("c/#")...), 3))...),
		"SUBSCRIBE with flags 0":  append(append([]byte{}, hello...), pkt(0x80, append(append([]byte{0, 1}, str("c/#")...), 1))...),
		"a huge SUBSCRIBE":        append(append([]byte{}, hello...), 0x82, 0xff, 0xff, 0xff, 0x7f),
		"ping with a body":        append(append([]byte{}, hello...), 0xc0, 1, 0),
		"filter that is no text":  append(append([]byte{}, hello...), pkt(0x82, append(append([]byte{0, 1}, str("c/\xff")...), 1))...),
		"message beyond all size": append(append([]byte{}, hello...), 0x30, 0xff, 0xff, 0xff, 0x7f),
	} {
		d := dial(t, r.Source)
		d.send(raw)
		_ = d.SetReadDeadline(time.Now().Add(patience))
		if _, err := io.Copy(io.Discard, d); isTimeout(err) {
			t.Errorf("%s: the connection lives on", name)
		}
		good.publish(qos1(1, "d/x", name))
		good.acks(packet.PUBACK, 1)
	}
	if n := r.Stats().Connected; n != 1 {
		t.Errorf("%d are connected, want the good one", n)
	}
}

// TestHalfOpenConnections opens many connections that say nothing. Devices come in all the same.
func TestHalfOpenConnections(t *testing.T) {
	n := 10_000
	if testing.Short() {
		n = 500
	}
	leak.Check(t)
	r := run(t, config(t), stateDir(t))
	before := heap()
	var open []net.Conn
	defer func() {
		for _, c := range open {
			_ = c.Close()
		}
	}()
	for i := range n {
		c, err := net.Dial("tcp", r.Addrs()[0])
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		if open = append(open, c); len(open) > 400 { // so many file descriptors may be open
			_ = open[0].Close()
			open = open[1:]
		}
		if i%500 == 0 {
			d, _ := connect(t, r.Source, login{id: "good"})
			d.publish(qos1(1, "d/x", fmt.Sprint(i)))
			d.acks(packet.PUBACK, 1)
			_ = d.Close()
		}
	}
	r.mu.Lock()
	waiting := len(r.pending)
	r.mu.Unlock()
	if waiting > maxPending || r.Stats().Evicted == 0 {
		t.Errorf("%d wait for their login, %d were closed", waiting, r.Stats().Evicted)
	}
	if grown := heap() - before; grown > 32<<20 {
		t.Errorf("%d MB more on the heap", grown>>20)
	}
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestOversizedMessages sends more than is taken: it is refused, counted, and costs no memory.
func TestOversizedMessages(t *testing.T) {
	r := run(t, config(t, func(c *Config) { c.MaxMessage, c.Queue = 1<<20, 4<<20 }), stateDir(t))
	d, _ := connect(t, r.Source, login{id: "a"})
	before := heap()
	d.publish(packet.Publish{QoS: 1, ID: 1, Topic: "d/x", Payload: make([]byte, 32<<20)})
	d.publish(qos1(2, "d/x", "small"))
	d.acks(packet.PUBACK, 1, 2)
	r.st.want(t, "small")
	if c := r.Counts(); c.Rejected[ReasonTooLarge] != 1 || c.RejectedBytes[ReasonTooLarge] < 32<<20 {
		t.Errorf("Counts = %+v", c)
	}
	five, _ := connect(t, r.Source, login{id: "b", version: 5})
	five.send([]byte{0x32, 0x80, 0x80, 0x80, 0x01}) // 2 MiB are announced
	if got := five.closed(); len(got) != 1 || got[0][0] != 0xE0 || got[0][1] != byte(packet.PacketTooLarge) {
		t.Errorf("a client of MQTT 5 got % x", got)
	}
	// Many that announce much and send nothing.
	for i := range 50 {
		s, _ := connect(t, r.Source, login{id: fmt.Sprint("slow", i)})
		s.send([]byte{0x32, 0xff, 0xff, 0x3f}) // just below 1 MiB
	}
	good, _ := connect(t, r.Source, login{id: "good"})
	good.publish(qos1(7, "d/x", "good"))
	good.acks(packet.PUBACK, 7)
	if grown := heap() - before; grown > 40<<20 {
		t.Errorf("%d MB more on the heap", grown>>20)
	}
}

// TestStalledClient lets one client send without reading its answers. The others are served.
func TestStalledClient(t *testing.T) {
	r := run(t, config(t), stateDir(t))
	stalled, _ := connect(t, r.Source, login{id: "stalled"})
	stalled.subscribe(0, "d/#", 0)
	flood := make(chan int)
	go func() {
		n := 0
		defer func() { flood <- n }()
		p := qos1(1, "d/x", strings.Repeat("x", 1000)).Append(nil, packet.V311)
		_ = stalled.SetWriteDeadline(time.Now().Add(2 * time.Second))
		for {
			if _, err := stalled.Write(p); err != nil {
				return
			}
			n++
		}
	}()
	good, _ := connect(t, r.Source, login{id: "good", version: 5})
	for i := range 500 {
		good.publish(qos1(uint16(i+1), "d/x", "good"))
		good.acks(packet.PUBACK, uint16(i+1))
	}
	if n := <-flood; n > 100_000 {
		t.Errorf("the stalled client could send %d messages", n)
	}
	if s := r.Stats(); s.Outgoing > r.cfg.Outgoing {
		t.Errorf("Stats = %+v", s)
	}
}

// TestStalledWithinLargeMessages lets clients stop in the middle of large messages, as many as are read at once. They are closed, and others go on.
func TestStalledWithinLargeMessages(t *testing.T) {
	s := newSource(t, config(t, func(c *Config) { c.MaxMessage = 1 << 20 }), stateDir(t))
	s.patience = 500 * time.Millisecond
	r := start(t, s, &shelf{})
	large := qos1(1, "d/x", strings.Repeat("x", 200<<10)).Append(nil, packet.V311)
	var stalled []*device
	for i := range 4 {
		d, _ := connect(t, r.Source, login{id: fmt.Sprint("stalled-", i)})
		d.send(large[:100<<10])
		stalled = append(stalled, d)
	}
	poll.Until(t, patience, func() bool {
		free := r.large.TryAcquire(1)
		if free {
			r.large.Release(1)
		}
		return !free
	}, "all places for large messages to be taken")
	good, _ := connect(t, r.Source, login{id: "good"})
	good.send(large)
	good.acks(packet.PUBACK, 1)
	for _, d := range stalled {
		d.closed()
	}
}

// TestWindow holds the store. A client of MQTT 3.1.1 waits; one of MQTT 5 that sends more than it was told is thrown out, and others get answers to pings.
func TestWindow(t *testing.T) {
	r := run(t, config(t, func(c *Config) { c.Window = 4 }), stateDir(t))
	release := r.st.block()
	three, _ := connect(t, r.Source, login{id: "three"})
	five, _ := connect(t, r.Source, login{id: "five", version: 5})
	greedy, _ := connect(t, r.Source, login{id: "greedy", version: 5})
	for i := range uint16(20) {
		three.publish(qos1(i+1, "d/x", "3"))
	}
	for i := range uint16(4) {
		five.publish(qos1(i+1, "d/x", "5"))
	}
	five.send([]byte{0xC0, 0})
	if first, _ := five.next(); first != 0xD0 {
		t.Errorf("a ping was answered by %#x", first)
	}
	for i := range uint16(5) {
		greedy.publish(qos1(i+1, "d/x", "greedy"))
	}
	if got := greedy.closed(); len(got) != 1 || got[0][1] != byte(packet.ReceiveMaxExceeded) {
		t.Errorf("the greedy client got % x", got)
	}
	waiting := func() int {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.sessions["three"].pending)
	}
	poll.Until(t, patience, func() bool { return waiting() == 4 }, "messages to wait")
	three.quiet(50 * time.Millisecond)
	if n := waiting(); n > 4 {
		t.Errorf("%d messages wait, want no more than the window", n)
	}
	release()
	for i := range uint16(20) {
		three.acks(packet.PUBACK, i+1)
	}
	five.acks(packet.PUBACK, 1, 2, 3, 4)
}
