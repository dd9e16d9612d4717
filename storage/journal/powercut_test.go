//go:build !386 && !arm

// The module under the disk rig does not build there.

package journal

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/rig/disk"
)

func TestMain(m *testing.M) {
	if code, ran := disk.Main(os.Args); ran {
		os.Exit(code)
	}
	os.Exit(m.Run())
}

// size is that of an entry's payload, by its number.
func size(i int) int { return i * i % 1500 }

// traffic appends to a ring until its context ends: groups of 1 to 20, with checkpoints that follow at a distance.
type traffic struct {
	acked  atomic.Int64 // entries that Append has answered
	needed atomic.Int64 // entries below may be gone
	laps   atomic.Int64
	err    error // to be read when it has ended
}

func (w *traffic) run(ctx context.Context, r *Ring) {
	type done struct {
		end Position
		n   int
	}
	var queue []done
	for n, i := 0, 0; ctx.Err() == nil; i++ {
		g := make([]Entry, 1+i%20)
		for k := range g {
			g[k] = entry(n+k, size(n+k))
		}
		n += len(g)
		end, err := r.Append(g)
		if err != nil {
			w.err = err
			return
		}
		w.acked.Store(int64(n))
		queue = append(queue, done{end, n})
		if len(queue) == 60 {
			w.needed.Store(int64(queue[30].n))
			if w.err = r.Checkpoint(queue[30].end); w.err != nil {
				return
			}
			queue = queue[31:]
		}
		w.laps.Store(int64(r.current) / int64(r.count))
	}
}

// TestPowerCut cuts the power of a disk with an ext4 on it twenty times under traffic: everything that was answered before the cut and is above the
// checkpoint is in the image, in order, and nothing that is not.
func TestPowerCut(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED, NOT TESTED: -short runs without root")
	}
	if err := disk.Available(); err != nil {
		t.Skipf("SKIPPED, NOT TESTED: %v", err)
	}
	d, err := disk.New(disk.Options{Dir: t.TempDir(), Size: 32 << 20, Tuning: disk.Tuning{FlushLatency: time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	o := Options{Dir: filepath.Join(d.Dir(), "journal"), SegmentBytes: 128 << 10, Segments: 8}
	if err := os.Mkdir(o.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	r, _, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var w traffic
	var running sync.WaitGroup
	running.Go(func() { w.run(ctx, r) })
	defer running.Wait()
	defer stop()
	var sum disk.Survivors
	var checked int64
	for i := range 20 {
		image := filepath.Join(t.TempDir(), "cut.img")
		mode := []disk.Mode{disk.CutNone, disk.CutAll, disk.CutRandom, disk.CutRandom}[i%4]
		acked := w.acked.Load()
		s, err := d.Cut(image, mode, uint64(i))
		if err != nil {
			t.Fatal(err)
		}
		needed := w.needed.Load()
		sum.Dirty, sum.Kept, sum.Torn = sum.Dirty+s.Dirty, sum.Kept+s.Kept, sum.Torn+s.Torn
		checkImage(t, fmt.Sprintf("cut %d, %s, %+v", i, mode, s), image, o, int(needed), int(acked))
		checked += max(0, acked-needed)
	}
	stop()
	running.Wait()
	if w.err != nil {
		t.Errorf("traffic ended: %v", w.err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	t.Logf("%d entries answered in %d laps, %d looked for in the images, blocks at stake: %+v", w.acked.Load(), w.laps.Load(), checked, sum)
	if w.laps.Load() < 1 || sum.Dirty == sum.Kept || checked == 0 {
		t.Errorf("nothing was at stake")
	}
}

// checkImage opens what a cut has left and looks for the entries from needed up to acked, then opens it once more after an append.
func checkImage(t *testing.T, what, image string, o Options, needed, acked int) {
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
	o.Dir = filepath.Join(m.Dir, "journal")
	for again := range 2 {
		r, rec, err := Open(o)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if len(rec.Damage) > 0 {
			t.Errorf("%s: damage %v", what, rec.Damage)
		}
		first, next := -1, -1
		err = r.Replay(0, func(_ Position, g []Entry) error {
			for _, e := range g {
				if first < 0 {
					first, next = int(e.Sequence), int(e.Sequence)
				}
				same(t, what, []Entry{e}, []Entry{entry(next, size(next))})
				next++
			}
			return nil
		})
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if acked > needed && (first > needed || next < acked+again) {
			t.Errorf("%s: entries %d to %d, want at least %d to %d", what, first, next, needed, acked+again)
		}
		if next < 0 {
			next = acked
		}
		mustAppend(t, r, []Entry{entry(next, size(next))})
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}
