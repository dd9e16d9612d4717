package ingest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-edge/holdfast/storage"
)

// Store is what the Runner needs of *storage.Store.
type Store interface {
	Append(ctx context.Context, recs ...storage.Record) error
	Reject(source string, n uint64)
	Leaf() string
	ID() storage.StoreID
	Epoch() uint64
}

// How a source whose Run returned is started again.
const (
	restartMin  = 500 * time.Millisecond // first pause
	restartMax  = 30 * time.Second       // longest pause
	restartGood = time.Minute            // a run of this length makes the next pause a short one
)

// reportInterval is how often the rejects of sources are passed on to the store.
const reportInterval = time.Second

// Entry is a source and the stream it delivers into.
type Entry struct {
	Source Source
	Stream string
}

// Runner runs sources and stores what they deliver.
type Runner struct {
	store Store
	log   *slog.Logger

	mu    sync.Mutex       // guards the fields below
	lanes []*lane          // in the order the sources were given
	gone  map[string]*lane // of sources that were taken away: their numbers go on if they come back
	run   context.Context  // of Run, nil before it
	wg    *sync.WaitGroup  // of Run
}

// NewRunner returns a runner of these sources; nothing runs before Run.
func NewRunner(store Store, log *slog.Logger, entries ...Entry) *Runner {
	r := &Runner{store: store, log: log, gone: map[string]*lane{}}
	for _, e := range entries {
		r.lanes = append(r.lanes, r.newLane(e))
	}
	return r
}

func (r *Runner) newLane(e Entry) *lane {
	l := newLane(e, r.store, r.log.With("source", e.Source.Name()))
	l.onReject = r.reject
	if s, ok := e.Source.(Rejecter); ok {
		s.OnReject(r.reject)
	}
	return l
}

// reject shows rejected bytes to the source that keeps them, if there is one and they are not its own.
func (r *Runner) reject(bytes Reject) {
	for _, l := range r.all() {
		if k, ok := l.source.(Keeper); ok && l.name != bytes.Source {
			k.Put(bytes)
		}
	}
}

// Run runs every source until ctx ends, then waits for them and returns nil. A source that returns or panics is restarted,
// after a pause that grows up to 30 s. Run fails at once, before starting anything, when two sources have one name. It can be
// called once only: sequence numbers belong to the runner.
func (r *Runner) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	r.mu.Lock()
	seen := map[string]bool{}
	for _, l := range r.lanes {
		if seen[l.name] {
			r.mu.Unlock()
			return fmt.Errorf("run sources: two are named %q: rename one", l.name)
		}
		seen[l.name] = true
	}
	r.run, r.wg = ctx, &wg
	for _, l := range r.lanes {
		r.start(l)
	}
	r.mu.Unlock()
	r.report(ctx)
	r.mu.Lock()
	r.run = nil // nothing is started any more
	r.mu.Unlock()
	wg.Wait()
	r.passRejects()
	return nil
}

// start runs a lane until Run's context ends or the lane is stopped. mu is held.
func (r *Runner) start(l *lane) {
	if r.run == nil || r.run.Err() != nil {
		return
	}
	ctx, cancel := context.WithCancel(r.run)
	done := make(chan struct{})
	l.halt = func() {
		cancel()
		<-done
	}
	r.wg.Go(func() {
		defer close(done)
		defer cancel()
		l.run(ctx)
	})
}

// Set changes the sources to these while they run. An entry whose Source is there already goes on undisturbed; another source of the same name
// takes over the numbers of the one before it, which is stopped first; one that is not among the entries is stopped. It returns when all
// that has to stop has stopped. One call at a time.
func (r *Runner) Set(entries ...Entry) {
	r.mu.Lock()
	have := map[string]*lane{}
	for _, l := range r.lanes {
		have[l.name] = l
	}
	r.mu.Unlock()
	lanes := make([]*lane, 0, len(entries))
	var fresh []*lane
	for _, e := range entries {
		name := e.Source.Name()
		l := have[name]
		delete(have, name)
		if l != nil && l.source == e.Source && l.stream == e.Stream {
			lanes = append(lanes, l)
			continue
		}
		next := r.newLane(e)
		if l == nil {
			l = r.gone[name]
		}
		if l != nil {
			l.end()
			l.passRejects()
			next.inherit(l)
		}
		lanes, fresh = append(lanes, next), append(fresh, next)
	}
	for name, l := range have {
		l.end()
		l.passRejects()
		r.gone[name] = l
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lanes = lanes
	for _, l := range fresh {
		r.start(l)
	}
}

// Newest returns the number of the newest record of a source that was stored since the start, 0 for none.
func (r *Runner) Newest(source string) uint64 {
	for _, l := range r.all() {
		if l.name == source {
			<-l.turn
			defer func() { l.turn <- struct{}{} }()
			return l.seq
		}
	}
	return 0
}

// all returns the lanes as they are now.
func (r *Runner) all() []*lane {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.lanes)
}

// Store stores readings in the stream of a source, beside what the source itself delivers, with numbers of the same row. It waits and
// fails as Deliver does: after an error the same readings come again, first and in the same order, or never. One goroutine at a
// time may call it for one source. It needs no Run.
func (r *Runner) Store(ctx context.Context, source string, batch ...Reading) error {
	for _, l := range r.all() {
		if l.name == source {
			return l.deliverBy(ctx, &l.aside, batch)
		}
	}
	return fmt.Errorf("there is no source %q", source)
}

// Status says how every source is, in the order they were given.
func (r *Runner) Status() []Status {
	lanes := r.all()
	out := make([]Status, 0, len(lanes))
	for _, l := range lanes {
		out = append(out, l.status())
	}
	return out
}

// run keeps the source of a lane running until ctx ends.
func (l *lane) run(ctx context.Context) {
	back := Backoff{Min: restartMin, Max: restartMax}
	for {
		began := time.Now()
		l.started()
		err := l.once(ctx)
		if ctx.Err() != nil {
			l.stopped(nil, 0)
			return
		}
		if err == nil {
			err = errors.New("it returned without an error")
		}
		if time.Since(began) >= restartGood {
			back.Reset()
		}
		wait := back.Next()
		if n := back.Fails(); n == 1 || n%10 == 0 {
			l.log.Error("source ended, will be restarted", "err", err, "fails", n, slog.Duration("in", wait))
		}
		l.stopped(err, wait)
		if Pause(ctx, wait) != nil {
			return
		}
	}
}

// once runs the source one time and turns a panic into an error.
func (l *lane) once(ctx context.Context) error {
	err := Guard(func() error { return l.source.Run(ctx, l.deliver) })
	var p *Panic
	if errors.As(err, &p) {
		l.panicked()
		l.log.Error("source panicked", "panic", fmt.Sprint(p.Value), "stack", string(p.Stack))
	}
	return err
}

// report passes the sources' own rejects on to the store until ctx ends.
func (r *Runner) report(ctx context.Context) {
	t := time.NewTicker(reportInterval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			r.passRejects()
		}
	}
}

func (r *Runner) passRejects() {
	for _, l := range r.all() {
		l.passRejects()
	}
}
