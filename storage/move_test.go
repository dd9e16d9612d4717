package storage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
)

// names returns what a stream holds of its sources above a position.
func (b *bed) names(stream string, above Position) []string {
	b.t.Helper()
	var out []string
	for _, k := range b.captured(stream) {
		if k.Position > above {
			out = append(out, k.Data)
		}
	}
	return out
}

func TestLeap(t *testing.T) {
	// Before the leap the stream holds the epoch record and a1 1 to 10 from last-9 to last.
	cases := []struct {
		name     string
		distance int64 // of above from last; may be negative
		keep     int   // first record that the hub does not have, of the ten; 11: it has all
		moved    []string
		history  int // records that stay below
	}{
		{"hub has all and is not ahead", 0, 11, nil, 10},
		{"hub is behind", -4, 7, nil, 10},
		{"hub is ahead a little, nothing unsent", 100, 11, nil, 10},
		{"hub is ahead a little, some unsent", 100, 8, []string{"a1 8", "a1 9", "a1 10"}, 7},
		{"hub is where we are, but with other records", 0, 8, []string{"a1 8", "a1 9", "a1 10"}, 7},
		{"hub is in the middle, with other records", -2, 5, []string{"a1 5", "a1 6", "a1 7", "a1 8", "a1 9", "a1 10"}, 4},
		{"hub is far ahead, some unsent", 1 << 40, 8, []string{"a1 8", "a1 9", "a1 10"}, 0},
		{"hub is far ahead, all unsent", 1 << 40, 1, []string{"a1 1", "a1 2", "a1 3", "a1 4", "a1 5", "a1 6", "a1 7", "a1 8", "a1 9", "a1 10"}, 0},
		{"hub is far ahead, nothing unsent", 1 << 40, 11, nil, 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t)
			s := b.start()
			b.add("a1", 1, 10)
			b.add("b1", 1, 1)
			before := b.captured("A")
			last := before[9].Position
			above := Position(int64(last) + c.distance)
			keep := before[0].Position + Position(c.keep) - 1
			if err := s.Leap(b.ctx(), "A", above, keep); err != nil {
				t.Fatal(err)
			}
			b.add("a1", 11, 12)
			want := append(slices.Clone(c.moved), "a1 11", "a1 12")
			top := max(above, last)
			if got := b.names("A", top); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("above %d: %q, want %q", top, got, want)
			}
			if got := len(b.captured("A")) - len(want); got != c.history {
				t.Errorf("%d records below, want %d", got, c.history)
			}
			for _, k := range b.captured("A") {
				i := slices.IndexFunc(before, func(o kept) bool { return o.ID == k.ID })
				if i >= 0 && (before[i].Header.Get(HeaderTime) != k.Header.Get(HeaderTime) || before[i].Subject != k.Subject) {
					t.Errorf("%v was changed: %+v, was %+v", k.ID, k, before[i])
				}
			}
			b.account("A", 12)
			b.expect("B", "b1 1")
			b.noTraces()
			b.kill()
			b.start()
			b.add("a1", 1, 1)
			b.account("A", 13)
		})
	}
}

// account checks that the counters of a stream balance: so many stored, none dropped.
func (b *bed) account(stream string, stored uint64) {
	b.t.Helper()
	for _, st := range b.s.Streams() {
		if st.Name == stream && (st.Stored != stored || st.Forwarded+st.Waiting != stored || len(st.Dropped) != 0) {
			b.t.Errorf("stream %s counts %+v, want %d stored, none dropped", stream, st.StreamCounters, stored)
		}
	}
}

// noTraces checks that nothing of a move is left behind.
func (b *bed) noTraces() {
	b.t.Helper()
	if left, _ := filepath.Glob(filepath.Join(b.dir, "store", "move-*")); len(left) > 0 {
		b.t.Errorf("left behind: %v", left)
	}
	if _, err := b.js.Stream(b.ctx(), sideStream("A")); !errors.Is(err, jetstream.ErrStreamNotFound) {
		b.t.Errorf("the side stream is still there: %v", err)
	}
	for _, k := range b.read("A") {
		if k.Subject == LeapSubject("A") {
			b.t.Errorf("a placeholder is left at %d", k.Position)
		}
	}
}

// failingJS fails a number of calls after its start, for good: as a process does that is killed there.
type failingJS struct {
	jetstream.JetStream
	left *int
}

var errCut = errors.New("cut by the test")

func (f failingJS) cut() error {
	if *f.left--; *f.left < 0 {
		return errCut
	}
	return nil
}

func (f failingJS) Stream(ctx context.Context, name string) (jetstream.Stream, error) {
	if err := f.cut(); err != nil {
		return nil, err
	}
	st, err := f.JetStream.Stream(ctx, name)
	return failingStream{st, f}, err
}

