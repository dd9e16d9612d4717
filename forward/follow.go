package forward

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/leaf"
	"github.com/holdfast-edge/holdfast/storage"
)

const (
	followInterval = 500 * time.Millisecond
	followClosely  = 100 * time.Millisecond // while records are held back
	proofFirst     = time.Second            // between reads of the hub's newest record, growing to proofLast while all is well
	proofBehind    = 2 * time.Second        // while older records wait
	proofLast      = 10 * time.Second
	proofRate      = 50               // bytes per second that reads may cost in the long run: each brings a whole record
	proofRarest    = 5 * time.Minute  // however large the records are
	stallAfter     = 30 * time.Second // without an acknowledgement while records wait
	unboundAfter   = 3 * time.Second  // and a round trip, without anybody at the hub who listens, before the hub stream is asked for
	fullAfter      = 3                // times that the hub did not store what it was sent, before its stream is taken for full
	strayAfter     = 6                // reads in a row of a hub stream that does not get what is acknowledged
	catchingUp     = 512              // more than this are not sent yet: older records, not what just came
)

// follower watches one consumer that the hub is attached to.
type follower struct {
	feed     *feed
	consumer jetstream.PushConsumer
	floor    jetstream.SequenceInfo // acknowledged by the hub
	moved    time.Time              // when the floor last did
	behind   bool                   // older records wait
	pace     *pace
	limit    int    // of records under way, as the consumer has it
	paused   bool   // the consumer is, for the rate's sake
	sent     uint64 // records, acknowledged or not
	acked    uint64 // records acknowledged, of which
	proven   uint64 // so many are proven

	proofs  chan proof // buffered 1: the result of the one read under way
	reading bool
	read    time.Time // last read began
	pause   time.Duration
	cost    time.Duration // what the size of the last one asks for
	doubts  int           // reads in a row that showed less than is proven
	deaf    bool          // the hub has more than it has acknowledged to us
	strays  int           // reads in a row of which the floor says more than the hub stream has, and the hub stream has not moved
	bound   time.Time     // when somebody at the hub was last seen to listen
}

// proof is what a read of the hub's newest record showed, with the floor at the time it was asked for.
type proof struct {
	newest newest
	err    error
	floor  storage.Position
	acked  uint64
}

// follow shows the progress of an attached consumer until the hub asks again or something is wrong.
func (f *feed) follow(ctx context.Context, c jetstream.PushConsumer, start storage.Position, p *pace) (*wish, error) {
	w := &follower{
		feed: f, consumer: c, moved: time.Now(), bound: time.Now(), pause: proofFirst, proofs: make(chan proof, 1), read: time.Now(), pace: p, limit: p.limit,
	}
	defer f.up.shares.leave(f.name)
	defer func() {
		if f.window = 0; w.acked > 0 {
			f.window = p.window
		}
	}()
	w.floor.Stream = uint64(start - 1)
	ctx, cancel := context.WithCancel(ctx)
	defer w.await()
	defer cancel()
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			w.last(ctx)
			return nil, ctx.Err()
		case wish := <-f.wishes:
			w.asksAgain(ctx)
			return &wish, nil
		case p := <-w.proofs:
			w.reading = false
			if err := w.judge(ctx, p); err != nil {
				return nil, err
			}
		case <-next.C:
			if err := w.look(ctx); err != nil {
				return nil, err
			}
			next.Reset(w.interval())
		}
	}
}

// interval is how long to wait for the next look.
func (w *follower) interval() time.Duration {
	if p := w.pace; p.held && (p.cycle >= slowCycle || p.window < p.most()) {
		return followClosely
	}
	return followInterval
}

// finalProof bounds the read with which a daemon that stops finds out how far the hub is.
const finalProof = time.Second

// last proves once more at an orderly stop. If another gateway of this name sends next, the hub's newest record says nothing about ours any
// more, and what is not proven by then would be sent again.
func (w *follower) last(ctx context.Context) {
	if w.reading { // it ends with ctx
		<-w.proofs
		w.reading = false
	}
	if w.feed.up.link.Link().State != leaf.LinkUp {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finalProof)
	defer cancel()
	newest, err := w.feed.read(ctx)
	if err != nil {
		return
	}
	// As in a handshake the newest record alone says where to go on: an acknowledgement under way will not be heard any more.
	_ = w.judge(ctx, proof{newest: newest, floor: newest.pos}) // nothing follows that could be refused
}

