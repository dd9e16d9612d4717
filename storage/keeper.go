package storage

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"
)

const (
	// keeperInterval is how often the keeper looks for forwarded records that have become old. Each removal waits for a checkpoint; a minute is promised.
	keeperInterval = 45 * time.Second
	// headroomShare is the part of a limit that is freed at once, so that a full stream has few gap records and is not purged for every record.
	headroomShare = 64
	// pressLimit is how often that share is doubled, at most, while room has to be made more than once in pressInterval: each time stops capture for some
	// flushes. It is what it was after pressLasts without.
	pressLimit, pressInterval, pressLasts = 3, time.Second, 10 * time.Second
	// minFreeInodes is how many files must still be possible; a stream makes a new one every few megabytes.
	minFreeInodes = 64
	// wakeInterval is how often, at most, records that come in make the keeper look whether room can be made ahead of time.
	wakeInterval = time.Second
)

// limits is what one stream may take.
type limits struct {
	MaxBytes int64         // as the server counts them, see storedSize; 0: no limit
	MaxMsgs  int64         // 0: no limit
	Keep     time.Duration // how long what the hub has is kept, if there is room; 0: not at all
	KeepAll  time.Duration // how long anything is kept; forEver: until it is forwarded
	Priority int           // streams with a lower one give way first
	Refuse   bool          // refuse new records rather than give up unsent ones
}

// forEver is an age that no record has.
const forEver = time.Duration(math.MaxInt64)

// need is what records that are about to be stored will take of a stream.
type need struct {
	Stream  string
	Records int64
	Bytes   int64
}

// keeper keeps the streams within their limits, all together within the budget, and some space free on the disk for others. What goes, in this order:
//
//  1. records that the hub is proven to have: when they are older than keep_forwarded or max_age, and whatever their age when room is wanted, first of
//     the stream that wants it, for the budget and the disk also of others, by priority and size;
//  2. unsent ones that are older than they may become (max_age with expire_unsent, ttl), after a gap record that tells of them is on flash;
//  3. if the stream's policy is to drop the oldest: unsent ones, after a gap record. For the budget the stream with that policy and the lowest
//     priority pays, of several the largest, but none whose priority is above that of the stream that wants the room. For space on the disk a stream
//     gives up as much as it takes, no more: nothing is dropped for other programs' files;
//  4. otherwise the new records are refused, with ErrFull.
//
// An age is by trusted time only: see ledger.ageOf.
//
// As long as there is room, admit only adds two numbers. The newest record of a stream is never removed as forwarded, so that a stream does not lose
// track of its sequence; which record of a source was the newest is known from the counters, so no other record is kept for that.
type keeper struct {
	streams   []*keptStream // immutable
	byName    map[string]*keptStream
	counters  *counters
	forwarded func(stream string) (Position, bool) // how far the hub is proven to have it
	appendGap func(ctx context.Context, g GapRecord) error
	age       func(r heldRecord) (time.Duration, bool) // how old a record is, false if nobody can say
	timeOf    func(r heldRecord) (time.Time, bool)     // when it was captured, false if nobody can say
	settle    func(ctx context.Context)                // waits until the streams have what was admitted; nil: they have it at once
	ask       func() bool                              // asks for a checkpoint soon, which will signal wake; false: none is coming. nil: never
	now       func() time.Time
	free      func() (bytes int64, inodes uint64, err error)
	budget    int64 // 0: none
	reserve   int64 // bytes that stay free on the disk
	log       *slog.Logger

	work chan struct{} // capacity 1; whoever has put something in may change streams
	wake chan struct{} // capacity 1; run has something to look at

	mu       sync.Mutex // guards the fields below and those of the streams
	detached bool       // there is no server yet
	woken    time.Time  // when wake was last signalled
}

