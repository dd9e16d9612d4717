package mqtt

import (
	"fmt"
	"net"
	"sync"
	"testing"

	"github.com/eclipse/paho.mqtt.golang/packets"

	"github.com/holdfast-edge/holdfast/ingest"
	"github.com/holdfast-edge/holdfast/ingest/ingesttest"
	"github.com/holdfast-edge/holdfast/rig/broker"
	"github.com/holdfast-edge/holdfast/rig/poll"
)

// pocket is a broker for one client that keeps its session: it sends every message until it is acknowledged.
type pocket struct {
	t    testing.TB
	addr string

	mu    sync.Mutex // guards the fields below
	ln    net.Listener
	conn  net.Conn
	ready bool // the client has subscribed
	kept  []*packets.PublishPacket
	next  uint16
	acked int
	known bool // it has a session
	users sync.WaitGroup
}

func newPocket(t testing.TB) *pocket {
	t.Helper()
	b := &pocket{t: t, addr: "127.0.0.1:0"}
	b.listen()
	t.Cleanup(func() {
		b.shut()
		b.users.Wait()
	})
	return b
}

func (b *pocket) listen() {
	b.t.Helper()
	ln, err := net.Listen("tcp", b.addr)
	if err != nil {
		b.t.Fatal(err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ln, b.addr = ln, ln.Addr().String()
	b.users.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			b.users.Go(func() { b.serve(c) })
		}
	})
}

// shut closes the listener and the connection.
func (b *pocket) shut() {
	b.mu.Lock()
	defer b.mu.Unlock()
	_ = b.ln.Close()
	b.drop()
}

func (b *pocket) drop() {
	if b.conn != nil {
		_ = b.conn.Close()
	}
	b.conn, b.ready = nil, false
}

func (b *pocket) serve(c net.Conn) {
	defer func() { _ = c.Close() }()
	for {
		p, err := packets.ReadPacket(c)
		if err != nil {
			return
		}
		b.handle(c, p)
	}
}

func (b *pocket) handle(c net.Conn, p packets.ControlPacket) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch p := p.(type) {
	case *packets.ConnectPacket:
		b.drop()
		b.conn = c
		ack := packets.NewControlPacket(packets.Connack).(*packets.ConnackPacket)
		ack.SessionPresent, b.known = b.known, true
		_ = ack.Write(c) // a client that is gone comes again
		for _, m := range b.kept {
			m.Dup = true
			_ = m.Write(c)
		}
	case *packets.SubscribePacket:
		ack := packets.NewControlPacket(packets.Suback).(*packets.SubackPacket)
		ack.MessageID, ack.ReturnCodes = p.MessageID, []byte{1}
		_ = ack.Write(c)
		b.ready = b.conn == c
	case *packets.PingreqPacket:
		_ = packets.NewControlPacket(packets.Pingresp).Write(c)
	case *packets.PubackPacket:
		for i, m := range b.kept {
			if m.MessageID == p.MessageID {
				b.kept = append(b.kept[:i], b.kept[i+1:]...)
				b.acked++
				break
			}
		}
	}
}

func (b *pocket) send(payload string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.next++
	m := packets.NewControlPacket(packets.Publish).(*packets.PublishPacket)
	m.TopicName, m.Payload, m.Qos, m.MessageID = "a", []byte(payload), 1, b.next
	b.kept = append(b.kept, m)
	if b.conn != nil {
		_ = m.Write(b.conn)
	}
}

func (b *pocket) acknowledged() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.acked
}

func (b *pocket) subscribed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ready
}

func TestContract(t *testing.T) {
	ingesttest.Run(t, func(t *testing.T) ingesttest.Device {
		b := newPocket(t)
		s := newSource(t, "tcp://"+b.addr)
		return ingesttest.Device{
			Source: s, Send: b.send, Acknowledged: b.acknowledged, Break: b.shut, Mend: b.listen,
			Ready: func() { poll.Until(t, patience, b.subscribed, "the source to subscribe") },
		}
	})
}

func TestContractMosquitto(t *testing.T) {
	ingesttest.Run(t, func(t *testing.T) ingesttest.Device {
		b := broker.Need(t, broker.Options{Persistence: true})
		p := dial(t, b, broker.Login{})
		s := newSource(t, b.URL())
		return ingesttest.Device{
			Source: s,
			Send: func(payload string) {
				publish(t, p, broker.Message{Topic: "a", Payload: []byte(payload), QoS: 1})
			},
			Ready: func() {
				poll.Until(t, patience, func() bool { return s.State().Kind == ingest.Running }, "the source to run")
			},
			Break: b.Kill,
			Mend: func() {
				if err := b.Restart(); err != nil {
					t.Fatal(err)
				}
				p = dial(t, b, broker.Login{})
			},
		}
	})
}

func newSource(t testing.TB, url string) *Source {
	t.Helper()
	s, err := New(Options{Name: "m", Leaf: "leaf", Config: config(url), StateDir: t.TempDir(), Log: nopLog()})
	if err != nil {
		t.Fatal(err)
	}
	s.timing = quick
	return s
}

// TestManyFromNATS takes more than a window of messages from the MQTT listener of a nats-server, the broker of the demo.
func TestManyFromNATS(t *testing.T) {
	b, err := broker.StartNATS(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}()
	st := &fakeStore{epoch: 1}
	r := run(t, t.TempDir(), config(b.URL()), st)
	r.until(ingest.Running, "")
	p, err := broker.Dial(t.Context(), b.Addr(), broker.Login{ClientID: "device"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	publish(t, p, numbered("a", 1, 0, 5000)...)
	untilStored(t, st, 5000)
	wantNumbers(t, st.payloads(), 5000)
	r.stop()
	publish(t, p, numbered("a", 1, 5000, 6000)...)
	start(t, r.Source, r.log, st.deliver)
	untilStored(t, st, 6000)
	if got := st.payloads()[5999]; got != fmt.Sprint(5999) {
		t.Errorf("the last record is %q", got)
	}
}
