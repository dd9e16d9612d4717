package journal

import (
	"errors"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// volume is the directory of a ring.
type volume interface {
	open(name string) (file, error) // fs.ErrNotExist if there is none
	create(name string) (file, error)
	remove(name string) error
	names() ([]string, error)
	sync() error // makes names durable
}

// file is one of its files.
type file interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	size() (int64, error)
	datasync() error // makes durable what was written, and the size
	refresh() error  // is datasync, after which reads come from the medium: what a failed write has left in the cache is gone
}

// directory is a volume of the operating system.
type directory string

type osFile struct{ *os.File }

func (d directory) path(name string) string { return filepath.Join(string(d), name) }

func (d directory) open(name string) (file, error) {
	f, err := os.OpenFile(d.path(name), os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (d directory) create(name string) (file, error) {
	f, err := os.OpenFile(d.path(name), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (d directory) remove(name string) error { return os.Remove(d.path(name)) }

func (d directory) names() ([]string, error) {
	entries, err := os.ReadDir(string(d))
	if err != nil {
		return nil, err
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, nil
}

func (d directory) sync() error {
	f, err := os.Open(string(d))
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func (f osFile) size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

func (f osFile) datasync() error {
	for {
		if err := unix.Fdatasync(int(f.Fd())); err != unix.EINTR {
			return err
		}
	}
}

// refresh relies on the kernel to drop pages that are clean, which it also takes those for that it could not write: see posix_fadvise(2).
func (f osFile) refresh() error {
	if err := f.datasync(); err != nil {
		return err
	}
	return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
}
