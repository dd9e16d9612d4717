package forward

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/forward/hub"
	"github.com/holdfast-edge/holdfast/storage"
)

// feed is one stream on its way to the hub.
type feed struct {
	up        *Uplink
	name      string
	hubStream string
	mirror    bool
	weight    float64 // of its lane
	filter    string  // of our records
	system    string  // what subjects of the store's own records begin with
	consumer  string  // name by which the hub asks for a consumer; the consumers themselves have longer ones
	deliver   string
	wishes    chan wish   // buffered 1, never closed: the newest one is kept
	moving    atomic.Bool // the store moves the stream's records: they cannot be counted, and the hub is not to ask

	window   int              // records under way at the end of the last connection, 0 if it carried none; used by one goroutine
	counting storage.Position // where the counting consumer begins, 0: there may be none; used by one goroutine
	own      bool             // the hub has proven, in this run or an earlier one, to hold a record of this very store; used by one goroutine
	refused  int              // times in a row that the hub was sent records and asked for the first of them again; used by one goroutine
	owner    atomic.Int32     // whose records the hub had at the first handshake: an owner
	silent   atomic.Bool      // the hub stream did not answer when it was last read

	mu       sync.Mutex // guards the fields below
	progress Progress
	known    bool // progress.Proven is known
	observed time.Time
	oldestOf storage.Position // what progress.Oldest was read for
	sought   time.Time        // when
	meter    meter
}

// wish is the hub's request to attach to a consumer of this stream. The hub waits 5 s for an answer (nats-server 2.15,
// srcDurableConsumerWaitTime) and asks again.
type wish struct {
	msg *nats.Msg
	at  time.Time
}

// patience is how long a wish can be granted, the round trip included.
const patience = 4500 * time.Millisecond

func newFeed(u *Uplink, name string, cfg Config) *feed {
	f := &feed{
		up: u, name: name, hubStream: cfg.HubStream, mirror: cfg.Mode == ModeMirror, weight: cfg.weight(),
		filter: hub.Filter(u.opts.Leaf, name), system: storage.DataSubject(u.opts.Leaf, name, "_"), consumer: hub.Consumer(u.opts.Leaf, name), deliver: hub.DeliverSubject(u.opts.Leaf, name),
		wishes: make(chan wish, 1),
	}
	if f.hubStream == "" && f.mirror {
		f.hubStream = hub.MirrorName(u.opts.Leaf, name)
	} else if f.hubStream == "" {
		f.hubStream = name
	}
	f.progress = Progress{Stream: name, HubStream: f.hubStream, State: Unknown, Since: time.Now()}
	if r, ok := u.memory.of(name, f.hubStream); ok {
		f.own, f.known = true, true
		f.progress.Proven, f.progress.ProvenAt = r.Proven, r.At
	}
	return f
}

// hear takes the hub's request to attach.
func (f *feed) hear(m *nats.Msg) {
	if m.Reply == "" {
		return
	}
	for {
		select {
		case f.wishes <- wish{m, time.Now()}:
			return
		default:
		}
		select {
		case <-f.wishes: // an older one
		default:
		}
	}
}

// session serves the stream while one connection to the hub lasts. The hub attaches only by way of a wish, and a wish is granted only
// after a handshake, by a consumer that is new and has a name of its own: so nothing that the hub remembers of an older consumer, or
// still has in its queues from one, can be taken for the new one's.
func (f *feed) session(ctx context.Context) {
	f.enter(Handshake, "", "")
	f.refused = 0
	f.silent.Store(false)
	var w *wish
	pause := handshakeRetry
	for ctx.Err() == nil {
		start, next, err := f.approach(ctx, w)
		w = next
		if err == nil && time.Since(w.at) > patience-f.up.shares.roundTrip() {
			w = nil
			continue
		}
		if err == nil {
			w, err = f.serve(ctx, start, w)
		}
		if err == nil {
			pause = handshakeRetry
			continue
		}
		w = nil
		if ctx.Err() != nil {
			return
		}
		pause = f.fail(ctx, asRefusal(err), pause)
	}
}

