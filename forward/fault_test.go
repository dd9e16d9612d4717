package forward

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/rig/leak"
	"github.com/holdfast-edge/holdfast/rig/poll"
	"github.com/holdfast-edge/holdfast/storage"
)

// pour captures batches into both streams until the returned function is called.
func (g *gateway) pour(batch int, every time.Duration) (stop func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				g.append(batch, "S", "M")
			}
		}
	})
	return func() { close(done); wg.Wait() }
}

// TestBackBeforeTheHubNoticed: the connection is reset again and again while records flow, and the leaf is back within a second or two.
// The hub has no reason to attach anew, and what it counts of the old consumer must not be mixed up with the new one's.
func TestBackBeforeTheHubNoticed(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes 10 s")
	}
	s := newSite(t)
	g := s.start("g1", t.TempDir())
	g.append(37, "S", "M")
	s.await(patient, "FIELD", "g1_M")
	for _, backlog := range []int{36, 3000} {
		s.wire.Cut()
		g.unlinked()
		g.append(backlog, "S", "M")
		s.check(s.wire.Restore())
		s.await(patient, "FIELD", "g1_M")
	}
	stop := g.pour(50, 20*time.Millisecond)
	for range 2 {
		g.linked()
		poll.Wait(context.Background(), 400*time.Millisecond, func() bool { return false })
		s.wire.Reset()
		g.unlinked()
	}
	stop()
	s.await(patient, "FIELD", "g1_M")
}

func TestFlappingLink(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes 15 s")
	}
	s := newSite(t)
	g := s.start("g1", t.TempDir())
	stop := g.pour(20, 20*time.Millisecond)
	ctx, cancel := context.WithTimeout(context.Background(), 7*time.Second)
	defer cancel()
	s.check(s.wire.Flap(ctx, 1700*time.Millisecond, 700*time.Millisecond))
	stop()
	s.await(patient, "FIELD", "g1_M")
}

func TestHubNodeKilled(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes 20 s")
	}
	s := newSite(t)
	g := s.start("g1", t.TempDir(), s.hub.LeafAddr(0), s.hub.LeafAddr(1), s.hub.LeafAddr(2))
	g.append(100, "S", "M")
	s.await(patient, "FIELD", "g1_M")
	stop := g.pour(20, 20*time.Millisecond)
	for node := range 2 {
		s.check(s.hub.Kill(node))
		poll.Wait(context.Background(), 2*time.Second, func() bool { return false })
		s.check(s.hub.Restart(node))
		ctx, cancel := context.WithTimeout(context.Background(), patient)
		s.check(s.hub.WaitReady(ctx))
		cancel()
	}
	stop()
	s.await(patient, "FIELD", "g1_M")
}

// TestHubStreamMadeAnew: the hub's streams are deleted and made again, once while the link is up and once while it is down. Everything
// that the leaf still keeps comes again.
func TestHubStreamMadeAnew(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes 15 s")
	}
	for _, up := range []bool{true, false} {
		name := "link down"
		if up {
			name = "link up"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			g := s.start("g1", t.TempDir())
			g.append(300, "S", "M")
			s.await(patient, "FIELD", "g1_M")
			poll.Until(t, patient, func() bool { return g.progress("S").Waiting == 0 && g.progress("M").Waiting == 0 }, "all proven")
			if !up {
				s.wire.Cut()
				g.unlinked()
			}
			ctx, cancel := context.WithTimeout(context.Background(), patient)
			defer cancel()
			for _, stream := range []string{"FIELD", "g1_M"} {
				s.check(s.js.DeleteStream(ctx, stream))
			}
			s.apply()
			g.append(200, "S", "M")
			s.check(s.wire.Restore())
			s.await(patient, "FIELD", "g1_M")
		})
	}
}

