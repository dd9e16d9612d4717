package journal

import (
	"errors"
	"fmt"
	"io"
)

// markName is the name of the mark file.
const markName = "marks"

// marks is the mark file: two blocks, of which the one that is known to be on flash is never written.
type marks struct {
	file       file
	generation uint64
	safe       int // the block that is on flash
}

// saveLocked writes a mark of how things stand. Needs mu.
func (r *Ring) saveLocked(sync bool) error {
	m := mark{geometry: r.geometry, run: r.run, checkpoint: r.checkpoint, tail: r.end}
	if err := r.marks.save(m, sync); err != nil {
		return fmt.Errorf("%s: %w", markName, err)
	}
	if sync {
		r.durable = max(r.durable, m.checkpoint)
	}
	return nil
}

// save writes a mark, and makes it durable if sync is set.
func (s *marks) save(m mark, sync bool) error {
	s.generation++
	m.generation = s.generation
	other := 1 - s.safe
	if err := write(s.file, m.encode(), int64(other)*block); err != nil || !sync {
		return err
	}
	if err := s.file.datasync(); err != nil {
		return err
	}
	s.safe = other
	return nil
}

// load reads the newest mark. found: there is one. One of the two may always be torn.
func (s *marks) load() (newest mark, found bool, err error) {
	for i := range 2 {
		b := make([]byte, block)
		if _, err := s.file.ReadAt(b, int64(i)*block); err != nil && !errors.Is(err, io.EOF) {
			continue
		}
		m, ok, newer := decodeMark(b)
		if newer {
			return mark{}, false, fmt.Errorf("%w: install the newer version of the program again", ErrFormat)
		}
		if !ok {
			continue
		}
		if !found || m.generation > newest.generation {
			newest, found, s.generation, s.safe = m, true, m.generation, i
		}
	}
	return newest, found, nil
}

// readAll fills b from a file as far as it can be read; what cannot be read stays zero, so that it is found to be missing.
func readAll(f io.ReaderAt, b []byte, off int64) {
	if n, err := f.ReadAt(b, off); err == nil || n == len(b) {
		return
	}
	clear(b)
	for at := 0; at < len(b); at += block {
		piece := b[at:min(at+block, len(b))]
		if n, err := f.ReadAt(piece, off+int64(at)); err != nil && n < len(piece) {
			clear(piece)
		}
	}
}
