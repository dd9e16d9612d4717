package journal

import (
	"bytes"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

// TestCheckIsOpenThatChangesNothing looks at rings in every state and compares with what Open then finds.
func TestCheckIsOpenThatChangesNothing(t *testing.T) {
	for _, tt := range []struct {
		name   string
		damage func(dir string) error
		bad    bool
	}{
		{"whole", func(string) error { return nil }, false},
		{"a segment is missing", func(dir string) error { return os.Remove(filepath.Join(dir, segmentName(1))) }, true},
		{"a segment is cut", func(dir string) error { return os.Truncate(filepath.Join(dir, segmentName(1)), block+100) }, true},
		{"the marks are gone", func(dir string) error { return os.Remove(filepath.Join(dir, markName)) }, true},
		{"the first segment is zeros", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, segmentName(0)), make([]byte, small.SegmentBytes), 0o600)
		}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := small
			o.Dir = t.TempDir()
			r, _, err := Open(o)
			if err != nil {
				t.Fatal(err)
			}
			for i := range 5 {
				mustAppend(t, r, group(i*3, 3, 100))
			}
			if err := errors.Join(r.Close(), tt.damage(o.Dir)); err != nil {
				t.Fatal(err)
			}
			before := contents(t, o.Dir)
			got, found, err := Check(o.Dir)
			if err != nil || !found || (len(got.Damage) > 0) != tt.bad {
				t.Fatalf("Check = %+v, %v, %v", got, found, err)
			}
			if !maps.EqualFunc(before, contents(t, o.Dir), bytes.Equal) {
				t.Error("Check changed the files")
			}
			r, want, err := Open(o)
			if err != nil {
				t.Fatal(err)
			}
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("Check = %+v, Open = %+v", got, want)
			}
		})
	}
	for _, dir := range []string{t.TempDir(), filepath.Join(t.TempDir(), "none")} {
		if rec, found, err := Check(dir); err != nil || found || len(rec.Damage) > 0 {
			t.Errorf("Check of no ring = %+v, %v, %v", rec, found, err)
		}
	}
}

func contents(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			all[path], err = os.ReadFile(filepath.Join(dir, path))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