// await waits for the read under way.
func (w *follower) await() {
	if w.reading {
		<-w.proofs
	}
}

// look reads the consumer's state and shows it.
func (w *follower) look(ctx context.Context) error {
	info, err := w.consumer.Info(ctx)
	if errors.Is(err, jetstream.ErrConsumerNotFound) || errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("the local server was restarted: %w", err)
	}
	if err != nil {
		return nil // busy; or ctx has ended, which the caller sees
	}
	f, now := w.feed, time.Now()
	if info.AckFloor.Stream > w.floor.Stream {
		w.moved, f.refused = now, 0
	}
	if info.PushBound {
		w.bound = now
	}
	if info.AckFloor.Consumer < w.floor.Consumer {
		w.proven = 0 // the hub had it begin anew
	}
	w.floor, w.acked = info.AckFloor, info.AckFloor.Consumer
	under := info.NumPending + uint64(info.NumAckPending)
	if under == 0 || w.paused {
		w.moved = now
	}
	f.mu.Lock()
	f.progress.Rate = f.meter.update(w.acked, now)
	f.mu.Unlock()
	f.show(ctx, under+w.acked-min(w.proven, w.acked), under, uint64(info.NumAckPending))
	w.behind = info.NumPending > catchingUp || (w.behind && info.NumPending > 0)
	w.steer(ctx, now, info)
	switch {
	case f.refused >= fullAfter: // until something is acknowledged
	case w.strays >= strayAfter:
		f.enter(Refused, fmt.Sprintf("the hub acknowledges our records, and they are not in hub stream %s", f.hubStream),
			"let forward.hub_stream here and the fleet file name the same hub stream: holdfast hub plan shows which one takes this stream")
	case now.Sub(w.moved) >= stallAfter:
		w.stalled(now)
	case w.behind:
		f.enter(CatchingUp, "", "")
	default:
		f.enter(Live, "", "")
	}
	w.prove(ctx, now)
	return nil
}

// asksAgain takes note that the hub asks to attach anew. When that is because it could not store what it was sent, it asks from there on again, every other
// second (nats-server 2.15, processInboundSourceMsg).
func (w *follower) asksAgain(ctx context.Context) {
	f := w.feed
	info, err := w.consumer.Info(ctx)
	if err != nil || info.NumAckPending == 0 { // nothing had been sent that could have been stored
		return
	}
	if f.refused++; info.AckFloor.Stream > w.floor.Stream || w.acked > 0 {
		f.refused = 0
	}
	if f.refused < fullAfter {
		return
	}
	f.enter(Full, fmt.Sprintf("hub stream %s gets our records and does not store them: it is full, or takes none that large", f.hubStream),
		"make room there, or raise max_bytes of the hub stream in the fleet file, and then: holdfast hub apply; until then everything waits here")
}

// deserted is true when nobody at the hub has listened for a while.
func (w *follower) deserted(now time.Time) bool {
	return now.Sub(w.bound) >= unboundAfter+w.feed.up.shares.roundTrip()
}

// stalled says what is known of a consumer whose records are not acknowledged.
func (w *follower) stalled(now time.Time) {
	since := now.Sub(w.moved).Round(time.Second)
	if w.deaf {
		w.feed.enter(Stalled, fmt.Sprintf("stalled on flow control: the hub stores our records, and none of its acknowledgements has come for %v", since),
			"let this leaf's user subscribe to $JS.FC."+w.feed.up.opts.Leaf+".> at the hub, as holdfast hub plan lists it, and set js_ack_fc_v2 there")
		return
	}
	w.feed.enter(Stalled, fmt.Sprintf("the hub has acknowledged nothing for %v", since), "the link is dialled anew; if that does not help look into the hub's log")
}

