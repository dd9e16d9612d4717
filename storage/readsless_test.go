package storage

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
)

// lessStream is a stream that says that there is less to read than it holds.
type lessStream struct {
	held
	gives int
}

func (l lessStream) scan(ctx context.Context, from Position, fn func(heldRecord) error) error {
	n := 0
	enough := errors.New("enough")
	err := l.held.scan(ctx, from, func(h heldRecord) error {
		if n++; n > l.gives {
			return enough
		}
		return fn(h)
	})
	if errors.Is(err, enough) {
		return nil
	}
	return err
}

// TestServerReadsLess has the server say that there is nothing to read in a stream that is full of records. Neither a count nor a move takes that for the truth.
func TestServerReadsLess(t *testing.T) {
	b := newBed(t)
	s := b.start()
	b.add("a1", 1, 20)
	b.settle()
	h, err := holdStream(b.ctx(), b.js, "A")
	if err != nil {
		t.Fatal(err)
	}
	view, err := h.view(b.ctx())
	if err != nil {
		t.Fatal(err)
	}
	for _, gives := range []int{0, 5} {
		view := view
		view.Messages-- // so that something is missing, and it is looked for
		if lost, err := s.counters.missing(b.ctx(), "A", lessStream{h, gives}, view); !errors.Is(err, ErrUnavailable) || len(lost) > 0 {
			t.Errorf("a scan that gives %d: %v, %v, want ErrUnavailable", gives, lost, err)
		}
	}
	side, err := b.js.CreateStream(b.ctx(), jetstream.StreamConfig{Name: "side", Subjects: []string{"side.>"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.js.Publish(b.ctx(), "side.x", nil); err != nil {
		t.Fatal(err)
	}
	s.publisher.turn <- struct{}{}
	err = s.allThere(b.ctx(), s.streams[0], side, 1)
	<-s.publisher.turn
	if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "1 records were copied") {
		t.Errorf("a move that copied 1 of 21: %v, want ErrUnavailable", err)
	}
	if st := s.Streams()[0]; st.Off != 0 || st.Waiting != 20 || len(st.Dropped) != 0 {
		t.Errorf("counted %+v, want 20 waiting", st.StreamCounters)
	}
}
