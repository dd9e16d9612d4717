package storage

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-edge/holdfast/storage/journal"
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

// committer turns calls into groups, and puts each group into the ring: while one is being written, the next one gathers.
//
// No call is answered with nil before the ring has all of its records on flash.
type committer struct {
	store *Store
	gate  chan struct{} // capacity 1; whoever has put something in may write into the ring, and change what a stream's next sequence is

	ended chan struct{} // closed when the loop has ended
	wake  chan struct{} // capacity 1; the loop has something to look at

	mu       sync.Mutex // guards the fields below
	queue    []*call
	queued   int       // records in queue
	waiting  bool      // for company
	since    time.Time // when the group before was on flash
	company  company
	stopping bool
	aborted  bool
}

func newCommitter(s *Store) *committer {
	return &committer{
		store:   s,
		gate:    make(chan struct{}, 1),
		ended:   make(chan struct{}),
		wake:    make(chan struct{}, 1),
		company: company{delay: s.options.Commit.MaxDelay},
	}
}

// stop lets no more calls in and waits for those that are in. If ctx ends first, those that wait are answered with ErrClosed.
func (c *committer) stop(ctx context.Context) error {
	c.mu.Lock()
	c.stopping = true
	c.mu.Unlock()
	signal(c.wake)
	select {
	case <-c.ended:
		return nil
	case <-ctx.Done():
	}
	c.mu.Lock()
	c.aborted = true
	left := c.queue
	c.queue, c.queued = nil, 0
	c.mu.Unlock()
	for _, one := range left {
		c.finish(one, ErrClosed)
	}
	signal(c.wake)
	<-c.ended // a write of the ring is bounded by the kernel, and waiting for room by ringPatience
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
		c.waiting = false
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
		wait := c.gatherLocked(c.store.now())
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
	return group
}

// gatherLocked returns how long the queue should still wait for company; see Append. Needs mu.
func (c *committer) gatherLocked(now time.Time) time.Duration {
	if c.stopping || c.queued >= c.store.options.Commit.MaxRecords || c.company.expected(now) == 0 {
		return 0
	}
	since := c.since
	if at := c.queue[0].at; at.After(since) {
		since = at
	}
	return c.company.delay - now.Sub(since)
}

// run is the loop, until stop.
func (c *committer) run() {
	defer close(c.ended)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		group := c.take(timer)
		if group == nil {
			return
		}
		c.write(group)
		now := c.store.now()
		c.mu.Lock()
		c.since = now
		for _, one := range group {
			if one.outcome() == nil {
				c.company.leave(one.key, now)
			}
		}
		c.mu.Unlock()
		for _, one := range group {
			c.finish(one, one.outcome())
		}
	}
}

// write puts a group into the ring. If that is full it waits for room as long as there is hope, see publisher.awaitRoom.
func (c *committer) write(group []*call) {
	var items []*item
	for _, one := range group {
		for i := range one.items {
			items = append(items, &one.items[i])
		}
	}
	deadline := c.store.now().Add(ringPatience)
	for {
		left, err := c.store.inscribe(items, false)
		if err == nil {
			return
		}
		if items = left; errors.Is(err, journal.ErrRingFull) && !c.abandoned() && c.store.publisher.awaitRoom(deadline) {
			continue
		}
		for _, it := range items {
			if !it.done && it.err == nil {
				it.err = err
			}
		}
		return
	}
}

// abandoned reports whether nobody waits for an outcome any more.
func (c *committer) abandoned() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.aborted
}
