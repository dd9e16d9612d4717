//go:build !386

// The module under the disk rig does not build there.

package storage

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/holdfast-edge/holdfast/rig/disk"
)

func TestMain(m *testing.M) {
	if code, ran := disk.Main(os.Args); ran {
		os.Exit(code)
	}
	os.Exit(m.Run())
}

// TestAccountHoldsThroughPowerCuts is TestAccountHolds on a disk whose power is cut where that one kills: the account and the order of what was acknowledged
// are the same after each cut.
func TestAccountHoldsThroughPowerCuts(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED, NOT TESTED: mounts disks, not done with -short")
	}
	if err := disk.Available(); err != nil {
		t.Skipf("SKIPPED, NOT TESTED: %v", err)
	}
	for seed := range uint64(2) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			w := newAccountWorld(t, seed)
			w.options.Budget = 1 << 20 // a small disk
			dir, cuts := t.TempDir(), 0
			var medium *disk.Disk
			plug := func(image string) {
				t.Helper()
				o := disk.Options{Dir: filepath.Join(dir, fmt.Sprint("life", cuts)), Size: 96 << 20, Image: image}
				err := os.Mkdir(o.Dir, 0o755)
				if err == nil {
					medium, err = disk.New(o)
				}
				if err != nil {
					t.Fatal(err)
				}
				w.dir = filepath.Join(medium.Dir(), "data")
				w.options.Dir = w.dir
				if err := os.MkdirAll(w.dir, 0o700); err != nil {
					t.Fatal(err)
				}
			}
			unplug := func() {
				w.crash()
				if err := medium.Close(); err != nil {
					t.Error(err)
				}
			}
			w.power = func() {
				t.Helper()
				cuts++
				image := filepath.Join(dir, "image")
				mode := []disk.Mode{disk.CutNone, disk.CutRandom, disk.CutAll}[w.rng.IntN(3)]
				if _, err := medium.Cut(image, mode, w.rng.Uint64()); err != nil {
					t.Fatal(err)
				}
				unplug()
				plug(image)
			}
			plug("")
			t.Cleanup(unplug)
			w.live(seed, 70)
			t.Logf("%d power cuts", cuts)
			if cuts == 0 {
				t.Error("the power was not cut: nothing was tested")
			}
		})
	}
}
