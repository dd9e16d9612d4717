package blocks

import "hash"

// Damage is a range of bytes of one block in which nothing can be read.
type Damage struct {
	Block  int    `json:"block"`  // number of the block
	Offset int    `json:"offset"` // of the first byte, in the decompressed block
	Bytes  int    `json:"bytes"`
	Why    string `json:"why"`
	After  uint64 `json:"after"`  // sequence in front of the range, of the last whole message in the block; 0: it is the first of the block
	Before uint64 `json:"before"` // sequence behind it; 0: nothing whole follows in the block
}

// scanner reads the records of one block after another.
type scanner struct {
	hash hash.Hash
	sum  [hashSize]byte
	last uint64 // newest sequence of a message seen so far in this block
	low  uint64 // newest sequence of the blocks in front
}

// furthest is how far the next whole record's sequence may lie ahead when it is looked for behind damage. Without a bound, bytes that are no record would
// have to be hashed much more often. A leap is shorter, unless a stream's sequences were moved: then a record in front is of the same block.
const furthest = 1 << 40

// follows reports whether a sequence can come next.
func (s *scanner) follows(k kind, seq uint64) bool {
	switch from := max(s.last, s.low); {
	case k == deletion || seq == 0:
		return seq < 1<<53
	case from == 0:
		return seq < 1<<53 // no sequence of ours is higher
	default:
		return seq > from && seq < from+furthest
	}
}

// block calls visit for every whole record of a block, in order, and returns what could not be read. An error of visit ends it.
func (s *scanner) block(b []byte, visit func(at int, r record) error) ([]Damage, error) {
	var all []Damage
	s.last = 0
	open := 0 // of all, the first whose other end is not known yet
	see := func(at int, r record) error {
		for ; r.kind != deletion && open < len(all); open++ {
			all[open].Before = r.Seq
		}
		switch {
		case r.kind == deletion:
		case r.Seq > s.last:
			s.last = r.Seq
		case r.Seq > 0:
			r.kind = stale
		}
		return visit(at, r)
	}
	for at := 0; at < len(b); {
		r, why := s.read(b[at:])
		if why == "" {
			if err := see(at, r); err != nil {
				return all, err
			}
			at += r.size
			continue
		}
		next := s.resume(b, at)
		if h, ok := readHead(b[at:next]); ok && at+h.size < next && s.restore(b[at+h.size:next]) != nil {
			next = at + h.size // two damaged ones in a row, and the second can be restored
		}
		if fix := s.restore(b[at:next]); fix != nil {
			r, _ := s.read(fix)
			r.fix, r.Mended = fix, true
			if err := see(at, r); err != nil {
				return all, err
			}
			at = next
			continue
		}
		d := Damage{Offset: at, Bytes: next - at, Why: why, After: s.last}
		all = append(all, d)
		at = next
	}
	s.low = max(s.low, s.last)
	return all, nil
}

// resume returns where the next whole record behind a damaged one begins, len(b) if there is none. It does not trust the damaged one's length, which may
// by chance lead to a record further on.
func (s *scanner) resume(b []byte, bad int) int {
	for at := bad + 1; at+emptySize <= len(b); at++ {
		if s.whole(b, at) {
			return at
		}
	}
	return len(b)
}

// whole reports whether a good record that can come next begins at a place. What costs least comes first.
func (s *scanner) whole(b []byte, at int) bool {
	if at >= len(b) {
		return false
	}
	h, ok := readHead(b[at:])
	if !ok || !s.follows(h.kind, h.seq) {
		return false
	}
	_, why := s.read(b[at:])
	return why == ""
}
