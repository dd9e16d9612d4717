package mqtt

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/eclipse/paho.mqtt.golang/packets"

	"github.com/holdfast-edge/holdfast/ingest"
	"github.com/holdfast-edge/holdfast/rig/poll"
	"github.com/holdfast-edge/holdfast/storage"
)

// patience bounds everything that a test waits for.
const patience = 20 * time.Second

// script is a broker that does what a test says.
type script struct {
	t  testing.TB
	ln net.Listener
}

func newScript(t testing.TB) *script {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	return &script{t: t, ln: ln}
}

func (b *script) url() string { return "tcp://" + b.ln.Addr().String() }

// peer is the broker's end of a connection.
type peer struct {
	net.Conn
	t       testing.TB
	connect *packets.ConnectPacket
	pings   int  // answered by next
	mute    bool // pings are not answered
	leaving bool // the client may close the connection at any time
}

// accept waits for a connection and its CONNECT.
func (b *script) accept() *peer {
	b.t.Helper()
	_ = b.ln.(*net.TCPListener).SetDeadline(time.Now().Add(patience))
	c, err := b.ln.Accept()
	if err != nil {
		b.t.Fatalf("no client came: %v", err)
	}
	b.t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(2 * patience))
	p := &peer{Conn: c, t: b.t}
	connect, ok := p.next().(*packets.ConnectPacket)
	if !ok {
		b.t.Fatal("the client did not begin with CONNECT")
	}
	p.connect = connect
	return p
}

// session accepts a connection and answers CONNECT and SUBSCRIBE.
func (b *script) session(resumed bool) *peer {
	b.t.Helper()
	p := b.accept()
	p.connack(0, resumed)
	p.suback(1)
	return p
}

func (p *peer) send(c packets.ControlPacket) {
	p.t.Helper()
	if err := c.Write(p); err != nil && !p.leaving {
		p.t.Errorf("send %v: %v", c, err)
	}
}

// next returns the next packet of the client that is not a ping; pings are answered. Nil means that the connection ended.
func (p *peer) next() packets.ControlPacket {
	p.t.Helper()
	for {
		c, err := packets.ReadPacket(p)
		if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
			return nil
		}
		if err != nil {
			p.t.Fatalf("read from the client: %v", err)
		}
		if _, ok := c.(*packets.PingreqPacket); !ok {
			return c
		}
		p.pings++
		if !p.mute {
			p.send(packets.NewControlPacket(packets.Pingresp))
		}
	}
}

func (p *peer) connack(code byte, resumed bool) {
	p.t.Helper()
	c := packets.NewControlPacket(packets.Connack).(*packets.ConnackPacket)
	c.ReturnCode, c.SessionPresent = code, resumed
	p.send(c)
}

// suback answers one SUBSCRIBE and returns its filter.
func (p *peer) suback(code byte) string {
	p.t.Helper()
	s, ok := p.next().(*packets.SubscribePacket)
	if !ok || len(s.Topics) != 1 {
		p.t.Fatalf("want a SUBSCRIBE with one filter, have %v", s)
	}
	c := packets.NewControlPacket(packets.Suback).(*packets.SubackPacket)
	c.MessageID, c.ReturnCodes = s.MessageID, []byte{code}
	p.send(c)
	return s.Topics[0]
}

// pub is a message that the broker sends.
type pub struct {
	id      uint16 // 0: QoS 0
	topic   string
	payload string
	dup     bool
	retain  bool
}

func (p *peer) publish(msgs ...pub) {
	p.t.Helper()
	for _, m := range msgs {
		c := packets.NewControlPacket(packets.Publish).(*packets.PublishPacket)
		c.MessageID, c.TopicName, c.Payload, c.Dup, c.Retain = m.id, m.topic, []byte(m.payload), m.dup, m.retain
		if m.id > 0 {
			c.Qos = 1
		}
		p.send(c)
	}
}

// pubacks reads acknowledgements and wants these packet ids, in this order.
func (p *peer) pubacks(ids ...uint16) {
	p.t.Helper()
	for _, id := range ids {
		c, ok := p.next().(*packets.PubackPacket)
		if !ok || c.MessageID != id {
			p.t.Fatalf("the client sent %v, want PUBACK %d", c, id)
		}
	}
}

// quiet wants nothing but pings from the client for this long.
func (p *peer) quiet(d time.Duration) {
	p.t.Helper()
	deadline := time.Now().Add(d)
	for {
		_ = p.SetReadDeadline(deadline)
		c, err := packets.ReadPacket(p)
		if err != nil {
			_ = p.SetReadDeadline(time.Now().Add(2 * patience))
			var n net.Error
			if !errors.As(err, &n) || !n.Timeout() {
				p.t.Fatalf("the connection ended: %v", err)
			}
			return
		}
		if _, ok := c.(*packets.PingreqPacket); !ok {
			p.t.Fatalf("the client sent %v, want nothing", c)
		}
		p.pings++
		p.send(packets.NewControlPacket(packets.Pingresp))
	}
}

