// Package frame cuts the bytes of a line into frames and accounts for every byte that is none.
package frame

import (
	"fmt"
	"time"
)

// Framer finds frames in a stream of bytes. The frames do not depend on how the stream was cut into calls of Push. It holds
// no more than a small multiple of its configured maximum and is not safe for concurrent use.
type Framer interface {
	// Push takes the next bytes, read at t, and returns what is complete, in the order of the line. p stays the caller's.
	Push(p []byte, t time.Time) []Frame
	// Tick says that nothing came until t. It returns what is complete by that.
	Tick(t time.Time) []Frame
	// Reset forgets what is held and returns it: as a frame if it is complete in itself, else rejected with the reason.
	Reset(reason string) []Frame
}

// Frame is one message of the line, or bytes that belong to none.
type Frame struct {
	// Data is the message without its terminator, without escapes, and without what stands around it where a type says so; of
	// rejected bytes the first ones as they were on the line. It is the caller's own.
	Data   []byte
	Tag    []byte    // NMEA TAG blocks in front of the message, backslashes included; nil for none
	First  time.Time // when the first byte was read
	Last   time.Time // when the last byte was read
	Size   int       // bytes on the line, escapes and checksums and Tag included, terminators between messages not
	Reject string    // why the bytes are rejected; empty for a message
	Detail string    // more about the reason, for people; empty for nothing more
}

// Reasons for which bytes are rejected, besides those given to Reset.
const (
	Noise       = "noise"                      // between messages
	Overlong    = "overlong"                   // above the maximum without an end
	Truncated   = "truncated"                  // a new message began before the end of this one
	Silence     = "cut off by silence"         // the line was silent before the end of it
	Incomplete  = "incomplete"                 // some of its sentences did not come in time
	BadChecksum = "bad checksum"               // checksum of other bytes than these
	BadDigits   = "bad checksum digits"        // no hexadecimal digits, or more or fewer than must be
	NoChecksum  = "no checksum"                // required, and not there
	BadParity   = "bad parity"                 // of one byte or more
	BadLength   = "bad length"                 // a length that cannot be
	BadEscape   = "bad escape"                 // an escape that stands for nothing
	BadCode     = "bad code"                   // a COBS code that runs past the end
	BadFields   = "bad fields"                 // numbers of an AIS sentence that cannot be
	BadValue    = "bad value"                  // of a sensor, that is no number
	NoStop      = "no stop byte"               // another byte where a message ends
	Aborted     = "aborted"                    // given up by the sender
	TooShort    = "too short"                  // for an address and a checksum
	LineEnds    = "line ends changed"          // right but for the bytes at the ends of lines
	NoAddress   = "no sentence address"        // nothing that names the sentence, or the sensor
	BadByte     = "bad byte"                   // not printable, in a text without a checksum
	BadTag      = "bad TAG block"              // checksum or end of the TAG block is wrong
	LoneTag     = "TAG block without sentence" // followed by something else
)

// chunk bounds the bytes that one reject stands for, so that endless noise shows in the counters.
const chunk = 64 << 10

// New returns a framer for a valid configuration, else the first fault.
func New(cfg Config) (Framer, error) {
	var fault error
	cfg.Validate(func(key, problem, remedy string) {
		if fault == nil {
			fault = fmt.Errorf("frame: %s: %s: %s", key, problem, remedy)
		}
	})
	if fault != nil {
		return nil, fault
	}
	m, err := newMachine(cfg)
	if err != nil {
		return nil, err
	}
	if cfg.Parity == ParityEven || cfg.Parity == ParityOdd {
		m = &parity{machine: m, odd: cfg.Parity == ParityOdd}
	}
	return pusher{m}, nil
}