// TestHubLostWhatIsNotKept: what neither side has any more is told by a gap record, once.
func TestHubLostWhatIsNotKept(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes 20 s")
	}
	s := newSite(t)
	g := s.start("g1", t.TempDir())
	g.append(200, "S")
	s.await(patient, "FIELD")
	poll.Until(t, patient, func() bool { return g.progress("S").Waiting == 0 }, "all proven")
	proven, _ := g.up.Forwarded("S")
	s.wire.Cut()
	g.unlinked()
	ctx, cancel := context.WithTimeout(context.Background(), patient)
	defer cancel()
	local, err := g.js.Stream(ctx, "S")
	if err != nil {
		t.Fatal(err)
	}
	s.check(local.Purge(ctx, jetstream.WithPurgeSequence(uint64(proven-49)))) // 50 stay
	s.check(s.js.DeleteStream(ctx, "FIELD"))
	s.apply()
	s.check(s.wire.Restore())
	var gap *jetstream.RawStreamMsg
	poll.Until(t, patient, func() bool {
		gap, err = local.GetLastMsgForSubject(ctx, "data.g1.S._gap")
		return err == nil
	}, "a gap record: %v", &err)
	rec, err := storage.ParseGap(gap.Data)
	if err != nil {
		t.Fatal(err)
	}
	if rec.Reason != storage.GapNotKept || rec.Last != proven-50 || rec.Count < 149 || rec.Count > 151 {
		t.Errorf("gap record = %+v, want about 150 records up to %d that were not kept", rec, proven-50)
	}
	s.want["FIELD"] = g.local("S")
	s.await(patient, "FIELD")
	s.wire.Reset()
	g.unlinked()
	g.append(10, "S")
	s.await(patient, "FIELD") // without a second gap record
}

// TestGapOfWhatIsNotKeptIsComplete: records of the store's own, such as the epoch records of later starts, that are still kept do not make the gap smaller than
// what is lost.
func TestGapOfWhatIsNotKeptIsComplete(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes 20 s")
	}
	s := newSite(t)
	dir := t.TempDir()
	g := s.start("g1", dir)
	g.append(100, "S")
	s.await(patient, "FIELD")
	for range 3 { // each start has an epoch record
		g.close()
		g = s.start("g1", dir)
		g.append(10, "S")
		s.await(patient, "FIELD")
	}
	poll.Until(t, patient, func() bool { return g.progress("S").Waiting == 0 }, "all proven")
	s.wire.Cut()
	g.unlinked()
	ctx, cancel := context.WithTimeout(context.Background(), patient)
	defer cancel()
	local, err := g.js.Stream(ctx, "S")
	if err != nil {
		t.Fatal(err)
	}
	first := uint64(local.CachedInfo().State.FirstSeq)
	s.check(local.Purge(ctx, jetstream.WithPurgeSequence(first+1+60))) // the epoch record and 60 of the first hundred
	s.check(s.js.DeleteStream(ctx, "FIELD"))
	s.apply()
	s.check(s.wire.Restore())
	var gap *jetstream.RawStreamMsg
	poll.Until(t, patient, func() bool {
		gap, err = local.GetLastMsgForSubject(ctx, "data.g1.S._gap")
		return err == nil
	}, "a gap record: %v", &err)
	rec, err := storage.ParseGap(gap.Data)
	if err != nil {
		t.Fatal(err)
	}
	if rec.Reason != storage.GapNotKept || rec.Count != 60 {
		t.Errorf("gap record = %+v, want one of 60 records that were not kept", rec)
	}
}

// TestWipedLeaf: a store without a past takes over the name, and everything captured from then on arrives. A mirror cannot go on.
func TestWipedLeaf(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes 10 s")
	}
	s := newSite(t)
	g := s.start("g1", t.TempDir())
	g.append(200, "S", "M")
	s.await(patient, "FIELD", "g1_M")
	g.close()
	mirrored := s.want["g1_M"]
	g = s.start("g1", t.TempDir())
	g.append(300, "S", "M")
	s.await(patient, "FIELD")
	p := g.reach("M", OtherIncarnation, patient)
	if p.Remedy == "" || p.Cause == "" {
		t.Errorf("progress of the mirror = %+v, want a cause and a remedy", p)
	}
	s.want["g1_M"] = mirrored
	s.await(0, "g1_M")
	// Once more over a link-up: the store that was taken over stays known.
	s.wire.Reset()
	g.unlinked()
	g.append(10, "S")
	s.await(patient, "FIELD")
}

