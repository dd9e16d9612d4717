package frame

import (
	"bytes"
	"encoding/hex"
	"time"
)

// nmea finds NMEA 0183 sentences: $ or !, an address and fields, an asterisk, and two hexadecimal digits, which are the XOR of
// the bytes between. In front may stand TAG blocks, \...*hh\, with checksums of their own (NMEA 0183 4.00, 7). CR and LF end a
// sentence, and so does the lead byte of the next one, which the standard reserves.
type nmea struct {
	queue
	limit int
	bare  bool // sentences without a checksum are taken

	junk piece  // surely no part of a sentence
	why  string // the reason for junk; empty: noise
	pre  piece  // from a backslash on: may be TAG blocks
	cur  piece  // from a lead byte on: may be a sentence, and pre the TAG blocks of it
}

func (n *nmea) step(b byte, t time.Time) {
	switch {
	case b == '$' || b == '!':
		n.begin()
		n.cur.add(b, t, n.limit+1)
	case b == '\r' || b == '\n':
		n.end("")
		n.ended++
	case n.cur.size > 0:
		n.cur.add(b, t, n.limit+1)
		if n.cur.size > n.limit {
			n.overflow()
		}
	case n.pre.size > 0 || b == '\\':
		if n.pre.size == 0 {
			n.dump()
		}
		n.pre.add(b, t, n.limit+1)
		if n.pre.size > n.limit {
			n.discard(1 + bytes.IndexByte(n.pre.data[1:], '\\'))
		}
	default:
		n.junk.add(b, t, n.limit)
	}
	if n.junk.size >= chunk {
		why := n.why
		n.dump()
		n.why = why
	}
}

// begin makes way for a new sentence: what is before it ends here, but for TAG blocks, which are kept in pre.
func (n *nmea) begin() {
	if n.cur.size == 0 {
		if k := tagStart(n.pre.data); k > 0 {
			n.discard(k)
		}
		n.dump()
		return
	}
	tags := n.cur.split(tagStart(n.cur.data))
	if bytes.IndexByte(n.cur.data, '*') > 0 && n.check(n.cur.data) == "" {
		n.accept()
	} else {
		n.reject(Truncated)
	}
	n.pre = tags
}

// end settles all that is held. With a reason, it is an end by Reset and not by a terminator.
func (n *nmea) end(reason string) {
	if n.cur.size > 0 {
		why := n.check(n.cur.data)
		switch {
		case why == "" && (reason == "" || bytes.IndexByte(n.cur.data, '*') > 0):
			n.accept()
		case reason != "":
			n.reject(reason)
		default:
			n.reject(why)
		}
	}
	if k := tagStart(n.pre.data); k > 0 {
		n.discard(k)
	}
	n.dump()
	n.emit(&n.pre, LoneTag)
}

func (n *nmea) reset(reason string) { n.end(reason) }

// accept emits the sentence with its TAG blocks.
func (n *nmea) accept() {
	f := Frame{Data: n.cur.data, Tag: n.pre.data, First: n.cur.first, Last: n.cur.last, Size: n.pre.size + n.cur.size}
	if n.pre.size > 0 {
		f.First = n.pre.first
	}
	n.out = append(n.out, f)
	n.pre, n.cur = piece{}, piece{}
}

// reject emits the sentence and its TAG blocks as rejected.
func (n *nmea) reject(reason string) {
	n.pre.join(&n.cur, n.limit)
	n.emit(&n.pre, reason)
}

// overflow gives up a sentence that is too long. A backslash in it may begin a TAG block.
func (n *nmea) overflow() {
	if k := bytes.IndexByte(n.cur.data, '\\'); k > 0 {
		tags := n.cur.split(k)
		n.reject(Overlong)
		n.pre = tags
		return
	}
	n.pre.join(&n.cur, n.limit)
	n.junk, n.pre, n.why = n.pre, piece{}, Overlong
}

// discard moves the first k bytes of pre, all if k is 0, into junk.
func (n *nmea) discard(k int) {
	if k == 0 {
		k = n.pre.size
	}
	rest := n.pre.split(k)
	n.junk.join(&n.pre, n.limit)
	n.pre, n.why = rest, BadTag
}

// dump emits junk.
func (n *nmea) dump() {
	if n.why == "" {
		n.why = Noise
	}
	n.emit(&n.junk, n.why)
	n.why = ""
}

func (n *nmea) held() int { return n.junk.size + n.pre.size + n.cur.size }

// check says what is wrong with a sentence; empty: nothing.
func (n *nmea) check(s []byte) string {
	i := bytes.LastIndexByte(s, '*')
	if i < 0 {
		i = len(s)
		if !n.bare {
			return NoChecksum
		}
		for _, c := range s {
			if c < ' ' || c > '~' {
				return BadByte
			}
		}
	} else {
		sum, ok := digits(s[i+1:])
		if !ok {
			return BadDigits
		}
		if sum != xor(s[1:i]) {
			return BadChecksum
		}
	}
	if i < 2 || s[1] == ',' {
		return NoAddress
	}
	return ""
}

// tagStart returns where the TAG blocks begin with which b ends; len(b) if it ends with none.
func tagStart(b []byte) int {
	at := len(b)
	for at > 1 && b[at-1] == '\\' {
		i := bytes.LastIndexByte(b[:at-1], '\\')
		if i < 0 || at-i < 5 || b[at-4] != '*' {
			break
		}
		if sum, ok := digits(b[at-3 : at-1]); !ok || sum != xor(b[i+1:at-4]) {
			break
		}
		at = i
	}
	return at
}

// digits reads two hexadecimal digits. Small letters are taken: some devices send them.
func digits(b []byte) (byte, bool) {
	var out [1]byte
	if len(b) != 2 {
		return 0, false
	}
	_, err := hex.Decode(out[:], b)
	return out[0], err == nil
}

func xor(b []byte) byte {
	var sum byte
	for _, c := range b {
		sum ^= c
	}
	return sum
}
