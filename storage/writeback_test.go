package storage

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// TestWritebackFollowsBlocks makes and removes block files as a server does and asks which one is written out.
func TestWritebackFollowsBlocks(t *testing.T) {
	w := writeback{dir: filepath.Join(t.TempDir(), "msgs")}
	touch := func(names ...string) {
		t.Helper()
		for _, name := range names {
			if err := os.WriteFile(filepath.Join(w.dir, name), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	steps := []struct {
		name string
		do   func()
		want int
	}{
		{"no directory yet", func() {}, 0},
		{"no block yet", func() { _ = os.Mkdir(w.dir, 0o700); touch("index.db", "x.blk") }, 0},
		{"first", func() { touch("1.blk") }, 1},
		{"the same", func() {}, 1},
		{"one more", func() { touch("2.blk") }, 2},
		{"several more", func() { touch("3.blk", "4.blk") }, 4},
		{"old ones purged", func() { _ = os.Remove(filepath.Join(w.dir, "1.blk")) }, 4},
		{"all purged, one begun", func() {
			for n := range 5 {
				_ = os.Remove(filepath.Join(w.dir, strconv.Itoa(n)+".blk"))
			}
			touch("9.blk", "10.blk")
		}, 10},
		{"a new stream", func() { _ = os.RemoveAll(w.dir); _ = os.Mkdir(w.dir, 0o700); touch("1.blk") }, 1},
	}
	for _, step := range steps {
		step.do()
		w.run()
		if w.newest != step.want {
			t.Errorf("%s: newest block %d, want %d", step.name, w.newest, step.want)
		}
	}
}
