package storage

import "time"

// company answers whether a window of records should wait for more before it is synced.
//
// The rule: wait for whoever got an acknowledgement less than max_delay ago and has not come back yet, but never longer than max_delay. What
// follows from it:
//   - A source that is alone never waits: when it calls, nobody is away.
//   - A hundred callers that each wait for their acknowledgement meet again in one window instead of splitting into small ones.
//   - Sources that send now and then share a flush if their pauses are shorter than max_delay, so a larger max_delay spares the card.
//   - A source that falls silent costs the others one delay.
//
// A caller is told by the source of its first record. Not safe for concurrent use; guarded by committer.mu.
type company struct {
	delay       time.Duration
	first, last *source // those away, in the order they left, so in the order their time runs out
	away        int
}

// arrive notes that a source is back.
func (c *company) arrive(s *source) {
	if s != nil && s.away {
		c.remove(s)
	}
}

// leave notes that a source was answered.
func (c *company) leave(s *source, now time.Time) {
	if s == nil || c.delay <= 0 {
		return
	}
	if s.away {
		c.remove(s)
	}
	s.away, s.until = true, now.Add(c.delay)
	s.earlier, s.later = c.last, nil
	if c.last != nil {
		c.last.later = s
	} else {
		c.first = s
	}
	c.last = s
	c.away++
}

// expected returns how many are still to be waited for.
func (c *company) expected(now time.Time) int {
	for c.first != nil && !now.Before(c.first.until) {
		c.remove(c.first)
	}
	return c.away
}

func (c *company) remove(s *source) {
	if s.earlier != nil {
		s.earlier.later = s.later
	} else {
		c.first = s.later
	}
	if s.later != nil {
		s.later.earlier = s.earlier
	} else {
		c.last = s.earlier
	}
	s.away, s.earlier, s.later = false, nil, nil
	c.away--
}
