package forward

import (
	"math"
	"sync"
	"time"
)

const (
	// queueTime, and the bare round trip, is how long half of what is under way may take to drain at the hub's end of the link. A ping waits
	// behind the queue, and so does a record of a live stream: well below the ping interval, and enough to keep the link busy.
	queueTime = time.Second

	firstBytes  = 8 << 10  // under way at first: 7 s at 9.6 kbit/s, uncompressed
	firstMost   = 64       // records
	againBytes  = 64 << 10 // under way at first on a link that carried more before: 8 s at 64 kbit/s
	windowMost  = 1 << 14  // records under way
	windowBytes = 16 << 20 // bytes under way: 100 Mbit/s for more than a second; the server gives up a connection at 64 MiB

	growthMost  = 8.0 // of the window, per answer
	shrinkMost  = 0.5
	probeFirst  = 2.0 // growth while the queue is too short to be seen
	probeLater  = 1.5
	shareMost   = 1.5                    // by how much a look corrects a stream's share of the link
	paceInert   = 1.1                    // a change by less is none
	slowCycle   = 250 * time.Millisecond // from here on the window is kept full while an acknowledgement is under way
	askAfter    = 2 * time.Second        // without an acknowledgement, while records are under way
	shareMemory = 5 * time.Second        // for which what a stream took of the link counts
)

// The weights of the lanes where both have more than the link carries.
const (
	weightLive = 9
	weightBulk = 1
)

// shares is what the streams know together of the link: its bare round trip, and who takes how much of it.
type shares struct {
	mu     sync.Mutex // guards the fields below
	rtt    time.Duration
	now    func() time.Time
	takers map[string]taker // by stream
}

type taker struct {
	bytes  float64 // per second, uncompressed
	weight float64
	at     time.Time
}

func newShares() *shares { return &shares{now: time.Now, takers: map[string]taker{}} }

// begin forgets the round trip of an earlier connection.
func (s *shares) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rtt = 0
	clear(s.takers)
}

// trip notes a round trip; the shortest counts, since all others had something before them.
func (s *shares) trip(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d > 0 && (s.rtt == 0 || d < s.rtt) {
		s.rtt = d
	}
}

func (s *shares) roundTrip() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rtt
}

// take notes what a stream that has more than the link carries takes of it, and returns by how much its window should change for its
// share to be right: 1 when it is alone.
func (s *shares) take(stream string, weight, bytes float64) float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	s.takers[stream] = taker{bytes: bytes, weight: weight, at: now}
	var sum, weights float64
	for name, t := range s.takers {
		if now.Sub(t.at) > shareMemory {
			delete(s.takers, name)
			continue
		}
		sum += t.bytes
		weights += t.weight
	}
	if sum == 0 || bytes == 0 || len(s.takers) < 2 {
		return 1
	}
	factor := (weight / weights) / (bytes / sum)
	return min(shareMost, max(1/shareMost, factor))
}

// leave notes that a stream has no more than the link carries.
func (s *shares) leave(stream string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.takers, stream)
}

// pace finds out how many records of one stream may be under way, so that they keep the link busy and drain soon enough. It goes by the
// time from the consumer's request for an acknowledgement to the answer: what that is above the bare round trip is a queue, which pings and live
// records wait behind.
//
// A consumer of this kind asks when the limit of records under way is hit, one request at a time, and the answer covers what was sent before
// it: with one limit it would stand still for a round trip each time. So on a slow link it is made to ask at half of what is wanted under way, the
// limit is raised while the request is under way, and lowered before the answer comes so that one more record hits it again.
type pace struct {
	size   float64 // bytes of a record, on average
	window int     // records that are wanted under way
	limit  int     // as the consumer was told

	asked   uint64    // records sent before the request that is under way; 0: none is
	askedAt time.Time // when that was seen
	behind  int       // how many records it waits behind
	changed time.Time // when the window was
	probed  bool      // a queue was seen

	cycle time.Duration // from request to answer, as last measured
	held  bool          // records were held back at the last look
	acked uint64        // at the last look
	last  time.Time     // look
	moved time.Time     // when acked last grew, or nothing was under way

	tookAt   time.Time // of the last measure
	tookFrom uint64    // acknowledged then
}

