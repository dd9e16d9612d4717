package hub_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/forward"
	fleet "github.com/holdfast-edge/holdfast/forward/hub"
	"github.com/holdfast-edge/holdfast/leaf"
	"github.com/holdfast-edge/holdfast/rig/hub"
	"github.com/holdfast-edge/holdfast/rig/poll"
)

// TestHubFaults takes one gateway through all that may happen to a hub, and accounts for every record after each: a rolling restart, the loss of
// a node, leaders that move, a stream that is full and refuses, streams that are deleted and made anew, and a hub that is restored to yesterday.
func TestHubFaults(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("SKIPPED: takes a minute, not done with -short")
	}
	spec := fleet.Spec{Leaves: []fleet.Leaf{{Name: "g1", Password: "secret", Streams: []fleet.Stream{{Name: "S", HubStream: "FIELD"}, {Name: "M", Mode: fleet.Mirror}}}}}
	plan, err := fleet.New(spec)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	h, err := hub.Start(hub.Options{Accounts: plan.Config(), Dir: filepath.Join(dir, "hub")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	js, err := h.JetStream()
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	apply := func() {
		t.Helper()
		var err error
		if !poll.Wait(ctx, patience, func() bool { _, err = fleet.Apply(ctx, js, plan); return err == nil }) {
			t.Fatal(err)
		}
	}
	apply()
	urls, err := hub.WithUser(h.LeafURLs(), "g1", "secret")
	if err != nil {
		t.Fatal(err)
	}
	g := startGateway(t, "g1", filepath.Join(dir, "g1"), leaf.Hub{URLs: urls, Domain: "hub"}, map[string]forward.Config{
		"S": {Mode: forward.ModeSource, HubStream: "FIELD"}, "M": {Mode: forward.ModeMirror},
	})
	hubStreams := map[string]string{"S": "FIELD", "M": "g1_M"}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	steps := []struct {
		name string
		do   func()
	}{
		{"nothing yet", func() { g.append(100, "S", "M") }},
		{"rolling restart", func() {
			for i := range h.Len() {
				g.append(100, "S", "M")
				check(h.Stop(ctx, i))
				g.append(100, "S", "M")
				check(h.Restart(i))
				check(h.WaitReady(ctx))
			}
		}},
		{"loss of a node", func() {
			check(h.Kill(1))
			g.append(200, "S", "M")
			g.awaitAll(js, "with two nodes", hubStreams)
			check(h.Restart(1))
			check(h.WaitReady(ctx))
		}},
		{"leaders that move", func() {
			for range 4 {
				g.append(100, "S", "M")
				for _, s := range hubStreams {
					poll.Until(t, patience, func() bool {
						m, err := js.Conn().Request("$JS.API.STREAM.LEADER.STEPDOWN."+s, nil, 2*time.Second)
						return err == nil && len(m.Data) > 0
					}, "leader of %s steps down", s)
				}
			}
		}},
		{"full streams that refuse", func() {
			for _, s := range hubStreams {
				st, err := js.Stream(ctx, s)
				check(err)
				cfg := st.CachedInfo().Config
				cfg.MaxMsgs, cfg.Discard = int64(st.CachedInfo().State.Msgs)+20, jetstream.DiscardNew
				_, err = js.UpdateStream(ctx, cfg)
				check(err)
			}
			g.append(200, "S", "M")
			if !poll.Wait(ctx, patience, func() bool { p := g.progress("S"); return p.State == forward.Full && p.Waiting > 0 && p.Waiting < 200 }) {
				t.Errorf("a full hub stream leaves %+v", g.progress("S"))
			}
			for _, s := range hubStreams {
				st, err := js.Stream(ctx, s)
				check(err)
				cfg := st.CachedInfo().Config
				cfg.MaxMsgs = -1
				_, err = js.UpdateStream(ctx, cfg)
				check(err)
			}
		}},
		{"deleted streams", func() {
			for _, s := range hubStreams {
				check(js.DeleteStream(ctx, s))
			}
			g.append(100, "S", "M")
			for s := range hubStreams {
				var p forward.Progress
				if !poll.Wait(ctx, patience, func() bool { p = g.progress(s); return p.State == forward.Missing }) {
					t.Errorf("the state of %s does not tell that its hub stream is gone: %+v", s, p)
				}
				t.Logf("%s without its hub stream: %v, %s", s, p.State, p.Cause)
			}
			apply()
		}},
		{"a hub that is restored to yesterday", func() {
			yesterday := filepath.Join(dir, "yesterday")
			away := func() {
				for i := range h.Len() {
					check(h.Stop(ctx, i))
				}
			}
			back := func() {
				for i := range h.Len() {
					check(h.Restart(i))
				}
				check(h.WaitReady(ctx))
			}
			away()
			check(os.CopyFS(yesterday, os.DirFS(filepath.Join(dir, "hub"))))
			back()
			g.append(300, "S", "M")
			g.awaitAll(js, "before the restore", hubStreams)
			away()
			check(os.RemoveAll(filepath.Join(dir, "hub")))
			check(os.CopyFS(filepath.Join(dir, "hub"), os.DirFS(yesterday)))
			back()
			g.append(50, "S", "M")
		}},
	}
	for _, step := range steps {
		begun := time.Now()
		step.do()
		g.awaitAll(js, step.name, hubStreams)
		t.Logf("%s: whole after %v", step.name, time.Since(begun).Round(100*time.Millisecond))
	}
	for what, r := range auditOf(t, js, "FIELD", "g1_M") {
		if r.Verdict != fleet.Contiguous || r.Records != g.seq["S"] {
			t.Errorf("account of %s = %+v, want %d records once", what, r, g.seq["S"])
		}
	}
}