func TestTwoLeavesInOneStream(t *testing.T) {
	leak.Check(t)
	s := newSite(t, "g1", "g2")
	a, b := s.start("g1", t.TempDir()), s.start("g2", t.TempDir(), s.hub.LeafAddr(1))
	for range 5 {
		a.append(100, "S", "M")
		b.append(100, "S", "M")
	}
	s.await(patient, "FIELD", "g1_M", "g2_M")
}

// TestSameNameTwice: a second gateway of the same name never mixes its records in, whether it takes turns with the first at one node
// of the hub or is connected to another node. The first one's all arrive.
func TestSameNameTwice(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes 20 s")
	}
	for _, node := range []int{0, 1} {
		name := []string{"same node", "other node"}[node]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			a := s.start("g1", t.TempDir())
			a.append(200, "S", "M")
			s.await(patient, "FIELD", "g1_M")
			want := map[string][]string{"FIELD": s.want["FIELD"], "g1_M": s.want["g1_M"]}
			b := s.start("g1", t.TempDir(), s.hub.LeafAddr(node))
			s.want = want // nothing of the second one's
			stop := a.pour(1, 200*time.Millisecond)
			p := b.reach("S", SameName, patient)
			if p.Cause == "" || p.Remedy == "" {
				t.Errorf("progress of the second gateway = %+v, want a cause and a remedy", p)
			}
			b.leafOnly(1500 * time.Millisecond)
			stop()
			b.close()
			s.await(patient, "FIELD", "g1_M")
		})
	}
}

// leafOnly watches a gateway that must not be forwarding.
func (g *gateway) leafOnly(d time.Duration) {
	g.site.t.Helper()
	if poll.Wait(context.Background(), d, func() bool {
		for _, p := range g.up.Progress() {
			if p.State == Live || p.State == CatchingUp {
				return true
			}
		}
		return false
	}) {
		g.site.t.Errorf("a gateway that must not forward does: %+v", g.up.Progress())
	}
}

// TestHubAhead: the leaf's streams lose their end, which the hub has, and nothing on the leaf tells.
func TestHubAhead(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes 10 s")
	}
	s := newSite(t)
	dir := t.TempDir()
	g := s.start("g1", dir)
	g.append(200, "S", "M")
	s.await(patient, "FIELD", "g1_M")
	g.close()
	old := t.TempDir()
	what := []string{"jetstream", "store/journal", "store/streams", "store/streams.bak", "store/counters", "store/counters.bak"}
	for _, name := range what {
		s.check(copyAny(filepath.Join(old, name), filepath.Join(dir, name)))
	}
	g = s.start("g1", dir)
	g.append(150, "S", "M")
	s.await(patient, "FIELD", "g1_M")
	g.close()
	for _, name := range what {
		s.check(os.RemoveAll(filepath.Join(dir, name)))
		s.check(copyAny(filepath.Join(dir, name), filepath.Join(old, name)))
	}
	g = s.start("g1", dir)
	g.append(40, "S", "M")
	s.await(patient, "FIELD", "g1_M")
	g.append(40, "S", "M")
	s.await(patient, "FIELD", "g1_M")
}

// copyAny copies a file or a folder.
func copyAny(to, from string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if info.IsDir() {
		return os.CopyFS(to, os.DirFS(from))
	}
	raw, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return errors.Join(os.MkdirAll(filepath.Dir(to), 0o700), os.WriteFile(to, raw, 0o600))
}

// TestOlderCopyIsRefused: a store put back to a copy from before its newest epoch would give IDs away a second time.
func TestOlderCopyIsRefused(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes 5 s")
	}
	s := newSite(t)
	dir, old := t.TempDir(), filepath.Join(t.TempDir(), "old")
	g := s.start("g1", dir)
	g.append(100, "S", "M")
	s.await(patient, "FIELD", "g1_M")
	g.close()
	s.check(os.CopyFS(old, os.DirFS(dir)))
	g = s.start("g1", dir)
	g.append(20, "S", "M")
	s.await(patient, "FIELD", "g1_M")
	g.close()
	g = s.start("g1", old)
	for _, stream := range []string{"S", "M"} {
		if p := g.reach(stream, Refused, patient); p.Remedy == "" {
			t.Errorf("progress of %s = %+v, want a remedy", stream, p)
		}
	}
}
