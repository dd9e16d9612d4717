package storage

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/holdfast-edge/holdfast/storage/journal"
)

const (
	// maxFlightBytes bounds what is published between two acknowledgements: the server queues 128 MB per stream and drops the rest.
	maxFlightBytes = 4 << 20
	// maxQueueBytes bounds what waits in memory to be published. What is beyond is read from the ring when its turn comes.
	maxQueueBytes = 8 << 20
	// maxUnsaved is how much is published, at most, between two checkpoints, but for one flight.
	maxUnsaved = 8 << 20
	// checkpointInterval is how long, at most, the ring keeps what is in the streams.
	checkpointInterval = time.Minute
	// ringPatience is how long Append waits for room in a full ring before it says ErrFull.
	ringPatience = 5 * time.Second
	// Pauses between two tries with a stream that takes nothing.
	firstRetry, lastRetry = 100 * time.Millisecond, 5 * time.Second
)

// pending is a record that is on flash in the ring and on its way into its stream.
type pending struct {
	st      *stream
	at      Position // that it was promised
	payload []byte   // a message
}

// size is what the record takes in its stream.
func (r pending) size() int64 {
	const lengths = 1 + 2 + 4 // of stream, subject and headers
	rest := len(r.payload) - lengths - len(r.st.name())
	return int64(storedSize(0, len("\r\n")+orderSize, rest))
}

// passed notes that the record is in its stream, once however often it is noticed.
func (r pending) passed() {
	if r.at > r.st.passed {
		r.st.passed = r.at
		r.st.wait(-1, -r.size())
	}
}

// publisher puts what is in the ring into the streams, in order, each record at the sequence that it was promised, and gives checkpoints.
//
// It takes groups from a queue in memory. When that overflows, at a start, and after a stream took nothing for a while, it reads on in the ring
// instead. A stream that takes nothing holds up the checkpoint but not the other streams.
type publisher struct {
	store  *Store
	turn   chan struct{} // capacity 1; whoever has put something in may publish, use the wire, and change what streams have reached
	wake   chan struct{} // capacity 1; there is something to look at
	urgent chan struct{} // capacity 1; somebody waits
	ended  chan struct{} // closed when run has ended; nil before it began

	// Needs turn.
	done    journal.Position // everything below is in its stream
	opened  journal.Position // end of what the run before left; immutable
	back    int              // records below that were published, not all of them may have been taken
	unsaved int64            // bytes published since the newest checkpoint
	saved   time.Time        // when that was
	retry   time.Time        // when streams that took nothing are tried again
	pause   time.Duration
	touched []*stream
	owed    []GapRecord  // of records that a server refused; the checkpoint waits for them
	unkept  func() error // takes what was put back out of the quarantine, which has failed; the checkpoint waits for it, too. nil: nothing to do

	mu       sync.Mutex // guards the fields below
	queue    []flight
	bytes    int              // in queue
	behind   bool             // what was appended last is not in the queue
	appended journal.Position // end of the newest group
	noticed  journal.Position // appended at the end of the step before
	settled  journal.Position // done, for others to read
	held     bool             // a stream takes nothing
	running  bool
	wanted   bool // a checkpoint, now
	asked    bool // the keeper waits for one
	waiters  []chan struct{}

	stop func() // set by start; waits
}

// flight is a group on its way.
type flight struct {
	end  journal.Position
	recs []pending
	size int // of the payloads
}

func newPublisher(s *Store) *publisher {
	return &publisher{store: s, turn: make(chan struct{}, 1), wake: make(chan struct{}, 1), urgent: make(chan struct{}, 1)}
}

// push hands over a group that is on flash. The caller holds committer.gate.
func (p *publisher) push(end journal.Position, recs []pending) {
	size := 0
	for i := range recs {
		size += len(recs[i].payload)
	}
	p.mu.Lock()
	p.appended = end
	if p.behind = p.behind || p.bytes+size > maxQueueBytes; !p.behind {
		p.queue = append(p.queue, flight{end, recs, size})
		p.bytes += size
	}
	p.mu.Unlock()
	signal(p.wake)
}

// run publishes until ctx ends.
func (p *publisher) run(ctx context.Context) {
	defer close(p.ended)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for ctx.Err() == nil {
		p.turn <- struct{}{}
		began := p.store.now()
		more := p.step(ctx)
		rest := p.rest(p.store.now().Sub(began))
		<-p.turn
		p.tell()
		if rest > 0 {
			timer.Reset(rest)
			select {
			case <-ctx.Done():
			case <-p.urgent:
			case <-timer.C:
			}
			continue
		}
		if more {
			continue
		}
		timer.Reset(firstRetry)
		select {
		case <-ctx.Done():
		case <-p.wake:
		case <-timer.C:
		}
	}
}

// rest returns how long the processor is left to capture after a step: several times as long as the step took if something was captured meanwhile, unless
// somebody waits for the streams or the ring fills up. What comes in a burst is safe at once and in the streams a moment later. Needs turn.
func (p *publisher) rest(step time.Duration) time.Duration {
	const share, longest = 9, 250 * time.Millisecond
	state := p.store.ring.State()
	p.mu.Lock()
	defer p.mu.Unlock()
	busy := p.appended != p.noticed
	p.noticed = p.appended
	if !busy || len(p.waiters) > 0 || p.wanted || 4*state.Used >= state.Segments {
		return 0
	}
	return min(share*step, longest)
}

