package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"syscall"
)

// blockSlack is what a stream may take above its limit: the server frees space by whole blocks, and copies one to make it smaller.
const blockSlack = 8 << 20

// Needs returns how much of the disk streams may come to take with this configuration, with reserve_free.
func (c Config) Needs(streams ...StreamConfig) int64 {
	var sum, slack int64
	for _, s := range streams {
		sum += min(max(s.MaxBytes, 0), math.MaxInt64/4-sum)
		slack += min(blockSlack, max(s.MaxBytes, 0)/4)
	}
	return min(max(c.Budget, 0), sum) + slack + max(c.ReserveFree, 0)
}

// Short says in words that streams at their limits need more than the disk has for them; nil if they do not.
func (c Config) Short(has int64, streams ...StreamConfig) error {
	if needs := c.Needs(streams...); needs > has {
		return fmt.Errorf("the streams at their limits, with reserve_free, need %s, and the disk has %s for them", gibibytes(needs), gibibytes(has))
	}
	return nil
}

// DiskRoom returns how much of the disk a store in dir can have: what is free there, and what dir takes already. A folder that is not there
// yet stands for the nearest above it that is.
func DiskRoom(dir string) (int64, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return 0, fmt.Errorf("look for the disk of %s: %w", dir, err)
	}
	there := dir
	for {
		if _, err = os.Stat(there); !errors.Is(err, fs.ErrNotExist) || there == filepath.Dir(there) {
			break
		}
		there = filepath.Dir(there)
	}
	free, _, err := freeOn(there)
	if err != nil || there != dir {
		return free, err
	}
	return free + taken(dir), nil
}

// taken returns what a folder takes on its disk, as far as it can be read, without stores that were set aside in it.
func taken(dir string) (bytes int64) {
	aside := filepath.Join(dir, asideFolder)
	_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return nil // files come and go
		}
		if path == aside {
			return fs.SkipDir
		}
		if info, err := e.Info(); err == nil {
			if st, ok := info.Sys().(*syscall.Stat_t); ok {
				bytes += int64(st.Blocks) * 512
			}
		}
		return nil
	})
	return bytes
}

// checkRoom says in the log and in DiskShort that the disk is smaller than what the streams may come to take. Capture begins all the same: room may be made.
func (s *Store) checkRoom() {
	has, err := DiskRoom(s.options.Dir)
	if err != nil {
		s.log.Warn("how large the disk is is not known", "err", err)
		return
	}
	if s.diskShort = s.options.Short(has, s.options.Streams...); s.diskShort != nil {
		s.log.Warn("the disk is too small", "err", s.diskShort)
	}
}

// DiskShort returns in words by how much the disk was smaller at the start than what the streams may come to take; nil if it was not.
func (s *Store) DiskShort() error { return s.diskShort }

func gibibytes(n int64) string { return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30)) }
