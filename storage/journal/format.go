package journal

import (
	"encoding/binary"
	"hash/crc32"
)

// Layout, all numbers little-endian, all checksums CRC32C.
//
//	segment file: one block that says whose it is, written once; then groups, each from the start of a block
//	group:        header, entries one behind the other, zeros up to the next block
//	entry:        header, payload
//	mark file:    two marks, a block each
const (
	block         = 4096
	formatVersion = 1

	magicSegment = 0x53_4a_46_48 // "HFJS"
	magicGroup   = 0x47_4a_46_48 // "HFJG"
	magicMark    = 0x4d_4a_46_48 // "HFJM"

	segmentHeader = 40
	groupHeader   = 64
	entryHeader   = 32
	markSize      = 72
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// EntrySize returns what an entry with a payload of n bytes takes in a group at most: encrypted.
func EntrySize(n int) int { return entryHeader + n + sealOverhead }

// roundUp returns the first block boundary at or above n.
func roundUp[N int | int64 | Position](n N) N { return (n + block - 1) / block * block }

// geometry is what does not change while a ring exists.
type geometry struct {
	id    uint64 // drawn when the ring was made
	size  int64  // of a segment
	count int
}

func (g geometry) number(p Position) uint64     { return uint64(p) / uint64(g.size) }
func (g geometry) offset(p Position) int64      { return int64(uint64(p) % uint64(g.size)) }
func (g geometry) slot(number uint64) int       { return int(number % uint64(g.count)) }
func (g geometry) start(number uint64) Position { return Position(number)*Position(g.size) + block }
func (g geometry) file(number uint64) string    { return segmentName(g.slot(number)) }
func (g geometry) at(number uint64, off int64) Position {
	return Position(number)*Position(g.size) + Position(off)
}

// seal puts the checksum of what follows it in front.
func seal(b []byte) { binary.LittleEndian.PutUint32(b, crc32.Checksum(b[4:], castagnoli)) }

func sealed(b []byte) bool { return binary.LittleEndian.Uint32(b) == crc32.Checksum(b[4:], castagnoli) }

// encodeSegment returns the first block of a segment's file.
func (g geometry) encodeSegment(slot int) []byte {
	b := make([]byte, block)
	le := binary.LittleEndian
	le.PutUint32(b[4:], magicSegment)
	le.PutUint32(b[8:], formatVersion)
	le.PutUint32(b[12:], uint32(slot))
	le.PutUint64(b[16:], g.id)
	le.PutUint64(b[24:], uint64(g.size))
	le.PutUint32(b[32:], uint32(g.count))
	seal(b[:segmentHeader])
	return b
}

// decodeSegment reads the first block of a segment's file.
func decodeSegment(b []byte) (g geometry, slot int, ok bool) {
	le := binary.LittleEndian
	if len(b) < segmentHeader || le.Uint32(b[4:]) != magicSegment || !sealed(b[:segmentHeader]) || le.Uint32(b[8:]) != formatVersion {
		return geometry{}, 0, false
	}
	g = geometry{id: le.Uint64(b[16:]), size: int64(le.Uint64(b[24:])), count: int(le.Uint32(b[32:]))}
	slot = int(le.Uint32(b[12:]))
	return g, slot, g.sane() && slot < g.count
}

// sane reports whether a geometry that was read can be one.
func (g geometry) sane() bool {
	o := Options{SegmentBytes: g.size, Segments: g.count}
	return g.size > 0 && g.count > 0 && o.complete() == nil
}

// mark is what the mark file says.
type mark struct {
	geometry
	generation uint64 // of marks
	run        uint64
	checkpoint Position
	tail       Position // exact end of the log at the time, all of it durable
	void       bool     // the ring is given up
}

func (m mark) encode() []byte {
	b := make([]byte, block)
	le := binary.LittleEndian
	le.PutUint32(b[4:], magicMark)
	le.PutUint32(b[8:], formatVersion)
	le.PutUint32(b[12:], uint32(m.count))
	le.PutUint64(b[16:], m.id)
	le.PutUint64(b[24:], uint64(m.size))
	le.PutUint64(b[32:], m.generation)
	le.PutUint64(b[40:], m.run)
	le.PutUint64(b[48:], uint64(m.checkpoint))
	le.PutUint64(b[56:], uint64(m.tail))
	if m.void {
		b[64] = 1
	}
	seal(b[:markSize])
	return b
}

// decodeMark reads a mark. newer: it is whole, but of a later version of the format.
func decodeMark(b []byte) (m mark, ok, newer bool) {
	le := binary.LittleEndian
	if len(b) < markSize || le.Uint32(b[4:]) != magicMark || !sealed(b[:markSize]) {
		return mark{}, false, false
	}
	if le.Uint32(b[8:]) != formatVersion {
		return mark{}, false, le.Uint32(b[8:]) > formatVersion
	}
	m.geometry = geometry{id: le.Uint64(b[16:]), size: int64(le.Uint64(b[24:])), count: int(le.Uint32(b[12:]))}
	m.generation, m.run = le.Uint64(b[32:]), le.Uint64(b[40:])
	m.checkpoint, m.tail = Position(le.Uint64(b[48:])), Position(le.Uint64(b[56:]))
	m.void = b[64] != 0
	return m, m.sane(), false
}

// header is that of a group.
type header struct {
	position   Position
	previous   Position // exact end of the log before it, as its writer knew it
	checkpoint Position // at the time
	length     int      // of the group with its header, without what fills its last block
	entries    int
	run        uint64
}

func (g geometry) encodeHeader(b []byte, h header) {
	le := binary.LittleEndian
	le.PutUint32(b[4:], magicGroup)
	le.PutUint64(b[8:], g.id)
	le.PutUint64(b[16:], uint64(h.position))
	le.PutUint64(b[24:], uint64(h.previous))
	le.PutUint64(b[32:], uint64(h.checkpoint))
	le.PutUint32(b[40:], uint32(h.length))
	le.PutUint32(b[44:], uint32(h.entries))
	le.PutUint64(b[48:], h.run)
	le.PutUint64(b[56:], 0)
	seal(b[:groupHeader])
}

// decodeHeader reads the header of a group that lies at an offset of a segment's file; of any lap.
func (g geometry) decodeHeader(b []byte, slot int, off int64) (h header, ok bool) {
	le := binary.LittleEndian
	if len(b) < groupHeader || le.Uint32(b[4:]) != magicGroup || le.Uint64(b[8:]) != g.id || !sealed(b[:groupHeader]) {
		return header{}, false
	}
	h = header{
		position: Position(le.Uint64(b[16:])), previous: Position(le.Uint64(b[24:])), checkpoint: Position(le.Uint64(b[32:])),
		length: int(le.Uint32(b[40:])), entries: int(le.Uint32(b[44:])), run: le.Uint64(b[48:]),
	}
	fits := h.length >= groupHeader+h.entries*entryHeader && int64(h.length) <= g.size-off
	return h, fits && h.entries > 0 && g.offset(h.position) == off && g.slot(g.number(h.position)) == slot
}

// entrySum is the checksum of an entry at a position: it begins with what position, run and ring mix to, so that it fits nowhere else.
func (g geometry) entrySum(at Position, run uint64, b []byte) uint32 {
	x := g.id ^ uint64(at)*0x9e3779b97f4a7c15 ^ run*0xd6e8feb86659fd93 // odd, of no meaning
	x ^= x >> 32
	x *= 0xd6e8feb86659fd93
	return crc32.Update(uint32(x>>32), castagnoli, b[4:])
}

// encodeEntry writes an entry to the front of b, which has room for it, and returns how long it is.
func (g geometry) encodeEntry(b []byte, at Position, run uint64, e *Entry, s *sealer) int {
	length := len(e.Payload) + s.overhead()
	n := entryHeader + length
	le := binary.LittleEndian
	le.PutUint32(b[4:], uint32(length))
	le.PutUint64(b[8:], e.Incarnation)
	le.PutUint64(b[16:], e.Sequence)
	le.PutUint64(b[24:], uint64(e.Kind)) // a flag, and six bytes for what is to come
	if s != nil {
		b[25] = sealedFlag
		s.seal(b, at, run, e.Payload)
	} else {
		copy(b[entryHeader:], e.Payload)
	}
	le.PutUint32(b, g.entrySum(at, run, b[:n]))
	return n
}

// decodeEntry reads the entry at the front of b, which ends where its group does. Its Payload is part of b, and as it lies there: see sealer.open.
func (g geometry) decodeEntry(b []byte, at Position, run uint64) (e Entry, n int, ok bool) {
	if len(b) < entryHeader {
		return Entry{}, 0, false
	}
	le := binary.LittleEndian
	length := uint64(le.Uint32(b[4:]))
	if length > uint64(len(b)-entryHeader) {
		return Entry{}, 0, false
	}
	n = entryHeader + int(length)
	if le.Uint32(b) != g.entrySum(at, run, b[:n]) || b[24] == 0 || le.Uint64(b[24:])>>8 > sealedFlag {
		return Entry{}, 0, false
	}
	return Entry{Kind: Kind(b[24]), Incarnation: le.Uint64(b[8:]), Sequence: le.Uint64(b[16:]), Payload: b[entryHeader:n:n]}, n, true
}
