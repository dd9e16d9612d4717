package storage

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
)

// catalog is the file streams: what is known of every stream that there ever was without asking a server.
//
//   - A new stream is in it, on flash, before its first record is.
//   - Before the syncfs of a checkpoint it is written with where the streams stand, so that what lies below the checkpoint is in here, and what lies
//     above is in the ring: the higher of the two is the sequence that a stream has reached.
type catalog struct {
	file *stateFile

	mu      sync.Mutex // guards the fields below
	streams map[string]catalogEntry
	writes  uint64 // so that a sync only vouches for what was written before it
}

// catalogEntry is one stream.
type catalogEntry struct {
	FirstSeq    uint64   `json:"first_seq"`             // it was made with: made anew with a higher one it would lose its records
	Incarnation uint64   `json:"incarnation,omitempty"` // drawn when it was made; 0: it was made before there was a journal
	Last        Position `json:"last,omitempty"`        // its last sequence at the newest checkpoint
	Records     uint64   `json:"records,omitempty"`     // what it held then
	Bytes       uint64   `json:"bytes,omitempty"`
}

// openCatalog reads the file. whole: it can be relied on, being there and undamaged.
func openCatalog(home string, log *slog.Logger) (c *catalog, whole bool, err error) {
	c = &catalog{file: newStateFile(filepath.Join(home, "streams"))}
	err = loadState(c.file, &c.streams, log)
	whole = err == nil
	var damaged *DamagedError
	if errors.As(err, &damaged) {
		log.Error("how the streams were made cannot be read any more", "err", err)
		c.streams, err = nil, nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if c.streams == nil {
		c.streams = map[string]catalogEntry{}
	}
	return c, whole, err
}

// of returns what is known of a stream.
func (c *catalog) of(stream string) (e catalogEntry, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, known = c.streams[stream]
	return e, known
}

// names returns the names of all streams that there ever were, in order.
func (c *catalog) names() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Keys(c.streams))
}

// size returns how many streams there ever were.
func (c *catalog) size() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.streams)
}

// set notes streams, on flash on return.
func (c *catalog) set(changed map[string]catalogEntry) error { return c.save(changed, c.file.save) }

// note notes streams without a flush: on flash with the next sync.
func (c *catalog) note(changed map[string]catalogEntry) error {
	return c.save(changed, c.file.saveLazy)
}

func (c *catalog) save(changed map[string]catalogEntry, into func(any) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	streams := maps.Clone(c.streams)
	maps.Copy(streams, changed)
	c.writes++
	if err := into(streams); err != nil {
		return err
	}
	c.streams = streams
	return nil
}

// mark is taken before a sync and given to covered after it.
func (c *catalog) mark() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.writes
}

// covered tells that a sync that began after mark succeeded. If the file was written again meanwhile, the next sync vouches for it.
func (c *catalog) covered(mark uint64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.writes != mark {
		return nil
	}
	_, err := c.file.covered()
	return err
}

// newIncarnation draws one.
func newIncarnation() uint64 {
	var b [8]byte
	rand.Read(b[:]) // never fails: crypto/rand
	return binary.LittleEndian.Uint64(b[:]) | 1
}
