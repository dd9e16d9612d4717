package storage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-edge/holdfast/storage/journal"
)

// Errors of Open, and of a store that cannot go on.
var (
	// ErrLocked means that another process has the data directory open.
	ErrLocked = errors.New("data directory is in use")
	// ErrFormat means that the data directory was written by a newer version. Its message names both versions.
	ErrFormat = errors.New("data directory has a newer format")
	// ErrFailing means that a sync reported an error: what was not acknowledged by then may be gone from the disk whatever later syncs say, so
	// nothing is acknowledged any more until the process is started anew.
	ErrFailing = errors.New("store is failing: the disk reported a write error")
	// ErrUnavailable means that the streams did not take a record and nobody is to blame in the long run: retry later with the same records.
	ErrUnavailable = errors.New("store does not answer")
)

// Store keeps records in the streams of one data directory. All methods are safe for concurrent use.
//
// Life: Open takes the directory and lets records into the journal, Attach brings the streams up and what the journal has into them, Close lets what has
// been taken finish.
type Store struct {
	options Options // immutable once open, defaults filled in
	home    string  // folder of our own files
	log     *slog.Logger
	now     func() time.Time
	clock   *clock

	lock       *os.File // holds the flock for life
	root       *os.File // the descriptor that syncfs goes through, held for life so that no write error is missed
	syncfs     func(fd int) error
	syncMu     sync.Mutex // one syncfs at a time: two on one descriptor would share one error report
	identity   *identity
	catalog    *catalog
	ring       ringLog
	streams    []*stream
	byName     map[string]*stream // immutable once open
	sources    map[string]*source // immutable once open
	added      sync.Map           // name to *source, of AddSource
	adaptMu    sync.Mutex         // one AddSource or SetLimits at a time
	committer  *committer
	publisher  *publisher
	counters   *counters
	ledger     *ledger
	wear       *wearMeter
	diskShort  error       // immutable once open
	key        []byte      // everything on disk is encrypted with keys made of it; nil: nothing is. Immutable once open
	cipher     string      // of the server
	jammed     atomic.Bool // the ring had no room for the newest group
	keeper     *keeper
	reserves   *reserves // of local applications
	quarantine quarantine
	left       map[string]*stream     // streams that left the configuration and that the ring has records of; under publisher.turn
	wire       *wire                  // set by Attach; used under publisher.turn
	serving    atomic.Pointer[Server] // set by Attach
	spared     time.Time              // when the spare was looked at; of keepSpare
	cured      time.Time              // when JetStream was restarted last; under publisher.turn

	stopKeeper func()      // set by Attach; waits
	ownMu      sync.Mutex  // one record of our own at a time; before committer.gate
	lost       []GapRecord // to be stored, see storeLost; of Attach and Leap

	// Of inscribe, under committer.gate.
	group   []journal.Entry
	taken   []*item
	entries []entry

	// Of Open.
	young  map[string]catalogEntry // what the catalog gets
	marks  marks                   // of records in the ring
	newest uint64                  // highest epoch of ours in the ring

	putBackIDs map[ID]Position // where records lie that were put back, of those in the ring; of Open

	behind []Left                               // see Lefts; under mu
	proofs func(stream string) (Position, bool) // of earlier runs, from Mend; nil: none

	attachMu sync.Mutex    // held by Attach, and by Close once it has let Attach finish
	attached chan struct{} // closed at the end of the first successful Attach
	closing  chan struct{} // closed by Close
	mu       sync.Mutex    // guards the fields below
	state    lifeState
	failure  error             // first sync error; never cleared
	alarms   []Alarm           // damage found since the start
	own      map[string]uint64 // sequence of the newest record of our own, by source
}

type lifeState uint8

const (
	stateOpen lifeState = iota
	stateAttaching
	stateAttached
	stateClosed
)

