package hub

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/rig/poll"
)

func planOf(t *testing.T, spec Spec) Plan {
	t.Helper()
	p, err := New(spec)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestApplyRefusesWhatWouldDelete: limits of the fleet file are set, but never below what a stream holds.
func TestApplyRefusesWhatWouldDelete(t *testing.T) {
	t.Parallel()
	js, ctx := startHub(t)
	leaf := Leaf{Name: "a", Streams: []Stream{{Name: "S"}, {Name: "M", Mode: Mirror}}}
	with := func(s HubStream) Plan { return planOf(t, Spec{Leaves: []Leaf{leaf}, Streams: []HubStream{s}}) }
	if _, err := Apply(ctx, js, with(HubStream{Name: "S", MaxBytes: 1 << 20, Full: Refuse})); err != nil {
		t.Fatal(err)
	}
	s, err := js.Stream(ctx, "S")
	if err != nil {
		t.Fatal(err)
	}
	cfg := s.CachedInfo().Config
	if cfg.MaxBytes != 1<<20 || cfg.Discard != jetstream.DiscardNew {
		t.Errorf("S was made as %+v", cfg)
	}
	cfg.Subjects = []string{"x"} // to put something in
	if _, err := js.UpdateStream(ctx, cfg); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if _, err := js.Publish(ctx, "x", make([]byte, 10_000)); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name string
		set  HubStream
		want string // of the error, or of the change
		fail bool
	}{
		{"less than it holds", HubStream{Name: "S", MaxBytes: 1000}, "is less than the", true},
		{"younger than its first", HubStream{Name: "S", MaxAge: time.Nanosecond}, "less than the age of its first record", true},
		{"less, but enough", HubStream{Name: "S", MaxBytes: 1 << 19}, "max_bytes 524288 instead of 1048576", false},
		{"more", HubStream{Name: "S", MaxBytes: 1 << 30, MaxAge: 24 * time.Hour}, "max_bytes 1073741824 instead of 524288, max_age 24h0m0s instead of 0s", false},
		{"nothing said", HubStream{Name: "S"}, "keep stream S", false},
		{"a window", HubStream{Name: "S", Full: DropOldest}, "when full drop-oldest", false},
	} {
		for _, do := range []func() ([]Change, error){
			func() ([]Change, error) { return Diff(ctx, js, with(c.set)) },
			func() ([]Change, error) { return Apply(ctx, js, with(c.set)) },
		} {
			changes, err := do()
			if got := said(changes) + fmt.Sprint(err); c.fail != (err != nil) || !strings.Contains(got, c.want) {
				t.Errorf("%s: %s, want %q", c.name, got, c.want)
			}
		}
	}
	if err := s.Purge(ctx); err != nil {
		t.Fatal(err)
	}
	// A mirror of which somebody has limited the age.
	m, err := js.Stream(ctx, "a_M")
	if err != nil {
		t.Fatal(err)
	}
	cfg = m.CachedInfo().Config
	cfg.MaxAge = time.Hour
	if _, err := js.UpdateStream(ctx, cfg); err != nil {
		t.Fatal(err)
	}
	changes, err := Diff(ctx, js, with(HubStream{Name: "S"}))
	if err != nil || !strings.Contains(said(changes), "deleted on arrival") {
		t.Errorf("a mirror of limited age: %s, %v, want a warning", said(changes), err)
	}
	if _, err := New(Spec{Leaves: []Leaf{leaf}, Streams: []HubStream{{Name: "a_M", MaxAge: time.Hour}}}); err == nil || !strings.Contains(err.Error(), "late backlog") {
		t.Errorf("max_age of a mirror in the fleet file = %v, want it refused", err)
	}
}

