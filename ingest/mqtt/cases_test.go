package mqtt

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.mqtt.golang/packets"

	"github.com/holdfast-edge/holdfast/ingest"
	"github.com/holdfast-edge/holdfast/ingest/topic"
	"github.com/holdfast-edge/holdfast/rig/leak"
	"github.com/holdfast-edge/holdfast/rig/poll"
)

// fieldCase is one trouble that somebody had in the field: a line of testdata/cases.jsonl.
type fieldCase struct {
	ID    string `json:"id"`
	Ref   string `json:"ref"`
	Input string `json:"input"` // text, or hex: and hexadecimal digits
	Want  string `json:"want"`
}

func (c fieldCase) input(t *testing.T) string {
	t.Helper()
	digits, ok := strings.CutPrefix(c.Input, "hex:")
	if !ok {
		return c.Input
	}
	b, err := hex.DecodeString(digits)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func fieldCases(t *testing.T) map[string]fieldCase {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", "cases.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	all := map[string]fieldCase{}
	for sc := bufio.NewScanner(f); sc.Scan(); {
		var c fieldCase
		if err := json.Unmarshal(sc.Bytes(), &c); err != nil {
			t.Fatalf("%s: %v", sc.Text(), err)
		}
		all[c.ID] = c
	}
	return all
}

// TestFieldCasesHaveTests wants a test for every case, named after it.
func TestFieldCasesHaveTests(t *testing.T) {
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`func TestING(\d+)`).FindAllStringSubmatch(string(text), -1) {
			have["ING-"+m[1]] = true
		}
	}
	cases := fieldCases(t)
	if len(cases) < 15 {
		t.Errorf("%d cases, want at least 15", len(cases))
	}
	for id := range cases {
		if !have[id] {
			t.Errorf("no test is named after %s", id)
		}
	}
}

func testMapping(t *testing.T, id string) {
	t.Helper()
	c := fieldCases(t)[id]
	tail, reversible := topic.Map(c.input(t))
	if tail != c.Want || !reversible {
		t.Errorf("Map(%q) = %q, %v, want %q", c.input(t), tail, reversible, c.Want)
	}
	if back, err := topic.Unmap(tail); err != nil || back != c.input(t) {
		t.Errorf("Unmap(%q) = %q, %v", tail, back, err)
	}
}

func TestING094TopicWithBlank(t *testing.T)      { testMapping(t, "ING-094") }
func TestING095TopicWithDot(t *testing.T)        { testMapping(t, "ING-095") }
func TestING097TopicWithEmptyLevel(t *testing.T) { testMapping(t, "ING-097") }
func TestING099TopicOfTheSystem(t *testing.T)    { testMapping(t, "ING-099") }

func TestING098TopicLongerThanControlLine(t *testing.T) {
	b, st := newScript(t), &fakeStore{epoch: 1}
	run(t, t.TempDir(), config(b.url()), st)
	p := b.session(false)
	long := "x/" + strings.Repeat("a", 4200)
	p.publish(pub{id: 1, topic: long, payload: "1"})
	p.pubacks(1)
	got, err := topic.Unescape(st.header(0, topic.Header))
	if tail := st.records[0].reading.Tail; len(tail) > topic.MaxTail || got != long || err != nil {
		t.Errorf("tail %q, header with %d bytes, %v", tail, len(got), err)
	}
}

func TestING076ClientIDIsFixed(t *testing.T) {
	var c Config
	c.SetDefaults()
	id := c.clientID("pump-07", "zigbee")
	if id != c.clientID("pump-07", "zigbee") || id != "hf-zigbee-"+id[len(id)-10:] {
		t.Errorf("client id = %q, want the same each time", id)
	}
	seen := map[string]string{}
	for _, names := range [][2]string{{"a", "b"}, {"a-b", "c"}, {"a", "b-c"}, {"ab", ""}, {"", "ab"}, {"leaf", strings.Repeat("long", 20)}, {"blatt", "größe/2"}} {
		id := c.clientID(names[0], names[1])
		if other, ok := seen[id]; ok {
			t.Errorf("%v and %v have the client id %q", names, other, id)
		}
		seen[id] = names[0] + "," + names[1]
		if !regexp.MustCompile(`^[0-9a-zA-Z-]{1,23}$`).MatchString(id) {
			t.Errorf("client id of %v = %q", names, id)
		}
	}
	c.ClientID = "mine"
	if id := c.clientID("a", "b"); id != "mine" {
		t.Errorf("client id = %q, want the configured one", id)
	}
}

func TestING077TwinIsNamed(t *testing.T) {
	leak.Check(t)
	b, st := newScript(t), &fakeStore{epoch: 1}
	r := run(t, t.TempDir(), config(b.url()), st, func(s *Source) { s.timing.backMin, s.timing.backMax = 50*time.Millisecond, time.Second })
	began := time.Now()
	for range maxKicks + 2 {
		p := b.session(true)
		p.publish(pub{id: 1, topic: "a", payload: "1"})
		p.pubacks(1)
		_ = p.Close() // as a broker does when another client comes with this id
	}
	r.until(ingest.Waiting, r.ClientID())
	if !r.log.contains("client id is used by another client too") {
		t.Error("no warning")
	}
	if d := time.Since(began); d < 500*time.Millisecond { // pauses of 50, 100, 200 and 400 ms, less a quarter by chance
		t.Errorf("%d connections within %v: the pause does not grow", maxKicks+2, d)
	}
}

