package storage

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestWriteFileReplaces(t *testing.T) {
	for _, sync := range []bool{true, false} {
		path := filepath.Join(t.TempDir(), "state")
		for _, want := range []string{"first, and longer than the second", "second", ""} {
			if err := writeFile(path, []byte(want), sync); err != nil {
				t.Fatalf("writeFile(sync=%v): %v", sync, err)
			}
			got, err := os.ReadFile(path)
			if err != nil || string(got) != want {
				t.Fatalf("after writeFile(sync=%v): %q, %v, want %q", sync, got, err, want)
			}
		}
		names, _ := os.ReadDir(filepath.Dir(path))
		if len(names) != 1 {
			t.Errorf("writeFile left %v behind", names)
		}
	}
}

func TestWriteFileLeavesTheOldOneOnError(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "target")
	if err := os.MkdirAll(filepath.Join(path, "child"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := writeFile(path, []byte("x"), true); err == nil {
		t.Fatal("writeFile over a directory succeeded")
	}
	names, _ := os.ReadDir(dir)
	if len(names) != 1 || names[0].Name() != "target" {
		t.Errorf("after the error the directory holds %v, want only the old target", names)
	}
}

func TestRemoveTemps(t *testing.T) {
	dir := t.TempDir()
	for _, n := range []string{".state.123" + tempSuffix, "state", ".hidden", "x" + tempSuffix} {
		if err := os.WriteFile(filepath.Join(dir, n), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := removeTemps(dir); err != nil {
		t.Fatal(err)
	}
	var left []string
	names, _ := os.ReadDir(dir)
	for _, n := range names {
		left = append(left, n.Name())
	}
	if got, want := strings.Join(left, " "), ".hidden state x"+tempSuffix; got != want {
		t.Errorf("left %q, want %q", got, want)
	}
	if err := removeTemps(filepath.Join(dir, "absent")); err != nil {
		t.Errorf("removeTemps of an absent directory: %v", err)
	}
}

func TestSetAsideKeepsEarlierOnes(t *testing.T) {
	dir := t.TempDir()
	aside := filepath.Join(dir, "aside")
	for i, want := range []string{"S-meta.inf", "S-meta.inf.2", "S-meta.inf.3"} {
		path := filepath.Join(dir, "meta.inf")
		if err := os.WriteFile(path, []byte{byte(i)}, 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := setAside(path, aside, "S-meta.inf")
		if err != nil || got != filepath.Join(aside, want) {
			t.Fatalf("setAside = %q, %v, want %q", got, err, want)
		}
		if b, err := os.ReadFile(got); err != nil || !bytes.Equal(b, []byte{byte(i)}) {
			t.Errorf("%s holds %v, %v", got, b, err)
		}
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is still there: %v", path, err)
		}
	}
}

type testState struct {
	N int
	S string
}

func TestStateFileSurvivesDamageOfEither(t *testing.T) {
	want := testState{N: 7, S: "a\n#1 b"} // a body that looks like a trailer
	damages := map[string]func(raw []byte) []byte{
		"flipped body":    func(b []byte) []byte { b[3] ^= 4; return b },
		"flipped trailer": func(b []byte) []byte { b[len(b)-3] ^= 1; return b },
		"cut":             func(b []byte) []byte { return b[:len(b)/2] },
		"cut in trailer":  func(b []byte) []byte { return b[:len(b)-4] },
		"empty":           func([]byte) []byte { return nil },
		"zeros":           func(b []byte) []byte { return make([]byte, len(b)) },
		"grown":           func(b []byte) []byte { return append(b, 'x') },
	}
	for name, damage := range damages {
		for _, suffix := range []string{"", ".bak"} {
			path := filepath.Join(t.TempDir(), "epoch")
			if err := newStateFile(path).save(want); err != nil {
				t.Fatal(err)
			}
			hurt := func(p string) {
				raw, err := os.ReadFile(p)
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(p, damage(raw), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			hurt(path + suffix)
			f := newStateFile(path)
			var got testState
			damaged, err := f.load(&got)
			if err != nil || got != want || len(damaged) != 1 || damaged[0] != path+suffix {
				t.Errorf("%s of epoch%s: load = %+v, %v, %v", name, suffix, got, damaged, err)
			}
			if err := f.save(testState{N: 8}); err != nil { // heals
				t.Fatal(err)
			}
			if damaged, err := newStateFile(path).load(&got); err != nil || len(damaged) != 0 || got.N != 8 {
				t.Errorf("%s of epoch%s: after saving again load = %+v, %v, %v", name, suffix, got, damaged, err)
			}
			hurt(path)
			hurt(path + ".bak")
			var de *DamagedError
			if _, err := newStateFile(path).load(&got); !errors.As(err, &de) || de.Path != path {
				t.Errorf("%s of both: load error %v, want a DamagedError", name, err)
			}
		}
	}
}

func TestStateFileMissing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "epoch")
	var got testState
	if _, err := newStateFile(path).load(&got); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("load of nothing: %v, want fs.ErrNotExist", err)
	}
	if err := newStateFile(path).save(testState{N: 1}); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if damaged, err := newStateFile(path).load(&got); err != nil || got.N != 1 || len(damaged) != 0 {
		t.Errorf("load with one copy missing = %+v, %v, %v", got, damaged, err)
	}
}

// TestStateFileLazyKeepsOneSafeCopy empties whatever was written since the last syncfs, as a power cut may on xfs, after every step.
func TestStateFileLazyKeepsOneSafeCopy(t *testing.T) {
	path := filepath.Join(t.TempDir(), "reserve")
	f := newStateFile(path)
	if err := f.save(testState{N: 1}); err != nil {
		t.Fatal(err)
	}
	onFlash := map[string][]byte{}
	syncfs := func() {
		for _, p := range []string{path, path + ".bak"} {
			b, err := os.ReadFile(p)
			if err != nil {
				t.Fatal(err)
			}
			onFlash[p] = b
		}
	}
	afterCut := func() int {
		crash := filepath.Join(t.TempDir(), "reserve")
		for p, safe := range onFlash {
			now, err := os.ReadFile(p)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(now, safe) {
				now = nil // unsynced, so lost
			}
			if err := os.WriteFile(crash+strings.TrimPrefix(p, path), now, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		var got testState
		if _, err := newStateFile(crash).load(&got); err != nil {
			t.Fatalf("after a cut: %v", err)
		}
		return got.N
	}
	syncfs()
	vouched := 1 // what a syncfs has covered
	for n := 2; n < 12; n++ {
		for range n % 4 { // several lazy writes may come before one syncfs
			if err := f.saveLazy(testState{N: n}); err != nil {
				t.Fatal(err)
			}
			if got := afterCut(); got != vouched {
				t.Fatalf("a cut after a lazy write of %d leaves %d, want %d as covered before", n, got, vouched)
			}
		}
		syncfs()
		if _, err := f.covered(); err != nil {
			t.Fatal(err)
		}
		if n%4 != 0 {
			vouched = n
		}
		if got := afterCut(); got != vouched {
			t.Fatalf("after the syncfs a cut leaves %d, want %d", got, vouched)
		}
	}
	quiet := func() {
		t.Helper()
		for range 2 {
			syncfs()
			if _, err := f.covered(); err != nil {
				t.Fatal(err)
			}
		}
		a, _ := os.ReadFile(path)
		b, _ := os.ReadFile(path + ".bak")
		if !bytes.Equal(a, b) {
			t.Errorf("when it is quiet the copies differ, so damage of one loses something:\n%s%s", a, b)
		}
	}
	quiet()
	if err := f.saveOne(testState{N: 40}); err != nil {
		t.Fatal(err)
	}
	onFlash[f.copyPath(f.safe)], _ = os.ReadFile(f.copyPath(f.safe))
	if got := afterCut(); got != 40 {
		t.Errorf("after saveOne a cut leaves %d, want 40", got)
	}
	if err := f.saveLazy(testState{N: 41}); err != nil {
		t.Fatal(err)
	}
	if got := afterCut(); got != 40 {
		t.Errorf("a cut after the lazy write behind saveOne leaves %d, want 40", got)
	}
	quiet()
}

// TestStateFileSparesWhatWasRead writes lazily after a load: what was read is one whole copy all the time, and nothing gets another file.
func TestStateFileSparesWhatWasRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "reserve")
	f := newStateFile(path)
	if err := f.save(testState{N: 1}); err != nil {
		t.Fatal(err)
	}
	if err := f.saveLazy(testState{N: 2, S: strings.Repeat("x", 5000)}); err != nil {
		t.Fatal(err)
	}
	f = newStateFile(path) // after a kill: 2 may not be on flash
	var got testState
	if _, err := f.load(&got); err != nil || got.N != 2 {
		t.Fatalf("load = %+v, %v", got, err)
	}
	newest, other := f.copyPath(f.safe), f.copyPath(1-f.safe)
	before, err := os.Stat(other)
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(newest)
	if err != nil {
		t.Fatal(err)
	}
	for n := 3; n < 5; n++ {
		if err := f.saveLazy(testState{N: n}); err != nil {
			t.Fatal(err)
		}
		if have, err := os.ReadFile(newest); err != nil || !bytes.Equal(have, want) {
			t.Fatalf("a lazy write has changed what was read: %v", err)
		}
		if f.read {
			t.Error("what was read is not synced before the other copy is written over")
		}
	}
	if after, err := os.Stat(other); err != nil || !os.SameFile(before, after) {
		t.Errorf("a lazy write makes another file: %v", err)
	}
	if _, err := newStateFile(path).load(&got); err != nil || got.N != 4 || got.S != "" {
		t.Errorf("load = %+v, %v", got, err)
	}
}

func FuzzOpenState(f *testing.F) {
	f.Add(sealState([]byte(`{"N":1}`), 3))
	f.Add([]byte("\n#1 "))
	f.Add([]byte("\n#"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		body, gen, err := openState(raw)
		if err == nil && !bytes.Equal(sealState(body, gen), raw) {
			t.Errorf("openState accepted %q, which sealState does not make", raw)
		}
	})
}
