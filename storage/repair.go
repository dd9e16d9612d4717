package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/holdfast-edge/holdfast/storage/blocks"
)

// RepairedBlock says what Repair did, or would do, to one block.
type RepairedBlock struct {
	Account string `json:"account"`
	Stream  string `json:"stream"`
	Aside   string `json:"aside,omitempty"` // where the block as it was is kept, from the data directory
	Skipped string `json:"skipped,omitempty"`
	blocks.Block
}

// RepairReport is what Repair did, or would do.
type RepairReport struct {
	Dir    string          `json:"dir"`
	Blocks []RepairedBlock `json:"blocks"`

	Quarantined []Quarantined `json:"quarantined,omitempty"` // what was set aside, decrypted; it stays where it is
}

// Repair puts damaged blocks of all streams of a data directory right, also of those that a start leaves alone, and keeps the blocks as they were in
// store/damaged. Whole records stay where they are, with their sequence; the next start finds what is gone missing and writes gap records. With dryRun
// it only says what it would do. What is in the quarantine is given back in the report. keyFile is the file of an encrypted store's key. ErrLocked while a daemon runs on the directory, ErrFormat if a newer version wrote it.
func Repair(dir, keyFile string, dryRun bool) (RepairReport, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return RepairReport{}, fmt.Errorf("repair store: %w", err)
	}
	r := RepairReport{Dir: dir, Blocks: []RepairedBlock{}}
	release, err := lockForRepair(dir, dryRun)
	if err != nil {
		return r, err
	}
	defer release()
	found := CheckReport{Dir: dir}
	if err := found.checkFormat(filepath.Join(dir, "store")); err != nil {
		return r, err
	}
	key, err := blocksKey(dir, keyFile)
	if err != nil {
		return r, fmt.Errorf("repair store: %w", err)
	}
	if r.Quarantined, err = readQuarantine(dir, keyFile); err != nil {
		return r, fmt.Errorf("repair store: %w", err)
	}
	streams, err := filepath.Glob(filepath.Join(dir, "jetstream", "*", "streams", "*"))
	if err != nil {
		return r, fmt.Errorf("repair store: %w", err)
	}
	for _, path := range streams {
		name := filepath.Base(path)
		if strings.HasPrefix(name, ".") {
			continue
		}
		r.stream(filepath.Base(filepath.Dir(filepath.Dir(path))), blocks.Stream{Dir: path, Name: name, Key: key}, dryRun, &err)
		if err != nil {
			return r, fmt.Errorf("repair store: %w", err)
		}
	}
	return r, nil
}

// stream repairs one stream.
func (r *RepairReport) stream(account string, s blocks.Stream, dryRun bool, err *error) {
	rep, werr := s.Walk(nil)
	if errors.Is(werr, blocks.ErrEncrypted) {
		r.Blocks = append(r.Blocks, RepairedBlock{Account: account, Stream: s.Name, Skipped: werr.Error()})
		return
	}
	if *err = werr; werr != nil {
		return
	}
	asides := map[int]string{}
	if rep.Damaged() && !dryRun {
		var done []blocks.Mended
		_, done, *err = s.Mend(mendingHands(filepath.Join(r.Dir, "store", "damaged"), s.Name))
		for _, m := range done {
			if rel, rerr := filepath.Rel(r.Dir, m.Aside); rerr == nil && m.Aside != "" {
				asides[m.Number] = rel
			}
		}
	}
	for _, b := range rep.Blocks {
		if b.Damaged() {
			r.Blocks = append(r.Blocks, RepairedBlock{Account: account, Stream: s.Name, Aside: asides[b.Number], Block: b})
		}
	}
}

// lockForRepair locks a data directory: nobody else may even look at it, unless nothing is to be changed.
func lockForRepair(dir string, dryRun bool) (func(), error) {
	if st, err := os.Stat(filepath.Join(dir, "store")); err != nil || !st.IsDir() {
		return nil, fmt.Errorf("repair store %s: no store is there: name the data directory, leaf.data of the configuration (%w)", dir, errors.Join(err, fs.ErrNotExist))
	}
	if dryRun {
		return lockShared(dir)
	}
	f, err := os.OpenFile(filepath.Join(dir, "store", "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("repair store: %w", err)
	}
	release := func() { _ = f.Close() } // nothing was written
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		release()
		return nil, fmt.Errorf("repair store %s: %w: stop the daemon first", dir, ErrLocked)
	}
	return release, nil
}
