package storage

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// startRow begins starts on a directory as a daemon does that ends each time in some way.
type startRow struct {
	t   *testing.T
	dir string
}

func (r startRow) begin() *Start {
	r.t.Helper()
	return BeginStart(Options{Dir: r.dir, Config: Config{Journal: Journal{Size: minJournal}}})
}

// crash ends a start as the runtime does.
func (r startRow) crash(report string) {
	r.t.Helper()
	r.begin()
	if err := os.WriteFile(CrashReport(r.dir), []byte(report), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// edit changes what the file says of the starts before.
func (r startRow) edit(change func(*startState)) {
	r.t.Helper()
	var s startState
	f := newStateFile(filepath.Join(r.dir, "starts"))
	if _, err := f.load(&s); err != nil {
		r.t.Fatal(err)
	}
	change(&s)
	if err := f.save(s); err != nil {
		r.t.Fatal(err)
	}
}

// long lets the first crash be long ago.
func (s *startState) long() { s.First -= time.Hour }

func (r startRow) has(path string) bool {
	_, err := os.Stat(filepath.Join(r.dir, path))
	return err == nil
}

// plant makes folders of a store, with a mark in each.
func (r startRow) plant(mark string) {
	r.t.Helper()
	for _, name := range storeFolders {
		if err := os.MkdirAll(filepath.Join(r.dir, name), 0o700); err != nil {
			r.t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(r.dir, name, mark), nil, 0o600); err != nil {
			r.t.Fatal(err)
		}
	}
}

const panicReport = "panic: runtime error: index out of range [5] with length 3\n\ngoroutine 1 [running]:\nmain.main()\n"

// TestCrashLoopSetsTheStoreAside: five crashes in a row, over more than three minutes, set the store aside, whole; five more of the new one put it back.
func TestCrashLoopSetsTheStoreAside(t *testing.T) {
	r := startRow{t, t.TempDir()}
	r.plant("old")
	for range crashLimit {
		r.crash(panicReport)
	}
	if n, cause := CrashLoop(r.dir); n != crashLimit-1 || !strings.Contains(cause, "index out of range") {
		t.Errorf("CrashLoop = %d, %q, want %d and the panic", n, cause, crashLimit-1)
	}
	r.crash(panicReport)
	if r.has("aside") {
		t.Fatal("set aside within the time in which a shortage may pass")
	}
	r.edit((*startState).long)
	if s := r.begin(); !strings.Contains(s.Crashed(), "index out of range") {
		t.Errorf("Crashed = %q, want the panic", s.Crashed())
	}
	for _, name := range storeFolders {
		if r.has(name) || !r.has(filepath.Join("aside/1", name, "old")) {
			t.Errorf("%s was not moved", name)
		}
	}
	list := AsideStores(r.dir)
	if len(list) != 1 || !strings.Contains(list[0].Why, "starts in a row crashed: panic: runtime error") || list[0].Dir != filepath.Join(r.dir, "aside", "1") {
		t.Fatalf("AsideStores = %+v", list)
	}
	if !r.has("crash.last") {
		t.Error("the crash report is not kept")
	}

	r.plant("new")
	for range crashLimit + 1 {
		r.crash(panicReport)
	}
	r.edit((*startState).long)
	r.begin()
	for _, name := range storeFolders {
		if !r.has(filepath.Join(name, "old")) || !r.has(filepath.Join("aside/2", name, "new")) {
			t.Errorf("%s was not put back, or the new one is lost", name)
		}
	}
	for range 3 * crashLimit { // and there it stays
		r.crash(panicReport)
		r.edit((*startState).long)
	}
	if list := AsideStores(r.dir); len(list) != 1 || !strings.Contains(list[0].Why, "back in its place") {
		t.Errorf("AsideStores = %+v, want the new one only", list)
	}
	r.begin().Running()
	if n, _ := CrashLoop(r.dir); n != 0 {
		t.Errorf("%d crashes are counted of a gateway that has run", n)
	}
}

// TestCrashLoopCountsOnlyCrashes lists what may come as often as it likes.
func TestCrashLoopCountsOnlyCrashes(t *testing.T) {
	for _, tt := range []struct {
		name string
		once func(r startRow)
	}{
		{"killed, or stopped by a debugger", func(r startRow) { r.begin() }},
		{"told to end, then killed", func(r startRow) { r.begin().Told() }},
		{"told to end, then crashed on the way", func(r startRow) {
			r.begin().Told()
			r.crashFile(panicReport)
		}},
		{"ran for a while, then crashed", func(r startRow) {
			r.begin().Running()
			r.crashFile(panicReport)
		}},
		{"the watchdog's abort, as when the disk stalls", func(r startRow) {
			r.begin()
			r.crashFile("SIGABRT: abort\nPC=0x47b3a1 m=0 sigcode=0\n")
		}},
		{"power cut behind a crash", func(r startRow) {
			r.crash(panicReport)
			r.edit(func(s *startState) { s.Boot = "another" })
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := startRow{t, t.TempDir()}
			r.plant("old")
			for range 4 * crashLimit {
				tt.once(r)
				r.edit((*startState).long)
			}
			r.begin()
			if r.has("aside") || !r.has("store/old") {
				t.Error("the store was set aside")
			}
		})
	}
}

func (r startRow) crashFile(report string) {
	r.t.Helper()
	if err := os.WriteFile(CrashReport(r.dir), []byte(report), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// TestCrashLoopOverPowerCuts: crashes count on over a power cut, which counts nothing itself, and the time they took begins anew.
func TestCrashLoopOverPowerCuts(t *testing.T) {
	s := startState{}
	loop := false
	for n := range crashLimit {
		s, _ = s.next(true, "panic", "a", time.Hour+time.Duration(n)*time.Minute)
	}
	if s.Crashes != crashLimit-1 {
		t.Fatalf("crashes = %d, want %d: the first start has none before it", s.Crashes, crashLimit-1)
	}
	s, loop = s.next(true, "panic", "b", time.Minute)
	if s.Crashes != crashLimit-1 || loop {
		t.Errorf("behind a power cut: %+v, %v", s, loop)
	}
	s, loop = s.next(true, "panic", "b", 2*time.Minute)
	if s.Crashes != crashLimit || loop {
		t.Errorf("too early: %+v, %v", s, loop)
	}
	if _, loop = s.next(true, "panic", "b", time.Minute+crashSpan); !loop {
		t.Error("a loop of crashes is not seen")
	}
}

// TestCrashLoopMoveInterrupted cuts the power between any two steps of setting a store aside.
func TestCrashLoopMoveInterrupted(t *testing.T) {
	for done := range len(storeFolders) + 1 {
		r := startRow{t, t.TempDir()}
		r.plant("old")
		r.begin()
		r.edit(func(s *startState) { s.Crashes, s.To = crashLimit, "aside/1" })
		for _, name := range storeFolders[:done] {
			if _, err := setAside(filepath.Join(r.dir, name), filepath.Join(r.dir, "aside/1"), name); err != nil {
				t.Fatal(err)
			}
		}
		r.begin()
		r.plant("new")
		r.begin()
		for _, name := range storeFolders {
			if !r.has(filepath.Join("aside/1", name, "old")) || !r.has(filepath.Join(name, "new")) {
				t.Errorf("cut behind %d moves: %s is not where it should be", done, name)
			}
		}
	}
}

// TestCrashLoopNeedsRoom: a new store that there is no room for would capture nothing.
func TestCrashLoopNeedsRoom(t *testing.T) {
	r := startRow{t, t.TempDir()}
	r.plant("old")
	for range crashLimit + 1 {
		r.crash(panicReport)
	}
	r.edit((*startState).long)
	BeginStart(Options{Dir: r.dir, Config: Config{Journal: Journal{Size: 1 << 60}}})
	if r.has("aside") || !r.has("store/old") {
		t.Error("the store was set aside without room for another")
	}
}
