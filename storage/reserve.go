package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"path/filepath"
	"sync"
)

// reserveChunk is how far ahead of a stream's last sequence its reserve is put. A leap after a power cut is at most this long, and the reserve
// is written anew each time half of it is used up.
const reserveChunk = 8192

// reserve keeps, per stream, a sequence number that has surely not been passed: after a power cut the stream begins above it, because the hub may
// have seen records, up to the reserve, that are gone here, and ignores for ever whatever is not above what it has seen.
//
//   - A publish never goes above a reserve that is not on flash yet (see stream.room).
//   - A new reserve is written, without a flush of its own, before the records of a group, and is on flash with the group's syncfs.
//   - Each entry also holds a sequence that the stream had reached on flash: if the stream has less at a start, its end is damaged.
//   - A missing or unreadable file is not fatal: whatever was published lies at most reserveChunk above the last record on flash, because
//     each reserve was put reserveChunk above a sequence that the same or an earlier syncfs made durable. So the leap goes a full chunk above what
//     is found. If the end of the stream is damaged as well, the handshake with the hub has the last word.
type reserve struct {
	file *stateFile

	mu      sync.Mutex // guards the fields below
	written map[string]reserved
	durable map[string]reserved
	writes  uint64 // so that a sync only vouches for what was written before it
}

// reserved is one entry of the file reserve.
type reserved struct {
	Reserve Position `json:"reserve"`
	Last    Position `json:"last"`
}

// openReserve reads what the run before had put on flash.
func openReserve(home string, log *slog.Logger) (*reserve, error) {
	r := &reserve{file: newStateFile(filepath.Join(home, "reserve")), written: map[string]reserved{}}
	err := loadState(r.file, &r.written, log)
	var damaged *DamagedError
	switch {
	case errors.As(err, &damaged):
		log.Error("the sequence reserves are damaged", "err", err)
		r.written = map[string]reserved{}
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("open store: %w", err)
	}
	if r.written == nil {
		r.written = map[string]reserved{}
	}
	r.durable = maps.Clone(r.written)
	return r, nil
}

// of returns what is on flash for a stream; zero if nothing is.
func (r *reserve) of(stream string) reserved {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.durable[stream]
}

// ahead writes a new reserve for a stream that is going to reach next, if less than half a chunk would be left, and returns what is on flash.
func (r *reserve) ahead(stream string, next, last Position) (Position, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.written[stream].Reserve < next+reserveChunk/2 {
		// Above last, not above next: what is on flash by the coming sync is last at least, see the promise for a lost file.
		if err := r.saveLocked(map[string]reserved{stream: {Reserve: max(last+reserveChunk, next), Last: last}}); err != nil {
			return 0, err
		}
	}
	return r.durable[stream].Reserve, nil
}

// set writes exact values for some streams, to be made durable by the next sync.
func (r *reserve) set(values map[string]reserved) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.saveLocked(values)
}

// saveLocked writes the file with some values changed. What could not be written is not remembered either: the next sync does not vouch for it.
func (r *reserve) saveLocked(values map[string]reserved) error {
	written := maps.Clone(r.written)
	maps.Copy(written, values)
	r.writes++
	if err := r.file.saveLazy(written); err != nil {
		return fmt.Errorf("write sequence reserves: %w", err)
	}
	r.written = written
	return nil
}

// mark is taken before a sync and given to covered after it.
func (r *reserve) mark() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.writes
}

// covered tells that a sync that began after mark succeeded. If the file was written again meanwhile, the next sync vouches for it.
func (r *reserve) covered(mark uint64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.writes != mark {
		return nil
	}
	if !maps.Equal(r.durable, r.written) {
		r.durable = maps.Clone(r.written)
	}
	if _, err := r.file.covered(); err != nil {
		return fmt.Errorf("write sequence reserves: %w", err)
	}
	return nil
}
