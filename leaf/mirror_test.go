package leaf

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/rig/hub"
	"github.com/holdfast-edge/holdfast/rig/poll"
)

// TestBucketsOfApplicationsAtTheHub: a hub's mirrors of an application's bucket and object store, over the applications' own link, come to the
// latest state after an outage, deletions included.
func TestBucketsOfApplicationsAtTheHub(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("waits until a mirror without a consumer of its own asks again")
	}
	h := startHub(t, hub.Options{Accounts: `accounts {
  EDGE { jetstream: enabled, users: [ { user: leaf, password: leaf } ] }
  APPS { jetstream: enabled, users: [ { user: apps, password: apps }, { user: panel, password: panel } ] }
}`})
	w := startWire(t, h.LeafAddr(0))
	urls, err := hub.WithUser([]string{"nats-leaf://" + w.Addr()}, "apps", "apps")
	if err != nil {
		t.Fatal(err)
	}
	s := startLeaf(t, Options{Apps: Apps{Hub: Hub{URLs: urls}, MaxFile: 64 << 20, MaxStreams: 10, MaxConsumers: 10}})
	enable(t, s)
	up := func() bool { _, up := s.AppLink(); return up }
	poll.Until(t, patience, up, "the applications' link")
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	app, err := s.AppConnect()
	if err != nil {
		t.Fatal(err)
	}
	defer app.Close()
	here := must(jetstream.New(app))(t)
	there := must(jetstream.New(dial(t, h.ClientURL(0), nats.UserInfo("panel", "panel"))))(t)

	bucket := must(here.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: "STATE"}))(t)
	objects := must(here.CreateObjectStore(ctx, jetstream.ObjectStoreConfig{Bucket: "FILES"}))(t)
	for _, name := range []string{"KV_STATE", "OBJ_FILES"} {
		must(there.CreateStream(ctx, jetstream.StreamConfig{
			Name: name, AllowDirect: true, MirrorDirect: true, MaxMsgsPerSubject: map[string]int64{"KV_STATE": 1}[name],
			Mirror: &jetstream.StreamSource{Name: name, External: &jetstream.ExternalStream{APIPrefix: "$JS.leaf1.API"}},
		}))(t)
	}
	keys := func() []string {
		kv, err := there.KeyValue(ctx, "STATE")
		if err != nil {
			return nil
		}
		all, _ := kv.Keys(ctx) // none is an error, too
		slices.Sort(all)
		return all
	}
	must(bucket.PutString(ctx, "pump", "on"))(t)
	must(bucket.PutString(ctx, "valve", "shut"))(t)
	must(objects.PutString(ctx, "map", "first"))(t)
	poll.Until(t, 2*patience, func() bool { return slices.Equal(keys(), []string{"pump", "valve"}) }, "the bucket at the hub")

	w.Cut()
	poll.Until(t, patience, func() bool { return !up() }, "no link")
	must(bucket.PutString(ctx, "pump", "off"))(t)
	if err := bucket.Delete(ctx, "valve"); err != nil {
		t.Fatal(err)
	}
	must(objects.PutString(ctx, "map", "second"))(t)
	if err := w.Restore(); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, 4*patience, func() bool { return slices.Equal(keys(), []string{"pump"}) }, "the latest state at the hub")
	kv := must(there.KeyValue(ctx, "STATE"))(t)
	if e, err := kv.Get(ctx, "pump"); err != nil || string(e.Value()) != "off" {
		t.Errorf("pump at the hub: %v, %v", e, err)
	}
	poll.Until(t, 4*patience, func() bool {
		store, err := there.ObjectStore(ctx, "FILES")
		if err != nil {
			return false
		}
		text, err := store.GetString(ctx, "map")
		return err == nil && text == "second"
	}, "the latest object at the hub")
}

// must returns its value, and ends the test on an error.
func must[T any](v T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
