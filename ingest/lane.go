package ingest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/holdfast-edge/holdfast/storage"
)

// How an append that the store does not take at present is tried again.
const (
	blockedMin = 100 * time.Millisecond // first pause
	blockedMax = 5 * time.Second        // longest pause
)

// ReasonInvalid is the reason under which readings count that the store can never take.
const ReasonInvalid = "invalid"

// lane is the way of one source into its stream.
type lane struct {
	source Source
	name   string
	stream string
	store  Store
	log    *slog.Logger
	halt   func() // stops it and waits; nil while it has not been started. Of Runner.start and Set

	onReject func(Reject) // never nil

	turn  chan struct{} // holds one token: whoever took it may append and owns the fields below
	seq   uint64        // sequence number of the last record that is stored
	own   way           // what the source delivers
	aside way           // what is stored beside it: the outcomes of its commands

	mu       sync.Mutex // guards the fields below
	stored   uint64
	invalid  uint64
	why      string // what was wrong with the last invalid reading
	pending  uint64
	last     time.Time
	blocked  State // Kind Blocked while the store takes nothing, else zero
	stop     State // why the source does not run; zero while it runs
	began    time.Time
	restarts uint64
	panics   uint64
	passed   uint64 // rejects of the source that the store has been told of
}

// way is one of the two callers that deliver into a lane. Each delivers again what failed, in its own time.
type way struct {
	doubt   []storage.Record // records of a batch that failed: they will be delivered again
	settled int              // how many of doubt are stored or refused; the others may be stored, and hold seq+1 and up
}

// end stops a lane that runs, and waits for it.
func (l *lane) end() {
	if l.halt != nil {
		l.halt()
		l.halt = nil
	}
}

// inherit takes over the numbers and counts of a lane that has ended, and what its command outcomes have in doubt. What its source had in doubt
// the new source may never deliver again: it is settled before anything of it is stored.
func (l *lane) inherit(from *lane) {
	<-from.turn // who holds it is done soon
	defer func() { from.turn <- struct{}{} }()
	l.seq, l.own, l.aside = from.seq, from.own, from.aside
	from.mu.Lock()
	defer from.mu.Unlock()
	l.stored, l.invalid, l.why, l.last = from.stored, from.invalid, from.why, from.last
	l.restarts, l.panics = from.restarts, from.panics
}

func newLane(e Entry, store Store, log *slog.Logger) *lane {
	l := &lane{source: e.Source, name: e.Source.Name(), stream: e.Stream, store: store, log: log, onReject: func(Reject) {}, turn: make(chan struct{}, 1)}
	l.turn <- struct{}{}
	return l
}

// deliver is the Deliver of the lane's source.
func (l *lane) deliver(ctx context.Context, batch ...Reading) error {
	return l.deliverBy(ctx, &l.own, batch)
}

func (l *lane) deliverBy(ctx context.Context, w *way, batch []Reading) error {
	if len(batch) == 0 {
		return nil
	}
	l.addPending(len(batch))
	defer l.addPending(-len(batch))
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-l.turn:
	}
	defer func() { l.turn <- struct{}{} }()

	recs := make([]storage.Record, len(batch))
	now := time.Now()
	for i, r := range batch {
		if r.Time.IsZero() {
			r.Time = now
		}
		recs[i] = storage.Record{Stream: l.stream, Source: l.name, Tail: r.Tail, Time: r.Time, Header: r.Header, Data: r.Data}
	}
	known, err := l.settle(ctx, w, recs)
	if err != nil {
		return err
	}
	recs, batch = recs[known:], batch[known:]
	tried, settled, err := l.append(ctx, recs, batch)
	if err != nil {
		w.keepDoubt(recs[:tried], settled)
	}
	return err
}