// TestFullMirrorsDoNotRefuse: a replicated mirror takes no notice of its limits when it is to refuse what is beyond them, so that a plan does not ask for it.
func TestFullMirrorsDoNotRefuse(t *testing.T) {
	t.Parallel()
	js, ctx := startHub(t)
	const limit, sent = 10, 40
	for _, cfg := range []jetstream.StreamConfig{
		{Name: "ORIGIN", Subjects: []string{"x"}, Replicas: 3},
		{Name: "a_M", Replicas: 3, MaxMsgs: limit, Discard: jetstream.DiscardNew, Mirror: &jetstream.StreamSource{Name: "ORIGIN"}},
	} {
		if _, err := js.CreateStream(ctx, cfg); err != nil {
			t.Fatal(err)
		}
	}
	for range sent {
		if _, err := js.Publish(ctx, "x", nil); err != nil {
			t.Fatal(err)
		}
	}
	var n uint64
	if !poll.Wait(ctx, time.Minute, func() bool {
		s, err := js.Stream(ctx, "a_M")
		if err == nil {
			n = s.CachedInfo().State.Msgs
		}
		return n == sent
	}) {
		t.Errorf("a mirror of %d messages at most has %d of %d: the server honours it now, and a plan may ask for it", limit, n, sent)
	}
	leaf := Leaf{Name: "a", Streams: []Stream{{Name: "M", Mode: Mirror}}}
	if _, err := New(Spec{Leaves: []Leaf{leaf}, Streams: []HubStream{{Name: "a_M", Full: Refuse}}}); err == nil || !strings.Contains(err.Error(), `"a_M": when_full: refuse is without effect in a mirror`) {
		t.Errorf("when_full: refuse of a mirror = %v, want it refused by name", err)
	}
	origin := &jetstream.StreamSource{External: &jetstream.ExternalStream{}}
	m := merger{have: &jetstream.StreamConfig{Mirror: origin, MaxMsgs: limit, Discard: jetstream.DiscardNew}, want: jetstream.StreamConfig{Mirror: origin}}
	if err := m.merge(); err != nil || !strings.Contains(strings.Join(m.warnings, ""), "grows beyond its limits") {
		t.Errorf("merge of such a mirror = %v with warnings %q", err, m.warnings)
	}
}

// TestApplyTakesRevokedLeavesOut: their sources and consumers go, what they have sent stays.
func TestApplyTakesRevokedLeavesOut(t *testing.T) {
	t.Parallel()
	js, ctx := startHub(t)
	leaf := func(name string) Leaf { return Leaf{Name: name, Commands: true, Streams: []Stream{{Name: "S"}}} }
	if _, err := Apply(ctx, js, planOf(t, Spec{Leaves: []Leaf{leaf("a"), leaf("b")}})); err != nil {
		t.Fatal(err)
	}
	p := planOf(t, Spec{Leaves: []Leaf{leaf("a")}, Revoked: []string{"b"}})
	changes, err := Apply(ctx, js, p)
	if want := "update stream S: no longer source b/S, which is revoked"; err != nil || !strings.Contains(said(changes), want) ||
		!strings.Contains(said(changes), "delete consumer down_b_COMMANDS of stream COMMANDS: leaf b is revoked") {
		t.Errorf("apply = %v, %s", err, said(changes))
	}
	if changes, err = Diff(ctx, js, p); err != nil || said(changes) != "keep stream COMMANDS\nkeep stream S" {
		t.Errorf("afterwards = %v, %s", err, said(changes))
	}
	// The last one, after whom nothing is planned any more; once more with nothing to do.
	for _, want := range []int{3, 0} {
		if changes, err = Apply(ctx, js, planOf(t, Spec{Revoked: []string{"a", "b"}})); err != nil || len(changes) != want {
			t.Errorf("apply with all leaves revoked = %v, %v", err, changes)
		}
	}
	for _, stream := range []string{"S", Commands, Keep} {
		s, err := js.Stream(ctx, stream)
		if err != nil || s.CachedInfo().State.Consumers > 0 || len(s.CachedInfo().Config.Sources) > 0 {
			t.Errorf("stream %s has %+v, %v", stream, s, err)
		}
	}
}

