package storage

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// TestNoAcknowledgementBeforeItsSync holds every sync back and looks that Append does so too, and that the sync which answers a call began after all
// of its records had been stored.
func TestNoAcknowledgementBeforeItsSync(t *testing.T) {
	b := newBed(t)
	s := b.start()
	began := make(chan Position, 16)
	let := make(chan struct{})
	setSync(s, func(fd int) error {
		began <- Position(s.byName["A"].published.Load())
		<-let
		return nil
	})
	done := make(chan error, 1)
	go func() { done <- s.Append(context.Background(), b.record("a1", 1), b.record("a1", 2)) }()
	at := <-began
	recs := b.captured("A")
	if len(recs) != 2 || at < recs[1].Position {
		t.Fatalf("the sync began at %d, records are %v", at, recs)
	}
	// A second call is published while the first one's sync goes on, and needs another sync.
	second := make(chan error, 1)
	go func() { second <- s.Append(context.Background(), b.record("a2", 1)) }()
	poll(t, "the second call is published", func() bool { return b.last("A") > recs[1].Position })
	select {
	case err := <-done:
		t.Fatalf("acknowledged before its sync ended: %v", err)
	case err := <-second:
		t.Fatalf("the second call was acknowledged before the sync ended: %v", err)
	default:
	}
	let <- struct{}{}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-second:
		t.Fatalf("the second call was acknowledged by a sync that began before it was stored: %v", err)
	case <-began:
	}
	close(let)
	if err := <-second; err != nil {
		t.Fatal(err)
	}
}

// TestSyncErrorIsFinal fails one sync; the next would succeed, with the data gone.
func TestSyncErrorIsFinal(t *testing.T) {
	b := newBed(t)
	s := b.start()
	b.add("a1", 1, 1)
	began := make(chan struct{}, 16)
	let := make(chan struct{})
	fails := errors.New("input/output error")
	calls := 0
	setSync(s, func(fd int) error {
		began <- struct{}{}
		<-let
		if calls++; calls == 1 {
			return fails
		}
		return nil
	})
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { first <- s.Append(context.Background(), b.record("a1", 2)) }()
	<-began
	before := b.last("A")
	go func() { second <- s.Append(context.Background(), b.record("a2", 1)) }()
	poll(t, "the second call is published", func() bool { return b.last("A") > before })
	close(let)
	for i, ch := range []chan error{first, second} {
		if err := <-ch; !errors.Is(err, ErrFailing) || !errors.Is(err, fails) {
			t.Errorf("call %d: %v, want ErrFailing and its cause", i+1, err)
		}
	}
	if err := s.Append(b.ctx(), b.record("a1", 3)); !errors.Is(err, ErrFailing) {
		t.Errorf("a later call: %v, want ErrFailing", err)
	}
	if st := s.Streams()[0]; !errors.Is(st.Err, ErrFailing) {
		t.Errorf("Streams: Err = %v, want ErrFailing", st.Err)
	}
	if err := s.Probe(b.ctx()); !errors.Is(err, ErrFailing) {
		t.Errorf("Probe: %v, want ErrFailing", err)
	}
	last := b.last("A")
	b.crash()
	// The page cache of the same kernel is not to be trusted any more.
	b.start()
	if now := b.read("A"); now[len(now)-1].Position <= last+reserveChunk/2 {
		t.Errorf("after a failed sync the next start went on at %d, behind %d", now[len(now)-1].Position, last)
	}
}

func TestRetryIsNotStoredTwice(t *testing.T) {
	b := newBed(t)
	s := b.start()
	b.add("a1", 1, 3)
	b.add("a1", 1, 3)
	b.add("a1", 2, 4)
	// A caller that gave up while its records were on their way.
	let := make(chan struct{})
	began := make(chan struct{}, 16)
	setSync(s, func(fd int) error { began <- struct{}{}; <-let; return nil })
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Append(ctx, b.record("a1", 5)) }()
	<-began
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Fatalf("Append: %v, want canceled", err)
	}
	close(let)
	b.add("a1", 5, 6)
	b.expect("A", "a1 1", "a1 2", "a1 3", "a1 4", "a1 5", "a1 6")
	st := s.Streams()[0]
	if st.Stored != 6 || st.Waiting != 6 {
		t.Errorf("counted %+v, want 6 stored and waiting", st.StreamCounters)
	}
}

