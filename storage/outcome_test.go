package storage

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/storage/journal"
)

// TestNoAcknowledgementBeforeItsSync holds the ring back and looks that Append does so too, and that nothing is published before its group is on flash.
func TestNoAcknowledgementBeforeItsSync(t *testing.T) {
	b := newBed(t)
	s := b.start()
	before := b.last("A")
	began := make(chan int, 16)
	let := make(chan struct{})
	b.ring(func(g []journal.Entry) error { began <- len(g); <-let; return nil })
	done := make(chan error, 1)
	go func() { done <- s.Append(context.Background(), b.record("a1", 1), b.record("a1", 2)) }()
	if n := <-began; n != 2 {
		t.Fatalf("the group has %d records, want 2", n)
	}
	second := make(chan error, 1)
	go func() { second <- s.Append(context.Background(), b.record("a2", 1)) }()
	poll(t, "the second call is queued", func() bool {
		s.committer.mu.Lock()
		defer s.committer.mu.Unlock()
		return s.committer.queued == 1
	})
	select {
	case err := <-done:
		t.Fatalf("acknowledged before it was on flash: %v", err)
	case err := <-second:
		t.Fatalf("the second call was acknowledged before it was on flash: %v", err)
	default:
	}
	if at := b.last("A"); at != before {
		t.Fatalf("the stream is at %d before anything is on flash, was at %d", at, before)
	}
	let <- struct{}{}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	<-began
	select {
	case err := <-second:
		t.Fatalf("the second call was acknowledged with the first one's flush: %v", err)
	default:
	}
	close(let)
	if err := <-second; err != nil {
		t.Fatal(err)
	}
	b.expect("A", "a1 1", "a1 2", "a2 1")
}

// TestSyncErrorIsFinal fails the sync of a checkpoint; the next would succeed, with the data gone.
func TestSyncErrorIsFinal(t *testing.T) {
	b := newBed(t)
	s := b.start()
	b.add("a1", 1, 10)
	fails := errors.New("input/output error")
	calls := 0
	setSync(s, func(fd int) error {
		if calls++; calls == 1 {
			return fails
		}
		return nil
	})
	before := s.ring.State().Checkpoint
	s.publisher.want()
	poll(t, "the store fails", func() bool { return s.failed() != nil })
	if err := s.Append(b.ctx(), b.record("a1", 11)); !errors.Is(err, ErrFailing) || !errors.Is(err, fails) {
		t.Errorf("Append: %v, want ErrFailing and its cause", err)
	}
	if st := s.Streams()[0]; !errors.Is(st.Err, ErrFailing) {
		t.Errorf("Streams: Err = %v, want ErrFailing", st.Err)
	}
	if err := s.Probe(b.ctx()); !errors.Is(err, ErrFailing) {
		t.Errorf("Probe: %v, want ErrFailing", err)
	}
	if now := s.ring.State().Checkpoint; now != before {
		t.Errorf("the checkpoint went from %d to %d by a sync that failed", before, now)
	}
	b.crash()
	b.start() // and reads the streams from the medium
	b.add("a1", 1, 1)
	if got := b.captured("A"); len(got) != 11 {
		t.Errorf("%d records after a start, want 11", len(got))
	}
}

// TestRingErrorIsFinal fails one write of the ring.
func TestRingErrorIsFinal(t *testing.T) {
	b := newBed(t)
	s := b.start()
	b.add("a1", 1, 1)
	b.ring(func([]journal.Entry) error { return journal.ErrFailed })
	for n := uint64(2); n < 4; n++ {
		if err := s.Append(b.ctx(), b.record("a1", n)); !errors.Is(err, ErrFailing) {
			t.Errorf("Append: %v, want ErrFailing", err)
		}
	}
	b.expect("A", "a1 1")
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
	b.ring(func([]journal.Entry) error { began <- struct{}{}; <-let; return nil })
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
	if st := s.Streams()[0]; st.Stored != 6 || st.Waiting != 6 {
		t.Errorf("counted %+v, want 6 stored and waiting", st.StreamCounters)
	}
	if err := s.Append(b.ctx(), b.record("a1", 8), b.record("a1", 7)); !errors.Is(err, ErrInvalid) {
		t.Errorf("records that are not in order: %v, want ErrInvalid", err)
	}
}

