package mqttserver

import (
	"sync"
	"testing"

	"github.com/holdfast-edge/holdfast/ingest/ingesttest"
	"github.com/holdfast-edge/holdfast/ingest/mqttserver/packet"
)

// sensor is a device with a session that keeps each message until it is acknowledged, and connects again when it is lost.
type sensor struct {
	t    *testing.T
	s    *Source
	done chan struct{} // closed when it has stopped
	stop chan struct{} // closed by the end of the test
	work chan struct{} // holds a token when there is something to send

	mu    sync.Mutex // guards the fields below
	kept  []packet.Publish
	sent  int // of kept, on this connection
	next  uint16
	acked int
	conn  *device
}

func newSensor(t *testing.T, s *Source) *sensor {
	n := &sensor{t: t, s: s, done: make(chan struct{}), stop: make(chan struct{}), work: make(chan struct{}, 1)}
	go n.live()
	t.Cleanup(func() {
		close(n.stop)
		n.mu.Lock()
		if n.conn != nil {
			_ = n.conn.Close()
		}
		n.mu.Unlock()
		n.wake()
		<-n.done
	})
	return n
}

func (n *sensor) wake() {
	select {
	case n.work <- struct{}{}:
	default:
	}
}

func (n *sensor) send(payload string) {
	n.mu.Lock()
	n.next++
	n.kept = append(n.kept, qos1(n.next, "d/x", payload))
	n.mu.Unlock()
	n.wake()
}

func (n *sensor) acknowledged() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.acked
}

func (n *sensor) live() {
	defer close(n.done)
	for {
		select {
		case <-n.stop:
			return
		case <-n.work:
		}
		if !n.session() {
			n.wake()
		}
	}
}

// session connects and sends until the connection is lost.
func (n *sensor) session() bool {
	addrs := n.s.Addrs()
	if len(addrs) == 0 {
		wait(n.stop)
		return false
	}
	d, err := tryConnect(n.t, addrs[0], login{id: "sensor", keep: true})
	if err != nil {
		wait(n.stop)
		return false
	}
	defer func() { _ = d.Close() }()
	n.mu.Lock()
	n.conn, n.sent = d, 0
	for i := range n.kept {
		n.kept[i].Dup = true
	}
	n.mu.Unlock()
	lost := make(chan struct{})
	go func() {
		defer close(lost)
		for {
			first, body, err := d.read()
			if err != nil {
				return
			}
			if first == 0x40 {
				n.settle(uint16(body[0])<<8 | uint16(body[1]))
			}
		}
	}()
	for {
		n.mu.Lock()
		var out []byte
		for _, p := range n.kept[n.sent:] {
			out = p.Append(out, packet.V311)
		}
		n.sent = len(n.kept)
		n.mu.Unlock()
		_, _ = d.Write(out) // the reader notices the loss
		select {
		case <-n.work:
		case <-lost:
			return false
		case <-n.stop:
			_ = d.Close()
			<-lost
			return true
		}
	}
}

func (n *sensor) settle(id uint16) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.kept) == 0 || n.kept[0].ID != id {
		n.t.Errorf("PUBACK %d out of order", id)
		return
	}
	n.kept, n.sent, n.acked = n.kept[1:], n.sent-1, n.acked+1
}

func TestContract(t *testing.T) {
	ingesttest.Run(t, func(t *testing.T) ingesttest.Device {
		s := newSource(t, config(t), stateDir(t))
		n := newSensor(t, s)
		return ingesttest.Device{Source: s, Send: n.send, Acknowledged: n.acknowledged}
	})
}
