// Package forward gives captured streams to the hub whenever the link is up: every record once and in order, and it knows how far that has come.
package forward

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/forward/hub"
	"github.com/holdfast-edge/holdfast/leaf"
	"github.com/holdfast-edge/holdfast/storage"
)

// Store is what the uplink needs of the store: who it is, and what a handshake may call for.
type Store interface {
	ID() storage.StoreID
	Epoch() uint64
	Knows(id storage.StoreID) bool
	Known() []storage.StoreID // the others that Knows knows, in the order in which it came to know them
	Adopt(id storage.StoreID) error
	MarkOutrun(epoch uint64) error
	OutrunBy() uint64
	Leap(ctx context.Context, stream string, above, keep storage.Position) error
	Gap(ctx context.Context, g storage.GapRecord) error
	Verify(ctx context.Context, stream string, from storage.Position) error
	Streams() []storage.StreamState
	Sync() error // puts on flash what the streams have
}

// Link is the connection to the hub.
type Link interface {
	Link() leaf.Link
	Changed() <-chan struct{}
	Redial() error
	Enable(on bool) error
	Traffic() leaf.Traffic
	Greet(ctx context.Context) (leaf.Greeting, error)
}

var (
	_ Store = (*storage.Store)(nil)
	_ Link  = (*leaf.Server)(nil)
)

const (
	linkInterval   = time.Second            // how often the link is looked at without a sign of change
	observeEvery   = 2 * time.Second        // how often what waits is counted while nothing flows
	cleanupTimeout = 3 * time.Second        // for deleting consumers when a session ends
	quietLink      = 10 * time.Second       // no redial in so long after link-up
	redialFirst    = time.Minute            // between redials; doubled each time
	redialLast     = 10 * time.Minute       // at most
	handshakeRetry = 100 * time.Millisecond // grows to handshakeLast
	handshakeLast  = 3 * time.Second
	conflictRetry  = 10 * time.Second
	missingRetry   = 2 * time.Second
	refusedRetry   = 20 * time.Second
)

// Uplink forwards the streams of one leaf. Safe for concurrent use; Run runs once at a time.
type Uplink struct {
	opts   Options
	store  Store
	link   Link
	log    *slog.Logger
	memory *memory
	shares *shares
	rate   throttle
	demand *demand // nil: the link is always wanted
	feeds  []*feed // sorted by stream name; immutable
	idle   []Progress
	downs  []*downlink // what is taken from the hub; immutable

	downMu sync.Mutex // guards the file of the downlinks

	nc *nats.Conn          // set by Run
	js jetstream.JetStream // set by Run

	unanswered atomic.Pointer[time.Time] // when the first question was asked that the hub has not answered on this link, nor any since

	verified atomic.Bool // the hub's version has been found good on this link, or an earlier one
}

