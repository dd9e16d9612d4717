package hub_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	fleet "github.com/holdfast-edge/holdfast/forward/hub"
	"github.com/holdfast-edge/holdfast/leaf"
	"github.com/holdfast-edge/holdfast/rig/hub"
	"github.com/holdfast-edge/holdfast/rig/poll"
)

const patience = time.Minute

// planned starts a hub for leaves whose password is "secret", and applies their plan.
func planned(t *testing.T, spec fleet.Spec) (*hub.Cluster, jetstream.JetStream) {
	t.Helper()
	p, err := fleet.New(spec)
	if err != nil {
		t.Fatal(err)
	}
	h, err := hub.Start(hub.Options{Accounts: p.Config()})
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
	if _, err := fleet.Apply(t.Context(), js, p); err != nil {
		t.Fatal(err)
	}
	return h, js
}

// join starts a leaf's server with its link up, and returns the JetStream of its captured streams.
func join(t *testing.T, name, dir string, h leaf.Hub) (*leaf.Server, jetstream.JetStream) {
	t.Helper()
	s, err := leaf.Start(leaf.Options{Config: leaf.Config{Name: name, Data: dir}, Hub: h})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Error(err)
		}
	})
	nc, err := s.Connect()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Enable(true); err != nil {
		t.Fatal(err)
	}
	return s, js
}

// fromHub is how a leaf takes a stream from the hub.
func fromHub(leaf, stream string) *jetstream.StreamSource {
	return &jetstream.StreamSource{
		Name: stream, External: &jetstream.ExternalStream{APIPrefix: "$JS.hub.API"},
		Consumer: &jetstream.StreamConsumerSource{Name: fleet.DownConsumer(leaf, stream), DeliverSubject: fleet.DownSubject(leaf, stream)},
	}
}

// TestDownlink: with the planned streams, consumers and rights each leaf takes its own commands and documents, in order and once, and
// the hub knows how far it has come.
func TestDownlink(t *testing.T) {
	t.Parallel()
	var spec fleet.Spec
	for _, name := range []string{"g1", "g2"} {
		spec.Leaves = append(spec.Leaves, fleet.Leaf{Name: name, Password: "secret", Commands: true, Documents: true})
	}
	h, js := planned(t, spec)
	ctx := t.Context()
	const n = 50
	for i := range n {
		for _, name := range []string{"g1", "g2"} {
			if _, err := js.Publish(ctx, fleet.CommandSubject(name, "valve"), fmt.Append(nil, name, i)); err != nil {
				t.Fatal(err)
			}
		}
	}
	bucket, err := js.KeyValue(ctx, fleet.DocumentBucket)
	if err != nil {
		t.Fatalf("the documents are no bucket: %v", err)
	}
	if _, err := bucket.Put(ctx, "g1.limits", []byte("v1")); err != nil {
		t.Fatal(err)
	}
	if _, err := bucket.Put(ctx, "g2.limits", []byte("not for g1")); err != nil {
		t.Fatal(err)
	}
	urls, err := hub.WithUser(h.LeafURLs(), "g1", "secret")
	if err != nil {
		t.Fatal(err)
	}
	_, local := join(t, "g1", t.TempDir(), leaf.Hub{URLs: urls, Domain: "hub"})
	for _, stream := range []string{fleet.Commands, fleet.Documents} {
		if _, err := local.CreateStream(ctx, jetstream.StreamConfig{
			Name: stream, AllowDirect: true,
			Sources: []*jetstream.StreamSource{fromHub("g1", stream)},
		}); err != nil {
			t.Fatal(err)
		}
	}
	count := func(stream string) uint64 {
		s, err := local.Stream(ctx, stream)
		if err != nil {
			t.Fatal(err)
		}
		return s.CachedInfo().State.Msgs
	}
	poll.Until(t, patience, func() bool { return count(fleet.Commands) == n && count(fleet.Documents) == 1 }, "commands and documents at the leaf")
	s, err := local.Stream(ctx, fleet.Commands)
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		m, err := s.GetMsg(ctx, uint64(i+1))
		if err != nil || m.Subject != "cmd.g1.valve" || string(m.Data) != fmt.Sprint("g1", i) {
			t.Fatalf("command %d at the leaf = %+v, %v", i, m, err)
		}
	}
	poll.Until(t, patience, func() bool {
		c, err := js.PushConsumer(ctx, fleet.Commands, fleet.DownConsumer("g1", fleet.Commands))
		return err == nil && c.CachedInfo().NumPending == 0 && c.CachedInfo().NumAckPending == 0
	}, "the hub knows that the leaf has all its commands")
	if _, err := bucket.Put(ctx, "g1.limits", []byte("v2")); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, patience, func() bool {
		s, err := local.Stream(ctx, fleet.Documents)
		if err != nil {
			return false
		}
		m, err := s.GetLastMsgForSubject(ctx, fleet.DocumentSubject("g1", "limits"))
		return err == nil && string(m.Data) == "v2"
	}, "the newest document at the leaf")
}
