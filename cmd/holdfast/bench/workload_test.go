package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/holdfast-edge/holdfast/rig/disk"
	"github.com/holdfast-edge/holdfast/storage"
)

// recordSize is the payload of one record in bytes.
const recordSize = 200

// load is how records come: callers at the same time, each committing group records at once and waiting for that.
type load struct {
	name    string
	group   int
	callers int
}

func loads() []load {
	return []load{
		{"1 at a time", 1, 1},
		{"groups of 10", 10, 1},
		{"groups of 100", 100, 1},
		{"groups of 1000", 1000, 1},
		{"100 callers, 1 each", 1, 100},
	}
}

// writer commits groups of records; commit returns when they are on the medium and may be called by several callers at a time.
type writer interface {
	commit(ctx context.Context, caller, group int) error
}

// raw appends bytes to a file and syncs it: the least that a durable append costs on this file system.
type raw struct {
	file *os.File
	data []byte
}

func newRaw(dir string, group int) (*raw, error) {
	f, err := os.OpenFile(filepath.Join(dir, "raw"), os.O_CREATE|os.O_TRUNC|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	return &raw{file: f, data: []byte(strings.Repeat("r", group*recordSize))}, nil
}

func (r *raw) commit(context.Context, int, int) error {
	if _, err := r.file.Write(r.data); err != nil {
		return err
	}
	if err := unix.Fdatasync(int(r.file.Fd())); err != nil {
		return fmt.Errorf("sync %s: %w", r.file.Name(), err)
	}
	return nil
}

// remove ends a raw file, so that the next one begins empty and the disk does not fill up.
func (r *raw) remove() error {
	return errors.Join(r.file.Close(), os.Remove(r.file.Name()))
}

// store appends to the store: each caller is a source of its own.
type store struct {
	store *storage.Store
	seq   [maxCallers]atomic.Uint64
	data  []byte
}

const maxCallers = 100

func sourceName(caller int) string { return fmt.Sprintf("s%02d", caller) }

func (s *store) commit(ctx context.Context, caller, group int) error {
	records := make([]storage.Record, group)
	first := s.seq[caller].Add(uint64(group)) - uint64(group) + 1
	now := time.Now()
	for i := range records {
		records[i] = storage.Record{Stream: streamName, Source: sourceName(caller), Seq: first + uint64(i), Time: now, Data: s.data}
	}
	return s.store.Append(ctx, records...)
}

// cost is what a number of records cost.
type cost struct {
	records int
	took    time.Duration
	device  disk.Stats
}

func (c cost) rate() float64    { return float64(c.records) / c.took.Seconds() }
func (c cost) flushes() float64 { return float64(c.device.Flushes) / float64(c.records) }
func (c cost) bytes() float64   { return float64(c.device.Bytes) / float64(c.records) }

func (c cost) plus(o cost) cost {
	return cost{records: c.records + o.records, took: c.took + o.took, device: disk.Stats{
		Writes: c.device.Writes + o.device.Writes, Bytes: c.device.Bytes + o.device.Bytes, Flushes: c.device.Flushes + o.device.Flushes}}
}

// measure runs a load for about the given time. What earlier work left in the page cache is written before it begins.
func measure(ctx context.Context, m *disk.Mount, w writer, l load, d time.Duration) (cost, error) {
	if err := settle(m.Dir); err != nil {
		return cost{}, err
	}
	before, err := m.Stats()
	if err != nil {
		return cost{}, err
	}
	var records atomic.Int64
	begun := time.Now()
	var g errgroup.Group
	for caller := range l.callers {
		g.Go(func() error {
			for time.Since(begun) < d {
				if err := w.commit(ctx, caller, l.group); err != nil {
					return err
				}
				records.Add(int64(l.group))
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return cost{}, fmt.Errorf("%s: %w", l.name, err)
	}
	took := time.Since(begun)
	after, err := m.Stats()
	if err != nil {
		return cost{}, err
	}
	return cost{records: int(records.Load()), took: took, device: minus(after, before)}, nil
}

func minus(a, b disk.Stats) disk.Stats {
	return disk.Stats{Writes: a.Writes - b.Writes, Bytes: a.Bytes - b.Bytes, Flushes: a.Flushes - b.Flushes}
}

// settle writes out what the page cache still holds of the file system.
func settle(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }() // read only
	if err := unix.Syncfs(int(d.Fd())); err != nil {
		return fmt.Errorf("syncfs %s: %w", dir, err)
	}
	return nil
}

// median returns the middle of some numbers; there is at least one.
func median(of []float64) float64 {
	s := slices.Sorted(slices.Values(of))
	if len(s)%2 == 1 {
		return s[len(s)/2]
	}
	return (s[len(s)/2-1] + s[len(s)/2]) / 2
}