// step publishes what is there, and gives a checkpoint if it is time. It reports whether there is more to do at once. Needs turn.
func (p *publisher) step(ctx context.Context) (more bool) {
	batch, end, behind, held := p.take()
	switch {
	case held && !p.store.now().Before(p.retry):
		p.catchUp(ctx)
	case len(batch) > 0:
		p.publish(ctx, batch)
		p.settle(end)
	case behind:
		p.catchUp(ctx)
	}
	p.pay(ctx)
	p.save(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.queue) > 0 || p.behind && !p.held
}

// pay stores the gap records that are owed, unless somebody holds the gate: a Leap waits for us.
func (p *publisher) pay(ctx context.Context) {
	for len(p.owed) > 0 {
		select {
		case p.store.committer.gate <- struct{}{}:
			<-p.store.committer.gate
		default:
			return
		}
		if err := p.store.Gap(ctx, p.owed[0]); err != nil {
			p.store.log.Error("no gap record of a record that was refused", "err", err)
			return
		}
		p.owed = p.owed[1:]
	}
}

// take takes groups off the queue.
func (p *publisher) take() (batch []pending, end journal.Position, behind, held bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n, size, records := 0, 0, 0
	for n < len(p.queue) && size < maxFlightBytes && (n == 0 || records+len(p.queue[n].recs) <= maxGroupRecords) {
		size += p.queue[n].size
		records += len(p.queue[n].recs)
		end = p.queue[n].end
		n++
	}
	if n == 1 {
		batch = p.queue[0].recs
	} else if n > 1 {
		batch = make([]pending, 0, records)
		for _, f := range p.queue[:n] {
			batch = append(batch, f.recs...)
		}
	}
	clear(p.queue[:n])
	if p.queue = p.queue[n:]; len(p.queue) == 0 {
		p.queue = nil
	}
	p.bytes -= size
	return batch, end, p.behind, p.held
}

// settle notes that everything below a position was published, unless a stream took nothing.
func (p *publisher) settle(end journal.Position) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.held {
		p.done = max(p.done, end)
		p.settled = p.done
	}
}

// publish puts records into their streams. Needs turn.
func (p *publisher) publish(ctx context.Context, batch []pending) {
	p.touched = p.touched[:0]
	if full := p.store.diskFull(); full != nil {
		for _, r := range batch {
			if r.at <= r.st.last {
				r.passed()
			} else if !r.st.stuck {
				p.refused(r.st, full)
			}
		}
		return
	}
	for _, r := range batch {
		if r.at <= r.st.last {
			r.passed() // by a replay
			continue
		}
		if r.st.stuck {
			p.hold(r.st)
			continue
		}
		if len(r.st.run) == 0 {
			p.touched = append(p.touched, r.st)
		}
		r.st.run = append(r.st.run, r)
	}
	clear(p.store.wire.early)
	// Every stream's run is under way before the first acknowledgement is waited for.
	for len(p.touched) > 0 {
		for _, st := range p.touched {
			st.sent = p.send(ctx, st)
		}
		left := p.touched[:0]
		for _, st := range p.touched {
			if st.sent.n > 0 {
				p.confirm(ctx, st)
			}
			if len(st.run) > 0 {
				left = append(left, st)
			}
		}
		p.touched = left
	}
}

// sent is a part of a stream's run that was published.
type sent struct {
	n      int
	ticket uint64
	err    error // publishing ended early
}

// send publishes a stream's run, up to the first sequence that is missing in it.
func (p *publisher) send(ctx context.Context, st *stream) sent {
	if first := st.run[0].at; first > st.last+1 {
		p.store.log.Error("records are missing in the journal", "stream", st.name(), "first", st.last+1, "last", first-1)
		if err := p.store.raise(ctx, st, st.last, first-1); err != nil {
			p.refused(st, fmt.Errorf("%w: raise stream: %w", ErrUnavailable, err))
			return sent{}
		}
	}
	n := 1
	for n < len(st.run) && st.run[n].at == st.run[n-1].at+1 {
		n++
	}
	out := sent{n: n}
	out.ticket, out.err = p.store.wire.publish(st.run[:n])
	return out
}

// confirm waits for the acknowledgement of what was sent. Anything but the expected sequence goes the slow and exact way.
func (p *publisher) confirm(ctx context.Context, st *stream) {
	f := st.sent
	cause := f.err
	if cause == nil {
		a := p.store.wire.await(f.ticket, st.fence())
		if a.err == nil && a.seq == st.run[f.n-1].at {
			p.arrived(st, f.n)
			return
		}
		if cause = a.err; cause == nil {
			cause = fmt.Errorf("%w: it answered with sequence %d, not %d", ErrUnavailable, a.seq, st.run[f.n-1].at)
		}
	}
	p.resolve(ctx, st, cause)
}

// arrived notes that the first n records of a stream's run are in it.
func (p *publisher) arrived(st *stream, n int) {
	if n == 0 {
		return
	}
	size := int64(0)
	for _, r := range st.run[:n] {
		size += r.size()
		r.passed()
	}
	st.reached(st.run[n-1].at)
	p.unsaved += size
	if st.run = st.run[n:]; len(st.run) == 0 {
		st.run = nil
	}
	st.setErr(nil)
}

// refused notes why a stream takes nothing.
func (p *publisher) refused(st *stream, err error) {
	st.setErr(err)
	p.hold(st)
}

// publish sends records that lie one behind the other.
func (w *wire) publish(run []pending) (ticket uint64, err error) {
	for i := range run {
		m, err := w.carrier.load(run[i].payload, run[i].at-1)
		if err != nil {
			return w.serial, err
		}
		if ticket, err = w.send(m, i == len(run)-1); err != nil {
			return ticket, err
		}
	}
	return ticket, nil
}
