//go:build !386

// The module under the disk rig does not build there.

package storage

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-edge/holdfast/rig/disk"
	"github.com/holdfast-edge/holdfast/storage/journal"
)

func TestMain(m *testing.M) {
	if code, ran := disk.Main(os.Args); ran {
		os.Exit(code)
	}
	os.Exit(m.Run())
}

// TestJournalFormAfterPowerCut cuts the power of the disk that a ring and a server's streams share, under traffic: after a start on what is left and a
// replay, every record that was answered is in the stream, under the sequence that was predicted when it was, and so is what was not answered but kept.
func TestJournalFormAfterPowerCut(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED, NOT TESTED: -short runs without root")
	}
	if err := disk.Available(); err != nil {
		t.Skipf("SKIPPED, NOT TESTED: %v", err)
	}
	d, err := disk.New(disk.Options{Dir: t.TempDir(), Size: 96 << 20, Tuning: disk.Tuning{FlushLatency: time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	o := journal.Options{SegmentBytes: 256 << 10, Segments: 8}
	b := &bed{t: t, dir: d.Dir()}
	b.serve()
	f, _, err := openForm(b.ctx(), b.dir, o, time.Second, b.js)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.append([]byte("first")); err != nil { // and the stream itself is on flash
		t.Fatal(err)
	}
	if err := f.checkpoint(formGroup{}); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var writer sync.WaitGroup
	writer.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			data := make([][]byte, 1+n%40)
			for i := range data {
				data[i] = fmt.Appendf(nil, "record %d of group %d", i, n)
			}
			if err := f.append(data...); err != nil {
				t.Errorf("append: %v", err)
				return
			}
		}
	})
	replayed := 0
	for i := range 6 {
		before := f.acked.Load()
		for deadline := time.Now().Add(10 * time.Second); f.acked.Load() < before+500; {
			if time.Now().After(deadline) {
				t.Fatal("no traffic")
			}
			<-time.After(10 * time.Millisecond)
		}
		acked := f.acked.Load()
		image := filepath.Join(t.TempDir(), "cut.img")
		mode := []disk.Mode{disk.CutNone, disk.CutRandom, disk.CutAll}[i%3]
		s, err := d.Cut(image, mode, uint64(i))
		if err != nil {
			t.Fatal(err)
		}
		replayed += checkFormImage(t, fmt.Sprintf("cut %d, %s, %+v", i, mode, s), image, o, acked)
	}
	stop()
	writer.Wait()
	if err := f.close(); err != nil {
		t.Error(err)
	}
	b.shutdown()
	t.Logf("%d records answered, %d brought back from the ring in 6 starts", f.acked.Load()-1<<40+1, replayed)
	if replayed == 0 {
		t.Error("nothing was at stake")
	}
}

// checkFormImage starts on what a cut has left and returns how many records the stream had lost.
func checkFormImage(t *testing.T, what, image string, o journal.Options, acked uint64) int {
	t.Helper()
	m, err := disk.Open(image, filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	defer func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}()
	b := &bed{t: t, dir: m.Dir}
	b.serve()
	defer b.shutdown()
	f, rec, err := openForm(b.ctx(), b.dir, o, time.Second, b.js)
	if err != nil || len(rec.Damage) > 0 {
		t.Fatalf("%s: %v, %+v", what, err, rec)
	}
	defer func() {
		if err := f.close(); err != nil {
			t.Error(err)
		}
	}()
	st, err := b.js.Stream(b.ctx(), "A")
	if err != nil {
		t.Fatal(err)
	}
	state := st.CachedInfo().State
	if state.LastSeq < acked || state.FirstSeq != 1<<40 || state.Msgs != state.LastSeq-state.FirstSeq+1 {
		t.Errorf("%s: the stream holds %d records, %d to %d, answered were those up to %d", what, state.Msgs, state.FirstSeq, state.LastSeq, acked)
	}
	h, err := holdStream(b.ctx(), b.js, "A")
	if err != nil {
		t.Fatal(err)
	}
	err = h.scan(b.ctx(), 0, func(r heldRecord) error {
		if uint64(r.Position) != r.ID.Seq {
			return fmt.Errorf("record %d lies at %d", r.ID.Seq, r.Position)
		}
		return nil
	})
	if err != nil {
		t.Errorf("%s: %v", what, err)
	}
	return f.replayed
}

// formDisk is a disk of its own with room for a server, so that what is counted is what one path has cost.
type formDisk struct {
	*bed
	stats func() (disk.Stats, error)
}

// newFormDisk makes one. card: its flushes and writes take as long as those of an SD card.
func newFormDisk(b *testing.B, card bool) formDisk {
	b.Helper()
	const size = 384 << 20
	d := formDisk{bed: newBed(b)}
	var medium interface{ Close() error }
	if card {
		m, err := disk.New(disk.Options{Dir: b.TempDir(), Size: size, Tuning: disk.Tuning{FlushLatency: 5 * time.Millisecond, WriteLatency: 500 * time.Microsecond}})
		if err != nil {
			b.Fatal(err)
		}
		d.dir, d.stats, medium = m.Dir(), m.Stats, m
	} else {
		image := filepath.Join(b.TempDir(), "disk.img")
		if err := disk.Create(image, size); err != nil {
			b.Fatal(err)
		}
		m, err := disk.Open(image, filepath.Join(b.TempDir(), "mnt"))
		if err != nil {
			b.Fatal(err)
		}
		d.dir, d.stats, medium = m.Dir, m.Stats, m
	}
	b.Cleanup(func() {
		d.crash()
		if err := medium.Close(); err != nil {
			b.Error(err)
		}
	})
	d.options.Dir, d.max = d.dir, 8<<30 // streams are made by this limit, not by what the disk has
	return d
}