// keptStream is one stream as the keeper sees it.
type keptStream struct {
	name string
	limits
	held    held
	pending func() usage // admitted and not in the stream; nil: nothing is

	// Guarded by keeper.mu.
	view     streamView // as last seen
	since    usage      // stored after that
	inFlight usage      // admitted, outcome unknown
	credit   int64      // bytes that it may take although the disk is short, because it gave up as much
	full     error      // why it refused last; nil since it admitted again
	pressed  uint       // how often its headroom is doubled
	made     time.Time  // when room was last made while somebody waited for it

	off uint64 // how many audits in a row have found the account wrong

	// Guarded by keeper.work.
	noted  Position  // below this the removal of aged records waits for a checkpoint
	gaveUp uint64    // records dropped since the log told of it
	warned time.Time // when it did; zero: never
}

// admitTries is how often room is made for a call while others take it, before the call is told to come again.
const admitTries = 32

// warnInterval is how often the log tells that a stream drops records. The gap records tell of each time.
const warnInterval = time.Minute

// usage is what records take.
type usage struct{ records, bytes int64 }

func newKeeper(c *counters, log *slog.Logger) *keeper {
	return &keeper{
		byName:   map[string]*keptStream{},
		counters: c,
		age:      func(heldRecord) (time.Duration, bool) { return 0, false },
		timeOf:   func(heldRecord) (time.Time, bool) { return time.Time{}, false },
		now:      time.Now,
		log:      log,
		work:     make(chan struct{}, 1),
		wake:     make(chan struct{}, 1),
	}
}

// keep adds a stream. Not to be called once the keeper is in use.
func (k *keeper) keep(name string, l limits, h held) {
	s := &keptStream{name: name, limits: l, held: h}
	k.streams = append(k.streams, s)
	k.byName[name] = s
}

// attach tells that there is a server, and makes room for what was admitted without one.
func (k *keeper) attach(ctx context.Context) error {
	release, err := k.hold(ctx)
	if err != nil {
		return err
	}
	defer release()
	k.mu.Lock()
	k.detached = false
	k.mu.Unlock()
	return k.refresh(ctx)
}

