package hub

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/rig/hub"
)

func startHub(t *testing.T) (jetstream.JetStream, context.Context) {
	t.Helper()
	c, err := hub.Start(hub.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	js, err := c.JetStream()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return js, ctx
}

func plan(t *testing.T, leaves ...Leaf) Plan {
	t.Helper()
	p, err := New(Spec{Leaves: leaves})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// said returns the changes in words, but for those of keepers, which each source has.
func said(changes []Change) string {
	lines := make([]string, 0, len(changes))
	for _, c := range changes {
		if c.Stream != Keep {
			lines = append(lines, c.String())
		}
	}
	return strings.Join(lines, "\n")
}

func TestApply(t *testing.T) {
	t.Parallel()
	js, ctx := startHub(t)
	a := Leaf{Name: "a", Streams: []Stream{{Name: "S", HubStream: "FIELD"}, {Name: "M", Mode: Mirror}}}
	b := Leaf{Name: "b", Streams: []Stream{{Name: "S", HubStream: "FIELD"}}}
	steps := []struct {
		name   string
		dry    bool
		leaves []Leaf
		want   string
	}{
		{"dry run on an empty hub", true, []Leaf{a}, "create stream FIELD: sources a/S, 3 replicas\ncreate stream a_M: mirror of a/M, 3 replicas"},
		{"first", false, []Leaf{a}, "create stream FIELD: sources a/S, 3 replicas\ncreate stream a_M: mirror of a/M, 3 replicas"},
		{"again", false, []Leaf{a}, "keep stream FIELD\nkeep stream a_M"},
		{"dry run of a second leaf", true, []Leaf{a, b}, "update stream FIELD: source b/S\nkeep stream a_M"},
		{"second leaf", false, []Leaf{a, b}, "update stream FIELD: source b/S\nkeep stream a_M"},
		{"second leaf again", false, []Leaf{b, a}, "keep stream FIELD\nkeep stream a_M"},
		{"fewer leaves take nothing away", false, []Leaf{b}, "keep stream FIELD"},
	}
	for _, step := range steps {
		do := Apply
		if step.dry {
			do = Diff
		}
		changes, err := do(ctx, js, plan(t, step.leaves...))
		if err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if got := said(changes); got != step.want {
			t.Errorf("%s: did\n%s\nwant\n%s", step.name, got, step.want)
		}
	}
	s, err := js.Stream(ctx, "FIELD")
	if err != nil {
		t.Fatal(err)
	}
	if n := len(s.CachedInfo().Config.Sources); n != 2 {
		t.Errorf("FIELD has %d sources, want 2", n)
	}
	for _, name := range []string{Consumer("a", "S"), Consumer("a", "M"), Consumer("b", "S")} {
		if _, err := js.PushConsumer(ctx, Keep, name); err != nil {
			t.Errorf("keeper %s: %v", name, err)
		}
	}
}

// TestApplyLeavesTheOperatorsSettings: limits that somebody set stay, and direct reads, which the handshake needs, are switched on.
func TestApplyLeavesTheOperatorsSettings(t *testing.T) {
	t.Parallel()
	js, ctx := startHub(t)
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "FIELD", Subjects: []string{"other.>"}, MaxAge: time.Hour, Replicas: 1}); err != nil {
		t.Fatal(err)
	}
	p := plan(t, Leaf{Name: "a", Streams: []Stream{{Name: "S", HubStream: "FIELD"}}})
	changes, err := Apply(ctx, js, p)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := said(changes), "update stream FIELD: source a/S, direct reads, which the handshake needs"; got != want {
		t.Errorf("did %q, want %q", got, want)
	}
	s, err := js.Stream(ctx, "FIELD")
	if err != nil {
		t.Fatal(err)
	}
	c := s.CachedInfo().Config
	if c.MaxAge != time.Hour || c.Replicas != 1 || len(c.Subjects) != 1 || !c.AllowDirect {
		t.Errorf("FIELD is now %+v", c)
	}
}

func TestApplyRefusesWhatDoesNotFit(t *testing.T) {
	t.Parallel()
	js, ctx := startHub(t)
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "a_M", Subjects: []string{"x"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "FIELD", Sources: []*jetstream.StreamSource{
		{Name: "S", External: &jetstream.ExternalStream{APIPrefix: "$JS.a.API"}},
	}}); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ stream, want string }{
		"no mirror":                     {"M", "cannot become a mirror"},
		"source of a hub-made consumer": {"S", "remove that source first"},
	} {
		mode := Source
		if c.stream == "M" {
			mode = Mirror
		}
		st := Stream{Name: c.stream, Mode: mode}
		if mode == Source {
			st.HubStream = "FIELD"
		}
		if _, err := Apply(ctx, js, plan(t, Leaf{Name: "a", Streams: []Stream{st}})); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: Apply = %v, want %q in it", name, err, c.want)
		}
	}
}