// Open takes the data directory. It needs no server and does, in this order:
//   - locks the directory (ErrLocked), which the kernel undoes when the process ends, however it ends;
//   - refuses a file system that does not keep acknowledged records (ErrVolatile) and a newer format (ErrFormat);
//   - reads who this store is, or draws a new store ID if that cannot be known any more;
//   - raises the epoch, on flash, so that no ID made from now on was ever used;
//   - restores damaged metadata of streams from their copies, while no server has them open;
//   - opens the journal, or makes it, and finds out where each stream goes on;
//   - writes the epoch record of every stream, and lets Append through.
//
// The server must not run on the directory before Open has returned.
func Open(o Options) (*Store, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Store{
		options:  o,
		home:     filepath.Join(o.Dir, "store"),
		log:      o.Log,
		now:      time.Now,
		clock:    newClock(),
		syncfs:   unix.Syncfs,
		byName:   map[string]*stream{},
		left:     map[string]*stream{},
		young:    map[string]catalogEntry{},
		sources:  map[string]*source{},
		attached: make(chan struct{}),
		closing:  make(chan struct{}),
		own:      map[string]uint64{},

		putBackIDs: map[ID]Position{},
	}
	s.committer, s.publisher = newCommitter(s), newPublisher(s)
	s.quarantine = quarantine{dir: filepath.Join(s.home, "quarantine"), files: map[string]*quarantineFile{}}
	for _, c := range o.Streams {
		st := newStream(s, c)
		s.streams = append(s.streams, st)
		s.byName[c.Name] = st
	}
	for name, stream := range o.Sources {
		s.sources[name] = newSource(name, s.byName[stream])
	}
	if err := s.open(); err != nil {
		s.release()
		return nil, err
	}
	go s.committer.run()
	return s, nil
}

func (s *Store) open() error {
	if err := readOnly(s.options.Dir); err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	if err := s.clearHome(); err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	if err := s.takeLock(); err != nil {
		return err
	}
	s.useSpare()
	if err := s.clearWay(); err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	if err := s.checkFileSystem(); err != nil {
		return err
	}
	if err := removeTemps(s.home); err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	fresh, err := checkFormat(s.home)
	if err != nil {
		return err
	}
	if _, err := os.Stat(s.streamsDir()); err == nil {
		fresh = false // streams without our files: nothing is known of how they came to be
	}
	if err := s.openKey(fresh); err != nil {
		return err
	}
	if !fresh && !s.options.Unpacked {
		s.examineOwn()
	}
	if s.key != nil {
		if err := s.quarantine.encrypt(s.key); err != nil {
			return fmt.Errorf("open store: %w", err)
		}
	}
	if err := s.distrust(); err != nil {
		return err
	}
	if s.identity, err = openIdentity(s.home, s.options.Leaf, s.log); err != nil {
		return err
	}
	counted, err := s.openCounters()
	if err != nil {
		return err
	}
	var whole bool
	if s.catalog, whole, err = openCatalog(s.home, s.log); err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	if err := s.restoreMetadata(); err != nil {
		return err
	}
	if err := s.openReserves(); err != nil {
		return err
	}
	if err := s.openJournal(counted && whole); err != nil {
		return err
	}
	if err := s.finishPutBack(); err != nil { // no reason not to capture
		s.log.Error("what was put back cannot be taken out of the quarantine: to ask for it once more would store it twice", "err", err)
		if err := os.Remove(filepath.Join(s.home, putBackMark)); err != nil {
			return fmt.Errorf("open store: %w", err)
		}
	}
	if err := s.openQuarantine(); err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	s.keeper = s.newKeeper()
	return s.beginEpoch()
}

// beginEpoch makes sure that the epoch is above that of every record that is known of, remembers the newest record of every source, and writes the epoch
// records of the streams that take records already.
func (s *Store) beginEpoch() error {
	newest := s.newest
	for name, src := range s.sources {
		epoch, seq := s.counters.last(src.stream.name(), name)
		newest = max(newest, epoch)
		src.setLast(lastRecord{recordNo: recordNo{epoch, seq}})
	}
	if newest >= s.Epoch() && s.Epoch() == 1 { // nothing was captured under this ID yet
		if err := s.identity.takeOver(newest); err != nil {
			return err
		}
	} else if newest >= s.Epoch() {
		s.log.Error("the epoch file is older than the records", "epoch", s.Epoch(), "found", newest)
		if err := s.identity.setEpoch(newest + 1); err != nil {
			return err
		}
	}
	var begun []*stream
	for _, st := range s.streams {
		if st.begun() {
			begun = append(begun, st)
		}
	}
	return s.writeEpochs(begun)
}

// server is what Attach was given; nothing before.
func (s *Store) server() Server {
	if srv := s.serving.Load(); srv != nil {
		return *srv
	}
	return Server{}
}

// jetstream is where the server keeps the streams.
func (s *Store) jetstream() string { return filepath.Join(s.options.Dir, "jetstream") }

// ID returns the store ID that records get. It is final once Attach has returned.
func (s *Store) ID() StoreID { return s.identity.id() }

// Epoch returns the epoch that records get: raised on every start. It is final once Attach has returned.
func (s *Store) Epoch() uint64 { return s.identity.epoch() }

