package carry

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-edge/holdfast/storage"
)

// TestGoBackToOlderVersion walks "Going back to an older version" of docs/OPERATIONS.md: a version that knows only older formats than a data directory has
// refuses it by both numbers and changes nothing; with a backup that the newer one wrote it goes on, and nothing is lost or sent twice.
func TestGoBackToOlderVersion(t *testing.T) {
	s := newSite(t)
	data := t.TempDir()
	g := s.start(data, true)
	g.append(100)
	g.expect()
	s.await()
	g.close()
	g = s.start(data, false)
	g.append(50) // the hub does not have these
	g.expect()
	g.close()
	backup, _, _, err := BackupOf(t.Context(), Place{Dir: data}, t.TempDir(), "newer")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(data, "store", "format"), []byte("99\n"), 0o600); err != nil { // this version is the older one now
		t.Fatal(err)
	}
	before := content(t, data)
	_, opened := storage.Open(storage.Options{Leaf: "g1", Dir: data, Config: storage.Config{Budget: 1 << 30, AllowVolatile: true, Commit: storage.Commit{MaxRecords: 1}}})
	_, repaired := storage.Repair(data, "", false)
	_, checked := storage.Check(data, "")
	for what, err := range map[string]error{"Open": opened, "Repair": repaired, "Check": checked} {
		if !errors.Is(err, storage.ErrFormat) || !strings.Contains(err.Error(), "version 99") || !strings.Contains(err.Error(), "up to ") {
			t.Errorf("%s = %v, want ErrFormat with both numbers", what, err)
		}
	}
	if now := content(t, data); now != before {
		t.Errorf("the refused directory has changed:\n%s\nwas\n%s", now, before)
	}
	if err := os.Rename(data, data+".newer"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Restore(t.Context(), backup, Place{Dir: data}); err != nil {
		t.Fatal(err)
	}
	g = s.start(data, true)
	g.append(10)
	g.expect()
	s.await()
}

// content is the names and checksums of all files of a directory but the lock, which says who looked at it last.
func content(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || path == "store/lock" {
			return err
		}
		raw, err := os.ReadFile(filepath.Join(dir, path))
		fmt.Fprintf(&b, "%s %x\n", path, sha256.Sum256(raw))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}
