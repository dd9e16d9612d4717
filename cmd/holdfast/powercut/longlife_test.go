package powercut

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestPowerCutsOfLongLives cuts the power of leaves that have run for minutes, so long that the server has written its index of the blocks, which it does
// every two minutes or so, and the blocks have grown since: the start must not believe it.
func TestPowerCutsOfLongLives(t *testing.T) {
	need(t)
	if *long == 0 {
		t.Skip("SKIPPED, NOT TESTED: it takes half an hour; make powercut LONG=30m runs it")
	}
	h := startHub(t, "old0", "old1", "old2", "old3")
	first := pick(t)
	for i, leaf := range []string{"old0", "old1", "old2", "old3"} {
		t.Run(leaf, func(t *testing.T) {
			t.Parallel()
			until := time.Now().Add(*long)
			r := newRig(t, h, leaf, first+uint64(i), func(s *spec) {
				s.Small, s.Sealed, s.Packed, s.Rest = i%2 == 1, i >= 2, i == 0 || i == 3, time.Second
			})
			old := 0
			for time.Now().Before(until) {
				r.untilArrived()
				pause(t.Context(), 150*time.Second+time.Duration(r.rand.Int64N(int64(150*time.Second))))
				old += r.oldIndexes()
				r.cut(r.mode(), r.rand.IntN(2) == 0)
				r.settle()
			}
			r.untilAcked(100)
			account := r.finish(t.Context(), *patience)
			r.end()
			t.Logf("%s, %d cuts with an index older than its blocks: %v", leaf, old, account)
			if account.wrong() {
				t.Error("the account does not balance")
			}
			if old == 0 {
				t.Error("no index was older than its blocks: the rig did not test what it is for")
			}
		})
	}
}

// oldIndexes returns 1 if a stream's index is older than its newest block, and was not written just before it.
func (r *rig) oldIndexes() int {
	for _, s := range streamNames() {
		dir := filepath.Join(r.spec.Data, "jetstream", "CAPTURE", "streams", s, "msgs")
		index, err := os.Stat(filepath.Join(dir, "index.db"))
		if err != nil {
			continue
		}
		blocks, err := filepath.Glob(filepath.Join(dir, "*.blk"))
		if err != nil {
			continue
		}
		for _, b := range blocks {
			if info, err := os.Stat(b); err == nil && info.ModTime().Sub(index.ModTime()) > 2*time.Second {
				return 1
			}
		}
	}
	return 0
}
