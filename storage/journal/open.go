package journal

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
)

// Open opens the ring of a directory, or makes one, and says what it found. Nobody else may have it open. In this order:
//
//   - syncs the files and drops them from the kernel's cache: an earlier process may have left bytes there that are not on flash, and will never be if
//     their sync has failed, and whoever replays them relies on them;
//   - reads the marks and the segments above the checkpoint, and finds the end of the log;
//   - puts a new run on flash.
//
// Damage is no error: it is in the Recovery, files that are missing are made anew, and the ring works. Errors are those of the file system, a full
// disk only when a ring is made, ErrFormat, and ErrKey. The caller replays, and gives a Checkpoint when that is on flash; it may Append from the start.
func Open(o Options) (*Ring, Recovery, error) {
	if err := o.complete(); err != nil {
		return nil, Recovery{}, err
	}
	r, rec, err := open(o, directory(o.Dir))
	if err != nil {
		return nil, rec, fmt.Errorf("open journal %s: %w", o.Dir, err)
	}
	return r, rec, nil
}

func open(o Options, v volume) (*Ring, Recovery, error) {
	r := &Ring{volume: v, reserve: o.Reserve, key: o.Key}
	rec := Recovery{}
	m, found, err := r.findMarks(&rec)
	if err == nil && found {
		err = r.recover(m, &rec)
	}
	if err != nil {
		return nil, rec, errors.Join(err, r.closeFiles())
	}
	if found {
		rec.Resize = r.size != o.SegmentBytes || r.count != o.Segments
		if !rec.Resize || rec.To > rec.From || len(rec.Damage) > 0 {
			r.reserve = min(r.reserve, r.count-2)
			return r, rec, nil
		}
		if err := r.abandon(); err != nil {
			return nil, rec, err
		}
	}
	r, err = create(o, v)
	return r, Recovery{Created: true, Resized: found}, err
}

// findMarks reads the mark file. If it is missing or damaged, the segments say what the ring is. found: there is a ring.
func (r *Ring) findMarks(rec *Recovery) (m mark, found bool, err error) {
	if r.marks.file, err = existing(r.volume, markName); err != nil {
		return mark{}, false, err
	}
	if r.marks.file != nil {
		if err := r.marks.file.refresh(); err != nil {
			return mark{}, false, fmt.Errorf("%s: %w", markName, err)
		}
		if m, found, err = r.marks.load(); err != nil {
			return mark{}, false, err
		}
		if found && !m.void {
			r.geometry = m.geometry
			return m, true, nil
		}
	}
	if found {
		return mark{}, false, r.closeMarks()
	}
	g, used, err := survey(r.volume)
	if err != nil || !used {
		return mark{}, false, errors.Join(err, r.closeMarks())
	}
	rec.Damage = append(rec.Damage, Damage{File: markName, Reason: "missing or damaged: the checkpoint is taken from the segments"})
	r.geometry, m.geometry = g, g
	if r.marks.file == nil {
		r.marks.file, err = r.volume.create(markName)
	}
	return m, true, err
}

// closeMarks closes the file of marks that are not used.
func (r *Ring) closeMarks() error {
	f := r.marks.file
	if r.marks.file = nil; f == nil {
		return nil
	}
	return f.Close()
}

// existing opens a file; nil if there is none.
func existing(v volume, name string) (file, error) {
	f, err := v.open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return f, err
}

// survey finds out from the segments' files what a ring without marks is, and whether it was ever used.
func survey(v volume) (g geometry, used bool, err error) {
	names, err := segmentNames(v)
	if err != nil {
		return geometry{}, false, err
	}
	for _, pass := range []string{"whose they are", "what they hold"} {
		for _, name := range names {
			f, err := v.open(name)
			if err != nil {
				return geometry{}, false, err
			}
			first := make([]byte, block)
			if readAll(f, first, 0); pass == "whose they are" {
				if own, _, ok := decodeSegment(first); ok {
					g = own
				}
			} else if g.count > 0 {
				image := make([]byte, g.size)
				readAll(f, image, 0)
				for slot := range g.count {
					if name == segmentName(slot) {
						_, any := g.lap(image, slot)
						used = used || any
					}
				}
			}
			if err := f.Close(); err != nil {
				return geometry{}, false, err
			}
		}
	}
	return g, used, nil
}

// recover reads the log, finds its end, and makes the ring ready to go on there.
func (r *Ring) recover(m mark, rec *Recovery) error {
	r.files, r.ends = make([]file, r.count), make([]Position, r.count)
	for slot := range r.files {
		if err := r.openSegment(slot, rec); err != nil {
			return err
		}
	}
	newest, known := r.newest(m)
	var err error
	if r.sealer, err = newSealer(r.key, r.id); err != nil {
		return err
	}
	c := cursor{end: max(m.checkpoint, known, r.start(0)), sealer: r.sealer}
	if newest >= uint64(r.count) && r.number(c.end) <= newest-uint64(r.count) {
		c.end = r.start(newest + 1 - uint64(r.count)) // there are no marks, and what was there is written over
	}
	from := c.end
	r.read(&c, newest, m, rec)
	if c.foreign > 0 {
		return fmt.Errorf("%w: give the one that it was made with", ErrKey)
	}
	rec.From, rec.To, rec.Entries, rec.Torn = from, roundUp(c.end), c.entries, c.torn
	if c.entries == 0 {
		rec.To = from
	}
	r.end = max(c.end, m.tail)
	r.tail = roundUp(r.end)
	r.current = r.number(r.end - 1) // a log that ends with its segment has not begun the next
	r.checkpoint = r.normalLocked(from)
	return r.begin(m, &c)
}

