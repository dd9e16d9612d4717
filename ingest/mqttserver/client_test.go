package mqttserver

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/ingest"
	"github.com/holdfast-edge/holdfast/ingest/mqttserver/packet"
	"github.com/holdfast-edge/holdfast/rig/poll"
	"github.com/holdfast-edge/holdfast/rig/port"
	"github.com/holdfast-edge/holdfast/storage"
)

// patience bounds everything that a test waits for.
const patience = 20 * time.Second

// config returns a configuration that lets everybody publish below d/ and subscribe below c/.
func config(t testing.TB, change ...func(*Config)) Config {
	t.Helper()
	ports, err := port.Pick(1)
	if err != nil {
		t.Fatal(err)
	}
	var c Config
	c.SetDefaults()
	c.Listen = fmt.Sprintf("127.0.0.1:%d", ports[0])
	c.Anonymous = true
	c.Access = []Access{{Publish: []string{"d/#"}, Subscribe: []string{"c/#", "d/#"}}}
	for _, f := range change {
		f(&c)
	}
	return c
}

func newSource(t testing.TB, c Config, dir string) *Source {
	t.Helper()
	s, err := New(Options{Name: "m", Config: c, StateDir: dir, Log: slog.New(slog.NewTextHandler(logTo{t}, nil))})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// logTo writes the log of a source into that of its test.
type logTo struct{ t testing.TB }

func (l logTo) Write(p []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

// shelf is a store.
type shelf struct {
	mu    sync.Mutex // guards the fields below
	recs  []ingest.Reading
	seq   uint64
	gate  chan struct{} // not nil: deliver waits until it is closed
	calls int
}

func (st *shelf) deliver(ctx context.Context, batch ...ingest.Reading) error {
	st.mu.Lock()
	gate := st.gate
	st.calls++
	st.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	for _, r := range batch {
		st.seq++
		if r.Note != nil {
			if _, err := r.Note(storage.ID{Leaf: "l", Store: "s", Source: "m", Epoch: 1, Seq: st.seq}); err != nil {
				return err
			}
		}
		st.recs = append(st.recs, r)
	}
	return nil
}

// block makes deliver wait until the function it returns is called.
func (st *shelf) block() (release func()) {
	st.mu.Lock()
	defer st.mu.Unlock()
	gate := make(chan struct{})
	st.gate = gate
	return sync.OnceFunc(func() {
		st.mu.Lock()
		defer st.mu.Unlock()
		st.gate = nil
		close(gate)
	})
}

func (st *shelf) readings() []ingest.Reading {
	st.mu.Lock()
	defer st.mu.Unlock()
	return append([]ingest.Reading(nil), st.recs...)
}

func (st *shelf) payloads() (out []string) {
	for _, r := range st.readings() {
		out = append(out, string(r.Data))
	}
	return out
}

func (st *shelf) want(t testing.TB, payloads ...string) {
	t.Helper()
	poll.Until(t, patience, func() bool { return len(st.readings()) >= len(payloads) }, "%d records", len(payloads))
	if got := fmt.Sprint(st.payloads()); got != fmt.Sprint(payloads) {
		t.Errorf("stored %s, want %s", got, payloads)
	}
}

// running is a source that runs.
type running struct {
	*Source
	st   *shelf
	stop func() // waits for the end; may be called twice
}

func run(t testing.TB, c Config, dir string) *running {
	t.Helper()
	s := newSource(t, c, dir)
	return start(t, s, &shelf{})
}

func start(t testing.TB, s *Source, st *shelf) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Run(ctx, st.deliver) // it ends with ctx
	}()
	r := &running{Source: s, st: st, stop: func() { cancel(); <-done }}
	t.Cleanup(r.stop)
	poll.Until(t, patience, func() bool { return len(s.Addrs()) > 0 }, "the source to listen")
	return r
}

// device is a client made of bytes.
type device struct {
	net.Conn
	t       testing.TB
	r       *bufio.Reader
	version byte
}

// login says how a device connects.
type login struct {
	id             string
	version        byte // 0: 3.1.1
	keep           bool // no clean session, or in MQTT 5 an expiry of an hour
	user, password string
	keepAlive      uint16
	will           *packet.Publish
	props          []byte // of CONNECT, in MQTT 5
}

func (l login) bytes() []byte {
	v := l.version
	if v == 0 {
		v = packet.V311
	}
	flags := byte(0)
	if !l.keep {
		flags |= 2
	}
	body := append(str("MQTT"), v, 0)
	body = binary.BigEndian.AppendUint16(body, l.keepAlive)
	if v == packet.V5 {
		props := l.props
		if l.keep {
			props = append([]byte{0x11, 0, 0, 0x0e, 0x10}, props...)
		}
		body = append(binary.AppendUvarint(body, uint64(len(props))), props...)
	}
	body = append(body, str(l.id)...)
	if w := l.will; w != nil {
		flags |= 4 | w.QoS<<3
		if w.Retain {
			flags |= 0x20
		}
		if v == packet.V5 {
			if w.Properties.WillDelay > 0 {
				body = binary.BigEndian.AppendUint32(append(body, 5, 0x18), w.Properties.WillDelay)
			} else {
				body = append(body, 0)
			}
		}
		body = append(append(body, str(w.Topic)...), str(string(w.Payload))...)
	}
	if l.user != "" {
		flags |= 0x80
		body = append(body, str(l.user)...)
	}
	if l.password != "" {
		flags |= 0x40
		body = append(body, str(l.password)...)
	}
	body[7] = flags
	return pkt(0x10, body)
}

func str(s string) []byte { return append(binary.BigEndian.AppendUint16(nil, uint16(len(s))), s...) }