// TestApplyMovesAStream: a leaf's stream that goes to another hub stream by the fleet file leaves the one that it went to, whether others still go there or not.
func TestApplyMovesAStream(t *testing.T) {
	t.Parallel()
	js, ctx := startHub(t)
	leaf := func(name string, s Stream) Leaf { s.Name = "S"; return Leaf{Name: name, Streams: []Stream{s}} }
	for _, c := range []struct {
		leaves []Leaf
		want   string
	}{
		{[]Leaf{leaf("a", Stream{}), leaf("b", Stream{})}, "create stream S"},
		{[]Leaf{leaf("a", Stream{Mode: Mirror}), leaf("b", Stream{})}, "update stream S: no longer source a/S, which goes to hub stream a_S now"},
		{[]Leaf{leaf("a", Stream{Mode: Mirror}), leaf("b", Stream{HubStream: "T"})}, "update stream S: no longer source b/S, which goes to hub stream T now"},
		{[]Leaf{leaf("a", Stream{HubStream: "T"}), leaf("b", Stream{HubStream: "T"})}, "it is still a mirror of a/S, which goes to hub stream T now"},
	} {
		changes, err := Apply(ctx, js, planOf(t, Spec{Leaves: c.leaves}))
		if err != nil || !strings.Contains(said(changes), c.want) {
			t.Errorf("apply = %v, %s; want %q", err, said(changes), c.want)
		}
	}
	if s, err := js.Stream(ctx, "S"); err != nil || len(s.CachedInfo().Config.Sources) > 0 {
		t.Errorf("stream S still has sources: %v, %v", s, err)
	}
}

// atLeast returns a size that the environment gives, for the long runs.
func atLeast(t *testing.T, name string, n int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return n
	}
	given, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return given
}

// TestFleetOfAThousand: many leaves, a thousand in the long run, are planned and applied within a minute, over four shards, and nothing is to be done a
// second time.
func TestFleetOfAThousand(t *testing.T) {
	t.Parallel()
	n := atLeast(t, "HOLDFAST_LEAVES", 300)
	if testing.Short() {
		n = 40
	}
	js, ctx := startHub(t)
	spec := Spec{Streams: []HubStream{{Name: "FAST", Shards: 4, MaxBytes: 1 << 30}}}
	for i := range n {
		spec.Leaves = append(spec.Leaves, Leaf{Name: fmt.Sprintf("leaf-%04d", i), Password: "p", Commands: i%10 == 0, Streams: []Stream{
			{Name: "SENSORS"}, {Name: "FAST", HubStream: Shard("FAST", 1+i%4)},
		}})
	}
	begun := time.Now()
	p := planOf(t, spec)
	conf := p.Config()
	planned := time.Since(begun)
	if _, err := Apply(ctx, js, p); err != nil {
		t.Fatal(err)
	}
	applied := time.Since(begun) - planned
	changes, err := Diff(ctx, js, p)
	took := time.Since(begun)
	t.Logf("%d leaves: planned in %v (%d KiB of users), applied in %v, compared in %v", n, planned.Round(time.Millisecond), len(conf)>>10, applied.Round(time.Millisecond),
		(took - applied - planned).Round(time.Millisecond))
	if err != nil || slices.ContainsFunc(changes, func(c Change) bool { return c.Action != "keep" }) {
		t.Errorf("a second time: %v, %s", err, said(changes))
	}
	if took > time.Minute {
		t.Errorf("planned, applied and compared in %v, want a minute at most", took)
	}
	for name, want := range map[string]int{"SENSORS": n, "FAST-1": n / 4, "FAST-4": n / 4} {
		s, err := js.Stream(ctx, name)
		if err != nil || len(s.CachedInfo().Config.Sources) != want {
			t.Errorf("%s: %v, want %d sources", name, err, want)
		}
	}
}
