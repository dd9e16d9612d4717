package storage

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sys/unix"
)

func TestAppendAndReadBack(t *testing.T) {
	b := newBed(t)
	s := b.start()
	recs := []Record{
		{Stream: "A", Source: "a1", Seq: 1, Data: []byte("one")},
		{Stream: "A", Source: "a2", Seq: 1, Tail: "x.y", Data: nil, Header: map[string]string{"Why": "empty data"}},
		{Stream: "B", Source: "b1", Seq: 1, Data: []byte("three")},
	}
	if err := s.Append(b.ctx(), recs...); err != nil {
		t.Fatal(err)
	}
	a, bb := b.captured("A"), b.captured("B")
	if len(a) != 2 || len(bb) != 1 {
		t.Fatalf("A holds %v, B holds %v", a, bb)
	}
	if a[0].Subject != "data.leaf.A.a1" || a[1].Subject != "data.leaf.A.a2.x.y" || a[1].Header.Get("Why") != "empty data" {
		t.Errorf("A holds %+v", a)
	}
	want := ID{Leaf: "leaf", Store: s.ID(), Source: "a1", Epoch: 1, Seq: 1}
	if a[0].ID != want {
		t.Errorf("ID is %v, want %v", a[0].ID, want)
	}
	if st, err := ParseStamp(a[0].Header.Get(HeaderTime)); err != nil || st.Boot <= 0 {
		t.Errorf("stamp %+v, %v", st, err)
	}
	first := b.read("A")[0]
	if first.Source != EpochSource || first.Position < 1<<40 {
		t.Errorf("first record is %+v, want an epoch record at unix seconds << 20", first)
	}
}