// refresh looks at the streams as they are. To be called before the first admit.
func (k *keeper) refresh(ctx context.Context) error {
	for _, s := range k.streams {
		if err := k.look(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// look renews what is known of a stream. What is in flight may be in it already, so it counts as a little more than it is.
func (k *keeper) look(ctx context.Context, s *keptStream) error {
	var pending usage
	if s.pending != nil {
		pending = s.pending() // before the look: what arrives meanwhile counts twice rather than not at all
	}
	v, err := s.held.view(ctx)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	s.view, s.since = v, pending
	return nil
}

// taken is what a stream holds and is going to hold. Needs mu.
func (s *keptStream) taken() usage {
	return usage{int64(s.view.Messages) + s.since.records + s.inFlight.records, int64(s.view.Bytes) + s.since.bytes + s.inFlight.bytes}
}

// short returns by how much a stream would exceed its limits with so much more; zeros if it fits.
func (s *keptStream) short(more usage) usage {
	t := s.taken()
	var u usage
	if s.MaxMsgs > 0 {
		u.records = max(0, t.records+more.records-s.MaxMsgs)
	}
	if s.MaxBytes > 0 {
		u.bytes = max(0, t.bytes+more.bytes-s.MaxBytes)
	}
	return u
}

// headroom is what is freed beyond what is wanted. Needs mu.
func (s *keptStream) headroom(now time.Time) usage {
	more := s.pressed
	if now.Sub(s.made) > pressLasts {
		more = 0
	}
	return usage{min(max(s.MaxMsgs<<more/headroomShare, 8), s.MaxMsgs/4), s.MaxBytes / headroomShare << more}
}

// press notes that somebody waits for room. Needs mu.
func (s *keptStream) press(now time.Time) {
	switch d := now.Sub(s.made); {
	case d > pressLasts:
		s.pressed = 0
	case d < pressInterval:
		s.pressed = min(s.pressed+1, pressLimit)
	}
	s.made = now
}

// admit lets records into their streams or says why not, with ErrFull if they may come back later. All of them or none. What was admitted must be
// given to done. It only blocks while room has to be made.
func (k *keeper) admit(ctx context.Context, needs ...need) error {
	if k.enter(needs) {
		return nil
	}
	select {
	case k.work <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-k.work }()
	if k.enter(needs) {
		return nil // somebody else made room
	}
	for range admitTries {
		if err := k.makeRoom(ctx, needs); err != nil {
			return err
		}
		if k.enter(needs) {
			return nil
		}
		// Others, who need not wait, took the room that was made.
	}
	return fmt.Errorf("stream %s has no room at the moment: %w", needs[0].Stream, ErrFull)
}

// enter admits if everything fits as far as is known.
func (k *keeper) enter(needs []need) bool {
	free, inodes, err := k.free()
	tight := err == nil && (free < k.reserve || inodes < minFreeInodes)
	low := tight && (free < k.reserve/4 || inodes < minFreeInodes) // the streams do not grow, and the journal takes what it can
	now := k.now()
	k.mu.Lock()
	defer k.mu.Unlock()
	var total int64
	for _, s := range k.streams {
		total += s.taken().bytes
	}
	for _, n := range needs {
		s := k.byName[n.Stream]
		total += n.Bytes
		if s != nil && k.detached && !s.Refuse {
			continue // room is made when there is a server
		}
		if s == nil || s.short(usage{n.Records, n.Bytes}) != (usage{}) || (tight && (!low || s.Refuse) && s.credit < n.Bytes) {
			return false
		}
	}
	if k.budget > 0 && total > k.budget && !k.detached {
		return false
	}
	for _, n := range needs {
		s := k.byName[n.Stream]
		s.inFlight.records += n.Records
		s.inFlight.bytes += n.Bytes
		s.full = nil
		s.credit -= n.Bytes
		if !tight {
			s.credit = 0
		}
		if head := s.headroom(now); s.short(head) != (usage{}) && now.Sub(k.woken) >= wakeInterval {
			k.woken = now
			signal(k.wake)
		}
	}
	return true
}

// done tells what became of records that were admitted: stored, or not.
func (k *keeper) done(stored bool, needs ...need) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, n := range needs {
		s := k.byName[n.Stream]
		if s == nil {
			continue
		}
		s.inFlight.records -= n.Records
		s.inFlight.bytes -= n.Bytes
		if stored {
			s.since.records += n.Records
			s.since.bytes += n.Bytes
		}
	}
}

// note counts records that were stored without asking: our own (epoch, gap), which must go in even into a full stream.
func (k *keeper) note(n need) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if s := k.byName[n.Stream]; s != nil {
		s.since.records += n.Records
		s.since.bytes += n.Bytes
	}
}

// full returns why a stream refuses records; nil while it takes them.
func (k *keeper) full(stream string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if s := k.byName[stream]; s != nil {
		return s.full
	}
	return nil
}

// audit compares a stream's account with itself, and with what the stream says of itself when nothing is on its way. What is wrong for a moment, as while a
// commit is counted, is not wrong. Needs work.
func (k *keeper) audit(s *keptStream) {
	v, t := k.seen(s), k.counters.totals(s.name, 0)
	captured, own := k.counters.held(s.name, v.First, v.Last)
	differs := k.counters.position(s.name) == v.Last && captured+own > v.Messages // it may hold placeholders, too
	k.mu.Lock()
	defer k.mu.Unlock()
	if t.Off == 0 && !differs {
		s.off = 0
		return
	}
	if s.off++; s.off == auditTries {
		k.log.Error("the account does not balance", "stream", s.name, "stored", t.Stored, "forwarded", t.Forwarded, "waiting", t.Waiting,
			"dropped", t.Dropped, "off", t.Off, "holds", v.Messages, "counted", captured+own)
	}
}

// auditTries is after how many audits in a row an account is called wrong.
const auditTries = 2

// unbalanced reports whether a stream's account is wrong.
func (k *keeper) unbalanced(stream string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.byName[stream]
	return s != nil && s.off >= auditTries
}

// hold keeps the keeper from changing streams until release is called, for a leap. It must be taken before whatever keeps gap records from being
// stored: the keeper may be waiting for one.
func (k *keeper) hold(ctx context.Context) (release func(), err error) {
	select {
	case k.work <- struct{}{}:
		return func() { <-k.work }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
