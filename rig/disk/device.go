package disk

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"
)

const (
	blockSize  = 4096
	sectorSize = 512
	imageChunk = 64 << 10 // zero runs of this size become holes of an image
)

// Mode says which of the blocks that were written but not flushed survive a power cut.
type Mode string

// The modes of a cut.
const (
	CutNone   Mode = "none"   // no unflushed block survives
	CutAll    Mode = "all"    // every unflushed block survives
	CutRandom Mode = "random" // half of them survive, and one in eight of the others is torn between two sectors
)

// Tuning changes how the disk behaves; the zero value is an honest disk without delays.
type Tuning struct {
	FlushLatency time.Duration // what one flush takes; an SD card: 5 ms
	WriteLatency time.Duration // what one write request takes; an SD card: 0.5 ms
	IgnoreFlush  bool          // a card that lies: it answers a flush and makes nothing durable
}

// Stats counts what reached a disk since it was started, or a block device since it was made.
type Stats struct {
	Writes  int64 // write requests
	Bytes   int64 // bytes written
	Flushes int64 // flushes answered
	Dirty   int64 // blocks of 4096 bytes that a cut could lose now; not known for a block device
}

// Survivors says what a cut did to the blocks that were not flushed.
type Survivors struct {
	Dirty int // blocks not flushed at the instant of the cut
	Kept  int // of those: blocks that survived whole
	Torn  int // of those: blocks of which only the first sectors are new
}

// device is the medium: what a reader sees, and what a power cut would leave of it.
type device struct {
	turn sync.Mutex // held while the medium is busy: it does one thing at a time

	mu     sync.Mutex // guards the fields below
	cache  []byte     // what a read returns
	flash  []byte     // what is durable
	dirty  map[int64]struct{}
	stats  Stats
	tuning Tuning
}

func newDevice(size int64) *device {
	return &device{cache: make([]byte, size), flash: make([]byte, size), dirty: map[int64]struct{}{}}
}

func (d *device) size() int64 { return int64(len(d.cache)) }

// load fills the medium from an image, all of it durable.
func (d *device) load(image string) error {
	f, err := os.Open(image)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // read only
	if _, err := io.ReadFull(f, d.cache); err != nil {
		return fmt.Errorf("read image %s: %w", image, err)
	}
	copy(d.flash, d.cache)
	return nil
}

func (d *device) readAt(p []byte, off int64) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	if off < 0 || off >= d.size() {
		return 0
	}
	return copy(p, d.cache[off:])
}

// writeAt takes p into the volatile cache. The caller has checked that it fits.
func (d *device) writeAt(p []byte, off int64) {
	d.busy(func(t Tuning) time.Duration { return t.WriteLatency })
	d.mu.Lock()
	defer d.mu.Unlock()
	copy(d.cache[off:], p)
	for b := off / blockSize; b*blockSize < off+int64(len(p)); b++ {
		d.dirty[b] = struct{}{}
	}
	d.stats.Writes++
	d.stats.Bytes += int64(len(p))
}

// flush makes durable whatever was written before it returns.
func (d *device) flush() {
	d.busy(func(t Tuning) time.Duration { return t.FlushLatency })
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stats.Flushes++
	if d.tuning.IgnoreFlush {
		return
	}
	for b := range d.dirty {
		copy(d.block(d.flash, b), d.block(d.cache, b))
	}
	clear(d.dirty)
}

func (d *device) busy(latency func(Tuning) time.Duration) {
	d.mu.Lock()
	wait := latency(d.tuning)
	d.mu.Unlock()
	if wait <= 0 {
		return
	}
	d.turn.Lock()
	defer d.turn.Unlock()
	time.Sleep(wait)
}

func (d *device) block(b []byte, n int64) []byte {
	return b[n*blockSize : (n+1)*blockSize]
}

// survivors returns what the medium would hold after a cut at this instant. Equal seeds and equal unflushed blocks give equal bytes.
func (d *device) survivors(mode Mode, seed uint64) ([]byte, Survivors, error) {
	if mode != CutNone && mode != CutAll && mode != CutRandom {
		return nil, Survivors{}, fmt.Errorf("cut mode %q: want %s, %s or %s", mode, CutNone, CutAll, CutRandom)
	}
	r := rand.New(rand.NewPCG(seed, seed))
	d.mu.Lock()
	defer d.mu.Unlock()
	left := slices.Clone(d.flash)
	dirty := make([]int64, 0, len(d.dirty))
	for b := range d.dirty {
		dirty = append(dirty, b)
	}
	slices.Sort(dirty)
	s := Survivors{Dirty: len(dirty)}
	for _, b := range dirty {
		keep := 0
		switch mode {
		case CutAll:
			keep = blockSize
		case CutRandom:
			if r.IntN(2) == 0 {
				keep = blockSize
			} else if r.IntN(8) == 0 {
				keep = sectorSize * (1 + r.IntN(blockSize/sectorSize-1))
			}
		}
		copy(d.block(left, b)[:keep], d.block(d.cache, b))
		switch {
		case keep == blockSize:
			s.Kept++
		case keep > 0:
			s.Torn++
		}
	}
	return left, s, nil
}

func (d *device) tune(t Tuning) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tuning = t
}

func (d *device) count() Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.stats
	s.Dirty = int64(len(d.dirty))
	return s
}

// saveImage writes data to path with holes where it is zero.
func saveImage(path string, data []byte) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := f.Close(); err == nil {
			err = cerr
		}
	}()
	zero := make([]byte, imageChunk)
	for off := 0; off < len(data); off += imageChunk {
		part := data[off:min(off+imageChunk, len(data))]
		if slices.Equal(part, zero[:len(part)]) {
			continue
		}
		if _, err := f.WriteAt(part, int64(off)); err != nil {
			return err
		}
	}
	return f.Truncate(int64(len(data)))
}
