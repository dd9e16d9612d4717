package leaf

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/rig/hub"
	"github.com/holdfast-edge/holdfast/rig/leak"
	"github.com/holdfast-edge/holdfast/rig/poll"
)

// TestHubStreamsFromTheLeaf uses a stream of three replicas at the hub from a local application, and goes on when a node of the hub is killed.
func TestHubStreamsFromTheLeaf(t *testing.T) {
	if testing.Short() {
		t.Skip("slow: a hub of three processes loses one")
	}
	leak.Check(t)
	h := startHub(t, hub.Options{Nodes: 3, Processes: true, Accounts: `accounts {
  EDGE { jetstream: enabled, users: [ { user: leaf, password: leaf } ] }
  APPS { jetstream: enabled, users: [ { user: apps, password: apps } ] }
}`})
	urls, err := hub.WithUser(h.LeafURLs()[:2], "apps", "apps")
	if err != nil {
		t.Fatal(err)
	}
	s := startLeaf(t, Options{Apps: Apps{Hub: Hub{URLs: urls}}})
	enable(t, s)
	poll.Until(t, patience, func() bool { _, up := s.AppLink(); return up }, "the applications' link")
	app, err := s.AppConnect()
	if err != nil {
		t.Fatal(err)
	}
	defer app.Close()
	js, err := jetstream.NewWithDomain(app, hub.Domain)
	if err != nil {
		t.Fatal(err)
	}
	put := func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		_, err := js.Publish(ctx, "wide.x", nil)
		return err == nil
	}
	poll.Until(t, 3*patience, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "WIDE", Subjects: []string{"wide.>"}, Replicas: 3})
		return err == nil
	}, "the stream at the hub")
	poll.Until(t, 3*patience, put, "a publish into it")
	if err := h.Kill(2); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, 3*patience, put, "a publish after a node was lost")
	stream, err := js.Stream(t.Context(), "WIDE")
	if err != nil || stream.CachedInfo().State.Msgs < 2 {
		t.Errorf("the stream after a node was lost: %+v, %v", stream, err)
	}
}
