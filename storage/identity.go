package storage

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// formatVersion is the layout of the data directory that this version reads and writes. Version 2 has a journal; of version 1 everything can be read.
const formatVersion = 2

// checkFormat refuses a directory that a newer version wrote, and marks one that is new or older. Fresh: there was no store here.
func checkFormat(home string) (fresh bool, err error) {
	path := filepath.Join(home, "format")
	raw, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("open store: %w", err)
	}
	fresh = err != nil
	// An unreadable version is damage: nothing is lost by saying what this program writes.
	v, _ := strconv.Atoi(strings.TrimSpace(string(raw)))
	switch {
	case v > formatVersion:
		return false, fmt.Errorf("open store %s: %w: version %d, this program knows up to %d: install the newer version again, or move the directory away", filepath.Dir(home), ErrFormat, v, formatVersion)
	case v == formatVersion:
		return false, nil
	}
	if err := writeFile(path, []byte(strconv.Itoa(formatVersion)+"\n"), true); err != nil {
		return false, fmt.Errorf("open store: %w", err)
	}
	return fresh, nil
}

// identity is who this store is. IDs are unique for ever because every start raises the epoch on flash before the first record, and because a
// store whose epoch cannot be known any more becomes another store.
type identity struct {
	log   *slog.Logger
	who   *stateFile
	count *stateFile

	mu     sync.Mutex // guards the fields below
	person person
	epochs epochs
}

// person is the content of the file identity.
type person struct {
	Leaf    string    `json:"leaf"`
	Store   StoreID   `json:"store"`
	Created time.Time `json:"created"` // by a clock that may be wrong: for people only
	Known   []StoreID `json:"known,omitempty"`
	Former  []former  `json:"former,omitempty"`
	Since   uint64    `json:"since,omitempty"`  // its first epoch: records of earlier ones are other stores', which it took over; 0: the first of all
	Outrun  uint64    `json:"outrun,omitempty"` // this is an older copy of a store that went on to this epoch; 0: it is not
}

// epochs is the content of the file epoch.
type epochs struct {
	Store StoreID `json:"store"` // the store that it counts for
	Epoch uint64  `json:"epoch"`
}

// openIdentity reads who the store is and raises its epoch, on flash. The files are written in an order that a crash at any point leads to a
// higher epoch or to another store ID, never to a used one:
//   - identity first, then epoch: an epoch that belongs to another ID, or none, makes a new store ID;
//   - damaged or missing files make a new store ID, and every ID that can still be read stays known as ours.
func openIdentity(home, leaf string, log *slog.Logger) (*identity, error) {
	id := &identity{log: log, who: newStateFile(filepath.Join(home, "identity")), count: newStateFile(filepath.Join(home, "epoch"))}
	errWho := loadState(id.who, &id.person, log)
	errCount := loadState(id.count, &id.epochs, log)
	for _, err := range []error{errWho, errCount} {
		var damaged *DamagedError
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.As(err, &damaged) {
			return nil, fmt.Errorf("open store: %w", err)
		}
	}
	if errWho == nil && errCount == nil && id.person.Store != "" && id.person.Store == id.epochs.Store {
		if id.person.Leaf != leaf {
			if err := id.rename(leaf); err != nil {
				return nil, err
			}
		}
		return id, id.setEpoch(id.epochs.Epoch + 1)
	}
	known := id.person.Known
	for _, old := range []StoreID{id.person.Store, id.epochs.Store} {
		if old != "" && !slices.Contains(known, old) {
			known = append(known, old)
		}
	}
	if len(known) > 0 || !errors.Is(errWho, fs.ErrNotExist) {
		log.Error("who this store is cannot be read any more: it gets a new ID", "identity", errWho, "epoch", errCount, "known", known)
	}
	return id, id.renew(leaf, known)
}

// loadState loads a state file and reports copies that had to be made up for.
func loadState(f *stateFile, v any, log *slog.Logger) error {
	damaged, err := f.load(v)
	if err == nil && len(damaged) > 0 {
		log.Warn("damaged file: its copy is used", "files", damaged)
	}
	return err
}

// renew makes this a new store that knows the given ones as its own.
func (id *identity) renew(leaf string, known []StoreID) error {
	var b [5]byte
	rand.Read(b[:]) // never fails: crypto/rand
	p := person{Leaf: leaf, Store: StoreID(hex.EncodeToString(b[:])), Created: time.Now().UTC(), Known: known}
	id.mu.Lock()
	defer id.mu.Unlock()
	if err := id.who.save(p); err != nil {
		return fmt.Errorf("write store identity: %w", err)
	}
	e := epochs{Store: p.Store, Epoch: 1}
	if err := id.count.save(e); err != nil {
		return fmt.Errorf("write epoch: %w", err)
	}
	id.person, id.epochs = p, e
	return nil
}

// setEpoch raises the epoch, on flash.
func (id *identity) setEpoch(epoch uint64) error {
	id.mu.Lock()
	defer id.mu.Unlock()
	e := epochs{Store: id.person.Store, Epoch: epoch}
	if err := id.count.save(e); err != nil {
		return fmt.Errorf("write epoch: %w", err)
	}
	id.epochs = e
	return nil
}

// takeOver notes that other stores have left records up to an epoch, and raises ours above it.
func (id *identity) takeOver(newest uint64) error {
	id.mu.Lock()
	p := id.person
	p.Since = max(p.Since, newest+1)
	err := id.who.save(p)
	if err == nil {
		id.person = p
	}
	epoch := max(id.epochs.Epoch, newest+1)
	id.mu.Unlock()
	if err != nil {
		return fmt.Errorf("note what other stores left: %w", err)
	}
	return id.setEpoch(epoch)
}

// since is the first epoch of the store's own.
func (id *identity) since() uint64 {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.person.Since
}

func (id *identity) id() StoreID {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.person.Store
}

func (id *identity) epoch() uint64 {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.epochs.Epoch
}

func (id *identity) knows(other StoreID) bool {
	id.mu.Lock()
	defer id.mu.Unlock()
	return other == id.person.Store || slices.Contains(id.person.Known, other)
}

func (id *identity) adopt(other StoreID) error {
	if id.knows(other) {
		return nil
	}
	id.mu.Lock()
	defer id.mu.Unlock()
	p := id.person
	p.Known = append(slices.Clone(p.Known), other)
	if err := id.who.save(p); err != nil {
		return fmt.Errorf("adopt store %s: %w", other, err)
	}
	id.person = p
	id.log.Info("another store's records are ours now", "store", other)
	return nil
}

// outrun notes, on flash, that a copy of this store has been up to an epoch that this one only comes to now.
func (id *identity) outrun(epoch uint64) error {
	id.mu.Lock()
	defer id.mu.Unlock()
	p := id.person
	p.Outrun = max(p.Outrun, epoch)
	if err := id.who.save(p); err != nil {
		return fmt.Errorf("note that the store is an older copy: %w", err)
	}
	id.person = p
	return nil
}

func (id *identity) outrunBy() uint64 {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.person.Outrun
}
