package storage

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// maxBoots bounds the ledger. Of boots before, records that were captured with an untrusted clock stay so.
const maxBoots = 256

// ledger knows, on flash, in which boot of the machine each epoch was, and when that boot was by a trusted clock. A record says how long after its
// boot it was captured; so, once the clock was trusted for a moment, the true time of everything captured in that boot is known, whatever the
// clock said then. Records of one boot are told apart in age without any clock at all. Safe for concurrent use.
type ledger struct {
	file *stateFile
	boot string // the kernel's boot ID now

	mu    sync.Mutex // guards the fields below
	boots []bootSpan // oldest first
}

// bootSpan is what the ledger has of one boot: its epochs go up to the next span's.
type bootSpan struct {
	Store StoreID             `json:"store"`
	Epoch uint64              `json:"epoch"`           // the first in this boot
	Boot  string              `json:"boot"`            // the kernel's boot ID
	Zero  time.Time           `json:"zero,omitzero"`   // when the boot was, by a trusted clock; zero: never known
	First map[string]Position `json:"first,omitempty"` // by stream, the first sequence that may be of this boot
}

// openLedger reads the ledger. Without it only records that were captured with a trusted clock have a known time, so damage is no reason not to start.
func openLedger(home, boot string, log *slog.Logger) *ledger {
	l := &ledger{file: newStateFile(filepath.Join(home, "clock")), boot: boot}
	if err := loadState(l.file, &l.boots, log); err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Warn("when former epochs were is not known any more", "err", err)
		l.boots = nil
	}
	return l
}

// begin notes that an epoch is of this boot, on flash on return if that is news.
func (l *ledger) begin(store StoreID, epoch uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.boots); n > 0 && l.boots[n-1].Boot == l.boot && l.boots[n-1].Store == store {
		return nil
	}
	l.boots = append(l.boots, bootSpan{Store: store, Epoch: epoch, Boot: l.boot, Zero: l.zeroLocked(l.boot)})
	l.boots = l.boots[max(0, len(l.boots)-maxBoots):]
	return l.file.saveOne(l.boots)
}

// reach notes the next sequence of each stream as the first that may be of this boot, and forgets boots of which no stream holds anything: first is what
// each begins with. It is on flash on return if it is news.
func (l *ledger) reach(next, first map[string]Position) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(l.boots) - 1
	if n < 0 || l.boots[n].First != nil {
		return nil
	}
	l.boots[n].First = next
	gone := 0
	for ; gone < n; gone++ {
		begin := l.boots[gone+1].First
		held := slices.ContainsFunc(slices.Collect(maps.Keys(first)), func(stream string) bool {
			at, known := begin[stream]
			return !known || at > first[stream]
		})
		if held {
			break
		}
	}
	l.boots = l.boots[gone:]
	return l.file.saveOne(l.boots)
}

// settle notes when this boot was, on flash on return.
func (l *ledger) settle(zero time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.boots {
		if l.boots[i].Boot == l.boot {
			l.boots[i].Zero = zero.Round(0).UTC()
		}
	}
	return l.file.save(l.boots)
}

// zero returns when this boot was; the zero time if that is not known.
func (l *ledger) zero() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.zeroLocked(l.boot)
}

func (l *ledger) zeroLocked(boot string) time.Time {
	for _, b := range l.boots {
		if b.Boot == boot {
			return b.Zero
		}
	}
	return time.Time{}
}

// of returns the boot that a record was captured in and when that was; empty and zero if unknown.
func (l *ledger) of(id ID) (boot string, zero time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := len(l.boots) - 1; i >= 0; i-- {
		if b := l.boots[i]; b.Store == id.Store && b.Epoch <= id.Epoch {
			return b.Boot, b.Zero
		}
	}
	return "", time.Time{}
}

// timeOf returns when a record was captured; false if nobody can say.
func (l *ledger) timeOf(r heldRecord) (time.Time, bool) {
	if r.Stamp.Boot > 0 {
		if _, zero := l.of(r.ID); !zero.IsZero() {
			return zero.Add(r.Stamp.Boot), true
		}
	}
	return r.Stamp.Wall, r.Stamp.Clock == ClockSynced
}

// ageOf returns how old a record is; false if nobody can say. Within one boot it takes no clock. Otherwise both ends must be by a trusted one, and a
// record from the future is of no known age.
func (l *ledger) ageOf(r heldRecord, now moment) (time.Duration, bool) {
	if boot, _ := l.of(r.ID); boot == l.boot && r.Stamp.Boot > 0 {
		age := now.boot - r.Stamp.Boot
		return age, age >= 0
	}
	t, known := l.timeOf(r)
	if !known || now.state != ClockSynced {
		return 0, false
	}
	age := now.now.Round(0).Sub(t)
	return age, age >= 0
}

// clockRecord is the body, in JSON, of the record that tells when a boot of the machine was. docs/WIRE.md is its contract.
type clockRecord struct {
	Epoch uint64    `json:"epoch"`
	Boot  string    `json:"boot"` // the kernel's boot ID, as in epoch records
	Zero  time.Time `json:"zero"` // the wall time at which the machine's boot clock was at zero
}

// encode returns the record's body.
func (c clockRecord) encode() ([]byte, error) {
	body, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("encode clock record: %w", err)
	}
	return body, nil
}
