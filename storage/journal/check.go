package journal

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
)

// Check says what Open would find in a directory, and changes nothing. Nobody else may have the ring open. found: there is one.
func Check(dir string) (rec Recovery, found bool, err error) {
	v := &glass{directory: directory(dir), made: map[string]*glassFile{}}
	if names, err := v.names(); err != nil || len(names) == 0 {
		if os.IsNotExist(err) {
			err = nil
		}
		return rec, false, err
	}
	r, rec, err := open(Options{Dir: dir, SegmentBytes: minSegmentBytes, Segments: minSegments}, v)
	if err != nil {
		return rec, true, fmt.Errorf("check journal %s: %w", dir, err)
	}
	rec.Resize = false // nobody has asked for a size
	return rec, !rec.Created || rec.Resized, r.closeFiles()
}

// glass is a directory to look at: what is written to it stays in memory.
type glass struct {
	directory
	made map[string]*glassFile // nil: removed
}

func (v *glass) open(name string) (file, error) {
	if f, ok := v.made[name]; ok {
		if f == nil {
			return nil, fs.ErrNotExist
		}
		return f, nil
	}
	f, err := os.Open(v.path(name))
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return &glassFile{under: f, length: st.Size(), parts: map[int64][]byte{}}, nil
}

func (v *glass) create(name string) (file, error) {
	f := &glassFile{parts: map[int64][]byte{}}
	v.made[name] = f
	return f, nil
}

func (v *glass) remove(name string) error {
	v.made[name] = nil
	return nil
}

func (v *glass) sync() error { return nil }

// glassFile is a file whose blocks that were written are in memory.
type glassFile struct {
	under *os.File // nil: made
	mu    sync.Mutex
	parts map[int64][]byte // by number of the block
	// length is that of the file as it would be. Guarded by mu, as parts.
	length int64
}

func (f *glassFile) ReadAt(b []byte, at int64) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if at >= f.length {
		return 0, io.EOF
	}
	n := int(min(int64(len(b)), f.length-at))
	clear(b[:n])
	if f.under != nil {
		if _, err := f.under.ReadAt(b[:n], at); err != nil && err != io.EOF {
			return 0, err
		}
	}
	for i := at / block; i <= (at+int64(n)-1)/block; i++ {
		if part := f.parts[i]; part != nil {
			from := max(at, i*block)
			copy(b[from-at:n], part[from-i*block:])
		}
	}
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

func (f *glassFile) WriteAt(b []byte, at int64) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for done := 0; done < len(b); {
		i := (at + int64(done)) / block
		part := f.parts[i]
		if part == nil {
			part = make([]byte, block)
			if f.under != nil {
				if _, err := f.under.ReadAt(part, i*block); err != nil && err != io.EOF {
					return done, err
				}
			}
			f.parts[i] = part
		}
		done += copy(part[at+int64(done)-i*block:], b[done:])
	}
	f.length = max(f.length, at+int64(len(b)))
	return len(b), nil
}

func (f *glassFile) Close() error {
	if f.under == nil {
		return nil
	}
	return f.under.Close()
}

func (f *glassFile) size() (int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.length, nil
}

func (f *glassFile) datasync() error { return nil }

func (f *glassFile) refresh() error { return nil }
