package frame

import "encoding/binary"

// varintMax is how many bytes a varint length may have: 35 bits.
const varintMax = 5

// lengthPrefixed is the rule of messages that say how long they are.
type lengthPrefixed struct {
	limit   int
	sync    []byte
	kind    string // one of the Length constants
	offset  int    // bytes in front of the length
	whole   bool   // the length counts what is in front of the payload too
	trailer int    // bytes behind the payload that the length does not count
	include bool   // the message has all bytes, not only the payload
}

func (r lengthPrefixed) look(b []byte, _ int, _ bool) verdict {
	if want, ok := synced(b, r.sync); !ok || want > 0 {
		return verdict{more: want}
	}
	n, size, want := r.read(b)
	if want > 0 {
		return wait(want)
	}
	head := r.offset + size
	if r.whole {
		n -= uint64(head) // below zero is above every limit
	}
	kept := n
	if r.include {
		kept += uint64(head + r.trailer)
	}
	if size == 0 || n > uint64(r.limit) || kept > uint64(r.limit) {
		return bad(BadLength, max(1, head))
	}
	total := head + int(n) + r.trailer
	switch {
	case len(b) < total:
		return wait(total)
	case r.include:
		return found(total, b[:total])
	case n == 0:
		return skip(total)
	}
	return found(total, b[head:head+int(n)])
}

// read returns the length and how many bytes it has; these are 0 for an endless varint. want above 0: so many bytes are needed.
func (r lengthPrefixed) read(b []byte) (n uint64, size, want int) {
	if r.kind == LengthVarint {
		for i := r.offset; i < r.offset+varintMax; i++ {
			if i >= len(b) {
				return 0, 0, i + 1
			}
			n |= uint64(b[i]&0x7f) << (7 * (i - r.offset))
			if b[i] < 0x80 {
				return n, i + 1 - r.offset, 0
			}
		}
		return 0, 0, 0
	}
	size = lengthSizes[r.kind]
	if len(b) < r.offset+size {
		return 0, size, r.offset + size
	}
	f := b[r.offset:]
	switch r.kind {
	case LengthU8:
		n = uint64(f[0])
	case LengthU16BE:
		n = uint64(binary.BigEndian.Uint16(f))
	case LengthU16LE:
		n = uint64(binary.LittleEndian.Uint16(f))
	case LengthU32BE:
		n = uint64(binary.BigEndian.Uint32(f))
	case LengthU32LE:
		n = uint64(binary.LittleEndian.Uint32(f))
	}
	return n, size, 0
}
