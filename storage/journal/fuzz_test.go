package journal

import (
	"encoding/binary"
	"testing"
)

// forge makes every checksum in an image right, as far as its lengths let it, so that the fuzzer gets behind them.
func (g geometry) forge(image []byte) {
	le := binary.LittleEndian
	for off := block; off+groupHeader <= len(image); off += block {
		b := image[off:]
		le.PutUint32(b[4:], magicGroup)
		le.PutUint64(b[8:], g.id)
		seal(b[:groupHeader])
		at, run := Position(le.Uint64(b[16:])), le.Uint64(b[48:])
		for in := groupHeader; in+entryHeader <= len(b); {
			n := entryHeader + int(le.Uint32(b[in+4:]))
			if n > len(b)-in {
				break
			}
			le.PutUint32(b[in:], g.entrySum(at+Position(in), run, b[in:in+n]))
			in += n
		}
	}
}

// FuzzSegment reads segments of any content, with and without right checksums: nothing is given out of bounds or out of order.
func FuzzSegment(f *testing.F) {
	m := newMedium()
	r, _ := mustOpen(f, small, m)
	for i := range 7 {
		if err := r.Checkpoint(mustAppend(f, r, group(i, 1+i%3, 30))); err != nil {
			f.Fatal(err)
		}
	}
	g := r.geometry
	for slot := range 3 {
		f.Add(m.cached[segmentName(slot)].data[block:3*block], uint8(slot), false)
		f.Add(m.cached[segmentName(slot)].data[block:3*block], uint8(slot), true)
	}
	f.Add([]byte{}, uint8(0), false)
	f.Fuzz(func(t *testing.T, groups []byte, slot uint8, forged bool) {
		image := append(make([]byte, block), groups...)
		if len(image) > minSegmentBytes {
			return
		}
		if forged {
			g.forge(image)
		}
		decodeSegment(groups)
		decodeMark(groups)
		n, found := g.lap(image, g.slot(uint64(slot)))
		if !found {
			n = uint64(slot)
		}
		var c cursor
		last := g.start(n)
		err := g.walk(&c, image[block:], n, block, func(end Position, group []Entry) error {
			size := 0
			for _, e := range group {
				size += EntrySize(len(e.Payload))
			}
			if len(group) == 0 || end%block != 0 || end < last+Position(size) || int64(end-g.at(n, 0)) > roundUp(int64(len(image))) {
				t.Fatalf("a group of %d bytes ends at %d behind %d", size, end, last)
			}
			last = end
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}
