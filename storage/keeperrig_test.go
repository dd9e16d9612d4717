package storage

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// keeperRig is a store in small around a keeper, its counters and a real server: every record is a commit of its own.
type keeperRig struct {
	t      testing.TB
	srv    *keepServer
	path   string // of the counters
	c      *counters
	k      *keeper
	limits map[string]limits

	epoch  uint64
	seq    map[string]uint64
	now    time.Time
	clock  ClockState // of the keeper and of new records
	proven map[string]Position
	free   int64
	calls  int   // to the streams by the keeper
	broken error // what purge returns instead of removing

	// What must hold, kept apart from counters and census.
	stored    map[string]uint64
	forwarded map[string]uint64 // removed after having been proven
	dropped   map[string]uint64 // removed without
}

func newKeeperRig(t testing.TB, streams map[string]limits) *keeperRig {
	r := &keeperRig{
		t: t, srv: startKeepServer(t, t.TempDir()), path: filepath.Join(t.TempDir(), "counters"), limits: streams,
		now: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC), clock: ClockSynced, free: math.MaxInt64, proven: map[string]Position{},
		stored: map[string]uint64{}, forwarded: map[string]uint64{}, dropped: map[string]uint64{},
	}
	for name := range streams {
		r.srv.stream(name, 1000)
	}
	r.start()
	return r
}

// start opens the counters and begins an epoch, as a start of the store does.
func (r *keeperRig) start() {
	r.t.Helper()
	r.epoch++
	r.seq = map[string]uint64{}
	c, _, err := openCounters(r.path, func() time.Time { return r.now })
	if err != nil {
		r.t.Fatal(err)
	}
	r.c, r.k = c, newKeeper(c, slog.New(slog.DiscardHandler))
	r.k.age = func(h heldRecord) (time.Duration, bool) {
		age := r.now.Sub(h.Stamp.Wall)
		return age, age >= 0 && r.clock == ClockSynced && h.Stamp.Clock == ClockSynced
	}
	r.k.now = func() time.Time { return r.now }
	r.k.free = func() (int64, uint64, error) { return r.free, math.MaxUint64, nil }
	r.k.forwarded = func(s string) (Position, bool) { return r.proven[s], r.proven[s] > 0 }
	r.k.appendGap = func(ctx context.Context, g GapRecord) error {
		body, err := g.Encode()
		if err != nil {
			return err
		}
		return r.store(g.Stream, GapSource, body)
	}
	for name, l := range r.limits {
		h, err := holdStream(testContext(r.t), r.srv.js, name)
		if err != nil {
			r.t.Fatal(err)
		}
		if l.KeepAll == 0 {
			l.KeepAll = forEver
		}
		r.k.keep(name, l, &watchedStream{heldStream: h, rig: r})
		rec, err := r.c.recover(testContext(r.t), name, h)
		if err != nil {
			r.t.Fatal(err)
		}
		for _, g := range rec.Lost {
			if err := r.k.appendGap(testContext(r.t), g); err != nil {
				r.t.Fatal(err)
			}
		}
	}
	if err := r.c.save(); err != nil {
		r.t.Fatal(err)
	}
	if err := r.k.refresh(testContext(r.t)); err != nil {
		r.t.Fatal(err)
	}
	for name := range r.limits {
		if err := r.store(name, EpochSource, []byte("{}")); err != nil {
			r.t.Fatal(err)
		}
	}
}

// message makes the message that store publishes.
func (r *keeperRig) message(stream, source string, data []byte) (*nats.Msg, entry) {
	r.seq[stream+"."+source]++
	id := ID{Leaf: "leaf", Store: "0123456789", Source: source, Epoch: r.epoch, Seq: r.seq[stream+"."+source]}
	m := nats.NewMsg(DataSubject("leaf", stream, source))
	m.Header.Set(HeaderID, id.String())
	m.Header.Set(HeaderTime, Stamp{Wall: r.now, Boot: time.Hour, Clock: r.clock}.String())
	m.Data = data
	return m, entry{Stream: stream, Source: source, Epoch: id.Epoch, Seq: id.Seq, Body: data}
}

// store publishes and commits one record, without asking the keeper.
func (r *keeperRig) store(stream, source string, data []byte) error {
	m, e := r.message(stream, source, data)
	ack, err := r.srv.js.PublishMsg(testContext(r.t), m)
	if err != nil {
		return err
	}
	e.Position = Position(ack.Sequence)
	if err := r.c.writeIfDue(); err != nil {
		return err
	}
	mark := r.c.mark()
	if err := r.c.committed(e); err != nil { // what a syncfs would do comes here
		return err
	}
	if source == GapSource || source == EpochSource {
		r.k.note(need{stream, 1, int64(storedSizeOf(len(m.Subject), 120, len(data)))})
	} else {
		r.stored[stream]++
	}
	return r.c.synced(mark)
}

