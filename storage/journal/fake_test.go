package journal

import (
	"errors"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// errPower is what everything returns once a medium has lost its power.
var errPower = errors.New("no power")

// medium is a volume in memory whose power can be cut: it knows which blocks of which files, and which names, are on flash.
type medium struct {
	mu       sync.Mutex // guards everything, its files' content too
	cached   map[string]*node
	flash    map[string]*node // names that are on flash
	budget   int              // operations that change something until the power goes; below zero: never
	room     int64            // bytes that files may have together; zero: any number
	failSync int              // how many of the next datasyncs report an error and forget what they should have written
	syncs    int              // datasyncs that succeeded
	written  int64            // bytes
	lazySync bool             // datasync does nothing: a mistake that the tests must notice
}

// node is a file's content.
type node struct {
	data  []byte // what a read returns
	flash []byte // what a cut leaves
	dirty map[int64]bool
}

type memFile struct {
	m *medium
	n *node
}

func newMedium() *medium {
	return &medium{cached: map[string]*node{}, flash: map[string]*node{}, budget: -1}
}

// spend counts an operation. The one that the power fails in may happen in part: half is true for it.
func (m *medium) spend() (half bool, err error) {
	switch {
	case m.budget < 0:
		return false, nil
	case m.budget == 0:
		return false, errPower
	}
	m.budget--
	return m.budget == 0, nil
}

func (m *medium) open(name string) (file, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.cached[name]
	if n == nil {
		return nil, fs.ErrNotExist
	}
	return &memFile{m, n}, nil
}

func (m *medium) create(name string) (file, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.spend(); err != nil {
		return nil, err
	}
	n := &node{dirty: map[int64]bool{}}
	m.cached[name] = n
	return &memFile{m, n}, nil
}

func (m *medium) remove(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.spend(); err != nil {
		return err
	}
	delete(m.cached, name)
	return nil
}

func (m *medium) names() ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.cached)), nil
}

func (m *medium) sync() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if half, err := m.spend(); err != nil || half {
		return errors.Join(err, errPower)
	}
	m.flash = maps.Clone(m.cached)
	return nil
}

func (f *memFile) Close() error { return nil }

func (f *memFile) size() (int64, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	return int64(len(f.n.data)), nil
}

func (f *memFile) ReadAt(b []byte, off int64) (int, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if off >= int64(len(f.n.data)) {
		return 0, io.EOF
	}
	n := copy(b, f.n.data[off:])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

func (f *memFile) WriteAt(b []byte, off int64) (int, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	half, err := f.m.spend()
	if err != nil {
		return 0, err
	}
	if grow := off + int64(len(b)) - int64(len(f.n.data)); grow > 0 {
		if f.m.room > 0 && f.m.used()+grow > f.m.room {
			return 0, unix.ENOSPC
		}
		f.n.data = append(f.n.data, make([]byte, grow)...)
	}
	if half {
		b = b[:len(b)/2]
		err = errPower
	}
	copy(f.n.data[off:], b)
	for at := off / block; at*block < off+int64(len(b)); at++ {
		f.n.dirty[at] = true
	}
	f.m.written += int64(len(b))
	return len(b), err
}

func (m *medium) used() (sum int64) {
	for _, n := range m.cached {
		sum += int64(len(n.data))
	}
	return sum
}

func (f *memFile) datasync() error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if half, err := f.m.spend(); err != nil || half {
		return errors.Join(err, errPower)
	}
	if f.m.failSync > 0 {
		f.m.failSync--
		clear(f.n.dirty) // the kernel counts the pages as written
		return unix.EIO
	}
	f.m.syncs++
	if f.m.lazySync {
		return nil
	}
	f.n.flush()
	return nil
}

func (f *memFile) refresh() error {
	if err := f.datasync(); err != nil {
		return err
	}
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	for at := int64(0); at*block < int64(len(f.n.flash)); at++ {
		if !f.n.dirty[at] {
			copy(f.n.data[at*block:min((at+1)*block, int64(len(f.n.data)))], f.n.flash[at*block:])
		}
	}
	return nil
}

// flush makes what is dirty durable.
func (n *node) flush() {
	if grow := len(n.data) - len(n.flash); grow > 0 {
		n.flash = append(n.flash, make([]byte, grow)...)
	}
	for at := range n.dirty {
		copy(n.flash[at*block:], n.data[at*block:min((at+1)*block, int64(len(n.data)))])
	}
	clear(n.dirty)
}

// How much of what is not on flash survives a cut.
const (
	keepNone = iota
	keepAll
	keepSome // half of the blocks; one in four of the others is torn between two sectors, and one in four holds neither the old bytes nor the new
)

// cut returns what a power cut at this instant leaves.
func (m *medium) cut(mode int, r *rand.Rand) *medium {
	m.mu.Lock()
	defer m.mu.Unlock()
	after := newMedium()
	names := m.flash
	if mode == keepAll || mode == keepSome && r.IntN(2) == 0 {
		names = m.cached
	}
	if mode == keepSome { // segments by themselves
		names = maps.Clone(names)
		for slot := range maxSegments {
			name := segmentName(slot)
			if m.flash[name] == nil && m.cached[name] == nil {
				break
			}
			if names[name] = m.flash[name]; names[name] == nil || r.IntN(2) == 0 {
				names[name] = m.cached[name]
			}
			if names[name] == nil || m.flash[name] == nil && r.IntN(2) == 0 {
				delete(names, name)
			}
		}
	}
	done := map[*node]*node{}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		n := names[name]
		if done[n] == nil {
			done[n] = n.cut(mode, r)
		}
		after.cached[name], after.flash[name] = done[n], done[n]
	}
	return after
}

func (n *node) cut(mode int, r *rand.Rand) *node {
	left := slices.Clone(n.flash)
	if mode != keepNone && len(left) < len(n.data) && (mode == keepAll || r.IntN(2) == 0) {
		left = append(left, make([]byte, len(n.data)-len(left))...)
	}
	for _, at := range slices.Sorted(maps.Keys(n.dirty)) {
		keep := int64(0)
		luck := 0
		if mode == keepSome {
			luck = r.IntN(8)
		}
		switch {
		case mode == keepAll || luck > 3:
			keep = block
		case luck == 3 && at*block < int64(len(left)):
			for i := range left[at*block : min((at+1)*block, int64(len(left)))] {
				left[at*block+int64(i)] = byte(r.Uint32())
			}
		case luck == 2:
			keep = 512 * int64(1+r.IntN(7))
		}
		from, to := at*block, min(at*block+keep, int64(len(left)), int64(len(n.data)))
		if from < to {
			copy(left[from:to], n.data[from:to])
		}
	}
	return &node{data: slices.Clone(left), flash: left, dirty: map[int64]bool{}}
}

// copy returns an independent copy of everything, all of it on flash, as an image of the files.
func (m *medium) image() *medium {
	m.mu.Lock()
	defer m.mu.Unlock()
	after := newMedium()
	for name, n := range m.cached {
		c := &node{data: slices.Clone(n.data), flash: slices.Clone(n.data), dirty: map[int64]bool{}}
		after.cached[name], after.flash[name] = c, c
	}
	return after
}

// kill ends the process, not the machine: the cache stays, dirty as it is.
func (m *medium) kill() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.budget = -1
}
