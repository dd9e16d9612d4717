package modbus

import (
	"encoding/binary"
	"fmt"
	"time"
)

const headerLen = 7 // transaction, protocol, length, unit. Modbus messaging on TCP/IP V1.0b, section 3.1.3

// tcpWire speaks Modbus/TCP. Replies name their request by a transaction id, so a late one is known as such.
type tcpWire struct {
	reader
	timeout time.Duration
	meter   *meter

	id  uint16
	buf []byte // bytes of frames that are not complete; the frames before pos are done with
	pos int
}

func (w *tcpWire) certain(request) bool { return true }

func (w *tcpWire) tagged() bool { return true }

func (w *tcpWire) exchange(q request) ([]byte, error) {
	w.id++
	frame := binary.BigEndian.AppendUint16(nil, w.id)
	frame = append(frame, 0, 0)
	frame = binary.BigEndian.AppendUint16(frame, uint16(1+len(q.pdu)))
	frame = append(append(frame, q.unit), q.pdu...)
	if !q.reads() { // a gateway that hung up meanwhile is noticed before a write is sent into nowhere
		if err := w.drain(); err != nil {
			return nil, err
		}
	}
	w.meter.count(func(s *Stats) { s.Requests++ })
	if err := w.send(frame); err != nil {
		return nil, err
	}
	deadline := time.Now().Add(w.timeout)
	for {
		unit, pdu, err := w.next(w.id)
		if err != nil {
			return nil, err
		}
		if pdu != nil {
			return w.judge(q, unit, pdu)
		}
		p, err := w.read(deadline)
		if err != nil {
			return nil, err
		}
		if p == nil {
			w.meter.count(func(s *Stats) { s.Silent++ })
			return nil, ErrNoReply
		}
		w.buf = append(w.buf, p...)
	}
}

// drain takes what has arrived, and finds out whether the connection is closed.
func (w *tcpWire) drain() error {
	for {
		p, err := w.read(time.Now().Add(leastWait))
		if err != nil {
			return &lost{err: err}
		}
		if p == nil {
			return nil
		}
		w.buf = append(w.buf, p...)
	}
}

// next returns the reply to a transaction, if it is complete. Others are dropped.
func (w *tcpWire) next(id uint16) (unit byte, pdu []byte, err error) {
	w.buf, w.pos = append(w.buf[:0], w.buf[w.pos:]...), 0
	for {
		n, err := envelope(w.buf[w.pos:])
		if n == 0 || err != nil {
			return 0, nil, err
		}
		frame := w.buf[w.pos : w.pos+n]
		w.pos += n
		if binary.BigEndian.Uint16(frame) == id {
			return frame[headerLen-1], frame[headerLen:], nil
		}
		w.meter.count(func(s *Stats) { s.Late++ })
	}
}

// envelope returns the length of the frame that p begins with, 0 while it is not complete. What is no frame is an error: where the
// next one begins, nobody could say.
func envelope(p []byte) (int, error) {
	if len(p) < headerLen-1 {
		return 0, nil
	}
	if n := int(binary.BigEndian.Uint16(p[4:])); p[2] != 0 || p[3] != 0 || n < 2 || n > 1+maxPDU {
		return 0, &lost{err: fmt.Errorf("what it sent is no Modbus/TCP (% x)", p[:headerLen-1]), sent: true}
	} else if len(p) >= headerLen-1+n {
		return headerLen - 1 + n, nil
	}
	return 0, nil
}

// judge holds the reply to our transaction against the request.
func (w *tcpWire) judge(q request, unit byte, pdu []byte) ([]byte, error) {
	ok, exc := q.accept(pdu)
	switch {
	case unit != q.unit:
		w.meter.count(func(s *Stats) { s.Garbled++ })
		return nil, fmt.Errorf("%w: unit %d was asked, and the reply is of unit %d", ErrGarbled, q.unit, unit)
	case !ok:
		w.meter.count(func(s *Stats) { s.Garbled++ })
		return nil, fmt.Errorf("%w: it does not fit the request", ErrGarbled)
	case exc != nil:
		w.meter.count(func(s *Stats) { s.count(exc) })
		return nil, exc
	}
	w.meter.count(func(s *Stats) { s.Replies++ })
	return pdu, nil
}
