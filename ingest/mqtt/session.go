package mqtt

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// session is what a broker may keep for us between connections.
type session struct {
	Broker  string   `json:"broker"`
	Client  string   `json:"client"`
	Filters []string `json:"filters"` // everything that may be subscribed to
}

func (s session) equal(o session) bool {
	return s.Broker == o.Broker && s.Client == o.Client && slices.Equal(s.Filters, o.Filters)
}

// sessionFile keeps the session on flash, one JSON line for each change; the last good line counts. Changes come with changes
// of the configuration, so the file stays small.
type sessionFile struct {
	path string
	last session
}

// maxSessionFile is the length at which the old lines of the file are thrown away.
const maxSessionFile = 1 << 20

// openSession reads the file. Without one, or when nothing in it can be read, no session is known: then subscriptions of an
// earlier configuration stay, and what they bring is acknowledged and counted as rejected.
func openSession(path string) (*sessionFile, error) {
	f := &sessionFile{path: path}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	for line := range bytes.Lines(data) {
		var s session
		if json.Unmarshal(line, &s) == nil && s.Client != "" {
			f.last = s
		}
	}
	if err == nil && len(data) > maxSessionFile {
		if err = os.Truncate(path, 0); err == nil {
			err = f.append(f.last)
		}
	}
	if err != nil {
		err = fmt.Errorf("read the list of subscriptions: %w", err)
	}
	return f, err
}

// save makes s the session; it is on flash when save returns.
func (f *sessionFile) save(s session) error {
	if s.equal(f.last) {
		return nil
	}
	if err := f.append(s); err != nil {
		return fmt.Errorf("write the list of subscriptions: %w", err)
	}
	f.last = s
	return nil
}

func (f *sessionFile) append(s session) (err error) {
	line, err := json.Marshal(s)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(f.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	// The line break in front ends a line that was cut off.
	if _, err := file.Write(slices.Concat([]byte{'\n'}, line, []byte{'\n'})); err != nil {
		return err
	}
	if err := file.Sync(); err != nil {
		return err
	}
	return syncDir(filepath.Dir(f.path))
}

// syncDir makes the entries of a directory durable.
func syncDir(dir string) (err error) {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	return d.Sync()
}