func (f failingJS) CreateStream(ctx context.Context, c jetstream.StreamConfig) (jetstream.Stream, error) {
	if err := f.cut(); err != nil {
		return nil, err
	}
	st, err := f.JetStream.CreateStream(ctx, c)
	return failingStream{st, f}, err
}

func (f failingJS) DeleteStream(ctx context.Context, name string) error {
	if err := f.cut(); err != nil {
		return err
	}
	return f.JetStream.DeleteStream(ctx, name)
}

func (f failingJS) OrderedConsumer(ctx context.Context, stream string, c jetstream.OrderedConsumerConfig) (jetstream.Consumer, error) {
	if err := f.cut(); err != nil {
		return nil, err
	}
	return f.JetStream.OrderedConsumer(ctx, stream, c)
}

type failingStream struct {
	jetstream.Stream
	js failingJS
}

func (f failingStream) Purge(ctx context.Context, opts ...jetstream.StreamPurgeOpt) error {
	if err := f.js.cut(); err != nil {
		return err
	}
	return f.Stream.Purge(ctx, opts...)
}

func (f failingStream) DeleteMsg(ctx context.Context, seq uint64) error {
	if err := f.js.cut(); err != nil {
		return err
	}
	return f.Stream.DeleteMsg(ctx, seq)
}

// TestMoveCutAnywhere cuts a move off before each of its requests and syncs, with a killed process, and expects that the start after
// it and another Leap leave every record there once, in order, above the hub's.
func TestMoveCutAnywhere(t *testing.T) {
	for _, form := range []struct {
		name     string
		distance Position
	}{{"near", 50}, {"far", 1 << 40}} {
		t.Run(form.name, func(t *testing.T) {
			t.Parallel() // most of it is waiting
			cuts, step := 0, 1
			if testing.Short() {
				step = 5
			}
			for n, done := 0, false; !done; n += step {
				done = cutMove(t, form.distance, n)
				cuts = n
			}
			t.Logf("cut off at %d places", cuts/step)
			if cuts < 10 {
				t.Errorf("the move ended before the cut number %d: nothing was tested", cuts)
			}
		})
	}
}

// cutMove cuts a move at the nth request and reports whether it got through without a cut.
func cutMove(t *testing.T, distance Position, n int) (done bool) {
	b := newBed(t)
	s := b.start()
	defer b.crash()
	b.add("a1", 1, 6)
	before := b.captured("A")
	above, keep := before[5].Position+distance, before[3].Position
	left := n
	real := s.syncfs
	setSync(s, func(fd int) error {
		if left--; left < 0 {
			return errCut
		}
		return real(fd)
	})
	s.wire.js = failingJS{s.wire.js, &left}
	err := s.Leap(b.ctx(), "A", above, keep)
	if err != nil && !errors.Is(err, errCut) {
		t.Fatalf("cut %d: %v", n, err)
	}
	b.kill()
	s = b.start()
	if err := s.Leap(b.ctx(), "A", above, b.firstUnsent(above, keep)); err != nil {
		t.Fatalf("cut %d: Leap again: %v", n, err)
	}
	b.add("a1", 1, 1)
	var ids []string
	for _, k := range b.captured("A") {
		if k.Position > above {
			ids = append(ids, fmt.Sprintf("%d.%d", k.Epoch, k.Seq))
		}
	}
	if got := fmt.Sprint(ids); got != "[1.4 1.5 1.6 2.1]" {
		t.Fatalf("cut %d: above the hub there are %v, want [1.4 1.5 1.6 2.1]", n, got)
	}
	b.account("A", 7)
	b.noTraces()
	return err == nil
}

// firstUnsent is where the records begin that the hub, which has the first three, does not have.
func (b *bed) firstUnsent(above, keep Position) Position {
	for _, k := range b.captured("A") {
		if k.Epoch == 1 && k.Seq >= 4 {
			return k.Position
		}
	}
	return keep
}

// TestMoveMarkerDamaged loses both copies of a marker: nothing may be touched.
func TestMoveMarkerDamaged(t *testing.T) {
	b := newBed(t)
	s := b.start()
	b.add("a1", 1, 2)
	if err := s.markerFile(s.byName["A"]).save(moveMarker{To: 1 << 52}); err != nil {
		t.Fatal(err)
	}
	b.kill()
	for _, f := range []string{"move-A", "move-A.bak"} {
		if err := os.WriteFile(filepath.Join(b.dir, "store", f), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b.open()
	b.serve()
	var damaged *DamagedError
	if err := b.s.Attach(b.ctx(), b.server()); !errors.As(err, &damaged) {
		t.Errorf("Attach: %v, want a DamagedError", err)
	}
}