// approach shakes hands, and meanwhile has the hub ask to attach unless it has asked already: a round trip saved. It returns where the consumer is to
// begin, and the hub's wish.
func (f *feed) approach(ctx context.Context, w *wish) (storage.Position, *wish, error) {
	if w != nil {
		start, err := f.shake(ctx)
		return start, w, err
	}
	asking, stop := context.WithCancel(ctx)
	defer stop()
	type answer struct {
		w   *wish
		err error
	}
	asked := make(chan answer, 1)
	go func() {
		w, err := f.awaitWish(asking)
		asked <- answer{w, err}
	}()
	began := time.Now()
	start, err := f.shake(ctx)
	if err != nil {
		stop()
		<-asked
		return 0, nil, err
	}
	a := <-asked
	if a.err != nil {
		return 0, nil, a.err
	}
	if time.Since(began) > handshakeFresh+2*f.up.shares.roundTrip() {
		start, err = f.shake(ctx)
	}
	return start, a.w, err
}

// handshakeFresh is how long what a handshake showed is good for, round trips aside.
const handshakeFresh = time.Second

// fail shows why the stream is not forwarded and waits before the next attempt. It returns the pause to make next time.
func (f *feed) fail(ctx context.Context, r *refusal, pause time.Duration) time.Duration {
	f.enter(r.state, r.cause, r.remedy)
	f.observe(ctx)
	wait := max(r.retry, pause)
	select {
	case <-ctx.Done():
	case <-time.After(wait):
	}
	return min(handshakeLast, 2*pause)
}

// enter shows a state. A change of it is logged, once.
func (f *feed) enter(s State, cause, remedy string) {
	f.mu.Lock()
	before := f.progress
	f.progress.State, f.progress.Cause, f.progress.Remedy = s, cause, remedy
	if before.State != s {
		f.progress.Since = time.Now()
		if s != Live && s != CatchingUp && s != Stalled {
			f.progress.Rate, f.progress.ETA, f.meter = 0, 0, meter{}
		}
	}
	f.mu.Unlock()
	if before.State == s && before.Cause == cause {
		return
	}
	attrs := []any{"stream", f.name, "state", s.String(), "before", before.State.String(), "dur", time.Since(before.Since).Round(time.Millisecond)}
	if cause != "" {
		attrs = append(attrs, "cause", cause)
	}
	switch {
	case remedy != "" && s >= Stalled:
		f.up.log.Warn("forwarding state", append(attrs, "remedy", remedy)...)
	case before.State != s:
		f.up.log.Info("forwarding state", attrs...)
	default:
		f.up.log.Debug("forwarding state", attrs...)
	}
}

func (f *feed) snapshot() Progress {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.progress
}

func (f *feed) forwarded() (storage.Position, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.progress.Proven, f.known
}

// Received notes what somebody who was at the hub says: it holds everything of a stream up to a position. A hub stream that the stream does not go to
// is passed over, and so is less than what is known. The next handshake has the last word.
func (u *Uplink) Received(stream, hubStream string, p storage.Position) {
	for _, f := range u.feeds {
		if known, _ := f.forwarded(); f.name != stream || f.hubStream != hubStream || p <= known {
			continue
		}
		now := time.Now()
		f.mu.Lock()
		f.progress.Proven, f.progress.ProvenAt, f.known = p, now, true
		f.mu.Unlock()
		u.memory.set(f.name, remembered{HubStream: f.hubStream, Proven: p, At: now})
	}
}

// prove notes that the hub holds everything up to a position. own is true when it has a record of this very store.
func (f *feed) prove(p storage.Position, own bool) {
	now := time.Now()
	f.mu.Lock()
	f.progress.Proven, f.progress.ProvenAt, f.known = p, now, true
	f.mu.Unlock()
	if own {
		f.own = true
		f.up.memory.set(f.name, remembered{HubStream: f.hubStream, Proven: p, At: now})
	}
}

