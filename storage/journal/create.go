package journal

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// segmentPrefix begins the name of every segment's file.
const segmentPrefix = "segment-"

func segmentName(slot int) string { return fmt.Sprintf("%s%04d", segmentPrefix, slot) }

// create makes a new ring: the segments first, the marks last, so that a ring with marks is whole.
func create(o Options, v volume) (*Ring, error) {
	if err := discard(v); err != nil {
		return nil, err
	}
	var id [8]byte
	rand.Read(id[:]) // never fails: crypto/rand
	g := geometry{id: binary.LittleEndian.Uint64(id[:]), size: o.SegmentBytes, count: o.Segments}
	r := &Ring{geometry: g, volume: v, reserve: o.Reserve, key: o.Key, ends: make([]Position, g.count), run: 1}
	r.tail, r.end, r.checkpoint = g.start(0), g.start(0), g.start(0)
	var err error
	if r.sealer, err = newSealer(o.Key, g.id); err != nil {
		return nil, err
	}
	if err := r.make(); err != nil {
		err = fmt.Errorf("make %d segments of %d bytes: %w", g.count, g.size, err)
		return nil, errors.Join(err, r.closeFiles(), discard(v))
	}
	return r, nil
}

func (r *Ring) make() error {
	for slot := range r.count {
		f, err := r.makeSegment(r.volume, slot)
		if f != nil {
			r.files = append(r.files, f)
		}
		if err != nil {
			return err
		}
	}
	if err := r.volume.sync(); err != nil {
		return err
	}
	f, err := r.volume.create(markName)
	if err != nil {
		return err
	}
	r.marks.file = f
	for range 2 {
		if err := r.saveLocked(true); err != nil {
			return err
		}
	}
	return r.volume.sync()
}

// makeSegment makes a segment's file, written in full and on flash; its name is not yet.
func (g geometry) makeSegment(v volume, slot int) (file, error) {
	f, err := v.create(segmentName(slot))
	if err != nil {
		return nil, err
	}
	if err := write(f, g.encodeSegment(slot), 0); err != nil {
		return f, err
	}
	if err := zero(f, block, g.size); err != nil {
		return f, err
	}
	return f, f.datasync()
}

// zero writes zeros, not holes: later writes must not have to allocate.
func zero(f file, from, to int64) error {
	const chunk = 1 << 20
	zeros := make([]byte, min(chunk, to-from))
	for from < to {
		n := min(chunk, to-from)
		if err := write(f, zeros[:n], from); err != nil {
			return err
		}
		from += n
	}
	return nil
}

// segmentNames lists the segments' files of a volume.
func segmentNames(v volume) ([]string, error) {
	names, err := v.names()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, segmentPrefix) }), nil
}

// discard removes what there is of a ring that was never used, or whose marks are void. The marks go last: they say that the rest is worth nothing.
func discard(v volume) error {
	names, err := v.names()
	if err != nil {
		return err
	}
	for _, name := range names {
		if strings.HasPrefix(name, segmentPrefix) {
			if err := v.remove(name); err != nil {
				return err
			}
		}
	}
	if err := v.sync(); err != nil {
		return err
	}
	if !slices.Contains(names, markName) {
		return nil
	}
	return errors.Join(v.remove(markName), v.sync())
}

// abandon gives up a ring that nobody needs: void marks, on flash, make sure that what is left of it is not taken for one.
func (r *Ring) abandon() error {
	for range 2 {
		if err := r.marks.save(mark{geometry: r.geometry, void: true}, true); err != nil {
			return errors.Join(fmt.Errorf("%s: %w", markName, err), r.closeFiles())
		}
	}
	return r.closeFiles()
}