func TestING079QueuedBeforeSubscribe(t *testing.T) {
	b, st := newScript(t), &fakeStore{epoch: 1}
	run(t, t.TempDir(), config(b.url()), st)
	p := b.accept()
	p.connack(0, true)
	p.publish(pub{id: 1, topic: "a", payload: "1"}, pub{id: 2, topic: "a", payload: "2"}, pub{id: 3, topic: "a", payload: "3"})
	untilStored(t, st, 3)
	var ids []uint16
	for len(ids) < 3 {
		switch c := p.next().(type) {
		case *packets.PubackPacket:
			ids = append(ids, c.MessageID)
		case *packets.SubscribePacket: // not answered yet
		default:
			t.Fatalf("the client sent %v", c)
		}
	}
}

func TestING080SubscriptionRefused(t *testing.T) {
	leak.Check(t)
	b, st := newScript(t), &fakeStore{epoch: 1}
	r := run(t, t.TempDir(), config(b.url(), "open/#", "secret/#"), st)
	p := b.accept()
	p.connack(0, false)
	refuse := fieldCases(t)["ING-080"].input(t)
	answer := func() {
		s, ok := p.next().(*packets.SubscribePacket)
		if !ok {
			t.Fatal("no SUBSCRIBE came")
		}
		raw := []byte(refuse)
		raw[2], raw[3] = byte(s.MessageID>>8), byte(s.MessageID)
		if s.Topics[0] == "open/#" {
			raw[4] = 1
		}
		if _, err := p.Write(raw); err != nil {
			t.Fatal(err)
		}
	}
	answer()
	answer()
	state := r.until(ingest.Refused, `subscription refused`)
	if !strings.Contains(state.Cause, `"secret/#"`) || strings.Contains(state.Cause, "open") || state.Remedy == "" {
		t.Errorf("state = %+v, want the refused filter and a remedy", state)
	}
	// The other subscription works, and the refused one is tried again until it is allowed.
	p.publish(pub{topic: "open/1", payload: "1"})
	untilStored(t, st, 1)
	if f := p.suback(1); f != "secret/#" {
		t.Errorf("the client subscribed to %q again, want secret/#", f)
	}
	r.until(ingest.Running, "")
}

func TestING089TrailingNULIsKept(t *testing.T) {
	c := fieldCases(t)["ING-089"]
	b, st := newScript(t), &fakeStore{epoch: 1}
	run(t, t.TempDir(), config(b.url()), st)
	p := b.session(false)
	p.publish(pub{id: 1, topic: "a", payload: c.input(t)})
	p.pubacks(1)
	wantPayloads(t, st, "{\"a\":1}\x00")
}

// TestING092DiskIsNotInTheWay runs without a state directory that could be written: nothing panics, messages are stored and
// acknowledged, and only the recognition across restarts is missing.
func TestING092DiskIsNotInTheWay(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b, st := newScript(t), &fakeStore{epoch: 1}
	r := run(t, filepath.Join(file, "state"), config(b.url()), st)
	p := b.session(false)
	p.mute = true
	p.publish(pub{id: 1, topic: "a", payload: "1"}, pub{id: 2, topic: "a", payload: "2", retain: true})
	p.pubacks(1, 2)
	_ = p.Close()
	p = b.session(true)
	p.publish(pub{id: 1, topic: "a", payload: "1", dup: true}, pub{id: 3, topic: "a", payload: "3"})
	p.pubacks(1, 3)
	wantPayloads(t, st, "1", "2", "3")
	if !r.log.contains("state directory cannot be made") {
		t.Error("no warning")
	}
}

// TestING093BrokerThatNeverAnswers ends a source that waits for each answer of a broker.
func TestING093BrokerThatNeverAnswers(t *testing.T) {
	for _, tt := range []struct {
		name string
		wait func(b *script)
	}{
		{"CONNECT", func(b *script) { b.accept() }},
		{"SUBSCRIBE", func(b *script) { p := b.accept(); p.connack(0, true); p.next() }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			leak.Check(t)
			b := newScript(t)
			r := run(t, t.TempDir(), config(b.url()), &fakeStore{epoch: 1}, func(s *Source) { s.timing.connect = time.Minute })
			tt.wait(b)
			began := time.Now()
			r.stop()
			if d := time.Since(began); d > 3*time.Second {
				t.Errorf("Run took %v to end", d)
			}
		})
	}
	t.Run("SUBSCRIBE for too long", func(t *testing.T) {
		b := newScript(t)
		r := run(t, t.TempDir(), config(b.url()), &fakeStore{epoch: 1}, func(s *Source) { s.timing.connect = 200 * time.Millisecond })
		b.accept().connack(0, true)
		r.until(ingest.Waiting, "did not answer a subscription")
		b.accept() // and it tries again
	})
}

