package storage

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// The spare is a folder of small files that are given up, a few at a time, when the disk has no room left for what a start needs: the server does not come up
// where it cannot make a file. They are made again when there is plenty.
const (
	spareFiles    = 32
	spareSize     = 16 << 10
	spareStep     = 4        // given up at once
	sparePlenty   = 64 << 20 // bytes beyond reserve_free that make it worth while to have one
	spareLow      = 64 << 10 // bytes, and as many files as spareStep, below which it is given up
	spareInterval = time.Minute
)

func (s *Store) sparePath(i int) string { return filepath.Join(s.home, "spare", fmt.Sprint(i)) }

// useSpare gives up some of the spare if the disk is that full.
func (s *Store) useSpare() {
	free, inodes, err := freeOn(s.home)
	if err != nil || free >= spareLow && inodes >= spareStep {
		return
	}
	given := 0
	for i := 0; i < spareFiles && given < spareStep; i++ {
		if os.Remove(s.sparePath(i)) == nil {
			given++
		}
	}
	if given > 0 {
		s.log.Warn("the disk is full: some of the room that was kept for that is used", "free", free, "files", inodes)
	}
}

// keepSpare makes the spare, or what is missing of it, if there is plenty of room.
func (s *Store) keepSpare() {
	now := s.now()
	if !s.spared.IsZero() && now.Sub(s.spared).Abs() < spareInterval {
		return
	}
	s.spared = now
	free, inodes, err := freeOn(s.home)
	if err != nil || free < s.options.ReserveFree+sparePlenty || inodes < 8*spareFiles {
		return
	}
	if err := os.MkdirAll(filepath.Dir(s.sparePath(0)), 0o700); err != nil {
		return
	}
	for i := range spareFiles {
		if _, err := os.Lstat(s.sparePath(i)); err == nil {
			continue
		}
		if err := os.WriteFile(s.sparePath(i), make([]byte, spareSize), 0o600); err != nil {
			return // another time
		}
	}
}

// noRoom reports whether an error is that of a full disk.
func noRoom(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// diskFull returns why streams must not grow: the disk is all but full. Less than a quarter of reserve_free is left, as the rest is for what happens until
// dropping records has freed some, or there is no room for files. Nil: they may.
func (s *Store) diskFull() error {
	free, inodes, err := freeOn(s.jetstream())
	switch {
	case err != nil:
		return nil // who cannot look does not refuse: the server will say when it cannot write
	case inodes < minFreeInodes:
		return fmt.Errorf("%w: the disk has room for %d more files, and %d are kept for others", ErrFull, inodes, minFreeInodes)
	case free < s.options.ReserveFree/4:
		return fmt.Errorf("%w: the disk has %d bytes left, less than a quarter of reserve_free", ErrFull, free)
	}
	return nil
}

// DiskFull returns in words that the disk is so full that streams do not come up or do not grow; nil if it is not.
func (s *Store) DiskFull() error {
	if err := s.diskFull(); err != nil {
		return err
	}
	if free, _, err := freeOn(s.jetstream()); err == nil && free < fullDisk {
		return fmt.Errorf("%w: the disk has %d bytes left", ErrFull, free)
	}
	return nil
}
