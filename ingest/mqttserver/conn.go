package mqttserver

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/holdfast-edge/holdfast/ingest/mqttserver/packet"
	"github.com/holdfast-edge/holdfast/ingest/seen"
)

// Limits of a connection.
const (
	maxConnect  = 80 << 10 // longest CONNECT, in bytes: a will has 64 KiB at most
	maxControl  = 64 << 10 // longest packet that is neither CONNECT nor PUBLISH
	small       = 64 << 10 // a longer message is read only when few others are
	maxSkip     = 64 << 20 // longest message that is read only to be refused
	writeChunk  = 64 << 10 // what is written at once, about
	outLimit    = 64 << 10 // nothing is read from a client that does not take so many bytes of answers
	slowest     = 1 << 10  // bytes per second that a client has to manage
	patienceFor = 20 * time.Second
)

// conn is one connection of a client. A reader takes its packets, a writer sends what is in out and what waits for the client.
type conn struct {
	s      *Source
	nc     net.Conn
	wire   *wire // what nc ends in
	r      *bufio.Reader
	from   string          // address without port
	dead   <-chan struct{} // closed when the connection is closed
	cancel func()          // closes dead
	wake   chan struct{}   // holds a token when the writer may have something to do; never closed
	room   chan struct{}   // holds a token when the reader may go on; never closed

	// Set by the login, before the writer starts.
	version    byte
	session    *session
	keepAlive  time.Duration // 0: none
	sendWindow int
	maxPacket  uint32 // 0: no limit
	byPassword bool   // the users file let it in

	unacked  int  // guarded by Source.mu: messages with QoS 1 and 2 that are not acknowledged
	graceful bool // guarded by Source.mu: the client said goodbye

	mu      sync.Mutex // guards the fields below
	out     []byte
	marks   []seen.Digest // of acknowledgements in out
	sent    []sentMark
	closing bool // the writer closes when out is sent
	closed  bool
}

// sentMark is an acknowledgement that was written, and how much had been written by then.
type sentMark struct {
	digest seen.Digest
	upTo   uint64
}

// newConn returns a connection whose close cancels the context that dead belongs to.
func newConn(s *Source, nc net.Conn, w *wire, dead <-chan struct{}, cancel func()) *conn {
	host, _, err := net.SplitHostPort(nc.RemoteAddr().String())
	if err != nil {
		host = nc.RemoteAddr().String()
	}
	return &conn{s: s, nc: nc, wire: w, from: host, dead: dead, cancel: cancel, wake: make(chan struct{}, 1), room: make(chan struct{}, 1)}
}

// nudge makes the writer look.
func (c *conn) nudge() {
	select {
	case c.wake <- struct{}{}:
	default: // a token is there already
	}
}

// goOn makes the reader look.
func (c *conn) goOn() {
	select {
	case c.room <- struct{}{}:
	default:
	}
}

// put has packets written; add appends them.
func (c *conn) put(add func(b []byte) []byte) {
	c.mu.Lock()
	if !c.closing && !c.closed {
		c.out = add(c.out)
	}
	c.mu.Unlock()
	c.nudge()
}

// putMarked has an acknowledgement written and remembers whose it is.
func (c *conn) putMarked(add func(b []byte) []byte, d seen.Digest) {
	c.mu.Lock()
	if !c.closing && !c.closed {
		c.out, c.marks = add(c.out), append(c.marks, d)
	}
	c.mu.Unlock()
	c.nudge()
}

// leave closes the connection when what is in out, and a reason other than Success for a client of MQTT 5, are written.
func (c *conn) leave(r packet.Reason) {
	c.mu.Lock()
	if !c.closing && !c.closed {
		if c.closing = true; r != packet.Success {
			c.out = packet.AppendDisconnect(c.out, c.version, r)
		}
		_ = c.nc.SetWriteDeadline(time.Now().Add(2 * time.Second)) // of a write under way, too
	}
	c.mu.Unlock()
	c.nudge()
}

// close closes the connection at once.
func (c *conn) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.closed = true
		c.cancel()
		// Not by TLS, whose Close may wait for a write that is stuck.
		_ = c.wire.Close() // nothing can be done about it
	}
}

