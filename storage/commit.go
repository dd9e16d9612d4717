package storage

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// call is one Append on its way.
type call struct {
	items []item
	first int        // which record of the caller's the first item is
	needs []need     // what the keeper admitted; nil for records of our own
	key   *source    // tells callers apart, see company; nil for records of our own
	at    time.Time  // when it was queued
	done  chan error // receives the outcome, once; buffered
}

// outcome is the first error of the call's records.
func (c *call) outcome() error {
	for i := range c.items {
		err := c.items[i].err
		if err == nil {
			continue
		}
		if invalid := (*InvalidError)(nil); errors.As(err, &invalid) {
			invalid.Index = c.first + i
		}
		return err
	}
	return nil
}

// committer turns calls into groups that are published, and groups into windows that are synced, with one goroutine for each of the two:
// while a window is synced, the next groups are published.
//
// No call is answered with nil before a syncfs that began after the server had acknowledged all of its records has succeeded.
type committer struct {
	store *Store
	gate  chan struct{} // capacity 1; whoever has put something in may publish

	publisher chan struct{} // closed when the publisher has ended
	syncer    chan struct{} // closed when the syncer has ended
	wake      chan struct{} // capacity 1; the publisher has something to look at
	due       chan struct{} // capacity 1; the syncer has something to look at

	mu       sync.Mutex // guards the fields below
	queue    []*call
	queued   int  // records in queue
	waiting  bool // the publisher waits for company
	busy     bool // a group is being published
	syncing  bool // a window is being synced
	window   []*call
	records  int       // in window
	since    time.Time // when the window could have been synced at the earliest
	company  company
	running  bool
	stopping bool
	aborted  bool
}

func newCommitter(s *Store) *committer {
	return &committer{
		store:     s,
		gate:      make(chan struct{}, 1),
		publisher: make(chan struct{}),
		syncer:    make(chan struct{}),
		wake:      make(chan struct{}, 1),
		due:       make(chan struct{}, 1),
		company:   company{delay: s.options.Commit.MaxDelay},
	}
}

// start lets calls in. The two goroutines end with stop.
func (c *committer) start() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running || c.stopping {
		return
	}
	c.running = true
	go c.publishLoop()
	go c.syncLoop()
}

// stop lets no more calls in and waits for those that are in. If ctx ends first, they are answered with ErrClosed.
func (c *committer) stop(ctx context.Context) error {
	c.mu.Lock()
	c.stopping = true
	running := c.running
	c.mu.Unlock()
	signal(c.wake)
	if !running {
		return nil
	}
	select {
	case <-c.syncer:
		return nil
	case <-ctx.Done():
	}
	c.mu.Lock()
	c.aborted = true
	left := append(c.queue, c.window...)
	c.queue, c.window, c.queued, c.records = nil, nil, 0, 0
	c.mu.Unlock()
	for _, one := range left {
		c.finish(one, ErrClosed)
	}
	signal(c.wake)
	signal(c.due)
	<-c.syncer // its sync and the publisher's waits are bounded by the kernel and by ackLimit
	return ctx.Err()
}

// signal wakes whoever waits on a channel of capacity 1; signals that nobody has taken yet become one.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// finish tells the keeper and the caller what became of a call.
func (c *committer) finish(one *call, err error) {
	if one.needs != nil {
		c.store.keeper.done(err == nil, one.needs...)
	}
	one.done <- err
}

// submit queues a call and waits for its outcome, or until ctx ends.
func (c *committer) submit(ctx context.Context, one *call) error {
	c.mu.Lock()
	if c.stopping {
		c.mu.Unlock()
		c.finish(one, ErrClosed)
		return ErrClosed
	}
	one.at = c.store.now()
	c.queue = append(c.queue, one)
	c.queued += len(one.items)
	c.company.arrive(one.key)
	enough := !c.waiting || c.company.away == 0 || c.queued >= c.store.options.Commit.MaxRecords
	c.mu.Unlock()
	if enough {
		signal(c.wake)
	}
	select {
	case err := <-one.done:
		return err
	case <-ctx.Done():
		c.withdraw(one)
		return ctx.Err()
	}
}

// withdraw takes back a call that is still queued. One that is being published stays; its outcome goes nowhere.
func (c *committer) withdraw(one *call) {
	c.mu.Lock()
	at := slices.Index(c.queue, one)
	if at >= 0 {
		c.queue = slices.Delete(c.queue, at, at+1)
		c.queued -= len(one.items)
	}
	c.mu.Unlock()
	if at >= 0 {
		c.finish(one, context.Canceled)
	}
}

