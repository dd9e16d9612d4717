package storage

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// appAccount is the server's account of local applications.
const appAccount = "APP"

// appMetadata is where copies are kept for the streams of local applications.
func (s *Store) appMetadata() metaCopies {
	return metaCopies{streams: filepath.Join(s.jetstream(), appAccount, "streams"), copies: filepath.Join(s.home, "metadata-app"), aside: s.aside()}
}

// KeepAppMetadata copies the metadata of the streams of local applications aside, as that of the captured streams is, and forgets the copies of streams
// that are not there any more. A failure is no reason not to go on.
func (s *Store) KeepAppMetadata() {
	m := s.appMetadata()
	dirs, err := os.ReadDir(m.streams)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	there := map[string]bool{}
	for _, d := range dirs {
		if !d.IsDir() || strings.HasPrefix(d.Name(), ".") {
			continue
		}
		there[d.Name()] = true
		err = errors.Join(err, m.keep(d.Name()))
	}
	if copies, rerr := os.ReadDir(m.copies); rerr == nil && err == nil {
		for _, c := range copies {
			if !there[c.Name()] {
				err = errors.Join(err, os.Remove(filepath.Join(m.copies, c.Name())))
			}
		}
	}
	if err != nil {
		s.log.Warn("no copy of the metadata of local applications' streams", "err", err)
	}
}
