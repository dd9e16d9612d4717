package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// distrustMark is a file that says that the disk has failed: what the kernel has of the streams may not be on flash.
func (s *Store) distrustMark() string { return filepath.Join(s.home, "disk-failed") }

// distrust makes sure after a failed sync that the streams are read from the medium: the kernel keeps pages that it could not write and calls them clean.
func (s *Store) distrust() error {
	if _, err := os.Stat(s.distrustMark()); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	s.log.Warn("the disk failed in an earlier run: the streams are read from the medium again")
	err := filepath.WalkDir(s.jetstream(), func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		return errors.Join(f.Sync(), unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED), f.Close())
	})
	if err == nil {
		err = os.Remove(s.distrustMark())
	}
	if err != nil {
		return fmt.Errorf("open store: the disk failed, and still does: %w", err)
	}
	return nil
}

// lockPatience is how long a lock that is taken is tried again.
const lockPatience = time.Second

// takeLock locks the data directory for as long as the process lives.
func (s *Store) takeLock() error {
	path := filepath.Join(s.home, "lock")
	if err := s.expect(path, false); err != nil {
		return fmt.Errorf("lock data directory: %w", err)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("lock data directory: %w", err)
	}
	s.lock = f
	// A program that is being started has the descriptors of the one that starts it for a moment, and a killed process is not gone at once.
	for until := time.Now().Add(lockPatience); ; time.Sleep(lockPatience / 50) {
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(until) {
			break
		}
	}
	if errors.Is(err, unix.EWOULDBLOCK) {
		holder := make([]byte, 32)
		n, _ := f.ReadAt(holder, 0) // the number is a courtesy
		return fmt.Errorf("open store %s: %w by process %s: stop it first", s.options.Dir, ErrLocked, string(holder[:n]))
	}
	if err != nil {
		return fmt.Errorf("lock %s: %w", path, err)
	}
	// Written over before it is cut to length: what is freed on a full disk, somebody else takes. Without the number nobody captures less.
	pid := fmt.Append(nil, os.Getpid())
	if _, err = f.WriteAt(pid, 0); err == nil {
		err = f.Truncate(int64(len(pid)))
	}
	if err != nil && !noRoom(err) {
		return fmt.Errorf("lock %s: %w", path, err)
	}
	return nil
}

// checkFileSystem opens the descriptor that commits go through and makes sure that it covers our own files and the streams.
func (s *Store) checkFileSystem() error {
	root, err := os.Open(s.jetstream())
	if err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	s.root = root
	var streams, own unix.Stat_t
	if err := errors.Join(unix.Fstat(int(root.Fd()), &streams), unix.Stat(s.home, &own)); err != nil {
		return fmt.Errorf("open store: look at %s: %w", s.options.Dir, err)
	}
	if streams.Dev != own.Dev {
		return fmt.Errorf("open store: %s and %s are on different file systems: one flush must cover both, so mount the whole data directory instead", s.jetstream(), s.home)
	}
	fsys, err := fileSystemOf(s.jetstream())
	if err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	if err := fsys.check(s.options.Dir); err != nil {
		if !s.options.AllowVolatile {
			return fmt.Errorf("open store: %w", err)
		}
		s.log.Warn("acknowledged records may be lost in a power cut", "err", err)
	}
	return nil
}

// release gives back the descriptors and with them the lock.
func (s *Store) release() {
	if s.ring != nil {
		_ = s.ring.Close() // closed already, unless Open failed
	}
	for _, f := range []*os.File{s.root, s.lock} {
		if f != nil {
			_ = f.Close() // nothing was written through root, and the lock's number is a courtesy
		}
	}
}