// TestUnknownOutcome takes the acknowledgements away, so that nobody knows what was stored, and gives them back.
func TestUnknownOutcome(t *testing.T) {
	b := newBed(t)
	s := b.start()
	b.add("a1", 1, 2)
	s.committer.gate <- struct{}{}
	w := s.wire
	w.patience, w.limit = 20*time.Millisecond, 50*time.Millisecond
	if err := w.sub.Unsubscribe(); err != nil {
		t.Fatal(err)
	}
	<-s.committer.gate
	err := s.Append(b.ctx(), b.record("a1", 3), b.record("a1", 4))
	if !errors.Is(err, ErrUnavailable) {
		t.Fatalf("Append without acknowledgements: %v, want ErrUnavailable", err)
	}
	if b.restarts != 1 {
		t.Errorf("JetStream was restarted %d times, want once", b.restarts)
	}
	if st := s.Streams()[0]; !errors.Is(st.Err, ErrUnavailable) {
		t.Errorf("Streams: Err = %v, want ErrUnavailable", st.Err)
	}
	poll(t, "the records are stored", func() bool { return len(b.captured("A")) == 4 })
	s.committer.gate <- struct{}{}
	w.limit = ackLimit
	if w.sub, err = w.nc.ChanSubscribe(w.inbox+"*", w.acks); err != nil {
		t.Fatal(err)
	}
	<-s.committer.gate
	b.add("a1", 3, 5)
	b.expect("A", "a1 1", "a1 2", "a1 3", "a1 4", "a1 5")
	if st := s.Streams()[0]; st.Err != nil || st.Stored != 5 {
		t.Errorf("Streams: %+v, want 5 stored and no error", st)
	}
}

// TestRefusedInTheMiddle lets the server refuse one record of a group whose form the store thinks good. Neither the records of other callers nor the
// order of its own source may suffer.
func TestRefusedInTheMiddle(t *testing.T) {
	b := newBed(t)
	s := b.start()
	b.alter("A", func(c *jetstream.StreamConfig) { c.MaxMsgSize = 400 })
	big := b.record("a1", 2)
	big.Data = make([]byte, 1000)
	group := []*call{
		b.call(b.record("a1", 1), big),
		b.call(b.record("a2", 1)),
		b.call(b.record("a1", 3)),
		b.call(b.record("b1", 1)),
	}
	errs := b.group(group)
	var invalid *InvalidError
	if !errors.As(errs[0], &invalid) || invalid.Index != 1 || invalid.Source != "a1" || invalid.Seq != 2 {
		t.Errorf("the call with the large record: %v, want an InvalidError for record 2 of a1", errs[0])
	}
	for i, err := range errs[1:] {
		if err != nil {
			t.Errorf("call %d: %v", i+2, err)
		}
	}
	b.expect("A", "a1 1", "a2 1", "a1 3")
	b.expect("B", "b1 1")
	// The refused one cannot come behind its successors, whatever the server says now.
	b.alter("A", func(c *jetstream.StreamConfig) { c.MaxMsgSize = -1 })
	if err := s.Append(b.ctx(), big); !errors.Is(err, ErrInvalid) {
		t.Errorf("the refused record again: %v, want ErrInvalid", err)
	}
	b.add("a1", 1, 1)
	b.add("a1", 3, 4)
	b.expect("A", "a1 1", "a2 1", "a1 3", "a1 4")
	if st := s.Streams()[0]; st.Stored != 4 {
		t.Errorf("%d counted as stored, want 4", st.Stored)
	}
}

// TestFullInTheMiddle lets the server's backstop refuse the end of a group, then gives room.
func TestFullInTheMiddle(t *testing.T) {
	b := newBed(t)
	s := b.start()
	b.alter("A", func(c *jetstream.StreamConfig) { c.MaxMsgs = 4 }) // one is the epoch record
	errs := b.group([]*call{
		b.call(b.record("a1", 1), b.record("a1", 2)),
		b.call(b.record("a2", 1), b.record("a2", 2)),
		b.call(b.record("b1", 1)),
	})
	if errs[0] != nil || !errors.Is(errs[1], ErrFull) || errs[2] != nil {
		t.Fatalf("errors %v, want only the second call to be full", errs)
	}
	if st := s.Streams()[0]; !st.Full || !errors.Is(st.Err, ErrFull) {
		t.Errorf("Streams: %+v, want full", st)
	}
	b.alter("A", func(c *jetstream.StreamConfig) { c.MaxMsgs = -1 })
	b.add("a2", 1, 3)
	b.expect("A", "a1 1", "a1 2", "a2 1", "a2 2", "a2 3")
	if st := s.Streams()[0]; st.Full || st.Err != nil || st.Stored != 5 {
		t.Errorf("Streams: %+v, want room and 5 stored", st)
	}
}