// settle stores the records in doubt and returns how many of recs it recognises among those of w. Records in doubt may be on flash
// already, so their numbers belong to them: nothing may follow before they are known to be stored. So one way at most has such
// records at a time.
func (l *lane) settle(ctx context.Context, w *way, recs []storage.Record) (known int, err error) {
	for _, open := range []*way{&l.own, &l.aside} {
		if open.settled < len(open.doubt) {
			_, n, err := l.append(ctx, open.doubt[open.settled:], nil)
			open.settled += n
			if err != nil {
				return 0, err
			}
		}
	}
	for known < len(recs) && known < len(w.doubt) && same(recs[known], w.doubt[known]) {
		known++
	}
	if known < len(recs) { // the caller went on to new readings
		w.doubt, w.settled = nil, 0
	} else {
		w.doubt, w.settled = w.doubt[known:], w.settled-known
	}
	return known, nil
}

// append gives the records their numbers and stores them; with readings it calls their notes first. It returns how many of
// recs it handed to the store, and how many of these are surely stored or refused.
func (l *lane) append(ctx context.Context, recs []storage.Record, batch []Reading) (tried, settled int, err error) {
	if len(recs) == 0 {
		return 0, 0, nil
	}
	n, err := l.try(ctx, recs, batch, l.seq+1)
	switch {
	case err == nil:
		l.count(recs)
		return n, n, nil
	case !errors.Is(err, storage.ErrInvalid):
		return n, 0, err
	case len(recs) == 1:
		l.refuse(recs[0], err)
		return 1, 1, nil
	}
	// One or more of the batch can never be stored. One by one, the good ones keep their order and the numbers have no hole.
	for i := range recs {
		one, asked := recs[i:i+1], recs[i].Seq
		var reading []Reading
		if batch != nil {
			reading = batch[i : i+1]
		}
		n, err := l.try(ctx, one, reading, l.seq+1)
		if errors.Is(err, storage.ErrInvalid) && asked != one[0].Seq {
			// The store may have taken it with the whole batch: then it knows it by the number of that, and takes no lower one.
			n, err = l.try(ctx, one, reading, asked)
		}
		switch {
		case err == nil:
			l.count(one)
		case errors.Is(err, storage.ErrInvalid):
			l.refuse(one[0], err)
		default:
			return i + n, i, err
		}
	}
	return len(recs), len(recs), nil
}

// try numbers recs from first on, calls their notes, and stores them. It returns how many it handed to the store: all, or none
// when a note failed.
func (l *lane) try(ctx context.Context, recs []storage.Record, batch []Reading, first uint64) (int, error) {
	for i := range recs {
		recs[i].Seq = first + uint64(i)
		if batch == nil || batch[i].Note == nil {
			continue
		}
		id := storage.ID{Leaf: l.store.Leaf(), Store: l.store.ID(), Source: l.name, Epoch: l.store.Epoch(), Seq: recs[i].Seq}
		mark, err := batch[i].Note(id)
		if err != nil {
			return 0, fmt.Errorf("note reading %s: %w", id, err)
		}
		recs[i].Mark = mark
	}
	return len(recs), l.persist(ctx, recs)
}

// persist appends recs with the same numbers until the store takes them, says never, is closed, or ctx ends.
func (l *lane) persist(ctx context.Context, recs []storage.Record) error {
	back := Backoff{Min: blockedMin, Max: blockedMax}
	defer l.unblock()
	for {
		err := l.store.Append(ctx, recs...)
		if err == nil || errors.Is(err, storage.ErrInvalid) || errors.Is(err, storage.ErrClosed) {
			return err
		}
		if ctx.Err() == nil {
			l.block(err)
			_ = Pause(ctx, back.Next()) // ctx is looked at next
		}
		if ctx.Err() != nil {
			return fmt.Errorf("store reading: %w (the store said: %v)", ctx.Err(), err)
		}
	}
}

// keepDoubt remembers the records of a batch that failed, the first of them settled, in copies of our own.
func (w *way) keepDoubt(recs []storage.Record, settled int) {
	w.doubt, w.settled = make([]storage.Record, len(recs)), settled
	for i, r := range recs {
		r.Data, r.Header = bytes.Clone(r.Data), maps.Clone(r.Header)
		w.doubt[i] = r
	}
}

// same says whether a record is one that was delivered before.
func same(a, b storage.Record) bool {
	return a.Time.Equal(b.Time) && a.Tail == b.Tail && bytes.Equal(a.Data, b.Data)
}
