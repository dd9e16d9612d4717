package mqtt

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// Packet types (MQTT 3.1.1 section 2.2.1).
const (
	typeConnack  = 2
	typePublish  = 3
	typePuback   = 4
	typePubrec   = 5
	typeSuback   = 9
	typePingreq  = 12
	typePingresp = 13
)

// maxControl is the longest packet other than PUBLISH that is read. Those a broker sends us are far shorter.
const maxControl = 1024

// guard stands between the client library and the network, sees every packet and keeps what the library leaves open:
//
//   - The library allocates the length a packet announces, up to 256 MB, before it has come: guard cuts off a payload above the
//     limit and hands on the message without it, so that it can be counted and acknowledged.
//   - The library panics on a SUBACK with more answers than filters asked for.
//   - Writes of the library have no deadline.
//   - It tells which acknowledgements the broker has read: those written before a ping that it answered.
//
// Read is called by one goroutine; everything else is safe for concurrent use.
type guard struct {
	net.Conn
	limit   int64         // bytes of payload
	timeout time.Duration // of one write
	wake    func()        // called when confirmed may have grown
	closed  chan struct{} // closed by Close

	// Only Read uses these.
	r    *bufio.Reader
	out  []byte // to be handed on before anything else
	pass int    // then so many bytes from r
	skip int    // then so many bytes of r are dropped

	write sync.Mutex // held while a packet is written, so that pings of ours do not cut into one

	mu        sync.Mutex // guards the fields below
	once      bool       // closed is closed
	resumed   bool       // CONNACK said that the broker has our session
	published uint64     // PUBLISH packets read
	tooLarge  map[uint64]int64
	acked     uint64   // PUBACK and PUBREC packets written
	pings     []uint64 // acked at each ping that is not answered
	confirms  []confirm
}

// confirm says that the broker has read so many acknowledgements, which is so once so many messages have been handled: among
// the messages before the answer there may still be repeated ones.
type confirm struct{ acked, published uint64 }

func newGuard(c net.Conn, limit int64, timeout time.Duration, wake func()) *guard {
	return &guard{Conn: c, limit: limit, timeout: timeout, wake: wake, closed: make(chan struct{}),
		r: bufio.NewReaderSize(c, 16<<10), tooLarge: map[uint64]int64{}}
}

// Read implements net.Conn.
func (g *guard) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for {
		switch {
		case len(g.out) > 0:
			n := copy(p, g.out)
			g.out = g.out[n:]
			return n, nil
		case g.pass > 0:
			n, err := g.r.Read(p[:min(len(p), g.pass)])
			g.pass -= n
			return n, err
		case g.skip > 0:
			n, err := g.r.Discard(g.skip)
			g.skip -= n
			if err != nil {
				return 0, err
			}
		default:
			if err := g.packet(); err != nil {
				return 0, err
			}
		}
	}
}

// packet reads the fixed header of the next packet and decides what to do with the rest.
func (g *guard) packet() error {
	first, err := g.r.ReadByte()
	if err != nil {
		return err
	}
	length, err := g.length()
	if err != nil {
		return err
	}
	kind := first >> 4
	g.out, g.pass = append(g.out[:0], first), length
	switch {
	case kind == typePublish:
		return g.publish(first, length)
	case length > maxControl, kind == typeSuback && length != 3, kind == typeConnack && length != 2:
		return fmt.Errorf("the broker sent a packet of type %d with %d bytes, which MQTT 3.1.1 does not allow", kind, length)
	case kind == typeConnack:
		answer, err := g.r.Peek(2)
		if err != nil {
			return err
		}
		g.mu.Lock()
		g.resumed = answer[0]&1 == 1
		g.mu.Unlock()
	case kind == typePingresp:
		g.pong()
	}
	g.out = binary.AppendUvarint(g.out, uint64(length)) // the same form as MQTT's remaining length
	return nil
}

// length reads a remaining length, at most four bytes.
func (g *guard) length() (int, error) {
	n := 0
	for shift := 0; shift < 28; shift += 7 {
		b, err := g.r.ReadByte()
		if err != nil {
			return 0, err
		}
		n |= int(b&0x7f) << shift
		if b < 0x80 {
			return n, nil
		}
	}
	return 0, errors.New("the broker sent a packet with a malformed length")
}

// publish counts a message and takes the payload from one that is too long.
func (g *guard) publish(first byte, length int) error {
	g.mu.Lock()
	index := g.published
	g.published++
	g.mu.Unlock()
	if int64(length) <= g.limit {
		g.out = binary.AppendUvarint(g.out, uint64(length))
		return nil
	}
	head := make([]byte, 2)
	if _, err := io.ReadFull(g.r, head); err != nil {
		return err
	}
	rest := int(binary.BigEndian.Uint16(head))
	if first&0x06 != 0 {
		rest += 2 // packet id
	}
	payload := length - 2 - rest
	if payload < 0 {
		return errors.New("the broker sent a message that is shorter than its topic")
	}
	if int64(payload) > g.limit {
		g.mu.Lock()
		g.tooLarge[index] = int64(payload)
		g.mu.Unlock()
		g.skip = payload
		length -= payload
	}
	g.pass = length - 2
	g.out = append(binary.AppendUvarint(g.out, uint64(length)), head...)
	return nil
}

// oversize returns how many bytes of payload were taken from the message of this index, 0 for none.
func (g *guard) oversize(index uint64) int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.tooLarge[index]
	delete(g.tooLarge, index)
	return n
}

// pong notes that the broker has answered the oldest ping.
func (g *guard) pong() {
	g.mu.Lock()
	known := len(g.pings) > 0
	if known {
		g.confirms = append(g.confirms, confirm{acked: g.pings[0], published: g.published})
		g.pings = g.pings[1:]
	}
	g.mu.Unlock()
	if known {
		g.wake()
	}
}

// confirmed returns how many acknowledgements the broker has surely read, given how many messages have been handled.
func (g *guard) confirmed(handled uint64) (acked uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for len(g.confirms) > 0 && g.confirms[0].published <= handled {
		acked = g.confirms[0].acked
		g.confirms = g.confirms[1:]
	}
	return acked
}

// ping asks the broker for an answer, unless one is due.
func (g *guard) ping() error {
	g.mu.Lock()
	due := len(g.pings) > 0
	g.mu.Unlock()
	if due {
		return nil
	}
	_, err := g.Write([]byte{typePingreq << 4, 0})
	return err
}

// Write implements net.Conn. The library hands over one packet per call.
func (g *guard) Write(p []byte) (int, error) {
	g.write.Lock()
	defer g.write.Unlock()
	if err := g.SetWriteDeadline(time.Now().Add(g.timeout)); err != nil {
		return 0, err
	}
	kind := byte(0)
	if len(p) > 0 {
		kind = p[0] >> 4
	}
	if kind == typePingreq {
		g.mu.Lock()
		g.pings = append(g.pings, g.acked)
		g.mu.Unlock()
	}
	n, err := g.Conn.Write(p)
	if err == nil && (kind == typePuback || kind == typePubrec) {
		g.mu.Lock()
		g.acked++
		g.mu.Unlock()
	}
	return n, err
}

// sessionPresent says whether the broker had our session when it accepted the connection.
func (g *guard) sessionPresent() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.resumed
}

// Close implements net.Conn.
func (g *guard) Close() error {
	g.mu.Lock()
	if !g.once {
		g.once = true
		close(g.closed)
	}
	g.mu.Unlock()
	return g.Conn.Close()
}