// newMachine returns the machine of a type.
func newMachine(cfg Config) (machine, error) {
	limit := cfg.limit()
	bare := cfg.Checksum == ChecksumOptional
	bcc := cfg.BCC == BCCXOR
	switch cfg.Type {
	case TypeLine:
		return &line{limit: limit, trim: cfg.TrimNUL}, nil
	case TypeDelimiter:
		end, err := Unescape(cfg.Delimiter)
		return &delimiter{end: end, limit: limit, include: cfg.Include}, err
	case TypeGap:
		return &gap{limit: limit, gap: cfg.Gap}, nil
	case TypeSLIP:
		return newSLIP(limit), nil
	case TypeCOBS:
		return newCOBS(limit), nil
	case TypeHDLC:
		return newHDLC(limit), nil
	case TypeNMEA:
		return &nmea{limit: limit, bare: bare}, nil
	case TypeAIS:
		return &ais{nmea: nmea{limit: limit, bare: bare}, timeout: cfg.timeout()}, nil
	case TypeVEDirect:
		return &vedirect{limit: limit}, nil
	case TypeSDI12:
		return newSDI12(limit, bare), nil
	}
	sync, err := Unescape(cfg.Sync)
	if err != nil {
		return nil, err
	}
	rules := map[string]rule{
		TypeSTXETX: &stxETX{limit: limit, bcc: bcc},
		TypeFixed:  fixed{size: cfg.Length, sync: sync},
		TypeLength: lengthPrefixed{limit: limit, sync: sync, kind: cfg.LengthType, offset: cfg.Offset, whole: cfg.IncludesHeader,
			trailer: cfg.Trailer, include: cfg.Include},
		TypeDSMR: &dsmr{limit: limit, bare: bare},
		TypeIEC:  &iec{limit: limit, bare: bare},
		TypeSML:  &sml{limit: limit},
		TypeMBus: mbus{},
		TypePMS:  pms{},
		TypeMHZ:  mhz{}, TypeDavis: davis{},
	}
	if cfg.DLE {
		rules[TypeSTXETX] = &dleSTX{limit: limit, bcc: bcc}
	}
	return &scanner{rule: rules[cfg.Type], limit: limit, gap: cfg.Gap}, nil
}

// machine finds frames byte by byte, so that no framer can depend on how the bytes arrive.
type machine interface {
	step(b byte, t time.Time)
	reset(reason string)
	take() []Frame
	held() int        // bytes that are in no frame yet
	terminators() int // bytes that are in no frame, because they are between two
}

// timed is a machine to which silence means something.
type timed interface {
	tick(t time.Time) // nothing came between the last byte and t
}

// pusher makes a Framer of a machine.
type pusher struct{ machine }

func (p pusher) Push(b []byte, t time.Time) []Frame {
	if m, ok := p.machine.(timed); ok {
		m.tick(t)
	}
	for _, c := range b {
		p.step(c, t)
	}
	return p.take()
}

func (p pusher) Tick(t time.Time) []Frame {
	if m, ok := p.machine.(timed); ok {
		m.tick(t)
	}
	return p.take()
}

func (p pusher) Reset(reason string) []Frame {
	p.reset(reason)
	return p.take()
}

// queue collects the frames of one call.
type queue struct {
	out   []Frame
	ended int // bytes taken as terminators
}

func (q *queue) terminators() int { return q.ended }

func (q *queue) take() []Frame {
	out := q.out
	q.out = nil
	return out
}

// emit moves the bytes of a piece into a frame; an empty piece is none.
func (q *queue) emit(p *piece, reject string) {
	if p.size > 0 {
		q.out = append(q.out, Frame{Data: p.data, First: p.first, Last: p.last, Size: p.size, Reject: reject})
	}
	*p = piece{}
}

// piece is a run of bytes; it keeps the first of them and counts all.
type piece struct {
	data        []byte
	size        int
	first, last time.Time
}

// add appends a byte, and keeps it if it is one of the first keep bytes.
func (p *piece) add(b byte, t time.Time, keep int) {
	if p.size == 0 {
		p.first = t
	}
	p.last = t
	p.size++
	if len(p.data) < keep {
		p.data = append(p.data, b)
	}
}

// split cuts a piece whose bytes are all kept at k, and returns what is behind.
func (p *piece) split(k int) piece {
	if k >= p.size {
		return piece{}
	}
	rest := piece{data: p.data[k:], size: p.size - k, first: p.last, last: p.last}
	if k == 0 {
		rest.first = p.first
	}
	p.data, p.size = p.data[:k:k], k
	return rest
}

// join moves the bytes of q to the end of p.
func (p *piece) join(q *piece, keep int) {
	if q.size == 0 {
		return
	}
	if p.size == 0 {
		p.first = q.first
	}
	p.last = q.last
	p.size += q.size
	p.data = append(p.data, q.data[:min(len(q.data), max(0, keep-len(p.data)))]...)
	*q = piece{}
}
