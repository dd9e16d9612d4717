package hub

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/rig/hub"
	"github.com/holdfast-edge/holdfast/rig/poll"
)

// TestApplyWhileANodeIsDown: the stream of keepers has one copy. While its server is down, apply, plan and the removal of a revoked leaf do all
// else, end soon, and name what they could not do.
func TestApplyWhileANodeIsDown(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("SKIPPED: takes half a minute, not done with -short")
	}
	c, err := hub.Start(hub.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() }) // the nodes' stores are temporary
	js, err := c.JetStream()
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	a := Leaf{Name: "a", Commands: true, Streams: []Stream{{Name: "S"}}}
	b := Leaf{Name: "b", Commands: true, Streams: []Stream{{Name: "S"}, {Name: "T"}}}
	if _, err := Apply(ctx, js, planOf(t, Spec{Leaves: []Leaf{a}})); err != nil {
		t.Fatal(err)
	}
	keep, err := js.Stream(ctx, Keep)
	if err != nil {
		t.Fatal(err)
	}
	home := keep.CachedInfo().Cluster.Leader
	down := -1
	for i := range c.Len() {
		if c.Server(i).Name() == home {
			down = i
		}
	}
	if err := c.Kill(down); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		name string
		do   func() ([]Change, error)
		want []string // among the changes
		left string   // in the error
	}{
		{"plan", func() ([]Change, error) { return Diff(ctx, js, planOf(t, Spec{Leaves: []Leaf{a, b}})) },
			[]string{"update stream S: source b/S", "create stream T", "create consumer down_b_COMMANDS"}, "its 3 consumers"},
		{"apply", func() ([]Change, error) { return Apply(ctx, js, planOf(t, Spec{Leaves: []Leaf{a, b}})) },
			[]string{"update stream S: source b/S", "create stream T", "create consumer down_b_COMMANDS"}, "its 3 consumers"},
		{"revoke", func() ([]Change, error) { return Expel(ctx, js, []string{"a"}) },
			[]string{"no longer source a/S", "delete consumer down_a_COMMANDS"}, "its consumers"},
	} {
		begun := time.Now()
		changes, err := step.do()
		took := time.Since(begun)
		t.Logf("%s took %v: %s\n%v", step.name, took.Round(time.Second), said(changes), err)
		if !errors.Is(err, ErrAway) || !strings.Contains(err.Error(), Keep) || !strings.Contains(err.Error(), step.left) {
			t.Errorf("%s = %v, want what was not done for %s", step.name, err, Keep)
		}
		for _, want := range step.want {
			if !strings.Contains(said(changes), want) {
				t.Errorf("%s did\n%s\nwithout %q", step.name, said(changes), want)
			}
		}
		if took > 2*time.Minute {
			t.Errorf("%s took %v", step.name, took)
		}
	}
	if err := c.Restart(down); err != nil {
		t.Fatal(err)
	}
	whole := planOf(t, Spec{Leaves: []Leaf{b}, Revoked: []string{"a"}})
	if !poll.Wait(ctx, time.Minute, func() bool { _, err = Apply(ctx, js, whole); return err == nil }) {
		t.Fatalf("apply once the node is back = %v", err)
	}
	if changes, err := Diff(ctx, js, whole); err != nil || strings.Contains(said(changes), "e consumer") {
		t.Errorf("afterwards = %v, %s", err, said(changes))
	}
}

// TestApplyGoesOnBehindWhatIsRefused: one stream that cannot be as the fleet file says keeps none of the others from it, and all are named.
func TestApplyGoesOnBehindWhatIsRefused(t *testing.T) {
	t.Parallel()
	js, ctx := startHub(t)
	for _, name := range []string{"a_M", "b_M"} {
		if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: name, Subjects: []string{name}}); err != nil {
			t.Fatal(err)
		}
	}
	leaf := func(name string) Leaf {
		return Leaf{Name: name, Commands: true, Streams: []Stream{{Name: "M", Mode: Mirror}, {Name: "S"}}}
	}
	p := planOf(t, Spec{Leaves: []Leaf{leaf("a"), leaf("b"), leaf("c")}})
	for _, do := range []func() ([]Change, error){
		func() ([]Change, error) { return Diff(ctx, js, p) },
		func() ([]Change, error) { return Apply(ctx, js, p) },
	} {
		changes, err := do()
		if err == nil || !strings.Contains(err.Error(), "hub stream a_M: ") || !strings.Contains(err.Error(), "hub stream b_M: ") {
			t.Errorf("%v, want both refused streams named", err)
		}
		for _, want := range []string{"create stream c_M", "create stream S", "create consumer down_c_COMMANDS"} {
			if !strings.Contains(said(changes), want) {
				t.Errorf("did\n%s\nwithout %q", said(changes), want)
			}
		}
	}
	if s, err := js.Stream(ctx, "S"); err != nil || len(s.CachedInfo().Config.Sources) != 3 {
		t.Errorf("S = %+v, %v", s, err)
	}
}