// Home returns the folder of the store's own small files; others may keep theirs there by WriteFile.
func (s *Store) Home() string { return s.home }

// Leaf returns the name of this gateway.
func (s *Store) Leaf() string { return s.options.Leaf }

// Clock says how far the wall clock can be trusted at this moment.
func (s *Store) Clock() ClockState { return s.clock.state() }

// Knows reports whether records of that store are ours: it is this store, one that it was before, or one that it has taken over.
func (s *Store) Knows(id StoreID) bool { return s.identity.knows(id) }

// MarkOutrun notes, on flash, that this directory is an older copy of itself: the hub has records of ours from an epoch that this store has yet to reach,
// or is in. From then on its epochs and sequences name two different records each, so nothing may be forwarded from it.
func (s *Store) MarkOutrun(epoch uint64) error { return s.identity.outrun(epoch) }

// OutrunBy returns the epoch that MarkOutrun was told, 0 if this is no older copy.
func (s *Store) OutrunBy() uint64 { return s.identity.outrunBy() }

// Adopt makes the records of another store ours, on flash on return: after this leaf's card was wiped or replaced.
func (s *Store) Adopt(id StoreID) error { return s.identity.adopt(id) }

// Sync puts on flash what others have written to the store's file system so far, such as a message in a stream that is not captured.
// Errors are those of Append for a store that fails.
func (s *Store) Sync() error {
	s.attachMu.Lock() // Close waits
	defer s.attachMu.Unlock()
	select {
	case <-s.closing:
		return ErrClosed
	default:
		return s.sync()
	}
}

// sync makes durable what has been written to the file system so far. After its first error it never succeeds again: see ErrFailing.
func (s *Store) sync() error {
	s.syncMu.Lock()
	defer s.syncMu.Unlock()
	if err := s.failed(); err != nil {
		return err
	}
	streams, counts := s.catalog.mark(), s.counters.mark()
	if err := s.syncfs(int(s.root.Fd())); err != nil {
		return s.fail(fmt.Errorf("sync %s: %w", s.options.Dir, err))
	}
	if err := errors.Join(s.catalog.covered(streams), s.counters.synced(counts)); err != nil {
		s.log.Warn("a second copy could not be written", "err", err) // the first one is on flash
	}
	return nil
}

// fail puts the store out of service for good and makes the next start distrust what is on the disk.
func (s *Store) fail(cause error) error {
	s.mu.Lock()
	first := s.failure == nil
	if first {
		if ro := readOnly(s.options.Dir); ro != nil {
			cause = fmt.Errorf("%w: %w", ro, cause)
		}
		s.failure = fmt.Errorf("%w: %w; check the disk, then start again", ErrFailing, cause)
	}
	err := s.failure
	s.mu.Unlock()
	if first {
		s.log.Error("nothing is acknowledged any more", "err", cause)
		if err := writeFile(s.distrustMark(), nil, true); err != nil {
			s.log.Error("cannot note that the disk has failed", "err", err)
		}
	}
	return err
}

func (s *Store) failed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failure
}

// Close lets nothing in any more (ErrClosed), waits until ctx ends for what has been taken to be in the journal, and for the streams to have it, so that the
// next start has nothing to replay. It must come before the server's shutdown. What is not in the journal in time is answered with ErrClosed. An
// Attach that is under way is waited for. Later calls do nothing.
func (s *Store) Close(ctx context.Context) error {
	s.mu.Lock()
	was := s.state
	s.state = stateClosed
	s.mu.Unlock()
	if was == stateClosed {
		return nil
	}
	close(s.closing)
	s.attachMu.Lock()
	defer s.attachMu.Unlock()
	defer s.release()
	if s.stopKeeper != nil {
		s.stopKeeper()
	}
	err := s.committer.stop(ctx)
	if s.publisher.stop != nil {
		drained := err == nil && s.publisher.drain(ctx) == nil
		s.publisher.stop()
		if s.failed() == nil && ctx.Err() == nil {
			if cerr := s.publisher.checkpoint(ctx); cerr != nil && drained {
				err = errors.Join(err, cerr)
			}
		}
	}
	if s.wire != nil {
		err = errors.Join(err, s.wire.close())
	}
	if s.failed() == nil {
		err = errors.Join(err, s.counters.save())
	}
	if err = errors.Join(err, s.ring.Close(), s.quarantine.close()); err != nil {
		return fmt.Errorf("close store: %w", err)
	}
	return nil
}
