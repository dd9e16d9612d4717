package forward

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/leaf"
	"github.com/holdfast-edge/holdfast/rig/leak"
	"github.com/holdfast-edge/holdfast/rig/poll"
)

// TestWindow: no more than the window is under way while the hub says nothing.
func TestWindow(t *testing.T) {
	leak.Check(t)
	if testing.Short() {
		t.Skip("takes 5 s")
	}
	s := newSite(t)
	g := s.start("g1", t.TempDir())
	g.append(10, "S", "M")
	s.await(patient, "FIELD", "g1_M")
	s.wire.Swallow(true)
	g.append(10*firstMost, "S", "M")
	poll.Until(t, patient, func() bool { return g.underway("S") > 1 && g.underway("M") > 1 }, "a window under way")
	for range 20 {
		if n := g.underway("S"); n > firstMost {
			t.Errorf("%d records under way, want at most %d", n, firstMost)
		}
	}
	if p := g.progress("S"); g.leaf.Link().State == leaf.LinkUp && p.State != CatchingUp && p.State != Live {
		t.Errorf("progress = %+v", p)
	}
	s.wire.Swallow(false)
	s.wire.Reset()
	s.await(patient, "FIELD", "g1_M")
}

// underway returns how many records the hub has been sent and has not acknowledged.
func (g *gateway) underway(stream string) int {
	ctx, cancel := context.WithTimeout(context.Background(), patient)
	defer cancel()
	st, err := g.js.Stream(ctx, stream)
	if err != nil {
		return -1
	}
	n := -1
	for info := range st.ListConsumers(ctx).Info() {
		if info.Config.AckPolicy == jetstream.AckFlowControlPolicy {
			n = info.NumAckPending
		}
	}
	return n
}

func TestProgressOffline(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes 5 s")
	}
	s := newSite(t)
	dir := t.TempDir()
	g := s.start("g1", dir)
	g.append(50, "S", "M")
	s.await(patient, "FIELD", "g1_M")
	poll.Until(t, patient, func() bool { return g.progress("S").Waiting == 0 && g.progress("M").Waiting == 0 }, "nothing waits")
	proven, _ := g.up.Forwarded("S")
	s.wire.Cut()
	g.unlinked()
	before := time.Now()
	g.append(70, "S", "M")
	for range 2 {
		for _, stream := range []string{"S", "M"} {
			var p Progress
			poll.Until(t, patient, func() bool { p = g.progress(stream); return p.Waiting >= 70 && !p.Oldest.IsZero() }, "70 wait: %+v", describe{g, stream})
			if p.State != Down && p.State != Connecting || p.Proven < proven {
				t.Errorf("progress of %s = %+v, want down, and proven %d", stream, p, proven)
			}
			if d := p.Oldest.Sub(before); d < -time.Second || d > 5*time.Second {
				t.Errorf("progress of %s: oldest is %v, captured about %v", stream, p.Oldest, before)
			}
		}
		g.close()
		g = s.start("g1", dir)
	}
	if p, ok := g.up.Forwarded("S"); !ok || p != proven {
		t.Errorf("Forwarded after a restart without hub = %d, %v, want %d", p, ok, proven)
	}
	s.check(s.wire.Restore())
	s.await(patient, "FIELD", "g1_M")
}

// TestAcknowledgementsDoNotArrive: a user who may not hear the hub's acknowledgements stalls with a cause that says so.
func TestAcknowledgementsDoNotArrive(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes 40 s")
	}
	s := newSiteWith(t, func(config string) string { return strings.ReplaceAll(config, `"$JS.FC.g1.`, `"$JS.NO.g1.`) })
	g := s.start("g1", t.TempDir())
	g.append(5000, "S", "M")
	p := g.reach("S", Stalled, 2*patient)
	poll.Until(t, patient, func() bool {
		p = g.progress("S")
		return strings.Contains(p.Cause, "stalled on flow control") || p.State != Stalled
	}, "a cause, it is %+v", &p)
	if !strings.Contains(p.Remedy, "$JS.FC.g1.>") {
		t.Errorf("progress = %+v, want a remedy that names the permission", p)
	}
}

// TestStopProvesOnceMore: what the hub has acknowledged when a gateway stops in order is proven, though no read was due. If another gateway of
// the name sends next, nothing else tells what the hub has of this one.
func TestStopProvesOnceMore(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("runs a hub")
	}
	s := newSite(t)
	dir := t.TempDir()
	g := s.start("g1", dir)
	for range 4 { // the pause between reads grows
		g.append(5, "S")
		s.await(patient, "FIELD")
		poll.Until(t, patient, func() bool { return g.progress("S").Waiting == 0 }, "nothing waits")
	}
	stream, err := g.js.Stream(t.Context(), "S")
	if err != nil {
		t.Fatal(err)
	}
	last := stream.CachedInfo().State.LastSeq
	id := g.store.ID()
	g.close()
	if proven, ok := Remembered(dir, id)("S"); !ok || uint64(proven) != last {
		t.Errorf("after an orderly stop %d, %v is proven, want %d", proven, ok, last)
	}
}

// TestOldestIsOfWhatWasCaptured: the epoch record that waits with the others is older than they are, and does not count.
func TestOldestIsOfWhatWasCaptured(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.wire.Cut()
	g := s.start("g1", t.TempDir())
	poll.Until(t, patient, func() bool { return g.progress("S").Waiting > 0 }, "the epoch record waits: %+v", describe{g, "S"})
	if p := g.progress("S"); !p.Oldest.IsZero() {
		t.Errorf("oldest is %v with nothing captured", p.Oldest)
	}
	before := time.Now()
	g.append(5, "S")
	poll.Until(t, patient, func() bool { return !g.progress("S").Oldest.IsZero() }, "an age of what waits: %+v", describe{g, "S"})
	if p := g.progress("S"); p.Oldest.Before(before) {
		t.Errorf("oldest is %v, and the first was captured after %v", p.Oldest, before)
	}
}
