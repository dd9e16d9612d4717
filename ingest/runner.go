package ingest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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
	lanes []*lane
}

// NewRunner returns a runner of these sources; nothing runs before Run.
func NewRunner(store Store, log *slog.Logger, entries ...Entry) *Runner {
	r := &Runner{store: store, log: log}
	for _, e := range entries {
		r.lanes = append(r.lanes, newLane(e, store, log.With("source", e.Source.Name())))
	}
	return r
}

// Run runs every source until ctx ends, then waits for them and returns nil. A source that returns or panics is restarted,
// after a pause that grows up to 30 s. Run fails at once, before starting anything, when two sources have one name. It can be
// called once only: sequence numbers belong to the runner.
func (r *Runner) Run(ctx context.Context) error {
	seen := map[string]bool{}
	for _, l := range r.lanes {
		if seen[l.name] {
			return fmt.Errorf("run sources: two are named %q: rename one", l.name)
		}
		seen[l.name] = true
	}
	var wg sync.WaitGroup
	for _, l := range r.lanes {
		wg.Go(func() { l.run(ctx) })
	}
	wg.Go(func() { r.report(ctx) })
	wg.Wait()
	r.passRejects()
	return nil
}

// Store stores readings in the stream of a source, beside what the source itself delivers, with numbers of the same row. It waits and
// fails as Deliver does: after an error the same readings come again, first and in the same order, or never. One goroutine at a
// time may call it for one source. It needs no Run.
func (r *Runner) Store(ctx context.Context, source string, batch ...Reading) error {
	for _, l := range r.lanes {
		if l.name == source {
			return l.deliverBy(ctx, &l.aside, batch)
		}
	}
	return fmt.Errorf("there is no source %q", source)
}

// Status says how every source is, in the order they were given.
func (r *Runner) Status() []Status {
	out := make([]Status, 0, len(r.lanes))
	for _, l := range r.lanes {
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
	for _, l := range r.lanes {
		l.passRejects()
	}
}
