package storage

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// asideFolder is the folder of a data directory that stores are set aside in; each is a data directory itself, for check, repair and backup.
const asideFolder = "aside"

// asideWhy is the file that says why a store was set aside.
const asideWhy = "why"

// storeFolders are what a store consists of: all of it is moved, since each part can be what crashes the daemon.
var storeFolders = []string{"jetstream", "store", "ingest"}

// AsideStore is a store that was set aside, whole, since starts crashed on it.
type AsideStore struct {
	Dir string    // where it is
	Why string    // in words
	At  time.Time // by the wall clock
}

// AsideStores lists the stores that were set aside in a data directory, oldest first. They are there until somebody removes them.
func AsideStores(dir string) []AsideStore {
	names, err := os.ReadDir(filepath.Join(dir, asideFolder))
	if err != nil {
		return nil // none was, as a rule
	}
	var all []AsideStore
	for _, n := range names {
		if _, err := strconv.Atoi(n.Name()); err != nil || !n.IsDir() {
			continue
		}
		a := AsideStore{Dir: filepath.Join(dir, asideFolder, n.Name()), Why: "starts crashed on it"}
		if why, err := os.ReadFile(filepath.Join(a.Dir, asideWhy)); err == nil {
			a.Why = strings.TrimSpace(string(why))
		}
		if info, err := n.Info(); err == nil {
			a.At = info.ModTime()
		}
		all = append(all, a)
	}
	slices.SortStableFunc(all, func(a, b AsideStore) int { return a.At.Compare(b.At) })
	return all
}

// moveStore moves the store of a data directory to another folder, which may have a part of it from a move that was interrupted.
func moveStore(dir, to, why string) error {
	if _, err := os.Stat(filepath.Join(dir, "store", "lock")); err == nil {
		release, err := lockForRepair(dir, false) // another daemon may run on it
		if err != nil {
			return err
		}
		defer release()
	}
	if err := os.MkdirAll(to, 0o700); err != nil {
		return err
	}
	if err := writeFile(filepath.Join(to, asideWhy), []byte(why+"\n"), true); err != nil {
		return err
	}
	return errors.Join(moveFolders(dir, to), syncDir(filepath.Dir(to)), syncDir(dir))
}

// putBack moves a store that was set aside back, and removes the folder that it was in.
func putBack(from, dir string) error {
	if err := moveFolders(from, dir); err != nil {
		return err
	}
	_ = os.Remove(filepath.Join(from, asideWhy)) // if it stays, so does the folder
	_ = os.Remove(from)                          // what else somebody keeps there is theirs
	return nil
}

// moveFolders moves the folders of a store that the other side does not have.
func moveFolders(from, to string) error {
	for _, name := range storeFolders {
		if _, err := os.Lstat(filepath.Join(to, name)); err == nil {
			continue
		}
		if _, err := os.Lstat(filepath.Join(from, name)); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if _, err := setAside(filepath.Join(from, name), to, name); err != nil {
			return err
		}
	}
	return nil
}
