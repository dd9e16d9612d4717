package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/holdfast-edge/holdfast/storage/blocks"
)

// About is what a data directory says of itself.
type About struct {
	Leaf    string
	Store   StoreID
	Streams []string // captured ones, sorted
}

// Look reads whose a data directory is, without a lock and without changing anything.
func Look(dir string) (About, error) {
	var p person
	if _, err := newStateFile(filepath.Join(dir, "store", "identity")).load(&p); err != nil {
		return About{}, fmt.Errorf("look at data directory %s: who it is cannot be read: %w", dir, err)
	}
	a := About{Leaf: p.Leaf, Store: p.Store}
	var made map[string]catalogEntry
	if _, err := newStateFile(filepath.Join(dir, "store", "streams")).load(&made); err == nil {
		for name := range made {
			a.Streams = append(a.Streams, name)
		}
	}
	names, err := os.ReadDir(filepath.Join(dir, "jetstream", account, "streams"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return a, fmt.Errorf("look at data directory %s: %w", dir, err)
	}
	for _, n := range names {
		if n.IsDir() && tokenProblem(n.Name()) == "" && n.Name() != probeStream && !slices.Contains(a.Streams, n.Name()) {
			if _, err := os.Stat(filepath.Join(dir, "store", "metadata", n.Name())); err == nil { // else it is one of a move
				a.Streams = append(a.Streams, n.Name())
			}
		}
	}
	slices.Sort(a.Streams)
	return a, nil
}

// StreamFiles returns the files of a captured stream in a data directory.
func StreamFiles(dir, stream string) blocks.Stream {
	return blocks.Stream{Dir: filepath.Join(dir, "jetstream", account, "streams", stream), Name: stream}
}

// AppStreamFiles returns the files of a stream of local applications in a data directory.
func AppStreamFiles(dir, stream string) blocks.Stream {
	return blocks.Stream{Dir: filepath.Join(dir, "jetstream", appAccount, "streams", stream), Name: stream}
}

// Known returns the other stores whose records are ours.
func (s *Store) Known() []StoreID {
	s.identity.mu.Lock()
	defer s.identity.mu.Unlock()
	return slices.Clone(s.identity.person.Known)
}

// Place gives a file that was written whole and synced under another name its own, on flash on return. Both are in one directory; a file that was there
// is replaced.
func Place(temp, path string) error { return place(temp, path) }