// New prepares the uplink of a store over a link. It reads the progress that an earlier run saved.
func New(o Options, store Store, link Link) *Uplink {
	if o.Domain == "" {
		o.Domain = hub.Domain
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	u := &Uplink{opts: o, store: store, link: link, log: o.Log, shares: newShares(), rate: throttle{rate: float64(o.Rate)}}
	if o.Demand != nil {
		u.demand = &demand{cfg: *o.Demand}
	}
	var err error
	if u.memory, err = openMemory(o.Dir, store.ID()); err != nil {
		u.log.Warn("saved progress is lost; the hub will tell", "err", err)
	}
	for _, name := range slices.Sorted(maps.Keys(o.Streams)) {
		cfg := o.Streams[name]
		if cfg.Mode == ModeNone {
			u.idle = append(u.idle, Progress{Stream: name, State: Off})
			continue
		}
		u.feeds = append(u.feeds, newFeed(u, name, cfg))
	}
	for stream, wanted := range map[string]bool{hub.Commands: o.Commands, hub.Documents: o.Documents} {
		if wanted {
			u.downs = append(u.downs, &downlink{up: u, stream: stream, state: Downlink{Stream: stream}})
		}
	}
	slices.SortFunc(u.downs, func(a, b *downlink) int { return strings.Compare(a.stream, b.stream) })
	return u
}

// Forwarded returns how far the hub has proven to hold a stream: everything up to that position is on a quorum of its servers. False
// means unknown. It is safe to call before Run.
func (u *Uplink) Forwarded(stream string) (storage.Position, bool) {
	for _, f := range u.feeds {
		if f.name == stream {
			return f.forwarded()
		}
	}
	return 0, false
}

// Progress returns where each stream stands, sorted by its name.
func (u *Uplink) Progress() []Progress {
	all := slices.Clone(u.idle)
	for _, f := range u.feeds {
		all = append(all, f.snapshot())
	}
	slices.SortFunc(all, func(a, b Progress) int { return strings.Compare(a.Stream, b.Stream) })
	return all
}

// Run forwards until ctx ends, whatever happens to the link and the hub. nc is a connection of the daemon's own in the account of the
// captured streams, whose inboxes the hub lets through. It returns nil when ctx has ended, and an error only when it could not begin.
func (u *Uplink) Run(ctx context.Context, nc *nats.Conn) error {
	js, err := jetstream.New(nc)
	if err != nil {
		return fmt.Errorf("run uplink: %w", err)
	}
	u.nc, u.js = nc, js
	for _, f := range u.feeds {
		sub, err := nc.Subscribe("$JS.API.CONSUMER.RESET."+f.name+"."+f.consumer, f.hear)
		if err != nil {
			return fmt.Errorf("run uplink: listen for the hub: %w", err)
		}
		defer func() { _ = sub.Unsubscribe() }() // fails only when the connection is closed
	}
	if err := nc.FlushTimeout(hubTimeout); err != nil {
		return fmt.Errorf("run uplink: listen for the hub: %w", err)
	}
	defer func() {
		if err := u.memory.save(true); err != nil {
			u.log.Warn("progress is not saved", "err", err)
		}
	}()
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, d := range u.downs {
		wg.Go(func() { d.run(ctx) })
	}
	var r redialer
	for ctx.Err() == nil {
		l := u.link.Link()
		if l.State != leaf.LinkUp {
			u.waitOffline(ctx, l)
			continue
		}
		u.session(ctx, l, &r)
	}
	return nil
}

// waitOffline shows why there is no link, counts what waits, and returns on a change of the link or after a while.
func (u *Uplink) waitOffline(ctx context.Context, l leaf.Link) {
	state := Down
	switch l.State {
	case leaf.LinkOff:
		state = Off
	case leaf.LinkConnecting:
		state = Connecting
	case leaf.LinkRefused:
		state = Refused
	}
	if l.Reason == leaf.ReasonDuplicate {
		state = SameName
	}
	if u.demand != nil && l.State == leaf.LinkOff {
		state, l.Cause = Down, demandCause
		if records, bytes := u.backlog(); u.demand.open(time.Now(), records, bytes) {
			u.log.Info("opening the link", "pending", records)
			u.enable(true)
		}
	}
	for _, f := range u.feeds {
		f.enter(state, l.Cause, l.Remedy)
		if f.due(observeEvery) {
			f.observe(ctx)
		}
	}
	u.save()
	select {
	case <-ctx.Done():
	case <-u.link.Changed():
	case <-time.After(linkInterval):
	}
}

func (u *Uplink) enable(on bool) {
	if err := u.link.Enable(on); err != nil {
		u.log.Warn("the link is not switched", "on", on, "err", err)
	}
}

func (u *Uplink) save() {
	u.memory.carry(time.Now(), u.link.Traffic())
	if err := u.memory.save(false); err != nil {
		u.log.Warn("progress is not saved", "err", err)
	}
}

// session serves all streams while one connection to the hub lasts.
func (u *Uplink) session(ctx context.Context, up leaf.Link, r *redialer) {
	ctx, cancel := context.WithCancel(ctx)
	u.shares.begin()
	u.unanswered.Store(nil)
	var wg sync.WaitGroup
	for _, f := range u.feeds {
		wg.Go(func() { f.session(ctx) })
	}
	defer wg.Wait()
	defer cancel()
	tick := time.NewTicker(linkInterval)
	defer tick.Stop()
	began := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-u.link.Changed():
		case <-tick.C:
		}
		l := u.link.Link()
		if l.State != leaf.LinkUp || !l.Since.Equal(up.Since) {
			return
		}
		u.save()
		u.shares.trip(l.RTT)
		if u.demand != nil && u.demand.done(time.Now(), u.quiet()) {
			u.log.Info("closing the link, nothing waits", "dur", time.Since(began).Round(time.Second))
			u.enable(false)
			return
		}
		if stuck := u.stuck(); r.wants(stuck != "", began, time.Now()) {
			u.log.Warn("nothing moves although records wait, dialling anew", "stream", stuck, "hub", l.Remote, "dur", time.Since(began).Round(time.Second))
			if err := u.link.Redial(); err != nil {
				u.log.Warn("redial", "err", err)
			}
			return
		}
	}
}

// stuck returns the name of a stream that is stalled, or "".
func (u *Uplink) stuck() string {
	for _, f := range u.feeds {
		if f.snapshot().State == Stalled {
			return f.name
		}
	}
	return ""
}

// redialer decides when a stalled link is dialled anew: not soon after link-up, and ever more rarely while it does not help.
type redialer struct {
	last  time.Time
	pause time.Duration
}

func (r *redialer) wants(stuck bool, began, now time.Time) bool {
	if !stuck {
		if now.Sub(r.last) > redialLast {
			r.pause = 0
		}
		return false
	}
	if now.Sub(began) < quietLink || now.Sub(r.last) < r.pause {
		return false
	}
	r.last, r.pause = now, min(redialLast, max(redialFirst, 2*r.pause))
	return true
}

// refusal is why a stream cannot be forwarded just now, as its Progress tells it.
type refusal struct {
	state         State
	cause, remedy string
	retry         time.Duration
}

// Error returns the cause.
func (r *refusal) Error() string { return r.cause }

// asRefusal returns what an error means for a stream. Any but a refusal is taken to pass by itself.
func asRefusal(err error) *refusal {
	var r *refusal
	if errors.As(err, &r) {
		return r
	}
	return &refusal{state: Handshake, cause: err.Error(), retry: handshakeRetry}
}