func pkt(first byte, body []byte) []byte {
	return append(binary.AppendUvarint([]byte{first}, uint64(len(body))), body...)
}

// dial opens a connection and says nothing.
func dial(t testing.TB, s *Source) *device {
	t.Helper()
	var nc net.Conn
	poll.Until(t, patience, func() bool {
		addrs := s.Addrs()
		if len(addrs) == 0 {
			return false
		}
		var err error
		nc, err = net.Dial("tcp", addrs[0])
		return err == nil
	}, "a connection")
	t.Cleanup(func() { _ = nc.Close() })
	_ = nc.SetDeadline(time.Now().Add(2 * patience))
	return &device{Conn: nc, t: t, r: bufio.NewReader(nc), version: packet.V311}
}

// connect logs in and returns the device and whether its session was there.
func connect(t testing.TB, s *Source, l login) (d *device, present bool) {
	t.Helper()
	d = dial(t, s)
	if l.version != 0 {
		d.version = l.version
	}
	d.send(l.bytes())
	h, body := d.next()
	if h != 0x20 || body[1] != 0 {
		t.Fatalf("CONNECT of %q was answered by %#x % x", l.id, h, body)
	}
	return d, body[0] == 1
}

func (d *device) send(p []byte) {
	d.t.Helper()
	if _, err := d.Write(p); err != nil {
		d.t.Fatalf("send: %v", err)
	}
}

// read returns the next packet.
func (d *device) read() (first byte, body []byte, err error) {
	h, err := packet.ReadHeader(d.r)
	if err != nil {
		return 0, nil, err
	}
	body = make([]byte, h.Length)
	_, err = io.ReadFull(d.r, body)
	return byte(h.Type)<<4 | h.Flags, body, err
}

func (d *device) next() (first byte, body []byte) {
	d.t.Helper()
	first, body, err := d.read()
	if err != nil {
		d.t.Fatalf("read from the server: %v", err)
	}
	return first, body
}

// quiet wants nothing to come for a while.
func (d *device) quiet(during time.Duration) {
	d.t.Helper()
	_ = d.SetReadDeadline(time.Now().Add(during))
	if b, err := d.r.ReadByte(); err == nil {
		d.t.Fatalf("the server sent %#x, want nothing", b)
	} else if !isTimeout(err) {
		d.t.Fatalf("the connection ended: %v", err)
	}
	_ = d.SetReadDeadline(time.Now().Add(2 * patience))
}

// closed wants the server to close the connection, after packets that it returns.
func (d *device) closed() (got [][]byte) {
	d.t.Helper()
	for {
		first, body, err := d.read()
		if err != nil {
			if isTimeout(err) {
				d.t.Fatal("the server did not close the connection")
			}
			return got
		}
		got = append(got, append([]byte{first}, body...))
	}
}

func (d *device) publish(p packet.Publish) {
	d.t.Helper()
	d.send(p.Append(nil, d.version))
}

// acks wants these packets with these ids, in order, and without a reason.
func (d *device) acks(t packet.Type, ids ...uint16) {
	d.t.Helper()
	for _, id := range ids {
		first, body := d.next()
		if first>>4 != byte(t) || len(body) != 2 || binary.BigEndian.Uint16(body) != id {
			d.t.Fatalf("the server sent %#x % x, want type %d of %d", first, body, t, id)
		}
	}
}

// subscribe wants the filters to be granted, or refused, by these codes.
func (d *device) subscribe(qos byte, filter string, code packet.Reason) {
	d.t.Helper()
	body := []byte{0, 77}
	if d.version == packet.V5 {
		body = append(body, 0)
	}
	d.send(pkt(0x82, append(append(body, str(filter)...), qos)))
	first, got := d.next()
	if first != 0x90 || packet.Reason(got[len(got)-1]) != code {
		d.t.Fatalf("subscription to %q was answered by %#x % x, want %#x", filter, first, got, code)
	}
}

// message wants a PUBLISH and returns it.
func (d *device) message() packet.Publish {
	d.t.Helper()
	first, body := d.next()
	if first>>4 != 3 {
		d.t.Fatalf("the server sent %#x % x, want a message", first, body)
	}
	p, err := packet.DecodePublish(packet.Header{Type: packet.PUBLISH, Flags: first & 0xf, Length: len(body)}, d.version, body)
	if err != nil {
		d.t.Fatal(err)
	}
	return p
}

func (d *device) puback(id uint16) {
	d.send(packet.AppendAck(nil, packet.PUBACK, d.version, id, 0))
}

func qos1(id uint16, topic, payload string) packet.Publish {
	return packet.Publish{QoS: 1, ID: id, Topic: topic, Payload: []byte(payload)}
}

func stateDir(t testing.TB) string { return filepath.Join(t.TempDir(), "state") }

// tryConnect logs in to an address, which may fail.
func tryConnect(t testing.TB, addr string, l login) (*device, error) {
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	_ = nc.SetDeadline(time.Now().Add(2 * patience))
	d := &device{Conn: nc, t: t, r: bufio.NewReader(nc), version: packet.V311}
	if l.version != 0 {
		d.version = l.version
	}
	if _, err = nc.Write(l.bytes()); err == nil {
		var body []byte
		if _, body, err = d.read(); err == nil && (len(body) < 2 || body[1] != 0) {
			err = fmt.Errorf("refused: % x", body)
		}
	}
	if err != nil {
		_ = nc.Close()
		return nil, err
	}
	return d, nil
}

// wait pauses until stop is closed or a moment has passed.
func wait(stop <-chan struct{}) {
	select {
	case <-stop:
	case <-time.After(5 * time.Millisecond):
	}
}