// write sends until the connection is closed.
func (c *conn) write() {
	defer func() {
		select {
		case c.s.settled <- c.taken():
		default: // then they stay marked until the ring has come round
		}
		c.close()
	}()
	var b []byte
	for {
		select {
		case <-c.dead:
			return
		case <-c.wake:
		}
		for {
			c.mu.Lock()
			b, c.out = append(b[:0], c.out...), c.out[:0]
			marks, closing := c.marks, c.closing
			c.marks = nil
			c.mu.Unlock()
			if !closing && len(b) < writeChunk {
				b = c.s.fill(c, b, writeChunk)
			}
			if len(b) == 0 && closing {
				return
			}
			if len(b) == 0 {
				break
			}
			if err := c.send(b, closing); err != nil {
				return
			}
			c.noteSent(marks)
			c.goOn()
			if cap(b) > 2*writeChunk {
				b = nil
			}
		}
	}
}

// send writes b. A client has to take it within a time that goes with its length.
func (c *conn) send(b []byte, closing bool) error {
	c.mu.Lock()
	limit := 2 * time.Second
	if !c.closing {
		limit = allowance(len(b))
	}
	_ = c.nc.SetWriteDeadline(time.Now().Add(limit)) // fails only when closed, as Write does then
	c.mu.Unlock()
	_, err := c.nc.Write(b)
	return err
}

// allowance is how long so many bytes may take.
func allowance(n int) time.Duration { return patienceFor + time.Duration(n/slowest)*time.Second }

// noteSent remembers acknowledgements until the client's side has confirmed them.
func (c *conn) noteSent(marks []seen.Digest) {
	if len(marks) == 0 {
		return
	}
	upTo := c.wire.written.Load()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range marks {
		c.sent = append(c.sent, sentMark{d, upTo})
	}
	if over := len(c.sent) - 4*c.s.cfg.Window; over > 0 {
		c.sent = c.sent[over:] // their marks stay until the ring has come round
	}
}