// put captures n records of a size.
func (r *keeperRig) put(stream, source string, n, size int) error {
	for range n {
		subject := len(DataSubject("leaf", stream, source))
		want := need{stream, 1, int64(storedSizeOf(subject, 120, size))}
		if err := r.k.admit(testContext(r.t), want); err != nil {
			return err
		}
		err := r.store(stream, source, make([]byte, size))
		r.k.done(err == nil, want)
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *keeperRig) mustPut(stream, source string, n, size int) {
	r.t.Helper()
	if err := r.put(stream, source, n, size); err != nil {
		r.t.Fatalf("put into %s: %v", stream, err)
	}
}

// storedSizeOf is about what a record takes in the server's file store.
func storedSizeOf(subject, header, data int) int { return 34 + subject + header + data }

// contents reads a stream: the records it holds, and its gap records.
func (r *keeperRig) contents(stream string) (held []heldRecord, gaps []GapRecord) {
	r.t.Helper()
	h, err := holdStream(testContext(r.t), r.srv.js, stream)
	if err != nil {
		r.t.Fatal(err)
	}
	for at := Position(1); ; {
		rec, err := h.next(testContext(r.t), at)
		if errors.Is(err, errNoRecord) {
			return held, gaps
		}
		if err != nil {
			r.t.Fatal(err)
		}
		at = rec.Position + 1
		switch {
		case rec.ID.Source == GapSource:
			g, err := ParseGap(rec.Data)
			if err != nil {
				r.t.Fatal(err)
			}
			gaps = append(gaps, g)
		case rec.ID.Source != "" && !rec.own():
			held = append(held, rec)
		}
	}
}

// check compares the counters of all streams with what was really stored, removed and left.
func (r *keeperRig) check() {
	r.t.Helper()
	for name := range r.limits {
		held, _ := r.contents(name)
		var waiting uint64
		proven := r.forwarded[name]
		for _, h := range held {
			if h.Position > r.proven[name] {
				waiting++
			} else {
				proven++
			}
		}
		t := r.c.totals(name, r.proven[name])
		var dropped uint64
		for _, n := range t.Dropped {
			dropped += n
		}
		if t.Stored != r.stored[name] || t.Waiting != waiting || t.Forwarded != proven || dropped != r.dropped[name] {
			r.t.Fatalf("%s: counters say stored %d = forwarded %d + waiting %d + dropped %d, it is %d = %d + %d + %d; census %v, proven %d",
				name, t.Stored, t.Forwarded, t.Waiting, dropped, r.stored[name], proven, waiting, r.dropped[name], r.c.runs(name, 0, math.MaxUint64), r.proven[name])
		}
	}
}

// watchedStream counts calls, and notes at each removal what goes: forwarded, or dropped with a gap record that tells of it.
type watchedStream struct {
	heldStream
	rig *keeperRig
}

func (w *watchedStream) view(ctx context.Context) (streamView, error) {
	w.rig.calls++
	return w.heldStream.view(ctx)
}

func (w *watchedStream) next(ctx context.Context, from Position) (heldRecord, error) {
	w.rig.calls++
	return w.heldStream.next(ctx, from)
}

func (w *watchedStream) purge(ctx context.Context, below Position) error {
	w.rig.calls++
	if w.rig.broken != nil {
		return w.rig.broken
	}
	t := w.rig.t
	held, gaps := w.rig.contents(w.name)
	var dropped uint64
	for _, h := range held {
		switch {
		case h.Position >= below:
		case h.Position <= w.rig.proven[w.name]:
			w.rig.forwarded[w.name]++
		default:
			dropped++
			told := false
			for _, g := range gaps {
				told = told || (g.Reason.givesUp() && g.First <= h.Position && h.Position <= g.Last)
			}
			if !told {
				t.Errorf("%s: record %d is removed and no gap record tells of it", w.name, h.Position)
			}
		}
	}
	if dropped > 0 {
		if g := gaps[len(gaps)-1]; g.Count-g.Merged != dropped {
			t.Errorf("%s: %d records are removed, the gap record says %d: %+v", w.name, dropped, g.Count-g.Merged, g)
		}
	}
	w.rig.dropped[w.name] += dropped
	return w.heldStream.purge(ctx, below)
}
