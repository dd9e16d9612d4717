package frame

import (
	"bytes"
	"encoding/hex"
	"time"
)

// vedirect finds what Victron devices send: blocks of lines, each CR LF, a name, a TAB and a value, the last of which is named
// Checksum and has one byte that makes the sum of all zero. Between any two bytes may stand a record of the hex protocol, from a
// colon to LF, which is a message of its own and not summed up.
type vedirect struct {
	queue
	limit int

	junk piece
	cur  piece // the block so far
	hex  piece // the record so far
	line int   // where the last line of cur begins, behind its CR LF
	last bool  // the next byte of cur is the checksum
}

const checksumName = "Checksum"

func (v *vedirect) step(b byte, t time.Time) {
	if v.hex.size > 0 {
		if v.record(b, t) {
			return
		}
	} else if b == ':' && !v.last {
		v.hex.add(b, t, v.limit)
		return
	}
	v.text(b, t)
}

// record takes a byte of a record. It returns false if the byte cannot belong to one.
func (v *vedirect) record(b byte, t time.Time) bool {
	_, isDigit := nibble(b)
	switch {
	case b == '\n':
		v.emit(&v.hex, recordCheck(v.hex.data))
		v.ended++
		return true
	case !isDigit:
		v.emit(&v.hex, Truncated)
		if b == ':' {
			v.hex.add(b, t, v.limit)
		}
		return b == ':'
	}
	v.hex.add(b, t, v.limit+1)
	if v.hex.size > v.limit {
		v.emit(&v.hex, Overlong)
	}
	return true
}

// recordCheck says what is wrong with a record; empty: nothing. Its bytes, the first of which has one digit, sum up to 55.
func recordCheck(s []byte) string {
	b, err := hex.DecodeString("0" + string(s[1:]))
	if err != nil || len(b) < 2 {
		return BadDigits
	}
	var sum byte
	for _, c := range b {
		sum += c
	}
	if sum != 0x55 {
		return BadChecksum
	}
	return ""
}

// text takes a byte that belongs to no record.
func (v *vedirect) text(b byte, t time.Time) {
	switch {
	case v.cur.size == 1 && b != '\n':
		v.junk.join(&v.cur, v.limit)
		v.text(b, t)
		return
	case v.cur.size == 0 && b != '\r':
		v.junk.add(b, t, v.limit)
		if v.junk.size >= junkChunk {
			v.emit(&v.junk, Noise)
		}
		return
	}
	v.cur.add(b, t, v.limit+1)
	switch n := len(v.cur.data); {
	case v.last:
		v.finish(b, t)
	case v.cur.size > v.limit:
		v.emit(&v.junk, Noise)
		v.drop(Overlong)
	case b == '\n' && v.cur.data[n-2] == '\r':
		v.line = n
	case b == '\t' && string(v.cur.data[v.line:n-1]) == checksumName:
		v.last = true
	}
}

// finish ends a block with its checksum b.
func (v *vedirect) finish(b byte, t time.Time) {
	v.emit(&v.junk, Noise)
	if total(v.cur.data) == 0 {
		v.drop("")
		return
	}
	if k := blockStart(v.cur.data); k > 0 {
		rest := v.cur.split(k)
		v.drop(Truncated)
		v.cur = rest
		v.drop("")
		return
	}
	if b != '\r' {
		v.drop(BadChecksum)
		return
	}
	// The checksum was lost, and this is the beginning of the next block.
	v.cur.split(v.cur.size - 1)
	v.drop(BadChecksum)
	v.cur.add(b, t, v.limit)
}

// blockStart looks for a whole block behind one that was cut: the names in a block differ, so it begins behind the last line that is
// none or that comes again later. It returns 0 for none.
func blockStart(b []byte) int {
	const end = "\r\n"
	seen := map[string]bool{}
	best := 0
	for at := len(b); ; {
		from := bytes.LastIndex(b[:at], []byte(end))
		if from < 0 {
			return 0 // nothing was cut, so no part of it is believed
		}
		name, _, isLine := bytes.Cut(b[from+len(end):at], []byte("\t"))
		if !isLine || seen[string(name)] {
			return best
		}
		seen[string(name)] = true
		if at = from; total(b[from:]) == 0 {
			best = from
		}
	}
}

// drop emits the block and begins anew.
func (v *vedirect) drop(reject string) {
	v.emit(&v.cur, reject)
	v.line, v.last = 0, false
}

func (v *vedirect) reset(reason string) {
	v.emit(&v.junk, Noise)
	v.drop(reason)
	v.emit(&v.hex, reason)
}

func (v *vedirect) held() int { return v.junk.size + v.cur.size + v.hex.size }

func total(b []byte) byte {
	var sum byte
	for _, c := range b {
		sum += c
	}
	return sum
}

func nibble(c byte) (byte, bool) {
	var out [1]byte
	_, err := hex.Decode(out[:], []byte{'0', c})
	return out[0], err == nil
}