// taken returns the acknowledgements whose bytes the client's side has confirmed, once.
func (c *conn) taken() (list []seen.Digest) {
	upTo, ok := c.wire.confirmed()
	if !ok {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for n < len(c.sent) && c.sent[n].upTo <= upTo {
		list = append(list, c.sent[n].digest)
		n++
	}
	c.sent = c.sent[n:]
	return list
}

// errTooMany ends a connection of a client of MQTT 5 that sends more at once than it was told.
var errTooMany = &packet.Error{Reason: packet.ReceiveMaxExceeded, Text: "more messages under way than the server allows"}

// read takes packets until the connection ends and returns why.
func (c *conn) read(ctx context.Context) error {
	for {
		if err := c.wait(); err != nil {
			return err
		}
		if err := c.readOne(ctx); err != nil {
			return err
		}
	}
}

// wait lets the client wait while it does not take its answers, and, in MQTT 3.1.1, while too many of its messages wait for the
// store. A client of MQTT 5 knows how many it may send, so that its pings can be answered meanwhile.
func (c *conn) wait() error {
	for {
		c.s.mu.Lock()
		full := c.version != packet.V5 && c.unacked >= c.s.cfg.Window
		c.s.mu.Unlock()
		c.mu.Lock()
		full = full || len(c.out) >= outLimit
		c.mu.Unlock()
		if !full {
			return nil
		}
		select {
		case <-c.room:
		case <-c.dead:
			return net.ErrClosed
		}
	}
}

// readOne takes one packet.
func (c *conn) readOne(ctx context.Context) error {
	var until time.Time
	if c.keepAlive > 0 {
		until = time.Now().Add(c.keepAlive + c.keepAlive/2) // MQTT 3.1.1 section 3.1.2.10
	}
	_ = c.nc.SetReadDeadline(until) // fails only when closed, as the read does then
	if _, err := c.r.Peek(1); err != nil {
		if isTimeout(err) {
			return &packet.Error{Reason: packet.KeepAliveTimeout, Text: "nothing came within the keepalive"}
		}
		return err
	}
	_ = c.nc.SetReadDeadline(time.Now().Add(patienceFor))
	h, err := packet.ReadHeader(c.r)
	if err != nil {
		return err
	}
	_ = c.nc.SetReadDeadline(time.Now().Add(allowance(h.Length)))
	if h.Type == packet.PUBLISH {
		return c.readMessage(ctx, h)
	}
	if h.Length > maxControl {
		return &packet.Error{Reason: packet.PacketTooLarge, Text: fmt.Sprintf("packet of type %d with %d bytes", h.Type, h.Length)}
	}
	body := make([]byte, h.Length)
	if _, err := io.ReadFull(c.r, body); err != nil {
		return err
	}
	return c.handle(h, body)
}

// readMessage takes a PUBLISH.
func (c *conn) readMessage(ctx context.Context, h packet.Header) error {
	if int64(h.Length) > c.s.cfg.MaxMessage {
		return c.skipMessage(ctx, h)
	}
	size, reserved := int64(h.Length)+overhead, false
	if h.Length > small {
		// Few large messages at once, and only when there is room for them: what clients announce costs nothing.
		if err := c.s.large.Acquire(ctx, 1); err != nil {
			return net.ErrClosed
		}
		defer c.s.large.Release(1)
		if err := c.s.intake.reserve(ctx, size); err != nil {
			return net.ErrClosed
		}
		reserved = true
	}
	body := make([]byte, h.Length)
	err := c.readMoving(body)
	var p packet.Publish
	if err == nil {
		p, err = packet.DecodePublish(h, c.version, body)
	}
	if err == nil && !reserved {
		if err = c.s.intake.reserve(ctx, size); err != nil {
			return net.ErrClosed
		}
		reserved = true
	}
	if err != nil {
		if reserved {
			c.s.intake.release(size)
		}
		return err
	}
	return c.publish(p, size, nil)
}

// readMoving reads all of b. A client that comes to a stop in it is gone, for others may wait for the place of its message.
func (c *conn) readMoving(b []byte) error {
	end := time.Now().Add(allowance(len(b)))
	for len(b) > 0 {
		until := time.Now().Add(c.s.patience)
		if until.After(end) {
			until = end
		}
		_ = c.nc.SetReadDeadline(until) // fails only when closed, as the read does then
		n, err := c.r.Read(b)
		if b = b[n:]; err != nil && len(b) > 0 {
			return err
		}
	}
	return nil
}

// skipMessage reads a message that is too long without keeping its payload. A client of MQTT 5 was told the limit; one of
// MQTT 3.1.1 would send the message again for ever if it were thrown out.
func (c *conn) skipMessage(ctx context.Context, h packet.Header) error {
	tooLarge := &packet.Error{Reason: packet.PacketTooLarge, Text: fmt.Sprintf("message with %d bytes, where %d are taken", h.Length, c.s.cfg.MaxMessage)}
	if c.version == packet.V5 || h.Length > maxSkip {
		c.s.refuseLoudly(ReasonTooLarge, h.Length)
		return tooLarge
	}
	head := make([]byte, 2)
	if _, err := io.ReadFull(c.r, head); err != nil {
		return err
	}
	n := int(head[0])<<8 | int(head[1])
	if h.QoS() > 0 {
		n += 2
	}
	if n > h.Length-2 {
		return &packet.Error{Reason: packet.MalformedPacket, Text: "message that is shorter than its topic"}
	}
	head = append(head, make([]byte, n)...)
	if _, err := io.ReadFull(c.r, head[2:]); err != nil {
		return err
	}
	if _, err := io.CopyN(io.Discard, c.r, int64(h.Length-len(head))); err != nil {
		return err
	}
	p, err := packet.DecodePublish(h, c.version, head)
	if err != nil {
		return err
	}
	size := int64(len(head)) + overhead
	if err := c.s.intake.reserve(ctx, size); err != nil {
		return net.ErrClosed
	}
	return c.publish(p, size, &refusal{ReasonTooLarge, packet.PacketTooLarge, h.Length})
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}
