package broker

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// window is how many QoS 1 messages a publisher has under way.
const window = 100

// keepAlive is what publishers promise; they send no pings, so an idle one may be dropped after one and a half times this.
const keepAlive = 3600 * time.Second

// Message is what a Publisher publishes.
type Message struct {
	Topic   string
	Payload []byte
	QoS     byte // 0 or 1
	Retain  bool
}

// Publisher is a minimal MQTT 3.1.1 client that publishes: a simulated device. Safe for concurrent use.
type Publisher struct {
	conn net.Conn

	mu   sync.Mutex // guards the fields below
	r    *bufio.Reader
	w    *bufio.Writer
	next uint16
}

// Login says who a publisher is.
type Login struct {
	ClientID       string
	User, Password string // both empty: anonymous
}

// Dial connects to the broker at host:port with a clean session.
func Dial(ctx context.Context, addr string, login Login) (*Publisher, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("connect publisher: %w", err)
	}
	p := &Publisher{conn: conn, r: bufio.NewReader(conn), w: bufio.NewWriter(conn)}
	if err := p.within(ctx, func() error { return p.connect(login) }); err != nil {
		_ = conn.Close() // the first error counts
		return nil, fmt.Errorf("connect publisher to %s: %w", addr, err)
	}
	return p, nil
}

// within runs f, which reads and writes the connection, and interrupts it when ctx ends.
func (p *Publisher) within(ctx context.Context, f func() error) error {
	stop := context.AfterFunc(ctx, func() { _ = p.conn.SetDeadline(time.Unix(1, 0)) }) // fails only when closed
	err := f()
	if !stop() && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

func (p *Publisher) connect(login Login) error {
	flags := byte(0x02) // clean session
	body := field(login.ClientID)
	if login.User != "" {
		flags |= 0x80 | 0x40
		body = append(append(body, field(login.User)...), field(login.Password)...)
	}
	head := append(field("MQTT"), 4, flags)
	head = binary.BigEndian.AppendUint16(head, uint16(keepAlive/time.Second))
	if err := p.send(0x10, head, body); err != nil {
		return err
	}
	if err := p.w.Flush(); err != nil {
		return err
	}
	kind, answer, err := p.receive()
	if err != nil {
		return err
	}
	if kind != 0x20 || len(answer) != 2 || answer[1] != 0 {
		return fmt.Errorf("refused: packet %#x, % x", kind, answer)
	}
	return nil
}

// Publish sends the messages in order and returns when the broker has acknowledged those with QoS 1. After an error the
// publisher is of no more use, and the messages without an acknowledgement may have been published or not.
func (p *Publisher) Publish(ctx context.Context, msgs ...Message) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.within(ctx, func() error {
		open := 0
		for i, m := range msgs {
			head, kind := field(m.Topic), 0x30|m.QoS<<1
			if m.Retain {
				kind |= 1
			}
			if m.QoS > 0 {
				if p.next++; p.next == 0 {
					p.next = 1
				}
				head = binary.BigEndian.AppendUint16(head, p.next)
				open++
			}
			if err := p.send(kind, head, m.Payload); err != nil {
				return fmt.Errorf("publish message %d: %w", i, err)
			}
			if open >= window {
				if err := p.acknowledged(); err != nil {
					return fmt.Errorf("publish message %d: %w", i, err)
				}
				open--
			}
		}
		for ; open > 0; open-- {
			if err := p.acknowledged(); err != nil {
				return fmt.Errorf("publish: %d without acknowledgement: %w", open, err)
			}
		}
		if err := p.w.Flush(); err != nil {
			return fmt.Errorf("publish: %w", err)
		}
		return nil
	})
}

// acknowledged waits for one PUBACK. They come in order, so that one is as good as another.
func (p *Publisher) acknowledged() error {
	if p.r.Buffered() == 0 {
		if err := p.w.Flush(); err != nil {
			return err
		}
	}
	kind, _, err := p.receive()
	if err == nil && kind != 0x40 {
		err = fmt.Errorf("packet %#x in place of a PUBACK", kind)
	}
	return err
}

// Close ends the connection in order.
func (p *Publisher) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.send(0xE0, nil, nil) // the broker notices the end either way
	_ = p.w.Flush()
	return p.conn.Close()
}

func (p *Publisher) send(kind byte, head, body []byte) error {
	packet := []byte{kind}
	n := len(head) + len(body)
	for n > 127 {
		packet = append(packet, byte(n)|0x80)
		n >>= 7
	}
	packet = append(packet, byte(n))
	for _, b := range [][]byte{packet, head, body} {
		if _, err := p.w.Write(b); err != nil {
			return err
		}
	}
	return nil
}

func (p *Publisher) receive() (kind byte, body []byte, err error) {
	if kind, err = p.r.ReadByte(); err != nil {
		return 0, nil, err
	}
	n, err := binary.ReadUvarint(p.r) // MQTT's remaining length is written like this
	if err != nil {
		return 0, nil, err
	}
	if n > 1<<28 {
		return 0, nil, fmt.Errorf("packet %#x of %d bytes", kind, n)
	}
	body = make([]byte, n)
	_, err = io.ReadFull(p.r, body)
	return kind, body, err
}

// field is an MQTT string: two bytes of length and the text.
func field(s string) []byte {
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(s))), s...)
}
