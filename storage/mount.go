package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrNotMounted means that the data directory is not on the file system that it has to be on, or that this cannot be written to.
var ErrNotMounted = errors.New("the data partition is not in its place")

// CheckMount says in words why a store in dir cannot be used for the moment, ErrNotMounted, when Mount names where a file system has to be mounted: nothing
// is, or dir is on another one, or it is read-only, as the kernel makes one that is damaged. Without a Mount it says nothing.
func (c Config) CheckMount(dir string) error {
	if c.Mount == "" {
		return nil
	}
	at := filepath.Clean(c.Mount)
	var here, above unix.Stat_t
	if err := unix.Stat(at, &here); err != nil {
		return fmt.Errorf("%w: look at %s: %w", ErrNotMounted, at, err)
	}
	if err := unix.Stat(filepath.Dir(at), &above); err != nil {
		return fmt.Errorf("%w: look at %s: %w", ErrNotMounted, filepath.Dir(at), err)
	}
	if here.Dev == above.Dev && at != "/" {
		return fmt.Errorf("%w: nothing is mounted at %s: `systemctl status %s` and `lsblk -f` tell why; capture begins when it is", ErrNotMounted, at, mountUnit(at))
	}
	there := dir
	for {
		if _, err := os.Stat(there); !errors.Is(err, fs.ErrNotExist) || there == filepath.Dir(there) {
			break
		}
		there = filepath.Dir(there) // it will be made
	}
	var data unix.Stat_t
	if err := unix.Stat(there, &data); err != nil {
		return fmt.Errorf("%w: look at %s: %w", ErrNotMounted, there, err)
	}
	if data.Dev != here.Dev {
		return fmt.Errorf("%w: %s is on another file system than %s: correct storage.mount or leaf.data", ErrNotMounted, dir, at)
	}
	if err := readOnly(there); err != nil {
		return fmt.Errorf("%w: %w", ErrNotMounted, err)
	}
	return nil
}

// mountUnit is the name of the unit that mounts something there: systemd-escape(1).
func mountUnit(at string) string {
	return strings.NewReplacer("-", `\x2d`, "/", "-").Replace(strings.Trim(at, "/")) + ".mount"
}