// stored is a record in a fake store.
type stored struct {
	id      storage.ID
	reading ingest.Reading
}

// fakeStore stands for runner and store.
type fakeStore struct {
	mu      sync.Mutex // guards the fields below
	epoch   uint64
	seq     uint64
	records []stored
	gate    chan struct{} // when not nil, Deliver waits until it is closed
	fail    error         // when not nil, Deliver fails after the notes
	keep    bool          // count records only
	count   int
}

func (f *fakeStore) deliver(ctx context.Context, batch ...ingest.Reading) error {
	f.mu.Lock()
	gate := f.gate
	f.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, r := range batch {
		if r.Note == nil {
			continue
		}
		if _, err := r.Note(storage.ID{Leaf: "leaf", Store: "s", Source: "m", Epoch: f.epoch, Seq: f.seq + 1 + uint64(i)}); err != nil {
			return err
		}
	}
	if f.fail != nil {
		return f.fail
	}
	for _, r := range batch {
		f.seq++
		f.count++
		if !f.keep {
			f.records = append(f.records, stored{storage.ID{Epoch: f.epoch, Seq: f.seq}, r})
		}
	}
	return ctx.Err()
}

func (f *fakeStore) len() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.count
}

// payloads returns what is stored, in order.
func (f *fakeStore) payloads() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []string
	for _, r := range f.records {
		out = append(out, string(r.reading.Data))
	}
	return out
}

func (f *fakeStore) header(i int, key string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.records[i].reading.Header[key]
}

// block makes Deliver wait until the returned function is called.
func (f *fakeStore) block() (release func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	gate := make(chan struct{})
	f.gate = gate
	return sync.OnceFunc(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.gate = nil
		close(gate)
	})
}

// reboot is a new start of the daemon: the next epoch.
func (f *fakeStore) reboot() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.epoch++
	f.seq = 0
}

// logText collects a log.
type logText struct {
	mu   sync.Mutex // guards the field below
	text strings.Builder
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logText) contains(s string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), s)
}

// config returns a configuration for a broker.
func config(url string, topics ...string) Config {
	var c Config
	c.SetDefaults()
	c.Broker, c.Topics = url, topics
	if len(topics) == 0 {
		c.Topics = []string{"#"}
	}
	return c
}

// quick are times for tests.
var quick = timing{
	connect: 5 * time.Second, ping: 5 * time.Second, handover: time.Second, confirm: 20 * time.Millisecond,
	retry: 50 * time.Millisecond, backMin: 5 * time.Millisecond, backMax: 100 * time.Millisecond, settled: time.Minute,
}

// running is a source that runs.
type running struct {
	*Source
	t    testing.TB
	log  *logText
	stop func() // ends Run and waits for it
}

// run makes a source and runs it until the test ends or stop is called.
func run(t testing.TB, dir string, cfg Config, st *fakeStore, change ...func(*Source)) *running {
	t.Helper()
	log := &logText{}
	epoch, seq := st.epoch-1, uint64(0)
	st.mu.Lock()
	for _, r := range st.records {
		if r.id.Epoch < st.epoch {
			epoch, seq = r.id.Epoch, r.id.Seq
		}
	}
	st.mu.Unlock()
	s, err := New(Options{Name: "m", Leaf: "leaf", Config: cfg, StateDir: dir,
		Last: func() (uint64, uint64) { return epoch, seq }, Log: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	s.timing = quick
	for _, f := range change {
		f(s)
	}
	return start(t, s, log, st.deliver)
}

// start runs a source, again if it ran before.
func start(t testing.TB, s *Source, log *logText, deliver ingest.Deliver) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := s.Run(ctx, deliver); ctx.Err() == nil {
			_, _ = log.Write([]byte("RUN ENDED: " + err.Error() + "\n"))
		}
	}()
	r := &running{Source: s, t: t, log: log, stop: sync.OnceFunc(func() {
		cancel()
		select {
		case <-done:
		case <-time.After(patience):
			t.Error("Run did not end with its context")
		}
	})}
	t.Cleanup(func() {
		r.stop()
		if t.Failed() {
			log.mu.Lock()
			defer log.mu.Unlock()
			t.Logf("log:\n%s", log.text.String())
		}
	})
	return r
}

// until waits for a state of this kind whose cause contains the text.
func (r *running) until(kind ingest.Kind, cause string) ingest.State {
	r.t.Helper()
	var st ingest.State
	poll.Until(r.t, patience, func() bool {
		st = r.State()
		return st.Kind == kind && strings.Contains(st.Cause, cause)
	}, "state %s with cause %q", kind, cause)
	return st
}

// untilStored waits until so many records are stored.
func untilStored(t testing.TB, st *fakeStore, n int) {
	t.Helper()
	poll.Until(t, patience, func() bool { return st.len() >= n }, "%d records", n)
	if st.len() > n {
		t.Fatalf("%d records are stored, want %d", st.len(), n)
	}
}
