package modbus

import "bytes"

// crc16 is the checksum of serial frames. Modbus over serial line V1.02, section 2.5.1.2.
func crc16(p []byte) uint16 {
	crc := uint16(0xffff)
	for _, b := range p {
		crc ^= uint16(b)
		for range 8 {
			if crc&1 != 0 {
				crc = crc>>1 ^ 0xa001
			} else {
				crc >>= 1
			}
		}
	}
	return crc
}

// frame returns the serial frame of a request.
func (q request) frame() []byte {
	p := append([]byte{q.unit}, q.pdu...)
	crc := crc16(p)
	return append(p, byte(crc), byte(crc>>8))
}

// intact checks the checksum at the end of a frame.
func intact(p []byte) bool {
	n := len(p) - 2
	crc := crc16(p[:n])
	return p[n] == byte(crc) && p[n+1] == byte(crc>>8)
}

const (
	exchanged = 8   // length of most requests, and of replies to writes
	maxHeld   = 512 // bytes that a scan keeps: more than any frame and what may stand before it
)

// scan finds the reply to a request among the bytes of a serial line. It goes by lengths and checksums, never by silence: a USB
// adapter delivers a frame in pieces milliseconds apart. Whatever is not the reply is skipped: noise byte by byte, intact frames
// of others as a whole. How the bytes are split makes no difference.
type scan struct {
	req  request // without pdu: everything is skipped
	echo []byte  // what the adapter may repeat: dropped once; nil: nothing

	buf []byte
	pos int // everything before it is done with

	echoed  bool
	foreign int // frames of other units
	stray   int // frames of this unit that are no reply to this request
	noise   int // bytes that belong to no frame
}

// push takes bytes and returns the reply's data unit when it is complete, and the exception if it is one. The result is valid
// until the next call.
func (s *scan) push(p []byte) (pdu []byte, exc *Exception) {
	s.buf = append(s.buf, p...)
	if over := s.pos - maxHeld; over > 0 {
		s.buf, s.pos = append(s.buf[:0], s.buf[over:]...), maxHeld
	}
	return s.find(false)
}

// end looks again when nothing more will come: what noise made look like the beginning of a long frame is skipped.
func (s *scan) end() (pdu []byte, exc *Exception) { return s.find(true) }

func (s *scan) find(end bool) (pdu []byte, exc *Exception) {
	for s.pos < len(s.buf) {
		rest := s.buf[s.pos:]
		if s.echo != nil && bytes.HasPrefix(rest, s.echo) {
			s.pos += len(s.echo)
			s.echoed, s.echo = true, nil
			continue
		}
		n, more := measure(rest)
		if s.echo != nil && bytes.HasPrefix(s.echo, rest) {
			n, more = 0, true
		}
		switch {
		case more && !end:
			return nil, nil
		case n == 0:
			s.noise++
			s.pos++
			continue
		}
		s.pos += n
		unit, body := rest[0], rest[1:n-2]
		if unit != s.req.unit || s.req.pdu == nil {
			s.foreign++
			continue
		}
		if ok, exc := s.req.accept(body); ok {
			return body, exc
		}
		s.stray++
	}
	return nil, nil
}

// measure returns the length of the intact frame that p begins with, 0 if it begins with none, and whether more bytes could
// make it begin with one. Requests count too: an echo, or another master's.
func measure(p []byte) (n int, more bool) {
	if len(p) < 2 {
		return 0, true
	}
	lengths := [2]int{exchanged, exchanged} // from the shorter on
	switch fn := p[1]; {
	case fn > exceptionBit:
		lengths = [2]int{exceptionFrame, exceptionFrame}
	case fn == fnWriteCoil, fn == fnWriteRegister:
	case fn == fnWriteCoils, fn == fnWriteRegisters:
		if len(p) > 6 {
			lengths[1] = max(9+int(p[6]), exchanged)
		}
	case fn >= fnReadCoils && fn <= fnReadInput:
		if len(p) < 3 {
			return 0, true
		}
		if l := 5 + int(p[2]); p[2] > 0 {
			lengths = [2]int{min(l, exchanged), max(l, exchanged)}
		}
	default:
		return 0, false
	}
	for _, l := range lengths {
		if len(p) >= l && intact(p[:l]) {
			return l, false
		}
		if len(p) < l {
			return 0, true
		}
	}
	return 0, false
}
