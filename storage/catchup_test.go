package storage

import (
	"testing"

	"github.com/holdfast-edge/holdfast/storage/journal"
)

// countedRing counts checkpoints and notes the longest way between two.
type countedRing struct {
	ringLog
	given   int
	longest journal.Position
}

func (r *countedRing) Checkpoint(p journal.Position) error {
	r.given++
	r.longest = max(r.longest, p-r.State().Checkpoint)
	return r.ringLog.Checkpoint(p)
}

// TestCatchUpFreesTheJournal has a journal that is nearly full when the server comes. It is freed piece by piece while the streams take what is in it,
// not when they have taken all.
func TestCatchUpFreesTheJournal(t *testing.T) {
	b := newBed(t)
	s := b.open()
	data := make([]byte, 1000)
	n := uint64(0)
	for state := s.ring.State(); state.Used < state.Segments-3; state = s.ring.State() {
		recs := make([]Record, 50)
		for i := range recs {
			n++
			recs[i] = b.record("a1", n)
			recs[i].Data = data
		}
		if err := s.Append(b.ctx(), recs...); err != nil {
			t.Fatal(err)
		}
	}
	ring := &countedRing{ringLog: s.ring}
	s.committer.gate <- struct{}{}
	s.ring = ring
	<-s.committer.gate
	state := ring.State()
	b.serve()
	b.attach()
	b.settle()
	if whole := state.Tail - state.Checkpoint; ring.given < 3 || ring.longest > whole/2 {
		t.Errorf("%d checkpoints on a way of %d bytes, the longest after %d", ring.given, whole, ring.longest)
	}
	if got := b.captured("A"); uint64(len(got)) != n {
		t.Errorf("the stream has %d records of %d", len(got), n)
	}
}
