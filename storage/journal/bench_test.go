//go:build !386 && !arm

// The module under the disk rig does not build there.

package journal

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/rig/disk"
)

// meter counts what a path has cost: device flushes and bytes, and how long each group took.
type meter struct {
	took    []time.Duration
	total   time.Duration
	records int
	device  disk.Stats
}

func (m *meter) measure(b *testing.B, mount *disk.Mount, groups, records int, do func() error) {
	b.Helper()
	before, err := mount.Stats()
	if err != nil {
		b.Fatal(err)
	}
	begin := time.Now()
	for range groups {
		start := time.Now()
		if err := do(); err != nil {
			b.Fatal(err)
		}
		m.took = append(m.took, time.Since(start))
	}
	m.total += time.Since(begin)
	m.records += groups * records
	after, err := mount.Stats()
	if err != nil {
		b.Fatal(err)
	}
	m.device.Flushes += after.Flushes - before.Flushes
	m.device.Bytes += after.Bytes - before.Bytes
}

func (m *meter) rate() float64 { return float64(m.records) / m.total.Seconds() }

func (m *meter) p99() time.Duration {
	slices.Sort(m.took)
	return m.took[len(m.took)*99/100]
}

func (m *meter) report(b *testing.B, name string) {
	groups := float64(len(m.took))
	b.ReportMetric(m.rate(), name+"-rec/s")
	b.ReportMetric(float64(m.device.Flushes)/groups, name+"-flushes/group")
	b.ReportMetric(float64(m.device.Bytes)/float64(m.records), name+"-B/rec")
	b.ReportMetric(float64(m.p99().Microseconds()), name+"-p99-µs")
}

// BenchmarkAppend compares Append of 200-byte records with overwriting a preallocated file and fdatasync: turn by turn on the same disk, so that both
// meet the same noise. The ratio is that of records per second.
func BenchmarkAppend(b *testing.B) {
	if err := disk.Available(); err != nil {
		b.Skipf("SKIPPED, NOT MEASURED: %v", err)
	}
	image := filepath.Join(b.TempDir(), "disk.img")
	if err := disk.Create(image, 256<<20); err != nil {
		b.Fatal(err)
	}
	mount, err := disk.Open(image, filepath.Join(b.TempDir(), "mnt"))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := mount.Close(); err != nil {
			b.Error(err)
		}
	})
	for _, n := range []int{1, 10, 100, 1000} {
		b.Run(fmt.Sprintf("group=%d/size=200", n), func(b *testing.B) { benchAppend(b, mount, n) })
	}
}

func closing(b *testing.B, c io.Closer) {
	if err := c.Close(); err != nil {
		b.Error(err)
	}
}

func benchAppend(b *testing.B, mount *disk.Mount, n int) {
	dir := filepath.Join(mount.Dir, fmt.Sprint("ring", n, "-", b.N))
	if err := os.Mkdir(dir, 0o700); err != nil {
		b.Fatal(err)
	}
	r, _, err := Open(Options{Dir: dir})
	if err != nil {
		b.Fatal(err)
	}
	defer closing(b, r)
	g := make([]Entry, n)
	for i := range g {
		g[i] = entry(i, 200)
	}
	const size = 16 << 20
	raw, err := directory(dir).create("raw")
	if err == nil {
		err = zero(raw, 0, size)
	}
	if err == nil {
		err = raw.datasync()
	}
	if err != nil {
		b.Fatal(err)
	}
	defer closing(b, raw)
	record := make([]byte, 200*n)
	off := int64(0)
	write := func() error { // the floor: the records one behind the other
		if off+int64(len(record)) > size {
			off = 0
		}
		if _, err := raw.WriteAt(record, off); err != nil {
			return err
		}
		off += int64(len(record))
		return raw.datasync()
	}
	add := func() error {
		end, err := r.Append(g)
		if err != nil {
			return err
		}
		return r.Checkpoint(end)
	}
	turn := max(5, 200/n)
	var ring, floor meter
	b.ReportAllocs()
	for b.Loop() {
		floor.measure(b, mount, turn, n, write)
		ring.measure(b, mount, turn, n, add)
	}
	ring.report(b, "ring")
	floor.report(b, "raw")
	b.ReportMetric(ring.rate()/floor.rate(), "ratio")
	b.ReportMetric(float64(ring.p99())/float64(floor.p99()), "p99-ratio")
}
