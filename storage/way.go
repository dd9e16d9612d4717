package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// homeFiles are our own files, without the suffix of their copies, and homeFolders the folders that hold files only. Other parts keep theirs beside them.
var (
	homeFiles   = []string{"format", "identity", "epoch", "counters", "streams", "clock", "wear", "forward.json", "exported.json", "applications"}
	homeFolders = []string{"metadata", "metadata-app", "journal", "quarantine"}
)

// streamFolders are the folders in a stream's directory; everything else there is a file (nats-server 2.15).
var streamFolders = []string{"msgs", serverConsumers, "batches", "__msgs__", "__new_msgs__"}

// clearHome makes sure that the folders which everything else needs are folders.
func (s *Store) clearHome() error {
	for _, dir := range []string{s.home, s.jetstream()} {
		if st, err := os.Stat(dir); err == nil && !st.IsDir() {
			to, err := setAside(dir, s.options.Dir, filepath.Base(dir)+".damaged")
			if err != nil {
				return err
			}
			s.alarm(dir, "not a folder", to)
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		if err := s.allow(dir, 0o700); err != nil {
			return err
		}
	}
	if st, err := os.Stat(s.aside()); err == nil && !st.IsDir() {
		to, err := setAside(s.aside(), s.home, "damaged.was")
		if err != nil {
			return err
		}
		s.alarm(s.aside(), "not a folder", to)
	}
	return nil
}

// clearWay sets aside what is a folder where a file should be, or the other way round, and gives us the rights that we need. What is in a file is for its
// reader to judge. An error means that the disk would not let it.
func (s *Store) clearWay() error {
	for _, name := range homeFiles {
		for _, suffix := range []string{"", ".bak"} {
			if err := s.expect(filepath.Join(s.home, name+suffix), false); err != nil {
				return err
			}
		}
	}
	moves, _ := filepath.Glob(filepath.Join(s.home, "move-*")) // its only error is a bad pattern
	for _, m := range moves {
		if err := s.expect(m, false); err != nil {
			return err
		}
	}
	for _, name := range homeFolders {
		dir := filepath.Join(s.home, name)
		if err := s.expect(dir, true); err != nil {
			return err
		}
		if err := s.clearFolder(dir, nil); err != nil {
			return err
		}
	}
	return errors.Join(s.clearStreams(s.streamsDir()), s.clearStreams(s.appMetadata().streams))
}

// clearStreams is clearWay for the streams of an account.
func (s *Store) clearStreams(streams string) error {
	for _, dir := range []string{filepath.Dir(streams), streams} {
		if err := s.expect(dir, true); err != nil {
			return err
		}
	}
	return s.each(streams, func(stream string) error {
		if strings.HasPrefix(filepath.Base(stream), ".") {
			return nil // the server removes it
		}
		if err := s.expect(stream, true); err != nil {
			return err
		}
		if err := s.clearFolder(stream, streamFolders); err != nil {
			return err
		}
		if err := s.clearFolder(filepath.Join(stream, "msgs"), nil); err != nil {
			return err
		}
		return s.each(filepath.Join(stream, serverConsumers), func(consumer string) error {
			if err := s.expect(consumer, true); err != nil {
				return err
			}
			return s.clearFolder(consumer, nil)
		})
	})
}

// clearFolder looks at everything in a folder, in which only some names are folders.
func (s *Store) clearFolder(dir string, folders []string) error {
	return s.each(dir, func(path string) error {
		return s.expect(path, slices.Contains(folders, filepath.Base(path)))
	})
}

// each calls fn for everything in a folder; none if there is no such folder.
func (s *Store) each(dir string, fn func(path string) error) error {
	names, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("look through %s: %w", dir, err)
	}
	for _, n := range names {
		if err := fn(filepath.Join(dir, n.Name())); err != nil {
			return err
		}
	}
	return nil
}

// expect sets a path aside that is not what it should be.
func (s *Store) expect(path string, folder bool) error {
	st, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	problem := "not a file"
	want := fs.FileMode(0o600)
	if folder {
		problem, want = "not a folder", 0o700
	}
	switch {
	case err != nil:
		problem = err.Error()
	case st.IsDir() == folder && (folder || st.Mode().IsRegular()):
		if err = s.allow(path, want); err == nil {
			return nil
		}
		problem = err.Error() + ": give it to the user of the daemon"
	}
	to, err := setAside(path, s.aside(), strings.ReplaceAll(s.relative(path), string(filepath.Separator), "-"))
	if err != nil {
		return err
	}
	s.alarm(path, problem, to)
	return nil
}

// allow gives us rights to something of ours that lacks them.
func (s *Store) allow(path string, want fs.FileMode) error {
	st, err := os.Stat(path)
	if err != nil || st.Mode().Perm()&want == want {
		return err
	}
	if err := os.Chmod(path, st.Mode().Perm()|want); err != nil {
		return fmt.Errorf("wrong permissions %v: %w", st.Mode().Perm(), err)
	}
	s.log.Warn("wrong permissions were put right", "path", path, "err", st.Mode().Perm().String())
	return nil
}
