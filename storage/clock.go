package storage

import (
	"os"
	"sync"
	"time"
)

const (
	// stepTolerance is how far the wall clock may move against the time since boot before a clock that nobody disciplines any more is
	// distrusted. Both are slewed alike, so only a step moves them apart.
	stepTolerance = time.Minute
)

// clockFloor is a moment before the first release. A clock that says less was never set, whatever the kernel says of it.
var clockFloor = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// clock tells how far the wall clock can be trusted and stamps records. Safe for concurrent use.
type clock struct {
	now       func() time.Time
	sinceBoot func() time.Duration
	kernel    func() ClockState // what adjtimex says at this moment
	mark      string            // path of timesyncd's mark

	mu     sync.Mutex
	looked time.Time     // when moment asked last, by the monotonic clock
	found  ClockState    // and what it was told
	synced bool          // the clock was disciplined at some time since boot
	offset time.Duration // wall minus time since boot, seen when it last was
	floor  time.Time     // the newest time that the store knows; zero: none
	since  time.Duration // time since boot when the floor was raised
}

func newClock() *clock {
	return &clock{now: time.Now, sinceBoot: sinceBoot, kernel: kernelClock, mark: timesyncMark}
}

// state returns ClockSynced from the first moment since boot at which the kernel or timesyncd says so. The kernel forgets a synchronisation after
// some hours without a time source; we do not, as long as nobody steps the clock: a gateway that was right in the morning is right at night.
func (c *clock) state() ClockState {
	now := c.now()
	if now.Before(clockFloor) {
		c.mu.Lock()
		c.synced = false
		c.mu.Unlock()
		return ClockUnsynced
	}
	kernel := c.kernel()
	offset := time.Duration(now.UnixNano()) - c.sinceBoot()
	c.mu.Lock()
	defer c.mu.Unlock()
	if kernel == ClockSynced {
		c.synced, c.offset = true, offset
		return ClockSynced
	}
	if c.synced {
		if d := offset - c.offset; d > -stepTolerance && d < stepTolerance {
			return ClockSynced
		}
		c.synced = false
		return ClockUnsynced
	}
	// The mark lasts until the reboot. A process that starts after the kernel has forgotten has only this; it cannot see a step before its own start.
	if st, err := os.Stat(c.mark); err == nil && !st.ModTime().Before(clockFloor) && !st.ModTime().After(now.Add(stepTolerance)) {
		c.synced, c.offset = true, offset
		return ClockSynced
	}
	return kernel
}

// raise tells the newest time that the store knows: from then on an untrusted clock says no less, and goes on from there. A trusted clock is believed.
func (c *clock) raise(t time.Time) {
	boot := c.sinceBoot()
	c.mu.Lock()
	defer c.mu.Unlock()
	if t.After(c.floor.Add(boot - c.since)) {
		c.floor, c.since = t.Round(0), boot
	}
}

// moment is one look at the clocks, which stamps any number of records. Looking costs a few system calls.
type moment struct {
	now   time.Time
	lift  time.Duration // what is added to wall times so that they are not below the floor
	boot  time.Duration
	state ClockState
}

// wall is the time that records are stamped with now.
func (m moment) wall() time.Time { return m.now.Round(0).Add(m.lift) }

// zero is when the machine's boot clock was at zero.
func (m moment) zero() time.Time { return m.wall().Add(-m.boot) }

// stateLasts is how long an answer of the system about the clock is good for stamping. It is asked with every call otherwise.
const stateLasts = 50 * time.Millisecond

func (c *clock) moment() moment {
	m := moment{now: c.now(), boot: c.sinceBoot()}
	c.mu.Lock()
	since := m.now.Sub(c.looked)
	fresh := !c.looked.IsZero() && since >= 0 && since < stateLasts
	m.state = c.found
	c.mu.Unlock()
	if !fresh {
		m.state = c.state()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !fresh {
		c.looked, c.found = m.now, m.state
	}
	if m.state != ClockSynced && !c.floor.IsZero() {
		m.lift = max(0, c.floor.Add(m.boot-c.since).Sub(m.now.Round(0)))
	}
	return m
}

// stamp returns what a record's time header says; see moment.stamp.
func (c *clock) stamp(t time.Time) Stamp {
	return c.moment().stamp(t)
}

// stamp returns what a record's time header says. t is when the record was received, from time.Now with its monotonic part; zero means now.
//
// Wall is what the clock would have said at t had it been set as it is now, so that wall and state belong together even if the clock was set
// between t and this call. Boot comes from the monotonic part and knows nothing of the clock.
func (m moment) stamp(t time.Time) Stamp {
	if t.IsZero() {
		return Stamp{Wall: m.wall(), Boot: m.boot, Clock: m.state}
	}
	ago := m.now.Sub(t) // monotonic if both have it
	if t == t.Round(0) {
		// Without a monotonic part only the wall clock can say how long ago it was, and it may have been set since.
		if ago < 0 || ago > m.boot {
			return Stamp{Wall: t, Boot: m.boot, Clock: ClockUnsynced}
		}
		return Stamp{Wall: t, Boot: m.boot - ago, Clock: m.state}
	}
	wall := t.Round(0)
	if shifted := m.now.Round(0).Add(-ago); shifted.Sub(wall).Abs() > time.Second {
		wall = shifted
	}
	return Stamp{Wall: wall.Add(m.lift), Boot: max(0, m.boot-ago), Clock: m.state}
}
