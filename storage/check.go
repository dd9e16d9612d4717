package storage

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/holdfast-edge/holdfast/storage/blocks"
	"github.com/holdfast-edge/holdfast/storage/journal"
)

// Severity says how bad a Finding is.
type Severity string

// The severities of findings.
const (
	Note   Severity = "note"   // as it should be after a crash, or made good by the next start
	Damage Severity = "damage" // bytes went bad; nothing is lost by it
	Loss   Severity = "loss"   // something is gone
)

// Finding is one thing that Check found.
type Finding struct {
	Severity Severity `json:"severity"`
	Where    string   `json:"where"` // a file, from the data directory
	Problem  string   `json:"problem"`
	Effect   string   `json:"effect"` // what becomes of it, or what to do
}

// LostRange is a range of a stream's sequences in which captured records are gone.
type LostRange struct {
	First Position `json:"first"`
	Last  Position `json:"last"`
	Count uint64   `json:"count"` // captured records that are lost in it; without the counters at most so many
}

// StreamCheck is what the files of one stream hold.
type StreamCheck struct {
	Account  string         `json:"account"`
	Name     string         `json:"name"`
	Messages uint64         `json:"messages"` // whole and not removed
	First    uint64         `json:"first"`
	Last     uint64         `json:"last"`
	Blocks   int            `json:"blocks"`
	Mended   int            `json:"mended"` // records with damaged bytes that are known all the same
	Behind   uint64         `json:"behind"` // whole ones behind damage in the same block, which the server by itself would not find
	Lost     []LostRange    `json:"lost"`
	Damaged  []blocks.Block `json:"damaged"`
	Skipped  string         `json:"skipped,omitempty"` // why its blocks were not read
}

// CheckReport is what Check found in a data directory.
type CheckReport struct {
	Dir      string        `json:"dir"`
	Leaf     string        `json:"leaf"`  // as the store knows it; empty: unknown
	Store    StoreID       `json:"store"` // empty: unknown
	Streams  []StreamCheck `json:"streams"`
	Findings []Finding     `json:"findings"`

	key blocks.Key
}

// Clean reports whether nothing is damaged or lost.
func (r CheckReport) Clean() bool {
	return !slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Severity != Note })
}

func (r *CheckReport) add(s Severity, where, problem, effect string) {
	if rel, err := filepath.Rel(r.Dir, where); err == nil && filepath.IsAbs(where) {
		where = rel
	}
	r.Findings = append(r.Findings, Finding{s, where, problem, effect})
}

// Check reads everything in a data directory, or in a copy of one, without a server and without changing anything, and says what is damaged and what is
// lost. key is the file of an encrypted store's key; without it encrypted blocks are not read. ErrLocked while a daemon runs on it, ErrFormat if a newer version wrote it; damage is no error.
func Check(dir, key string) (CheckReport, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return CheckReport{}, fmt.Errorf("check store: %w", err)
	}
	r := CheckReport{Dir: dir, Streams: []StreamCheck{}, Findings: []Finding{}}
	home := filepath.Join(dir, "store")
	if st, err := os.Stat(dir); err != nil || !st.IsDir() {
		return r, fmt.Errorf("check store %s: it is not a directory: name the data directory, leaf.data of the configuration (%w)", dir, errors.Join(err, fs.ErrNotExist))
	}
	release, err := lockShared(dir)
	if err != nil {
		return r, err
	}
	defer release()
	if err := r.checkFormat(home); err != nil {
		return r, err
	}
	if r.key, err = blocksKey(dir, key); err != nil {
		return r, fmt.Errorf("check store: %w", err)
	}
	counts := r.checkOwn(home)
	if err := r.checkJournal(home); err != nil {
		return r, err
	}
	return r, r.checkStreams(counts)
}

// lockShared makes sure that no daemon runs on a directory as long as release is not called. A copy without a lock, or one that cannot be written, is fine.
func lockShared(dir string) (release func(), err error) {
	f, err := os.Open(filepath.Join(dir, "store", "lock"))
	if err != nil {
		return func() {}, nil // nobody can hold what is not there
	}
	release = func() { _ = f.Close() } // was only read
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		holder := make([]byte, 32)
		n, _ := f.ReadAt(holder, 0) // the number is a courtesy
		release()
		return nil, fmt.Errorf("store %s: %w by process %s: stop it first, or work on a copy", dir, ErrLocked, holder[:n])
	}
	return release, nil
}

func (r *CheckReport) checkFormat(home string) error {
	path := filepath.Join(home, "format")
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Stat(home); err == nil {
			r.add(Damage, path, "missing", "taken for the oldest format and written anew")
		}
		return nil
	}
	v, perr := strconv.Atoi(strings.TrimSpace(string(raw)))
	switch {
	case err != nil || perr != nil:
		r.add(Damage, path, "cannot be read", "taken for the oldest format and written anew")
	case v > formatVersion:
		return fmt.Errorf("check store %s: %w: version %d, this program knows up to %d: use the newer version", r.Dir, ErrFormat, v, formatVersion)
	}
	return nil
}

