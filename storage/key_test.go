package storage

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// keyFile writes a key file and returns its path.
func keyFile(t *testing.T, key string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, []byte(key), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// tree returns the hashes of all files below a folder.
func tree(t *testing.T, dir string) map[string][32]byte {
	t.Helper()
	all := map[string][32]byte{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || filepath.Base(path) == "lock" {
			return err
		}
		raw, err := os.ReadFile(path)
		all[path] = sha256.Sum256(raw)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// holding returns the files below a folder that hold a text.
func holding(t *testing.T, dir, text string) (found []string) {
	t.Helper()
	for path := range tree(t, dir) {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(raw, []byte(text)) {
			found = append(found, path)
		}
	}
	return found
}

const (
	rightKey = "correct horse battery staple\n"
	wrongKey = "incorrect horse battery staple\n"
	secret   = "the-temperature-of-the-reactor"
)

// TestEncryptedStore writes to an encrypted store, looks for the records on the disk, and reads them back after a stop, after a kill, and with
// metadata that was put back from its copy.
func TestEncryptedStore(t *testing.T) {
	b := newBed(t)
	b.options.Key = keyFile(t, rightKey)
	b.start()
	put := func(n uint64) {
		t.Helper()
		r := b.record("a1", n)
		r.Data = []byte(secret)
		r.Tail = secret
		if err := b.s.Append(b.ctx(), r); err != nil {
			t.Fatal(err)
		}
	}
	put(1)
	put(2)
	check := func(when string, want int) {
		t.Helper()
		if got := b.captured("A"); len(got) != want || got[0].Data != secret {
			t.Errorf("%s: %d records, want %d", when, len(got), want)
		}
		if found := holding(t, b.dir, secret); len(found) > 0 {
			t.Errorf("%s: the record can be read in %v", when, found)
		}
	}
	check("running", 2)
	b.stop()
	b.start()
	put(1)
	check("after a stop", 3)
	b.kill()
	b.start()
	put(1)
	check("after a kill", 4)
	b.stop()
	meta := filepath.Join(b.dir, "jetstream", account, "streams", "A", serverMeta)
	if err := os.WriteFile(meta, []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.start()
	put(1)
	check("after damage to the metadata", 5)
}

// TestWrongKey opens stores with keys that do not fit. Each is refused with what is wrong, and nothing in the directory has changed.
func TestWrongKey(t *testing.T) {
	right, wrong, short := keyFile(t, rightKey), keyFile(t, wrongKey), keyFile(t, "short\n")
	cases := []struct {
		name  string
		made  string // key that the store was made with
		spoil func(t *testing.T, home string)
		opens string
		says  string
	}{
		{"wrong", right, nil, wrong, "another key"},
		{"missing", right, nil, "", "storage.key is not set"},
		{"file away", right, nil, filepath.Join(t.TempDir(), "none"), "no such file"},
		{"too short", right, nil, short, "5 bytes"},
		{"plain store", "", nil, right, "it is not encrypted"},
		{"missing, and the note of it too", right, func(t *testing.T, home string) {
			for _, name := range []string{"key", "key.bak"} {
				if err := os.Remove(filepath.Join(home, name)); err != nil {
					t.Fatal(err)
				}
			}
		}, "", "storage.key is not set"},
		{"wrong, and the note of it gone", right, func(t *testing.T, home string) {
			for _, name := range []string{"key", "key.bak"} {
				if err := os.Remove(filepath.Join(home, name)); err != nil {
					t.Fatal(err)
				}
			}
		}, wrong, "opens none of its streams"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			b := newBed(t)
			b.options.Key = c.made
			b.start()
			b.add("a1", 1, 10)
			b.stop()
			if c.spoil != nil {
				c.spoil(t, filepath.Join(b.dir, "store"))
			}
			before := tree(t, b.dir)
			b.options.Key = c.opens
			_, err := Open(b.options)
			if err == nil || !strings.Contains(err.Error(), c.says) || c.name != "file away" && !errors.Is(err, ErrKey) {
				t.Fatalf("Open = %v, want ErrKey that says %q", err, c.says)
			}
			after := tree(t, b.dir)
			for path, sum := range before {
				if after[path] != sum {
					t.Errorf("%s has changed", path)
				}
			}
			if len(after) != len(before) {
				t.Errorf("%d files, there were %d", len(after), len(before))
			}
			b.options.Key = c.made
			b.start()
			if n := len(b.captured("A")); n != 10 {
				t.Errorf("with the right key %d records are there, want 10", n)
			}
		})
	}
}

// TestKeyNoteDamaged opens an encrypted store whose note of the key is gone: the right key goes on.
func TestKeyNoteDamaged(t *testing.T) {
	b := newBed(t)
	b.options.Key = keyFile(t, rightKey)
	b.start()
	b.add("a1", 1, 10)
	b.stop()
	for _, name := range []string{"key", "key.bak"} {
		if err := os.WriteFile(filepath.Join(b.dir, "store", name), []byte("damaged"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b.start()
	b.add("a1", 1, 1)
	if n := len(b.captured("A")); n != 11 {
		t.Errorf("%d records, want 11", n)
	}
}