// newPace begins with a window that no link is too slow for, or with a quarter of what an earlier connection had, but no more than
// againBytes. size is what a record has on average, in bytes.
func newPace(size float64, before int, now time.Time) *pace {
	p := &pace{size: max(size, 1), last: now, moved: now, tookAt: now}
	p.window = min(firstMost, max(p.least(), int(firstBytes/p.size)))
	p.window = max(p.window, min(before/4, int(againBytes/p.size)))
	p.limit = p.window
	return p
}

// most is the largest window.
func (p *pace) most() int { return max(1, min(windowMost, int(windowBytes/p.size))) }

// least is the smallest: two, so that the link is not idle for a round trip per record, unless records are large.
func (p *pace) least() int {
	if p.size > firstBytes/2 {
		return 1
	}
	return 2
}

func (p *pace) half() int { return (p.window + 1) / 2 }

// look takes how many records are acknowledged in all, under way and not yet sent, and returns how many may be under way from now on. share says by how
// much the window should change for the stream to have its share of the link, of which it takes so many bytes per second.
func (p *pace) look(now time.Time, acked uint64, under int, pending uint64, rtt time.Duration, share func(bytes float64) float64) int {
	before, since := p.acked, now.Sub(p.last)
	if acked < before { // the hub had the consumer begin anew
		p.asked, p.tookAt, p.tookFrom, before = 0, now, acked, acked
	}
	p.acked, p.last = acked, now
	if acked > before || under == 0 {
		p.moved = now
	}
	held := pending > 0 && p.held
	p.held = pending > 0
	if !held {
		p.asked, p.tookAt, p.tookFrom = 0, now, acked
		return p.trickle(now, under)
	}
	switch took := acked - before; {
	case p.cycle < slowCycle && took >= 2*uint64(p.window): // several requests were answered since the last look
		p.asked = 0
		p.cycle = since * time.Duration(p.window) / time.Duration(took)
		p.measure(now, rtt, share)
	case p.asked > 0 && acked >= p.asked:
		p.asked = 0
		p.cycle = now.Sub(p.askedAt)
		if !p.askedAt.Before(p.changed) && p.behind >= p.half() {
			p.measure(now, rtt, share)
		}
	}
	if p.asked == 0 && under >= p.limit {
		p.asked, p.askedAt, p.behind = acked+uint64(p.limit), now, p.limit
	}
	return p.set(under)
}

// measure adapts the window to the cycle.
func (p *pace) measure(now time.Time, rtt time.Duration, share func(bytes float64) float64) {
	span := now.Sub(p.tookAt).Seconds()
	if span <= 0 {
		return
	}
	took := float64(p.acked-p.tookFrom) * p.size / span
	p.tookAt, p.tookFrom = now, p.acked
	factor := (rtt + queueTime).Seconds() / max(p.cycle, time.Millisecond).Seconds()
	if unseen := rtt + 3*followClosely/2; p.cycle > unseen {
		p.probed = true
	} else if p.probed { // the link was idle before the answer came; for how long cannot be told
		factor = max(factor, probeLater)
	} else {
		factor = max(factor, probeFirst, 1.5*queueTime.Seconds()/unseen.Seconds())
	}
	factor = min(growthMost, max(shrinkMost, factor)) * share(took)
	if factor < paceInert && factor > 1/paceInert {
		return
	}
	p.window = min(p.most(), max(p.least(), int(math.Ceil(float64(p.window)*factor))))
	p.changed = now
}

// set returns the limit of records under way.
func (p *pace) set(under int) int {
	switch {
	case p.cycle < slowCycle:
		p.limit = p.window
	case p.asked == 0:
		p.limit = max(p.half(), under+1)
	default:
		covered := int(p.asked - p.acked)
		if most := min(covered+p.half(), max(p.window, covered)); under < most {
			p.limit = most
		} else {
			p.limit = under - covered + 1 // the answer leaves that many but one
		}
	}
	return p.limit
}

// trickle returns the limit for a stream of which nothing is held back. A consumer that sends now and then, but more often than its heartbeat,
// would ask for an acknowledgement only when the window is full, which may take hours: it is made to ask with the next record.
func (p *pace) trickle(now time.Time, under int) int {
	p.limit = p.window
	if under > 0 && under < p.window && now.Sub(p.moved) >= askAfter {
		p.limit = under + 1
	}
	return p.limit
}
