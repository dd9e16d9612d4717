package powercut

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/rig/disk"
	"github.com/holdfast-edge/holdfast/rig/poll"
)

// TestPowerCutsDuringLeap puts a leaf back to an older copy of its card, with a hub far ahead: it has to leap above the hub and to move what it
// holds and the hub does not. The power is cut again and again while it does that.
func TestPowerCutsDuringLeap(t *testing.T) {
	need(t)
	if *cuts <= 20 {
		t.Skip("SKIPPED, NOT TESTED: it takes a minute; make powercut runs it")
	}
	const ahead = 40_000 // records
	r := newRig(t, startHub(t, "old"), "old", pick(t), func(s *spec) { s.Batch = 500 })
	r.untilArrived()
	r.untilAcked(2000)
	if err := r.disk.Tune(disk.Tuning{}); err != nil {
		t.Fatal(err)
	}
	old := filepath.Join(r.dir, "old.img")
	onCopy := r.life.acknowledged()
	if _, err := r.disk.Cut(old, disk.CutAll, 1); err != nil {
		t.Fatal(err)
	}
	r.untilAcked(len(onCopy) + ahead)
	newest := r.life.acknowledged()[len(onCopy)+ahead-1].id.String()
	r.life.until("the newest record at the hub", func() bool { return r.watch.holds(newest) })
	r.unplug(false)
	r.remember(onCopy)
	r.spec.Batch = 20
	r.letsGo, r.older = true, true // a leap lets go of what the hub holds
	r.cuts++
	r.power(old)
	leaps := 0
	for range 6 {
		leaping := func() bool { return r.life.logged(leapMessage) }
		if !poll.Wait(t.Context(), 15*time.Second, leaping) {
			break // an earlier life has done it
		}
		leaps++
		pause(t.Context(), time.Duration(r.rand.IntN(1500))*time.Millisecond)
		r.cut(r.mode(), r.rand.IntN(2) == 0)
	}
	r.settle()
	r.untilAcked(100)
	account := r.finish(t.Context(), *patience)
	t.Logf("cut in %d leaps: %v", leaps, account)
	if account.wrong() {
		t.Error("the account does not balance")
	}
	if leaps == 0 {
		t.Error("the leaf did not leap: the rig did not test what it is for")
	}
}