// newest finds the newest segment, and the highest checkpoint that its groups know of.
func (r *Ring) newest(m mark) (newest uint64, checkpoint Position) {
	newest = r.number(max(m.tail, 1) - 1)
	for slot := range r.files {
		b := make([]byte, groupHeader)
		readAll(r.files[slot], b, block)
		if h, ok := r.decodeHeader(b, slot, block); ok {
			newest = max(newest, r.number(h.position))
		}
	}
	// The first group of the newest may be damaged: the next segment is looked through, too.
	for number := newest; number <= newest+1; number++ {
		image := r.image(number)
		n, found := r.lap(image, r.slot(number))
		if !found || n < newest {
			continue
		}
		newest = n
		var c cursor
		_ = r.walk(&c, image[block:], n, block, nil) // without a visitor there is no error
		checkpoint = max(checkpoint, c.checkpoint)
	}
	return newest, checkpoint
}

// read walks the segments from where c stands and notes what is missing.
func (r *Ring) read(c *cursor, newest uint64, m mark, rec *Recovery) {
	from := c.end
	reasons := map[uint64]string{}
	for number := r.number(from); number <= newest; number++ {
		image := r.image(number)
		if n, found := r.lap(image, r.slot(number)); !found {
			reasons[number] = "no valid group in the segment"
		} else if n != number {
			reasons[number] = fmt.Sprintf("the segment holds part %d of the log instead of part %d", n, number)
		}
		off := int64(max(r.start(number), from) - r.at(number, 0))
		_ = r.walk(c, image[off:], number, off, nil) // without a visitor there is no error
		r.ends[r.slot(number)] = max(r.start(number), roundUp(c.end))
	}
	if m.tail > c.end {
		c.lost = append(c.lost, lostRange{c.end, m.tail, c.torn})
	}
	for _, l := range c.lost {
		rec.Damage = append(rec.Damage, r.damage(l, reasons)...)
	}
}

// damage names a lost range, segment by segment.
func (r *Ring) damage(l lostRange, reasons map[uint64]string) []Damage {
	var all []Damage
	for number := r.number(l.from); number <= r.number(l.to-1); number++ {
		from, to := max(l.from, r.start(number)), min(l.to, r.at(number+1, 0))
		if from >= to || to < l.to && !l.torn && r.untouched(number, from) {
			continue
		}
		all = append(all, Damage{File: r.file(number), From: from, To: to, Reason: cmp.Or(reasons[number], "entries that were on flash cannot be read any more")})
	}
	return all
}

// untouched reports whether a segment looks as if it had been left for the next one at a position: an earlier lap's group or nothing follows.
func (r *Ring) untouched(number uint64, from Position) bool {
	off := int64(roundUp(from) - r.at(number, 0))
	if off >= r.size {
		return true
	}
	b := make([]byte, block)
	readAll(r.files[r.slot(number)], b, off)
	h, ok := r.decodeHeader(b, r.slot(number), off)
	return ok && r.number(h.position) < number || !slices.ContainsFunc(b, func(c byte) bool { return c != 0 })
}

// image reads a segment as a whole, into the one place that there is for it.
func (r *Ring) image(number uint64) []byte {
	if r.scratch == nil {
		r.scratch = make([]byte, r.size)
	}
	readAll(r.files[r.slot(number)], r.scratch, 0)
	return r.scratch
}

// openSegment opens a segment's file, and makes good what is missing of it.
func (r *Ring) openSegment(slot int, rec *Recovery) error {
	name := segmentName(slot)
	damaged := func(reason string) { rec.Damage = append(rec.Damage, Damage{File: name, Reason: reason}) }
	f, err := existing(r.volume, name)
	if err != nil {
		return err
	}
	if f == nil {
		damaged("the file is missing and is made anew")
		if r.files[slot], err = r.makeSegment(r.volume, slot); err != nil {
			return err
		}
		return r.volume.sync()
	}
	r.files[slot] = f
	if err := f.refresh(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	n, err := f.size()
	if err != nil {
		return err
	}
	first := make([]byte, block)
	readAll(f, first, 0)
	g, _, ok := decodeSegment(first)
	switch {
	case n < r.size:
		damaged(fmt.Sprintf("the file has %d bytes instead of %d and is filled up", n, r.size))
		if err := zero(f, n, r.size); err != nil {
			return err
		}
	case ok && g == r.geometry:
		return nil
	default:
		damaged("the file's first block was damaged and is written anew") // its groups say themselves whose they are
	}
	if err := write(f, r.encodeSegment(slot), 0); err != nil {
		return err
	}
	return f.datasync()
}

// begin starts a new run, on flash.
func (r *Ring) begin(m mark, c *cursor) error {
	r.scratch = nil
	r.run = max(m.run, c.run) + 1
	if err := r.saveLocked(true); err != nil {
		return err
	}
	return r.volume.sync()
}
