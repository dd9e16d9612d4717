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
	Data   []byte    // the message without its terminator; of rejected bytes the first ones; the caller's own
	Tag    []byte    // NMEA TAG blocks in front of the message, backslashes included; nil for none
	First  time.Time // when the first byte was read
	Last   time.Time // when the last byte was read
	Size   int       // bytes on the line, Tag included and terminator not: more than len(Data) when rejected bytes were too many to keep
	Reject string    // why the bytes are rejected; empty for a message
}

// Reasons for which bytes are rejected, besides those given to Reset.
const (
	Noise       = "noise"                      // between messages
	Overlong    = "overlong"                   // above the maximum without an end
	Truncated   = "truncated"                  // a new message began before the end of this one
	BadChecksum = "bad checksum"               // checksum of other bytes than these
	BadDigits   = "bad checksum digits"        // no two hexadecimal digits behind the asterisk, or more than these
	NoChecksum  = "no checksum"                // required, and not there
	NoAddress   = "no sentence address"        // nothing that names the sentence
	BadByte     = "bad byte"                   // not printable, in a sentence without a checksum
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
	limit := cfg.limit()
	switch cfg.Type {
	case TypeLine:
		return pusher{&line{limit: limit, trim: cfg.TrimNUL}}, nil
	case TypeDelimiter:
		end, err := unescape(cfg.Delimiter)
		if err != nil {
			return nil, err
		}
		return pusher{&delimiter{end: end, limit: limit, include: cfg.Include}}, nil
	case TypeNMEA:
		return pusher{&nmea{limit: limit, bare: cfg.Checksum == ChecksumOptional}}, nil
	}
	return nil, fmt.Errorf("frame: type %q is unknown: use %s, %s or %s", cfg.Type, TypeLine, TypeDelimiter, TypeNMEA)
}

// machine finds frames byte by byte, so that no framer can depend on how the bytes arrive.
type machine interface {
	step(b byte, t time.Time)
	reset(reason string)
	take() []Frame
}

// pusher makes a Framer of a machine that knows no time-outs.
type pusher struct{ machine }

func (p pusher) Push(b []byte, t time.Time) []Frame {
	for _, c := range b {
		p.step(c, t)
	}
	return p.take()
}

func (p pusher) Tick(time.Time) []Frame { return nil }

func (p pusher) Reset(reason string) []Frame {
	p.reset(reason)
	return p.take()
}

// queue collects the frames of one call.
type queue struct {
	out   []Frame
	ended int // bytes taken as terminators
}

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