// impatient makes the store wait for the server for a moment only, and cure it at once.
func (b *bed) impatient() {
	s := b.s
	s.publisher.turn <- struct{}{}
	s.wire.patience, s.wire.limit = 20*time.Millisecond, 2*time.Second
	s.cured = time.Time{}
	<-s.publisher.turn
}

// TestUnknownOutcome takes the acknowledgements away, so that nobody knows what was stored, and gives them back. Append does not notice.
func TestUnknownOutcome(t *testing.T) {
	b := newBed(t)
	s := b.start()
	b.add("a1", 1, 2)
	b.settle()
	b.impatient()
	s.publisher.turn <- struct{}{}
	w := s.wire
	w.limit = 50 * time.Millisecond
	err := w.sub.Unsubscribe()
	<-s.publisher.turn
	if err != nil {
		t.Fatal(err)
	}
	b.add("a1", 3, 4)
	poll(t, "the stream is in trouble", func() bool { return errors.Is(s.Streams()[0].Waits, ErrUnavailable) })
	if b.restarts != 1 {
		t.Errorf("JetStream was restarted %d times, want once", b.restarts)
	}
	b.add("a1", 5, 5)
	s.publisher.turn <- struct{}{}
	w.limit = ackLimit
	w.sub, err = w.nc.ChanSubscribe(w.inbox+"*", w.acks)
	<-s.publisher.turn
	if err != nil {
		t.Fatal(err)
	}
	poll(t, "the records are stored", func() bool { return len(b.captured("A")) == 5 })
	b.expect("A", "a1 1", "a1 2", "a1 3", "a1 4", "a1 5")
	poll(t, "the trouble is over", func() bool { return s.Streams()[0].Waits == nil })
	if st := s.Streams()[0]; st.Stored != 5 {
		t.Errorf("Streams: %+v, want 5 stored", st)
	}
}

// TestRefusedAfterAll lets the server refuse a record whose form the store thinks good, after it was acknowledged. Those behind it must lie where they were
// promised to lie, and the record must not be lost.
func TestRefusedAfterAll(t *testing.T) {
	b := newBed(t)
	s := b.start()
	b.alter("A", func(c *jetstream.StreamConfig) { c.MaxMsgSize = 400 })
	at := b.last("A")
	big := b.record("a1", 2)
	big.Data = make([]byte, 1000)
	if err := s.Append(b.ctx(), b.record("a1", 1), big, b.record("a2", 1), b.record("a1", 3), b.record("b1", 1)); err != nil {
		t.Fatal(err)
	}
	poll(t, "the records behind are stored", func() bool { return len(b.captured("A")) == 3 })
	b.expect("A", "a1 1", "a2 1", "a1 3")
	b.expect("B", "b1 1")
	for i, k := range b.captured("A") {
		if want := at + []Position{1, 3, 4}[i]; k.Position != want {
			t.Errorf("%v lies at %d, want %d", k.ID, k.Position, want)
		}
	}
	poll(t, "a gap record tells of it", func() bool { return s.Streams()[0].Dropped[GapRefused] == 1 })
	if st := s.Streams()[0]; st.Stored != 4 || st.Waiting != 3 {
		t.Errorf("counted %+v, want 4 stored, 3 waiting", st.StreamCounters)
	}
	raw, err := os.ReadFile(filepath.Join(s.Home(), "quarantine", "A"))
	var q Quarantined
	if err == nil {
		err = json.Unmarshal(raw, &q)
	}
	if err != nil || q.Sequence != at+2 || !bytes.Equal(q.Data, big.Data) || !strings.Contains(q.Reason, "maximum") {
		t.Errorf("set aside: %+v, %v", q, err)
	}
	if err := s.Append(b.ctx(), big); err != nil {
		t.Errorf("the refused record again: %v, want it known as acknowledged", err)
	}
	b.add("a1", 4, 4)
	b.expect("A", "a1 1", "a2 1", "a1 3", "a1 4")
}