// steer lets as many records be under way as the link can take.
func (w *follower) steer(ctx context.Context, now time.Time, info *jetstream.ConsumerInfo) {
	f := w.feed
	share := func(bytes float64) float64 { return f.up.shares.take(f.name, f.weight, bytes) }
	limit := w.pace.look(now, w.acked, info.NumAckPending, info.NumPending, f.up.shares.roundTrip(), share)
	if !w.pace.held {
		f.up.shares.leave(f.name)
	}
	sent := w.acked + uint64(info.NumAckPending)
	wait := f.up.rate.spend(now, float64(sent-min(w.sent, sent))*w.pace.size)
	w.sent = sent
	if limit == w.limit && wait == 0 && !w.paused {
		return
	}
	cfg := info.Config
	cfg.MaxAckPending, cfg.PauseUntil = limit, nil
	if wait > 0 {
		until := now.Add(wait)
		cfg.PauseUntil = &until
	}
	if _, err := f.up.js.UpdatePushConsumer(ctx, f.name, cfg); err != nil {
		f.up.log.Debug("window is not changed", "stream", f.name, "window", limit, "err", err)
		return // tried again at the next look
	}
	w.limit, w.paused = limit, wait > 0
}

// prove begins a read of the hub's newest record when progress calls for it. The floor alone is no proof: purging records that were
// never sent moves it, and so does the hub's right to reset a consumer.
func (w *follower) prove(ctx context.Context, now time.Time) {
	pause := w.pause
	if w.behind {
		pause = proofBehind
	}
	if w.cost > proofLast {
		pause = max(pause, w.cost)
	}
	proven, _ := w.feed.forwarded()
	stuck := now.Sub(w.moved) >= stallAfter/2 && now.Sub(w.read) >= proofLast
	if deserted := w.deserted(now) && now.Sub(w.read) >= max(unboundAfter, w.cost); !w.reading && (stuck || deserted) {
		w.ask(ctx, now)
		return
	}
	if w.reading || storage.Position(w.floor.Stream) <= proven || w.proven >= w.acked || now.Sub(w.read) < pause {
		return
	}
	w.ask(ctx, now)
}

// ask begins a read of the hub's newest record.
func (w *follower) ask(ctx context.Context, now time.Time) {
	w.reading, w.read = true, now
	p := proof{floor: storage.Position(w.floor.Stream), acked: w.acked}
	go func() {
		p.newest, p.err = w.feed.read(ctx)
		w.proofs <- p
	}()
}

// judge takes what a read of the hub's newest record showed.
func (w *follower) judge(ctx context.Context, p proof) error {
	f := w.feed
	var r *refusal
	if errors.As(p.err, &r) || errors.Is(p.err, errHubStream) && w.deserted(time.Now()) {
		return p.err
	}
	if p.err != nil {
		return nil // the link or the hub; it is tried again
	}
	if p.newest.found && !f.up.store.Knows(p.newest.id.Store) {
		return f.sameName(p.newest)
	}
	proven, _ := f.forwarded()
	if p.newest.pos < proven {
		if w.doubts++; w.doubts < lagReads {
			return nil
		}
		return fmt.Errorf("the hub is at %d and had acknowledged %d", p.newest.pos, proven)
	}
	w.doubts = 0
	w.deaf = p.newest.pos > storage.Position(w.floor.Stream) && time.Since(w.moved) >= stallAfter/2
	w.pause = min(proofLast, 2*w.pause)
	w.cost = min(proofRarest, time.Duration(p.newest.size)*time.Second/proofRate)
	if at := min(p.floor, p.newest.pos); at > proven {
		f.prove(at, p.newest.id.Store == f.up.store.ID())
	}
	all := p.newest.pos >= p.floor
	if !all { // the floor may have passed sequences without a record
		m, err := f.next(ctx, p.newest.pos+1)
		all = err == nil && (m == nil || storage.Position(m.Sequence) > p.floor)
	}
	if all {
		w.proven = max(w.proven, p.acked)
	}
	if w.strays++; all || p.newest.pos > proven {
		w.strays = 0
	}
	return nil
}