// BenchmarkCommitForms compares the commit by syncfs, the commit by journal with its publishing and checkpoints going on behind, and an overwrite of
// a preallocated file with as many bytes, each on a disk of its own, turn by turn. pause: between groups.
func BenchmarkCommitForms(b *testing.B) {
	if err := disk.Available(); err != nil {
		b.Skipf("SKIPPED, NOT MEASURED: %v", err)
	}
	for _, tt := range []struct {
		disk  string
		group int
		pause time.Duration
	}{
		{"loop", 1, 0}, {"loop", 10, 0}, {"loop", 100, 0}, {"loop", 1000, 0}, {"loop", 1, 100 * time.Millisecond}, {"loop", 10, time.Second},
		{"card", 1, 0}, {"card", 10, 0}, {"card", 100, 0}, {"card", 1000, 0},
	} {
		b.Run(fmt.Sprintf("disk=%s/group=%d/pause=%v", tt.disk, tt.group, tt.pause), func(b *testing.B) { benchForms(b, tt.disk == "card", tt.group, tt.pause) })
	}
}

func benchForms(b *testing.B, card bool, group int, pause time.Duration) {
	data := make([]byte, benchSize)
	rawDisk := newFormDisk(b, card)
	raw, closeRaw := overwriting(b, filepath.Join(rawDisk.dir, "raw"), group*(benchSize+100))
	syncDisk := newFormDisk(b, card)
	s := syncDisk.start()
	seq := uint64(0)
	ringDisk := newFormDisk(b, card)
	ringDisk.serve()
	f, _, err := openForm(ringDisk.ctx(), ringDisk.dir, journal.Options{}, 30*time.Second, ringDisk.js)
	if err != nil {
		b.Fatal(err)
	}
	paths := []*formPath{
		{name: "raw", disk: rawDisk, do: raw},
		{name: "syncfs", disk: syncDisk, do: func() error {
			recs := make([]Record, group)
			for i := range recs {
				seq++
				recs[i] = Record{Stream: "A", Source: "a1", Seq: seq, Data: data}
			}
			return s.Append(context.Background(), recs...)
		}},
		{name: "journal", disk: ringDisk, do: func() error {
			all := make([][]byte, group)
			for i := range all {
				all[i] = data
			}
			return f.append(all...)
		}},
	}
	for _, p := range paths {
		p.before = p.stats(b)
	}
	turn := max(5, 200/group)
	if pause > 0 {
		turn = 1
	}
	for b.Loop() {
		for _, p := range paths {
			p.turn(b, turn)
		}
		if pause > 0 {
			<-time.After(pause)
		}
	}
	if err := f.close(); err != nil {
		b.Fatal(err)
	}
	closeRaw()
	for _, p := range paths {
		p.report(b, group)
	}
}

// formPath is one way to make groups durable.
type formPath struct {
	name   string
	disk   formDisk
	do     func() error
	before disk.Stats
	groups int
	took   time.Duration
}

func (p *formPath) stats(b *testing.B) disk.Stats {
	b.Helper()
	s, err := p.disk.stats()
	if err != nil {
		b.Fatal(err)
	}
	return s
}

func (p *formPath) turn(b *testing.B, groups int) {
	b.Helper()
	start := time.Now()
	for range groups {
		if err := p.do(); err != nil {
			b.Fatal(err)
		}
	}
	p.groups += groups
	p.took += time.Since(start)
}

func (p *formPath) report(b *testing.B, group int) {
	b.Helper()
	s := p.stats(b)
	records := float64(p.groups * group)
	b.ReportMetric(records/p.took.Seconds(), p.name+"-rec/s")
	b.ReportMetric(float64(s.Flushes-p.before.Flushes)/float64(p.groups), p.name+"-flushes/group")
	b.ReportMetric(float64(s.Bytes-p.before.Bytes)/records, p.name+"-B/rec")
}

// overwriting returns what overwrites a preallocated file, one group of bytes after the other, and syncs.
func overwriting(b *testing.B, path string, n int) (write func() error, end func()) {
	b.Helper()
	const size = 16 << 20
	f, err := os.Create(path)
	if err == nil {
		_, err = f.Write(make([]byte, size))
	}
	if err == nil {
		err = f.Sync()
	}
	if err != nil {
		b.Fatal(err)
	}
	buf := make([]byte, n)
	off := 0
	write = func() error {
		if off+n > size {
			off = 0
		}
		if _, err := f.WriteAt(buf, int64(off)); err != nil {
			return err
		}
		off += n
		return unix.Fdatasync(int(f.Fd()))
	}
	return write, func() {
		if err := f.Close(); err != nil {
			b.Error(err)
		}
	}
}
