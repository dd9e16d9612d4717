package storage

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// writeback writes out what a stream's server has put into its block files since the last commit, without a flush, so that the syncfs that follows finds
// nothing left but the file system's journal. On ext4 that saves one of two journal commits: syncfs starts the first while data is still under way, and the
// end of that data (new blocks become part of the file) needs a second. Measured on a slow disk: 3.9 flushes per commit without, 2.0 with.
//
// It is a hint. Nothing depends on it: where the files are not found, or on another file system, a commit costs more and promises the same.
type writeback struct {
	dir    string // of the stream's block files, <n>.blk
	newest int    // number of the newest one seen; below 1: none yet
}

// run writes out the newest file seen last time and all that have begun since.
func (w *writeback) run() {
	if w.newest < 1 || !w.write(w.newest) {
		w.newest = w.find()
		w.write(w.newest)
		return
	}
	for w.write(w.newest + 1) {
		w.newest++
	}
}

// write writes out one block file and reports whether it is there.
func (w *writeback) write(n int) bool {
	f, err := os.Open(filepath.Join(w.dir, strconv.Itoa(n)+".blk"))
	if err != nil {
		return !errors.Is(err, os.ErrNotExist)
	}
	defer func() { _ = f.Close() }() // read only
	// An error is the syncfs's to report: its descriptor sees every write error of the file system.
	_ = unix.SyncFileRange(int(f.Fd()), 0, 0, unix.SYNC_FILE_RANGE_WRITE|unix.SYNC_FILE_RANGE_WAIT_AFTER)
	return true
}

// find returns the number of the newest block file, 0 when there is none.
func (w *writeback) find() int {
	names, err := os.ReadDir(w.dir)
	if err != nil {
		return 0
	}
	newest := 0
	for _, e := range names {
		if text, ok := strings.CutSuffix(e.Name(), ".blk"); ok {
			if n, err := strconv.Atoi(text); err == nil {
				newest = max(newest, n)
			}
		}
	}
	return newest
}
