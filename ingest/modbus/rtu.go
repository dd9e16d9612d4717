package modbus

import (
	"errors"
	"time"
)

const (
	fixedGap   = 1750 * time.Microsecond // idle time above 19200 baud. Modbus over serial line V1.02, section 2.5.1.1
	fixedAbove = 19200
	leastWait  = 500 * time.Microsecond // for looking whether something waits to be read
	neverQuiet = time.Second            // a line that talks longer than this, and the time-out, is unusable
)

// pace is how fast a line is.
type pace struct {
	char    time.Duration // one character; 0 where that does not count
	gap     time.Duration // idle time before a request
	timeout time.Duration // until a reply begins
}

func (b Bus) pace() pace {
	p := pace{gap: fixedGap, timeout: b.Timeout}
	if b.Mode == ModeRTU {
		bits := 1 + b.DataBits + b.StopBits
		if b.Parity != "none" {
			bits++
		}
		p.char = time.Duration(bits) * time.Second / time.Duration(b.Baud)
		if b.Baud <= fixedAbove {
			p.gap = 7 * p.char / 2
		}
	}
	if b.Gap > 0 {
		p.gap = b.Gap
	}
	return p
}

// hearing is what is known of an adapter's echo.
type hearing uint8

const (
	unsure hearing = iota // no request was sent yet that would show it
	echoes
	echoless
)

// rtuWire speaks serial frames, on a line or through a connection.
type rtuWire struct {
	reader
	pace
	hearing
	fixed bool // the configuration says what hearing is
	meter *meter

	last     time.Time // when the last byte came
	lastRead []byte    // the last frame sent, if it was a read; else nil
	doubtful bool      // the last request had no reply: it may come yet
}

func newRTUWire(p port, b Bus, m *meter) *rtuWire {
	w := &rtuWire{reader: reader{port: p}, pace: b.pace(), meter: m}
	switch {
	case b.Mode != ModeRTU || b.Echo == EchoOff:
		w.hearing, w.fixed = echoless, true
	case b.Echo == EchoOn:
		w.hearing, w.fixed = echoes, true
	}
	return w
}

// certain is false for a write whose reply equals its echo while nobody knows whether there is an echo.
func (w *rtuWire) certain(q request) bool { return w.hearing != unsure || !q.equalReply() }

func (w *rtuWire) tagged() bool { return false }

func (w *rtuWire) exchange(q request) ([]byte, error) {
	if err := w.settle(q.unit); err != nil {
		return nil, err
	}
	frame := q.frame()
	w.lastRead = nil
	if q.reads() {
		w.lastRead = frame
	}
	w.meter.count(func(s *Stats) { s.Requests++ })
	if err := w.send(frame); err != nil {
		return nil, err
	}
	onLine := time.Duration(len(frame)) * w.char
	deadline := time.Now().Add(onLine + w.timeout + time.Duration(q.replyLen()+3)*w.char)
	s := scan{req: q}
	if w.hearing == echoes || !w.fixed && !q.equalReply() {
		s.echo = frame
	}
	pdu, exc, err := w.listen(&s, deadline)
	w.meter.scanned(&s)
	w.learn(&s, pdu != nil, err)
	switch {
	case err != nil:
		return nil, err
	case exc != nil:
		w.doubtful = false
		w.meter.count(func(s *Stats) { s.count(exc) })
		return nil, exc
	case pdu != nil:
		w.doubtful = false
		w.meter.count(func(s *Stats) { s.Replies++ })
		return pdu, nil
	}
	w.doubtful = true
	if s.noise == 0 {
		w.meter.count(func(s *Stats) { s.Silent++ })
		return nil, ErrNoReply
	}
	w.meter.count(func(s *Stats) { s.Garbled++ })
	return nil, ErrGarbled
}

// learn finds out about the echo from a read. A reply without one in front says that there is none; silence says so only as long as
// nothing is known.
func (w *rtuWire) learn(s *scan, replied bool, err error) {
	switch {
	case w.fixed || err != nil:
	case s.echoed:
		w.hearing = echoes
	case s.noise == 0 && s.req.reads() && (replied || w.hearing == unsure):
		w.hearing = echoless
	}
}

// listen reads until the reply is there or the deadline has passed; then it returns nothing.
func (w *rtuWire) listen(s *scan, deadline time.Time) ([]byte, *Exception, error) {
	for {
		p, err := w.read(deadline)
		if err != nil {
			return nil, nil, err
		}
		if p == nil {
			pdu, exc := s.end()
			return pdu, exc, nil
		}
		w.last = time.Now()
		if pdu, exc := s.push(p); pdu != nil {
			return pdu, exc, nil
		}
	}
}

// settle waits until the line is idle and drops what came since the last exchange: it is no reply to what is sent next.
func (w *rtuWire) settle(unit byte) error {
	gap := w.gap
	if w.doubtful {
		gap *= 3
	}
	s := scan{req: request{unit: unit}, echo: w.lastRead}
	limit := time.Now().Add(neverQuiet + w.timeout)
	for {
		now := time.Now()
		p, err := w.read(now.Add(max(gap-now.Sub(w.last), leastWait)))
		var l *lost
		if errors.As(err, &l) {
			l.sent = false
		}
		if err != nil || p == nil {
			_, _ = s.end() // there is no request
			if s.echoed && !w.fixed {
				w.hearing = echoes // it came after the time-out
			}
			s.stray, s.foreign = s.foreign, 0 // frames between exchanges are late replies
			w.meter.scanned(&s)
			return err
		}
		if w.last = time.Now(); w.last.After(limit) {
			w.meter.count(func(s *Stats) { s.Garbled++ })
			return ErrGarbled
		}
		_, _ = s.push(p) // there is no request
	}
}
