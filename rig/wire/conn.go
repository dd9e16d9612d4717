package wire

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

const (
	chunkSize = 16 << 10
	// queueMax bounds what is under way in one direction; queueThrottled does while a rate is set, as in a modem's buffer.
	queueMax       = 4 << 20
	queueThrottled = 64 << 10
	dialTimeout    = 10 * time.Second
)

// conn is one proxied connection: a client and, unless it came while the wire was silent, the target.
type conn struct {
	wire   *Wire
	client *net.TCPConn
	target string
	dead   atomic.Bool // bytes were lost: silent for good

	ctx    context.Context // ends the connection; held here because Reset comes from outside of run
	cancel context.CancelFunc
}

// abort ends the connection with a RST to both sides. It does not wait.
func (c *conn) abort() { c.cancel() }

func (c *conn) silent() bool { return c.dead.Load() || c.wire.silent.Load() }

func (c *conn) run() {
	defer c.cancel()
	if c.silent() {
		c.swallow(c.client) // as if the SYN were lost, but for the ACK
		reset(c.client)
		return
	}
	d := net.Dialer{Timeout: dialTimeout}
	t, err := d.DialContext(c.ctx, "tcp", c.target)
	if err != nil {
		reset(c.client)
		return
	}
	target := t.(*net.TCPConn)
	var wg, readers sync.WaitGroup
	for _, p := range []*pipe{
		{conn: c, from: c.client, to: target, count: &c.wire.up},
		{conn: c, from: target, to: c.client, count: &c.wire.down},
	} {
		p.wake = make(chan struct{}, 1)
		p.room = make(chan struct{}, 1)
		wg.Add(2)
		readers.Add(1)
		go func() { defer wg.Done(); defer readers.Done(); p.read() }()
		go func() { defer wg.Done(); p.write() }()
	}
	ended := make(chan struct{})
	go func() {
		readers.Wait()
		if c.dead.Load() {
			c.abort() // both ends have given up a half-dead connection
		}
		wg.Wait()
		close(ended)
	}()
	select {
	case <-ended: // both directions were closed properly
		_ = c.client.Close() // all was delivered; nothing to report to
		_ = target.Close()
	case <-c.ctx.Done():
		reset(c.client)
		reset(target)
		<-ended
	}
}

// swallow reads and drops what comes from a client that was accepted in silence, until it closes.
func (c *conn) swallow(from *net.TCPConn) {
	stop := context.AfterFunc(c.ctx, func() { _ = from.SetReadDeadline(time.Unix(1, 0)) }) // wakes the read below
	defer stop()
	buf := make([]byte, chunkSize)
	for {
		n, err := from.Read(buf)
		c.wire.lost.Add(int64(n))
		if err != nil {
			return
		}
	}
}

// pipe is one direction of a connection: read fills a queue, write delivers it when it is due.
type pipe struct {
	conn     *conn
	from, to *net.TCPConn
	count    *counter
	wake     chan struct{} // buffered 1: something was queued
	room     chan struct{} // buffered 1: something was taken
	free     time.Time     // when the throttle lets the next byte pass; used by write alone

	mu     sync.Mutex // guards the fields below
	queue  []chunk
	queued int
}

type chunk struct {
	data []byte
	due  time.Time
	fin  bool
}

func (p *pipe) read() {
	for {
		buf := make([]byte, chunkSize)
		n, err := p.from.Read(buf)
		if n > 0 {
			if p.conn.silent() {
				p.lose(n)
			} else if !p.push(chunk{data: buf[:n]}) {
				return
			}
		}
		if err == nil {
			continue
		}
		if p.conn.silent() {
			// The other side must not learn of it. What it still sends is dropped by its own reader.
			p.conn.dead.Store(true)
			p.push(chunk{fin: true}) // ends our writer
			return
		}
		if errors.Is(err, io.EOF) {
			p.push(chunk{fin: true})
		} else {
			p.conn.abort()
		}
		return
	}
}

func (p *pipe) lose(n int) {
	p.conn.wire.lost.Add(int64(n))
	p.conn.dead.Store(true)
}

// push queues a chunk, waiting for room. It is false when the connection has ended.
func (p *pipe) push(c chunk) bool {
	c.due = time.Now().Add(time.Duration(p.conn.wire.delay.Load()))
	for {
		limit := queueMax
		if p.conn.wire.rate.Load() > 0 {
			limit = queueThrottled
		}
		p.mu.Lock()
		if p.queued < limit || c.fin {
			p.queue = append(p.queue, c)
			p.queued += len(c.data)
			p.mu.Unlock()
			signal(p.wake)
			return true
		}
		p.mu.Unlock()
		select {
		case <-p.room:
		case <-p.conn.ctx.Done():
			return false
		}
	}
}

func (p *pipe) write() {
	for {
		c, ok := p.pop()
		if !ok {
			return
		}
		if d := time.Until(c.due); d > 0 {
			wait(p.conn.ctx.Done(), d)
		}
		if p.conn.silent() {
			if len(c.data) > 0 {
				p.lose(len(c.data))
			}
			if c.fin {
				<-p.conn.ctx.Done() // one side closed, and the other must not learn of it
				return
			}
			continue
		}
		if c.fin {
			_ = p.to.CloseWrite() // a reset meanwhile shows in the other direction
			return
		}
		if !p.deliver(c.data) {
			return
		}
	}
}

func (p *pipe) pop() (chunk, bool) {
	for {
		p.mu.Lock()
		if len(p.queue) > 0 {
			c := p.queue[0]
			p.queue = p.queue[1:]
			p.queued -= len(c.data)
			p.mu.Unlock()
			signal(p.room)
			return c, true
		}
		p.mu.Unlock()
		select {
		case <-p.wake:
		case <-p.conn.ctx.Done():
			return chunk{}, false
		}
	}
}

// lateness is what the pace of a throttled pipe makes up for when its timers fire late.
const lateness = 100 * time.Millisecond

// deliver writes data at the wire's rate. It is false when the connection has ended.
func (p *pipe) deliver(data []byte) bool {
	for len(data) > 0 {
		n := len(data)
		if rate := p.conn.wire.rate.Load(); rate > 0 {
			n = min(n, max(1, int(rate/50))) // a 50th of a second's worth at a time
			if behind := time.Now().Add(-lateness); p.free.Before(behind) {
				p.free = time.Now()
			}
			p.free = p.free.Add(time.Duration(int64(n) * int64(time.Second) / rate))
			wait(p.conn.ctx.Done(), time.Until(p.free))
		}
		n, err := p.to.Write(data[:n])
		p.count.Add(int64(n))
		if err != nil {
			if p.conn.silent() {
				p.conn.dead.Store(true)
			} else {
				p.conn.abort()
			}
			return false
		}
		data = data[n:]
	}
	return true
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// reset closes a connection with a RST.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0) // fails only on a dead socket
	_ = c.Close()
}