// take waits for calls and returns up to max_records of their records; nil when the committer has stopped and nothing is left.
func (c *committer) take(timer *time.Timer) []*call {
	for {
		c.mu.Lock()
		c.busy, c.waiting = false, false
		if len(c.queue) == 0 {
			stopped := c.stopping
			c.queue = nil
			c.mu.Unlock()
			if stopped {
				return nil
			}
			<-c.wake
			continue
		}
		wait := c.gatherLocked()
		if wait <= 0 {
			group := c.takeLocked()
			c.mu.Unlock()
			return group
		}
		c.waiting = true
		c.mu.Unlock()
		timer.Reset(wait)
		select {
		case <-c.wake:
		case <-timer.C:
		}
	}
}

// takeLocked takes a group off the queue. Needs mu.
func (c *committer) takeLocked() []*call {
	limit := c.store.options.Commit.MaxRecords
	records, calls := 0, 0
	for calls < len(c.queue) && (calls == 0 || records+len(c.queue[calls].items) <= limit) {
		records += len(c.queue[calls].items)
		calls++
	}
	group := c.queue[:calls:calls]
	c.queue = c.queue[calls:]
	c.queued -= records
	c.busy = true
	return group
}

// gatherLocked returns how long the publisher should wait for company before it publishes what is queued: not at all while something is on its way to
// the disk already, because then the time is used for publishing. Needs mu.
func (c *committer) gatherLocked() time.Duration {
	if c.stopping || c.syncing || len(c.window) > 0 || c.queued >= c.store.options.Commit.MaxRecords {
		return 0
	}
	now := c.store.now()
	if c.company.expected(now) == 0 {
		return 0
	}
	return c.company.delay - now.Sub(c.queue[0].at)
}

func (c *committer) publishLoop() {
	defer func() {
		close(c.publisher)
		signal(c.due) // after the close: the syncer looks for it
	}()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		group := c.take(timer)
		if group == nil {
			return
		}
		c.gate <- struct{}{}
		c.store.publish(group)
		<-c.gate
		c.hand(group)
	}
}

// hand gives a published group to the syncer, and their errors to those whose records were not stored.
func (c *committer) hand(group []*call) {
	c.mu.Lock()
	c.busy = false
	for _, one := range group {
		err := one.outcome()
		if err == nil && c.aborted {
			err = ErrClosed
		}
		if err != nil {
			c.finish(one, err)
			continue
		}
		if len(c.window) == 0 {
			c.since = one.at
		}
		c.window = append(c.window, one)
		c.records += len(one.items)
	}
	c.mu.Unlock()
	signal(c.due)
}

func (c *committer) syncLoop() {
	defer close(c.syncer)
	var spare []*call
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		window := c.nextWindow(spare, timer)
		if window == nil {
			return
		}
		err := c.store.commit()
		now := c.store.now()
		c.mu.Lock()
		c.syncing = false
		if len(c.window) > 0 {
			c.since = now
		}
		if err == nil {
			for _, one := range window {
				c.company.leave(one.key, now)
			}
		}
		c.mu.Unlock()
		for i, one := range window {
			c.finish(one, err)
			window[i] = nil
		}
		spare = window[:0]
	}
}

// nextWindow waits for a window that is to be synced now; nil when the publisher has ended and nothing is left.
func (c *committer) nextWindow(spare []*call, timer *time.Timer) []*call {
	for {
		c.mu.Lock()
		wait := time.Hour
		if len(c.window) > 0 {
			wait = c.lingerLocked(c.store.now())
		} else if c.ended() {
			c.mu.Unlock()
			return nil
		}
		if wait <= 0 {
			window := c.window
			c.window, c.records = spare, 0
			c.syncing = true
			c.mu.Unlock()
			return window
		}
		c.mu.Unlock()
		timer.Reset(wait)
		select {
		case <-c.due:
		case <-timer.C:
		}
	}
}

// lingerLocked returns how long the window should still wait for company; see Append. Needs mu.
func (c *committer) lingerLocked(now time.Time) time.Duration {
	if c.records >= c.store.options.Commit.MaxRecords || c.stopping {
		return 0
	}
	if c.company.expected(now) == 0 && len(c.queue) == 0 && !c.busy {
		return 0
	}
	return c.company.delay - now.Sub(c.since)
}

// ended reports whether the publisher has ended.
func (c *committer) ended() bool {
	select {
	case <-c.publisher:
		return true
	default:
		return false
	}
}