// ownFiles are the small files that have a second copy, and what becomes of the store without both.
var ownFiles = []struct{ name, effect string }{
	{"identity", "the store gets a new ID; IDs that can still be read stay known as ours"},
	{"epoch", "the store gets a new ID"},
	{"counters", "the totals begin again with what the streams hold, and losses cannot be counted"},
	{"streams", "what the streams hold is found out when the server runs, and capture begins then"},
	{"clock", "how old records of earlier boots are is not known any more"},
}

// examineOwn raises an alarm for each small file of the store of which no copy can be used. What it means is in ownFiles.
func (s *Store) examineOwn() {
	for _, own := range ownFiles {
		path := filepath.Join(s.home, own.name)
		var body json.RawMessage
		_, err := newStateFile(path).load(&body)
		switch {
		case errors.Is(err, fs.ErrNotExist) && (own.name == "counters" || own.name == "clock"): // a store that was killed early has none yet
		case errors.Is(err, fs.ErrNotExist):
			s.alarm(path, "missing, and so is its copy: "+own.effect, "")
		case err != nil:
			s.alarm(path, "cannot be used, nor can its copy: "+own.effect, "")
		}
	}
}

// checkOwn looks at the files that the store itself writes, and returns the counters, nil if they cannot be read.
func (r *CheckReport) checkOwn(home string) *counterState {
	var counts *counterState
	for _, own := range ownFiles {
		path := filepath.Join(home, own.name)
		var body json.RawMessage
		damaged, err := newStateFile(path).load(&body)
		if errors.Is(err, fs.ErrNotExist) {
			if _, err := os.Stat(filepath.Join(home, "format")); err == nil {
				r.add(Damage, path, "missing, and so is its copy", own.effect)
			}
			continue
		}
		if err != nil {
			r.add(Loss, path, err.Error(), own.effect)
			continue
		}
		for _, d := range damaged {
			r.add(Damage, d, "damaged", "its copy is used")
		}
		if len(damaged) == 0 {
			for _, p := range []string{path, path + ".bak"} {
				if _, err := os.Stat(p); err != nil {
					r.add(Note, p, "missing", "its copy is used")
				}
			}
		}
		switch own.name {
		case "identity":
			var p person
			if json.Unmarshal(body, &p) == nil {
				r.Leaf, r.Store = p.Leaf, p.Store
			}
		case "counters":
			var c counterState
			if json.Unmarshal(body, &c) == nil {
				counts = &c
			}
		}
	}
	moves, _ := filepath.Glob(filepath.Join(home, "move-*")) // its only error is a bad pattern
	for _, m := range moves {
		if strings.HasSuffix(m, ".bak") {
			continue
		}
		r.add(Note, m, "a leap of the stream was interrupted", "the next start ends it")
	}
	r.checkAside(home)
	return counts
}

// checkAside names what was set aside earlier.
func (r *CheckReport) checkAside(home string) {
	for _, d := range []string{"damaged", "quarantine", "salvage"} {
		names, err := os.ReadDir(filepath.Join(home, d))
		if err != nil || len(names) == 0 {
			continue
		}
		r.add(Note, filepath.Join(home, d), fmt.Sprintf("%d things were set aside earlier", len(names)), "kept until somebody removes them")
	}
}

// journalDir is where the store's journal is, if there is one.
func journalDir(home string) string { return filepath.Join(home, "journal") }

func (r *CheckReport) checkJournal(home string) error {
	rec, there, err := journal.Check(journalDir(home))
	if err != nil {
		if errors.Is(err, journal.ErrFormat) {
			return fmt.Errorf("check store %s: %w", r.Dir, err)
		}
		r.add(Loss, journalDir(home), err.Error(), "what had not reached the streams yet is lost, at most what was captured since the last checkpoint")
		return nil
	}
	if streams, _ := filepath.Glob(filepath.Join(StreamFiles(r.Dir, "*").Dir)); !there && len(streams) > 0 {
		r.add(Loss, journalDir(home), "missing", "what had not reached the streams yet is lost, at most what was captured since the last checkpoint")
	}
	for _, d := range rec.Damage {
		s := Loss
		if d.From == d.To {
			s = Damage
		}
		r.add(s, filepath.Join(journalDir(home), d.File), d.String(), "what of it had not reached the streams yet is lost; a gap record will tell")
	}
	if rec.Entries > 0 {
		r.add(Note, journalDir(home), fmt.Sprintf("%d records have not been brought into the streams yet", rec.Entries), "the next start does it")
	}
	return nil
}
