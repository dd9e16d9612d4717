package storage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/storage/journal"
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
	syncs := 0
	b.ring(func([]journal.Entry) error { syncs++; return nil })
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
	if t.Logf("1000 records of 50 callers took %d flushes", syncs); syncs > 250 {
		t.Error("callers do not share flushes")
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

// TestAppendBeforeAttach takes records without a server, over two starts, and finds them in the stream in the end.
func TestAppendBeforeAttach(t *testing.T) {
	b := newBed(t)
	b.open()
	b.add("a1", 1, 3)
	b.add("b1", 1, 1)
	b.crash()
	s := b.open()
	if epoch, seq := s.Last("a1"); epoch != 1 || seq != 3 {
		t.Errorf("Last(a1) = %d, %d without a server, want 1, 3", epoch, seq)
	}
	b.add("a1", 1, 2)
	b.serve()
	b.attach()
	b.add("a1", 3, 3)
	b.expect("A", "a1 1", "a1 2", "a1 3", "a1 1", "a1 2", "a1 3")
	b.expect("B", "b1 1")
	if st := s.Streams()[0]; st.Stored != 6 || st.Waiting != 6 || len(st.Dropped) != 0 {
		t.Errorf("counted %+v, want 6 stored and waiting", st.StreamCounters)
	}
}

// TestAppendWaitsForAttach opens a store whose streams nobody knows anything of.
func TestAppendWaitsForAttach(t *testing.T) {
	b := newBed(t)
	b.start()
	b.add("a1", 1, 1)
	b.stop()
	if err := os.RemoveAll(filepath.Join(b.dir, "store")); err != nil {
		t.Fatal(err)
	}
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
	b.expect("A", "a1 1", "a1 1")
}

func TestCloseFinishesWhatItTook(t *testing.T) {
	b := newBed(t)
	s := b.start()
	let := make(chan struct{})
	began := make(chan struct{}, 16)
	b.ring(func([]journal.Entry) error { began <- struct{}{}; <-let; return nil })
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
	b.start()
	b.stop()
	if err := os.RemoveAll(filepath.Join(b.dir, "store", "journal")); err != nil { // so that Append waits
		t.Fatal(err)
	}
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

// TestMoreThanTheRingHolds appends more in one call than the server queues for a stream, and than the journal holds.
func TestMoreThanTheRingHolds(t *testing.T) {
	b := newBed(t)
	s := b.start()
	b.add("a1", 1, 30_000)
	if st := s.Streams()[0]; st.Stored != 30_000 {
		t.Errorf("%d stored, want 30000", st.Stored)
	}
	got := b.captured("A")
	for i, k := range got {
		if k.Seq != uint64(i+1) || k.Position != got[0].Position+Position(i) {
			t.Fatalf("record %d is %v at %d", i+1, k.ID, k.Position)
		}
	}
	if len(got) != 30_000 {
		t.Errorf("%d records in the stream, want 30000", len(got))
	}
}

// TestCallLargerThanItsStream appends more in one call than the stream may hold.
func TestCallLargerThanItsStream(t *testing.T) {
	cases := []struct {
		name   string
		config StreamConfig
	}{
		{"bytes", StreamConfig{Name: "A", MaxBytes: 1 << 20}},
		{"records", StreamConfig{Name: "A", MaxMsgs: 300}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			b := newBed(t)
			b.options.Streams[0] = c.config
			s := b.start()
			recs := make([]Record, 1000)
			for i := range recs {
				recs[i] = b.record("a1", uint64(i+1))
				recs[i].Data = make([]byte, 2000)
			}
			if err := s.Append(b.ctx(), recs...); err != nil {
				t.Fatal(err)
			}
			left := uint64(len(b.captured("A")))
			st := s.Streams()[0]
			if st.Stored != 1000 || st.Waiting != left || st.Dropped[GapDropOldest] != 1000-left || left < 100 {
				t.Errorf("counted %+v with %d left, want 1000 stored and the oldest dropped", st.StreamCounters, left)
			}
		})
	}
}

// TestLargeRecords appends more bytes in one call than are published between two acknowledgements.
func TestLargeRecords(t *testing.T) {
	b := newBed(t)
	b.options.Streams[0].MaxMsgSize = maxRecordSize
	s := b.start()
	recs := make([]Record, 40)
	for i := range recs {
		recs[i] = b.record("a1", uint64(i+1))
		recs[i].Data = make([]byte, 900_000)
	}
	if err := s.Append(b.ctx(), recs...); err != nil {
		t.Fatal(err)
	}
	b.settle()
	if st := s.Streams()[0]; st.Stored != 40 || st.Bytes < 36_000_000 {
		t.Errorf("Streams: %+v, want 40 large records", st)
	}
	recs[0].Seq, recs[0].Data = 41, make([]byte, 1<<20)
	var invalid *InvalidError
	if err := s.Append(b.ctx(), recs[0]); !errors.As(err, &invalid) || !strings.Contains(err.Error(), "max_msg_size") {
		t.Errorf("Append of a record above max_msg_size: %v, want an InvalidError that names it", err)
	}
}

func TestProbe(t *testing.T) {
	b := newBed(t)
	s := b.open()
	if err := s.Probe(b.ctx()); err != nil {
		t.Errorf("Probe before Attach: %v, want nil: the journal takes records", err)
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
