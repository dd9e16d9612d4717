package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// tempSuffix marks files that were being written when the process or the machine stopped; they carry nothing anyone relies on.
const tempSuffix = ".hf-tmp"

// DamagedError says that a file of ours cannot be used: its checksum does not fit its content, and neither does its copy's.
type DamagedError struct {
	Path  string // the file, without the suffix of its copy
	Cause error  // what is wrong with each of the two
}

// Error names the file and what is wrong with it.
func (e *DamagedError) Error() string {
	return fmt.Sprintf("%s and its copy are damaged: %v", e.Path, e.Cause)
}

// Unwrap returns the cause.
func (e *DamagedError) Unwrap() error { return e.Cause }

// WriteFile replaces the file at path by data in one step: whoever reads path, also after a power cut at any moment, finds the old content or the new.
// With sync the new content is on flash when it returns; without, it costs no flush of its own and is on flash with the next commit. The directory
// must exist. It is the one way in which files of our own are replaced, here and in other packages.
func WriteFile(path string, data []byte, sync bool) error { return writeFile(path, data, sync) }

// writeFile replaces the file at path by data, in one step: whoever reads path, also after a power cut at any moment, finds the old content or the new.
//
// With sync the new content is on flash when writeFile returns. Without, it costs no flush and is on flash after the next syncfs of its file
// system; until then a power cut may leave an empty file on file systems other than ext4, so what is written this way needs a second copy (see stateFile).
func writeFile(path string, data []byte, sync bool) (err error) {
	dir, name := filepath.Split(path)
	f, err := os.CreateTemp(dir, "."+name+".*"+tempSuffix)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	open := true
	defer func() {
		if err == nil {
			return
		}
		if open {
			_ = f.Close() // the first error is the one to report
		}
		_ = os.Remove(f.Name()) // removeTemps finds it if this fails
	}()
	if _, err = f.Write(data); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	st, err := f.Stat()
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if st.Size() != int64(len(data)) {
		return fmt.Errorf("write %s: %d of %d bytes arrived in the file", path, st.Size(), len(data))
	}
	if sync {
		if err = f.Sync(); err != nil {
			return fmt.Errorf("write %s: %w", path, err)
		}
	}
	open = false
	if err = f.Close(); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if sync {
		return place(f.Name(), path)
	}
	if err = os.Rename(f.Name(), path); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// writeOrOverwrite is writeFile where a reader can make do without the file, since it has a copy or knows what its damage means: on a full disk, where there
// is no room for another file, it is written over in place, which takes no room.
func writeOrOverwrite(path string, data []byte, sync bool) error {
	err := writeFile(path, data, sync)
	if !noRoom(err) {
		return err
	}
	oerr := overwrite(path, data, sync)
	switch {
	case errors.Is(oerr, fs.ErrNotExist):
		return err
	case oerr != nil:
		return errors.Join(err, oerr)
	}
	return nil
}

// overwrite writes a file that is there over in place: a cut leaves any mixture of old and new.
func overwrite(path string, data []byte, sync bool) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // what counts was synced, or need not be
	if _, err = f.WriteAt(data, 0); err == nil {
		err = f.Truncate(int64(len(data)))
	}
	if err == nil && sync {
		err = f.Sync()
	}
	return err
}

// place gives a file its name, on flash on return.
func place(temp, path string) error {
	if err := os.Rename(temp, path); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	// The rename happened: an error from here on means that it may not survive a power cut.
	return syncDir(filepath.Dir(path))
}

// syncPlaced makes a file durable that has its name already, and the name.
func syncPlaced(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("sync %s: %w", path, err)
	}
	err = f.Sync()
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("sync %s: %w", path, err)
	}
	return syncDir(filepath.Dir(path))
}

// syncDir makes the names in a directory durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync directory %s: %w", dir, err)
	}
	err = d.Sync()
	if cerr := d.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("sync directory %s: %w", dir, err)
	}
	return nil
}

// removeTemps removes what interrupted calls of writeFile left in dir. A directory that does not exist has nothing to remove.
func removeTemps(dir string) error {
	names, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove unfinished files: %w", err)
	}
	for _, n := range names {
		if !strings.HasPrefix(n.Name(), ".") || !strings.HasSuffix(n.Name(), tempSuffix) {
			continue
		}
		if err := os.Remove(filepath.Join(dir, n.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove unfinished file: %w", err)
		}
	}
	return nil
}

// setAside moves a damaged file or directory to dir/<name>, <name>.2, .3 and so on, so that nothing of it is lost and nothing trips over it
// again, and returns where it went. The move is on flash on return. Both must be on one file system.
func setAside(path, dir, name string) (string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("set %s aside: %w", path, err)
	}
	to := filepath.Join(dir, name)
	for n := 2; ; n++ {
		if _, err := os.Lstat(to); errors.Is(err, fs.ErrNotExist) {
			break
		} else if err != nil {
			return "", fmt.Errorf("set %s aside: %w", path, err)
		}
		to = filepath.Join(dir, name+"."+strconv.Itoa(n))
	}
	if err := os.Rename(path, to); err != nil {
		return "", fmt.Errorf("set %s aside: %w", path, err)
	}
	if err := syncDir(dir); err != nil {
		return "", err
	}
	if err := syncDir(filepath.Dir(path)); err != nil {
		return "", err
	}
	return to, nil
}

// linkAside keeps the bytes of a file in dir/<name>, <name>.2 and so on without taking room, for when the file itself is about to be replaced, and returns
// where. Both must be on one file system.
func linkAside(path, dir, name string) (string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("keep %s: %w", path, err)
	}
	to := filepath.Join(dir, name)
	for n := 2; ; n++ {
		err := os.Link(path, to)
		if err == nil {
			return to, syncDir(dir)
		}
		if !errors.Is(err, fs.ErrExist) {
			return "", fmt.Errorf("keep %s: %w", path, err)
		}
		to = filepath.Join(dir, name+"."+strconv.Itoa(n))
	}
}