// TestBacklogInBoundedMemory sends a message for every packet id at once, as Mosquitto 2.0.11 does with a backlog.
func TestBacklogInBoundedMemory(t *testing.T) {
	leak.Check(t)
	b, st := newScript(t), &fakeStore{epoch: 1, keep: true}
	release := st.block()
	r := run(t, t.TempDir(), config(b.url()), st, func(s *Source) { s.cfg.Queue = 64 << 20; s.queue.max = 64 << 20 })
	p := b.session(false)
	before := heap()
	w := bufio.NewWriterSize(p, 1<<16)
	payload := []byte(strings.Repeat("x", 100))
	n := 65535
	if testing.Short() {
		n = 10000
	}
	for i := range n {
		c := packets.NewControlPacket(packets.Publish).(*packets.PublishPacket)
		c.MessageID, c.TopicName, c.Payload, c.Qos = uint16(i+1), "sensor/1", payload, 1
		if err := c.Write(w); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, patience, func() bool { return r.Stats().Queued+batchMessages >= n }, "the backlog to be queued")
	if used := heap() - before; used > 60<<20 {
		t.Errorf("a backlog of %d messages of 100 bytes takes %d MB", n, used>>20)
	}
	release()
	for i := range n {
		p.pubacks(uint16(i + 1))
	}
	if st.len() != n {
		t.Errorf("%d records, want %d", st.len(), n)
	}
	if r.Stats().Forgotten+r.Stats().Redelivered != 0 {
		t.Errorf("Stats = %+v", r.Stats())
	}
}

// TestQueueFullKeepsNothingMore sends far more than the queue holds: what is let go of must not be kept anywhere else.
func TestQueueFullKeepsNothingMore(t *testing.T) {
	b, st := newScript(t), &fakeStore{epoch: 1}
	defer st.block()()
	cfg := config(b.url())
	cfg.Queue = cfg.MaxMessage
	r := run(t, t.TempDir(), cfg, st)
	p := b.session(false)
	before := heap()
	payload := strings.Repeat("x", 1000)
	const n = 30_000
	for i := range n {
		p.publish(pub{id: uint16(i + 1), topic: "a", payload: payload})
	}
	l := r.current.Load()
	poll.Until(t, patience, func() bool { return l.received.Load() == n }, "all messages to arrive")
	if used := heap() - before; used > 10<<20 {
		t.Errorf("%d messages of 1 kB into a queue of 1 MB take %d MB", n, used>>20)
	}
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestHostileBroker sends what the library would panic or run out of memory on.
func TestHostileBroker(t *testing.T) {
	for _, tt := range []struct {
		name string
		send func(p *peer, id uint16) []byte
	}{
		{"SUBACK with too many answers", func(_ *peer, id uint16) []byte { return []byte{0x90, 5, byte(id >> 8), byte(id), 1, 1, 1} }},
		{"packet of 256 MB", func(*peer, uint16) []byte { return []byte{0xd0, 0xff, 0xff, 0xff, 0x7f} }},
		{"length without end", func(*peer, uint16) []byte { return []byte{0x30, 0xff, 0xff, 0xff, 0xff, 0xff} }},
		{"message shorter than its topic", func(*peer, uint16) []byte {
			return append([]byte{0x32, 0xd0, 0x0f, 0xff, 0xff}, make([]byte, 100)...)
		}},
		{"unknown type", func(*peer, uint16) []byte { return []byte{0x00, 0} }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b, st := newScript(t), &fakeStore{epoch: 1}
			cfg := config(b.url())
			cfg.MaxMessage = 1000
			run(t, t.TempDir(), cfg, st)
			p := b.accept()
			p.connack(0, false)
			s, ok := p.next().(*packets.SubscribePacket)
			if !ok {
				t.Fatal("no SUBSCRIBE came")
			}
			if _, err := p.Write(tt.send(p, s.MessageID)); err != nil {
				t.Fatal(err)
			}
			p = b.session(true) // it comes again
			p.publish(pub{id: 1, topic: "a", payload: "1"})
			p.pubacks(1)
		})
	}
	t.Run("message of 256 MB that never comes", func(t *testing.T) {
		b, st := newScript(t), &fakeStore{epoch: 1}
		r := run(t, t.TempDir(), config(b.url()), st)
		p := b.session(false)
		before := heap()
		if _, err := p.Write([]byte{0x32, 0xff, 0xff, 0xff, 0x7f, 0, 1, 'a', 0, 1, 'x'}); err != nil {
			t.Fatal(err)
		}
		poll.Until(t, patience, func() bool { return r.Counts().Rejected[ReasonTooLarge] == 1 }, "the message to be counted")
		if used := heap() - before; used > 10<<20 {
			t.Errorf("it took %d MB", used>>20)
		}
	})
}