// TestStreamTakesNothing lets the server's backstop refuse one stream. The other goes on, Append takes records of both, and everything is there when
// there is room again, in order.
func TestStreamTakesNothing(t *testing.T) {
	b := newBed(t)
	s := b.start()
	b.alter("A", func(c *jetstream.StreamConfig) { c.MaxMsgs = 4 }) // one is the epoch record
	if err := s.Append(b.ctx(), b.record("a1", 1), b.record("a1", 2), b.record("a2", 1), b.record("a2", 2), b.record("b1", 1)); err != nil {
		t.Fatal(err)
	}
	poll(t, "the stream is full", func() bool { return errors.Is(s.Streams()[0].Waits, ErrFull) })
	b.add("b1", 2, 3)
	poll(t, "the other stream goes on", func() bool { return len(b.captured("B")) == 3 })
	b.add("a2", 3, 3)
	b.alter("A", func(c *jetstream.StreamConfig) { c.MaxMsgs = -1 })
	poll(t, "the records are stored", func() bool { return len(b.captured("A")) == 5 })
	b.expect("A", "a1 1", "a1 2", "a2 1", "a2 2", "a2 3")
	if st := s.Streams()[0]; st.Full || st.Waits != nil || st.Err != nil || st.Stored != 5 {
		t.Errorf("Streams: %+v, want room and 5 stored", st)
	}
}

// TestRingFull fills the ring while a stream takes nothing: back-pressure, and everything goes on when the stream does.
func TestRingFull(t *testing.T) {
	b := newBed(t)
	b.options.Journal.Size = 1 << 20
	s := b.start()
	b.alter("A", func(c *jetstream.StreamConfig) { c.MaxMsgs = 1 })
	n := uint64(0)
	var err error
	for err == nil {
		n++
		r := b.record("a1", n)
		r.Data = make([]byte, 20_000)
		err = s.Append(b.ctx(), r)
	}
	if !errors.Is(err, ErrFull) || n < 30 {
		t.Fatalf("record %d: %v, want ErrFull when the ring is full", n, err)
	}
	b.crash() // a start on a full ring
	s = b.start()
	poll(t, "the records are stored", func() bool { return len(b.captured("A")) == int(n-1) })
	b.add("a1", 1, 100)
	if st := s.Streams()[0]; st.Stored != n-1+100 || st.Waiting != n-1+100 {
		t.Errorf("counted %+v, want %d stored and waiting", st.StreamCounters, n-1+100)
	}
}

// TestStreamLosesRecords takes records out of a running stream behind the store's back, as a server does that reads its files anew from a disk that has
// lost them: they are stored again where they were.
func TestStreamLosesRecords(t *testing.T) {
	b := newBed(t)
	s := b.start()
	b.add("a1", 1, 20)
	at := b.last("A")
	s.publisher.turn <- struct{}{} // nothing is published meanwhile
	b.srv.Shutdown()
	b.srv.WaitForShutdown()
	blocks, err := filepath.Glob(filepath.Join(b.dir, "jetstream", account, "streams", "A", "msgs", "*.blk"))
	if err != nil || len(blocks) != 1 {
		t.Fatalf("blocks %v, %v", blocks, err)
	}
	info, err := os.Stat(blocks[0])
	if err == nil {
		err = errors.Join(os.Truncate(blocks[0], info.Size()-2000), os.Remove(filepath.Join(filepath.Dir(blocks[0]), "index.db")))
	}
	<-s.publisher.turn
	if err != nil {
		t.Fatal(err)
	}
	b.crash()
	b.start()
	b.add("a1", 1, 1)
	got := b.captured("A")
	if len(got) != 21 || got[19].Position != at || got[20].Position != at+2 {
		t.Errorf("%d records, %v, want 21 with the 20th at %d again", len(got), got, at)
	}
	if st := b.s.Streams()[0]; st.Stored != 21 || len(st.Dropped) != 0 {
		t.Errorf("counted %+v, want 21 stored and none lost", st.StreamCounters)
	}
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
