package journal

// lap returns the newest segment number that a group in a segment's file belongs to. image is the whole file.
func (g geometry) lap(image []byte, slot int) (number uint64, found bool) {
	for off := int64(block); off < int64(len(image)); off += block {
		if h, ok := g.decodeHeader(image[off:], slot, off); ok && (!found || g.number(h.position) > number) {
			number, found = g.number(h.position), true
		}
	}
	return number, found
}

// cursor is how far a reader of the log has come, from segment to segment.
type cursor struct {
	end        Position // exact end of what was read, or where reading began
	run        uint64   // of the newest group
	checkpoint Position // the highest that a group knew of
	entries    int
	sealer     *sealer
	foreign    int         // valid entries of another key, or plain though they should not be
	torn       bool        // the newest group is not whole
	batch      []Entry     // of the newest group
	lost       []lostRange // what a group knew of and was not found
}

// lostRange is a part of the log that was not found. torn: it begins within a group.
type lostRange struct {
	from, to Position
	torn     bool
}

// visitor is given the entries of a group, which it may keep until it returns, and the position behind the group, good for Checkpoint.
type visitor func(end Position, group []Entry) error

// walk reads the groups of one segment that lie in part, a piece of its file from an offset on, in order, and gives the valid entries of each to visit.
// An error of visit ends it. What does not belong to the segment's number is passed over.
func (g geometry) walk(c *cursor, part []byte, number uint64, from int64, visit visitor) error {
	slot := g.slot(number)
	for off := from; off < from+int64(len(part)); {
		rest := part[off-from:]
		h, ok := g.decodeHeader(rest, slot, off)
		if !ok || g.number(h.position) != number || h.run < c.run {
			off += block
			continue
		}
		if h.previous > c.end {
			c.lost = append(c.lost, lostRange{c.end, h.previous, c.torn})
		}
		c.run, c.checkpoint = h.run, max(c.checkpoint, h.checkpoint)
		whole := g.walkGroup(c, rest[:min(h.length, len(rest))], h) // a torn one may reach beyond the end of the log
		if len(c.batch) > 0 && visit != nil {
			if err := visit(roundUp(c.end), c.batch); err != nil {
				return err
			}
		}
		if whole {
			off += roundUp(int64(h.length))
		} else {
			off += block // where the next run may have gone on
		}
	}
	return nil
}

// walkGroup reads the valid entries of one group into c.batch and reports whether they are all.
func (g geometry) walkGroup(c *cursor, b []byte, h header) (whole bool) {
	c.batch = c.batch[:0]
	at := groupHeader
	for range h.entries {
		e, n, ok := g.decodeEntry(b[at:], h.position+Position(at), h.run)
		if !ok {
			break
		}
		if !c.sealer.open(b[at:], h.position+Position(at), h.run, &e) {
			c.foreign++
			break
		}
		c.batch = append(c.batch, e)
		at += n
	}
	c.torn = len(c.batch) < h.entries
	if len(c.batch) > 0 {
		c.entries += len(c.batch)
		c.end = h.position + Position(at)
	}
	return !c.torn
}
