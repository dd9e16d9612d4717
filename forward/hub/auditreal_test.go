package hub_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/forward"
	fleet "github.com/holdfast-edge/holdfast/forward/hub"
	"github.com/holdfast-edge/holdfast/leaf"
	"github.com/holdfast-edge/holdfast/rig/hub"
	"github.com/holdfast-edge/holdfast/rig/poll"
	"github.com/holdfast-edge/holdfast/storage"
)

// TestAuditAndListOfRealLeaves: two leaves forward through restarts; one overflows while its link is off, and its gap records explain what is
// missing to the last record. What is then taken away at the hub is found missing, and what List says of both fits.
func TestAuditAndListOfRealLeaves(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("SKIPPED: takes 15 s, not done with -short")
	}
	spec := fleet.Spec{Leaves: []fleet.Leaf{
		{Name: "g1", Password: "secret", Streams: []fleet.Stream{{Name: "S", HubStream: "FIELD"}}},
		{Name: "g2", Password: "secret", Commands: true, Streams: []fleet.Stream{{Name: "S", HubStream: "FIELD"}, {Name: "T"}}},
		{Name: "g3"},
	}}
	h, js := planned(t, spec)
	start := func(name, dir string) *gateway {
		urls, err := hub.WithUser(h.LeafURLs(), name, "secret")
		if err != nil {
			t.Fatal(err)
		}
		return startGateway(t, name, dir, leaf.Hub{URLs: urls, Domain: "hub"}, map[string]forward.Config{"S": {Mode: forward.ModeSource, HubStream: "FIELD"}},
			storage.StreamConfig{Name: "S", MaxBytes: 1 << 20, WhenFull: storage.DropOldest})
	}
	dirs := t.TempDir()
	field := map[string]string{"S": "FIELD"}
	g1, g2 := start("g1", filepath.Join(dirs, "g1")), start("g2", filepath.Join(dirs, "g2"))
	g1.append(100, "S")
	g2.append(100, "S")
	g1.awaitAll(js, "g1", field)
	g2.awaitAll(js, "g2", field)
	g2.close() // another epoch, after a first one whose end the hub learns of
	g2 = start("g2", filepath.Join(dirs, "g2"))
	g2.append(50, "S")
	poll.Until(t, patience, func() bool { return auditOf(t, js, "FIELD")["g2/from-S"].Records == 150 }, "150 records of g2")

	if err := g1.leaf.Enable(false); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, patience, func() bool { return g1.leaf.Link().State != leaf.LinkUp }, "link off")
	for range 20 {
		g1.append(1000, "S")
	}
	if err := g1.leaf.Enable(true); err != nil {
		t.Fatal(err)
	}
	g1.append(10, "S")
	g1.awaitAll(js, "after an overflow", field)
	got := auditOf(t, js, "FIELD")
	one, two := got["g1/from-S"], got["g2/from-S"]
	if one.Verdict != fleet.AllExplained || one.Records+one.Explained[storage.GapDropOldest] != g1.seq["S"] || one.Records == g1.seq["S"] {
		t.Errorf("account of an overflow of %d records = %+v", g1.seq["S"], one)
	}
	if two.Verdict != fleet.Contiguous {
		t.Errorf("account of the other = %+v", two)
	}
	t.Logf("overflow: %+v", one)

	system, err := h.System()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), "cmd.g2.valve", nil); err != nil {
		t.Fatal(err)
	}
	p, err := fleet.New(spec)
	if err != nil {
		t.Fatal(err)
	}
	leaves, err := fleet.List(t.Context(), js, system, p)
	if err != nil || len(leaves) != 3 {
		t.Fatalf("List = %+v, %v", leaves, err)
	}
	lost := one.Explained[storage.GapDropOldest] // and with them gap records that told of the ones before
	if l := leaves[0]; !l.Connected || !l.Enrolled || l.Streams[0].Missing || l.Streams[0].Lost < lost || l.Streams[0].Lost > lost+lost/20 || time.Since(l.Streams[0].Arrived) > time.Hour {
		t.Errorf("list of g1 = %+v, want it connected and %d records lost", l, lost)
	}
	if l := leaves[1]; l.Streams[0].Lost != 0 || l.Streams[1].Missing || !l.Streams[1].Arrived.IsZero() || len(l.Down) != 1 || l.Down[0].Waiting != 1 {
		t.Errorf("list of g2 = %+v, want nothing lost, nothing in T and a command waiting", l)
	}
	if l := leaves[2]; l.Connected || l.Enrolled || !l.Seen.IsZero() {
		t.Errorf("list of a leaf that nobody has seen = %+v", l)
	}

	s, err := js.Stream(t.Context(), "FIELD")
	if err != nil {
		t.Fatal(err)
	}
	for seq := uint64(20); seq <= 21; seq++ {
		if err := s.DeleteMsg(t.Context(), seq); err != nil {
			t.Fatal(err)
		}
	}
	got = auditOf(t, js, "FIELD")
	if n := got["g1/from-S"].Missing + got["g2/from-S"].Missing; n != 2 {
		t.Errorf("after two records were taken away: %+v", got)
	}
	if err := s.Purge(t.Context(), jetstream.WithPurgeSequence(30)); err != nil {
		t.Fatal(err)
	}
	sum := func() (missing, expired uint64) {
		for _, r := range auditOf(t, js, "FIELD") {
			missing, expired = missing+r.Missing, expired+r.Expired
		}
		return missing, expired
	}
	for _, c := range []struct {
		name  string
		limit func(c *jetstream.StreamConfig)
		gone  bool // what is gone from the front is missing
	}{
		{"no limit", func(*jetstream.StreamConfig) {}, true},
		{"an age that nothing has", func(c *jetstream.StreamConfig) { c.MaxAge = 24 * time.Hour }, true},
		{"a limit that refuses", func(c *jetstream.StreamConfig) { c.MaxAge, c.MaxBytes, c.Discard = 0, 1<<30, jetstream.DiscardNew }, true},
		{"a window", func(c *jetstream.StreamConfig) { c.Discard = jetstream.DiscardOld }, false},
	} {
		cfg := s.CachedInfo().Config
		c.limit(&cfg)
		if s, err = js.UpdateStream(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
		if missing, expired := sum(); (missing > 0) != c.gone || (expired > 0) == c.gone {
			t.Errorf("the front of a hub stream with %s was purged: %d missing, %d expired", c.name, missing, expired)
		}
	}
}