// due is true when the last observation is older than d.
func (f *feed) due(d time.Duration) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return time.Since(f.observed) >= d
}

// observe counts what waits while no consumer of the hub's tells: by a consumer of its own that is never asked for a record.
func (f *feed) observe(ctx context.Context) {
	if f.moving.Load() {
		return // what was counted before still holds
	}
	proven, _ := f.forwarded()
	name := f.consumer + "_count"
	if f.counting != proven+1 {
		_ = f.up.js.DeleteConsumer(ctx, f.name, name) // its start cannot be changed; it may not be there
		f.counting = 0
	}
	c, err := f.up.js.CreateOrUpdateConsumer(ctx, f.name, jetstream.ConsumerConfig{
		Name: name, FilterSubjects: []string{f.filter}, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: uint64(proven + 1),
		AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, InactiveThreshold: time.Hour,
	})
	if err != nil {
		f.counting = 0
		return // the local server is being restarted, or ctx has ended
	}
	f.counting = proven + 1
	f.show(ctx, c.CachedInfo().NumPending, c.CachedInfo().NumPending, 0)
}

// show notes how many records wait, how many of them are pending and of these on the way, and looks up how old the oldest of them is.
func (f *feed) show(ctx context.Context, waiting, pending, sent uint64) {
	f.mu.Lock()
	f.observed = time.Now()
	f.progress.Waiting, f.progress.Pending, f.progress.Sent = waiting, min(pending, waiting), min(sent, pending, waiting)
	f.progress.ETA = eta(waiting, f.progress.Rate)
	proven := f.progress.Proven
	known := f.oldestOf == proven && !f.progress.Oldest.IsZero() && time.Since(f.sought) < oldestEvery
	if waiting == 0 {
		f.progress.Oldest = time.Time{}
		known = true
	}
	f.mu.Unlock()
	if known {
		return
	}
	oldest, err := f.oldest(ctx, proven+1)
	if err != nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.progress.Proven == proven && f.progress.Waiting > 0 {
		f.progress.Oldest, f.oldestOf, f.sought = oldest, proven, time.Now()
	}
}

const (
	oldestEvery = 10 * time.Second // between looks at the oldest record while the hub's position stays: a limit may have removed it
	oldestTries = 256              // records of the store's own that are passed over to find one that was captured
)

// oldest returns when the first captured record at or above a position was captured, by the clock of then; zero if there is none, or none near. Epoch, clock
// and gap records are none.
func (f *feed) oldest(ctx context.Context, from storage.Position) (time.Time, error) {
	for range oldestTries {
		m, err := f.next(ctx, from)
		if err != nil || m == nil {
			return time.Time{}, err
		}
		if strings.HasPrefix(m.Subject, f.system) {
			from = storage.Position(m.Sequence) + 1
			continue
		}
		if s, err := storage.ParseStamp(m.Header.Get(storage.HeaderTime)); err == nil {
			return s.Wall, nil
		}
		return m.Time, nil
	}
	return time.Time{}, nil
}

// next returns the first of our records at or above a position, nil if there is none.
func (f *feed) next(ctx context.Context, from storage.Position) (*jetstream.RawStreamMsg, error) {
	js, err := f.stream(ctx)
	if err != nil {
		return nil, err
	}
	m, err := js.GetMsg(ctx, uint64(max(from, 1)), jetstream.WithGetMsgSubject(f.filter))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read stream %s at %d: %w", f.name, from, err)
	}
	return m, nil
}

// stream returns the local stream with fresh information.
func (f *feed) stream(ctx context.Context) (jetstream.Stream, error) {
	js, err := f.up.js.Stream(ctx, f.name)
	if err != nil {
		return nil, fmt.Errorf("read stream %s: %w", f.name, err)
	}
	return js, nil
}