func TestConcurrentCallersShareSyncs(t *testing.T) {
	b := newBed(t)
	for i := range 50 {
		b.options.Sources[fmt.Sprintf("s%d", i)] = "A"
	}
	s := b.start()
	syncs := countSyncs(s)
	before := syncs()
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			for n := range uint64(20) {
				if err := s.Append(context.Background(), b.record(fmt.Sprintf("s%d", i), n+1)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := syncs() - before; n > 250 {
		t.Errorf("1000 records of 50 callers took %d syncs", n)
	} else {
		t.Logf("1000 records of 50 callers took %d syncs", n)
	}
	next := map[string]uint64{}
	got := b.captured("A")
	for _, k := range got {
		if next[k.Source]++; k.Seq != next[k.Source] {
			t.Fatalf("record %v, want seq %d", k.ID, next[k.Source])
		}
	}
	if len(got) != 1000 {
		t.Errorf("%d records in the stream, want 1000", len(got))
	}
}

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

func TestAppendRefusesInvalid(t *testing.T) {
	b := newBed(t)
	b.options.Streams[0].MaxMsgSize = 1000
	s := b.start()
	good := b.record("a1", 1)
	with := func(change func(r *Record)) Record {
		r := good
		change(&r)
		return r
	}
	header := func(k, v string) Record {
		return with(func(r *Record) { r.Header = map[string]string{k: v} })
	}
	cases := []struct {
		name string
		rec  Record
		says string
	}{
		{"unknown source", with(func(r *Record) { r.Source = "x" }), "not configured"},
		{"our own source", with(func(r *Record) { r.Source = GapSource }), "not configured"},
		{"other stream", with(func(r *Record) { r.Stream = "B" }), `goes into stream "A"`},
		{"no sequence", with(func(r *Record) { r.Seq = 0 }), "sequence is zero"},
		{"too large", with(func(r *Record) { r.Data = make([]byte, 1001) }), "above max_msg_size, 1000"},
		{"empty token", with(func(r *Record) { r.Tail = "a..b" }), "empty token"},
		{"trailing dot", with(func(r *Record) { r.Tail = "a." }), "empty token"},
		{"leading dot", with(func(r *Record) { r.Tail = ".a" }), "empty token"},
		{"star", with(func(r *Record) { r.Tail = "a.*" }), "wildcard"},
		{"arrow", with(func(r *Record) { r.Tail = ">" }), "wildcard"},
		{"blank", with(func(r *Record) { r.Tail = "a b" }), "character ' '"},
		{"line break", with(func(r *Record) { r.Tail = "a\nb" }), "character"},
		{"long subject", with(func(r *Record) { r.Tail = strings.Repeat("x", 1100) }), "longer than 1024"},
		{"header of the server", header("nats-Expected-Last-Sequence", "5"), "not for sources"},
		{"our ID", header(HeaderID, "x"), "not for sources"},
		{"our time", header("holdfast-time", "x"), "not for sources"},
		{"no header name", header("", "x"), "without a name"},
		{"colon in a header name", header("a:b", "x"), "contains ':'"},
		{"line break in a header", header("A", "x\r\nNats-Rollup: all"), "line break"},
		{"blank header end", header("A", "x "), "blank"},
		{"long header", header("A", strings.Repeat("x", 9000)), "headers are longer"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			err := s.Append(b.ctx(), good, c.rec)
			var invalid *InvalidError
			if !errors.Is(err, ErrInvalid) || !errors.As(err, &invalid) || invalid.Index != 1 || !strings.Contains(err.Error(), c.says) {
				t.Errorf("Append: %v, want ErrInvalid for the second record with %q", err, c.says)
			}
		})
	}
	if got := b.captured("A"); len(got) != 0 {
		t.Errorf("the stream holds %v after refused calls, want nothing", got)
	}
	ok := with(func(r *Record) { r.Tail = "ä.x>y.*z"; r.Header = map[string]string{"X-Topic": "a b: c"} })
	if err := s.Append(b.ctx(), ok); err != nil {
		t.Fatal(err)
	}
	if got := b.captured("A")[0]; got.Subject != "data.leaf.A.a1.ä.x>y.*z" || got.Header.Get("X-Topic") != "a b: c" {
		t.Errorf("stored %+v", got)
	}
}

func TestAppendWaitsForAttach(t *testing.T) {
	b := newBed(t)
	s := b.open()
	ctx, cancel := context.WithCancel(context.Background())
	gone := make(chan error, 1)
	go func() { gone <- s.Append(ctx, b.record("a2", 1)) }()
	cancel()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Errorf("Append: %v, want canceled", err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Append(context.Background(), b.record("a1", 1)) }()
	b.serve()
	b.attach()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	b.expect("A", "a1 1")
}

func TestCloseFinishesWhatItTook(t *testing.T) {
	b := newBed(t)
	s := b.start()
	let := make(chan struct{})
	began := make(chan struct{}, 16)
	setSync(s, func(fd int) error { began <- struct{}{}; <-let; return nil })
	done := make(chan error, 1)
	go func() { done <- s.Append(context.Background(), b.record("a1", 1)) }()
	<-began
	closed := make(chan error, 1)
	go func() { closed <- s.Close(b.ctx()) }()
	<-s.closing
	if err := s.Append(b.ctx(), b.record("a1", 2)); !errors.Is(err, ErrClosed) {
		t.Errorf("Append to a closing store: %v, want ErrClosed", err)
	}
	close(let)
	if err := errors.Join(<-done, <-closed); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(b.ctx()); err != nil {
		t.Errorf("second Close: %v", err)
	}
}

func TestCloseBeforeAttach(t *testing.T) {
	b := newBed(t)
	s := b.open()
	done := make(chan error, 1)
	go func() { done <- s.Append(context.Background(), b.record("a1", 1)) }()
	if err := s.Close(b.ctx()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, ErrClosed) {
		t.Errorf("Append: %v, want ErrClosed", err)
	}
}

// TestGroupsLargerThanTheServersQueue appends more in one call than the server queues for a stream, past several reserves.
func TestGroupsLargerThanTheServersQueue(t *testing.T) {
	b := newBed(t)
	s := b.start()
	passed := 0
	real := unix.Syncfs
	setSync(s, func(fd int) error {
		if st := s.byName["A"]; Position(st.published.Load()) > s.reserve.of("A").Reserve {
			passed++
		}
		return real(fd)
	})
	b.add("a1", 1, 30_000)
	if st := s.Streams()[0]; st.Stored != 30_000 {
		t.Errorf("%d stored, want 30000", st.Stored)
	}
	if passed > 0 {
		t.Errorf("the reserve was passed %d times before it was on flash", passed)
	}
}

func TestProbe(t *testing.T) {
	b := newBed(t)
	s := b.open()
	if err := s.Probe(b.ctx()); !errors.Is(err, ErrUnavailable) {
		t.Errorf("Probe before Attach: %v, want ErrUnavailable", err)
	}
	b.serve()
	b.attach()
	for range 5 {
		if err := s.Probe(b.ctx()); err != nil {
			t.Fatal(err)
		}
	}
	if all := b.read(probeStream); len(all) != 1 {
		t.Errorf("the scratch stream holds %d messages, want 1", len(all))
	}
	b.srv.Shutdown()
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if err := s.Probe(ctx); err == nil {
		t.Error("Probe succeeded without a server")
	}
}

// call makes a call as Append does.
func (b *bed) call(recs ...Record) *call {
	b.t.Helper()
	c, err := b.s.prepare(recs, time.Now())
	if err != nil {
		b.t.Fatal(err)
	}
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