// TestFullBetweenFlights refuses a large record in the first of two runs of one call, while there is room for the small ones of the second.
func TestFullBetweenFlights(t *testing.T) {
	b := newBed(t)
	s := b.start()
	recs := make([]Record, maxGroupRecords+100)
	for i := range recs {
		recs[i] = b.record("a1", uint64(i+1))
	}
	recs[maxGroupRecords-10].Data = make([]byte, 60_000)
	room := int64(30_000)
	for _, it := range b.call(recs...).items {
		if room += int64(it.size); it.seq == maxGroupRecords-10 {
			break
		}
	}
	b.alter("A", func(c *jetstream.StreamConfig) { c.MaxBytes = room })
	if err := s.Append(b.ctx(), recs...); !errors.Is(err, ErrFull) {
		t.Fatalf("Append: %v, want ErrFull", err)
	}
	if got := b.captured("A"); got[len(got)-1].Seq != maxGroupRecords-10 {
		t.Fatalf("the last record stored is %d, want %d, before the large one", got[len(got)-1].Seq, maxGroupRecords-10)
	}
	b.alter("A", func(c *jetstream.StreamConfig) { c.MaxBytes = -1 })
	if err := s.Append(b.ctx(), recs...); err != nil {
		t.Fatal(err)
	}
	for i, k := range b.captured("A") {
		if k.Seq != uint64(i+1) {
			t.Fatalf("record %d is %v", i+1, k.ID)
		}
	}
}

// call makes a call as Append does.
func (b *bed) call(recs ...Record) *call {
	b.t.Helper()
	c, err := b.s.prepare(recs, time.Now())
	if err != nil {
		b.t.Fatal(err)
	}
	c.done = make(chan error, 1)
	if err := b.s.admit(b.ctx(), c); err != nil {
		b.t.Fatal(err)
	}
	return c
}

// group publishes calls as one group and returns their outcomes.
func (b *bed) group(group []*call) []error {
	s := b.s
	s.committer.gate <- struct{}{}
	s.publish(group)
	<-s.committer.gate
	s.committer.hand(group)
	var errs []error
	for _, c := range group {
		errs = append(errs, <-c.done)
	}
	return errs
}

// alter changes a stream behind the store's back.
func (b *bed) alter(stream string, change func(c *jetstream.StreamConfig)) {
	b.t.Helper()
	st, err := b.js.Stream(b.ctx(), stream)
	if err != nil {
		b.t.Fatal(err)
	}
	c := st.CachedInfo().Config
	change(&c)
	if _, err := b.js.UpdateStream(b.ctx(), c); err != nil {
		b.t.Fatal(err)
	}
}

// setSync replaces syncfs.
func setSync(s *Store, f func(fd int) error) {
	s.syncMu.Lock()
	defer s.syncMu.Unlock()
	s.syncfs = f
}

// countSyncs counts the calls of syncfs from now on.
func countSyncs(s *Store) func() int {
	var mu sync.Mutex
	n := 0
	s.syncMu.Lock()
	defer s.syncMu.Unlock()
	real := s.syncfs
	s.syncfs = func(fd int) error {
		mu.Lock()
		n++
		mu.Unlock()
		return real(fd)
	}
	return func() int {
		mu.Lock()
		defer mu.Unlock()
		return n
	}
}

// TestAppendWithoutAnswerFromFullStream fills a stream and takes the server away: the look at the stream, which room for more has to begin with, fails.
func TestAppendWithoutAnswerFromFullStream(t *testing.T) {
	b := newBed(t)
	b.options.Streams[0].MaxBytes = minStreamBytes
	s := b.start()
	large := func(n uint64) Record {
		r := b.record("a1", n)
		r.Data = make([]byte, 62<<10) // 16 of them fit
		return r
	}
	n := uint64(1)
	for ; n <= 16; n++ {
		if err := s.Append(b.ctx(), large(n)); err != nil {
			t.Fatalf("record %d: %v", n, err)
		}
	}
	b.nc.Close()
	err := s.Append(b.ctx(), large(n))
	if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "look at stream") {
		t.Errorf("Append to a full stream whose server is gone: %v, want ErrUnavailable from the look at the stream", err)
	}
}
