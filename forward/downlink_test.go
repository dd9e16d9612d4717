package forward

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	fleet "github.com/holdfast-edge/holdfast/forward/hub"
	"github.com/holdfast-edge/holdfast/rig/poll"
)

// commands makes a gateway's stream of commands, as the executor does. The downlink feeds it.
func (g *gateway) commands() jetstream.Stream {
	g.site.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patient)
	defer cancel()
	st, err := g.js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: fleet.Commands, AllowDirect: true, Subjects: []string{"cmd." + g.name + ".>"}})
	if err != nil {
		g.site.t.Fatal(err)
	}
	return st
}

// received returns the IDs in a gateway's stream of commands.
func (g *gateway) received() []string {
	var all []string
	ctx, cancel := context.WithTimeout(context.Background(), patient)
	defer cancel()
	c, err := g.js.OrderedConsumer(ctx, fleet.Commands, jetstream.OrderedConsumerConfig{HeadersOnly: true})
	if err != nil {
		return nil
	}
	info, err := c.Info(ctx)
	if err != nil || info.NumPending == 0 {
		return nil
	}
	b, err := c.Fetch(int(info.NumPending), jetstream.FetchMaxWait(5*time.Second))
	if err != nil {
		return nil
	}
	for m := range b.Messages() {
		all = append(all, m.Headers().Get(jetstream.MsgIDHeader))
	}
	return all
}

// TestCommandsComeDown: through cuts, resets and a flapping link each leaf gets its own commands, each once and in order.
func TestCommandsComeDown(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes 20 s")
	}
	s := newSite(t, "g1", "g2")
	gateways := []*gateway{s.start("g1", t.TempDir()), s.start("g2", t.TempDir())}
	for _, g := range gateways {
		g.commands()
		g.linked()
	}
	want := map[string][]string{}
	order := func(n int) {
		for range n {
			for _, g := range gateways {
				id := fmt.Sprintf("%s-%d", g.name, len(want[g.name]))
				ctx, cancel := context.WithTimeout(context.Background(), patient)
				_, err := s.js.Publish(ctx, fleet.CommandSubject(g.name, "pump"), []byte("on"), jetstream.WithMsgID(id))
				cancel()
				if err != nil {
					t.Fatal(err)
				}
				want[g.name] = append(want[g.name], id)
			}
		}
	}
	order(50)
	for range 4 {
		s.wire.Cut()
		gateways[0].unlinked()
		order(50)
		s.check(s.wire.Restore())
		gateways[0].linked()
		order(50)
		s.wire.Reset()
	}
	for _, g := range gateways {
		var got []string
		poll.Until(t, patient, func() bool { got = g.received(); return len(got) >= len(want[g.name]) }, "%s has %d of %d commands", g.name, func() int { return len(g.received()) }(), len(want[g.name]))
		if !slices.Equal(got, want[g.name]) {
			t.Errorf("%s got %d commands that are not the %d sent to it, in order", g.name, len(got), len(want[g.name]))
		}
	}
}

// TestCommandsOutliveAPowerCut: the hub has heard that the leaf has its commands, and a power cut takes them from the leaf before they were synced. They come
// again, each once. In an older copy of the data directory they do not: another copy has had them.
func TestCommandsOutliveAPowerCut(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes 30 s")
	}
	s := newSite(t)
	var want []string
	var last uint64 // number of the newest
	order := func(n int) {
		ctx, cancel := context.WithTimeout(context.Background(), patient)
		defer cancel()
		for range n {
			id := fmt.Sprintf("c%d", len(want))
			ack, err := s.js.Publish(ctx, fleet.CommandSubject("g1", "pump"), []byte("on"), jetstream.WithMsgID(id))
			if err != nil {
				t.Fatal(err)
			}
			last = ack.Sequence
			want = append(want, id)
		}
	}
	taken := func(g *gateway) {
		t.Helper()
		poll.Until(t, patient, func() bool { return len(g.received()) >= len(want) }, "%d commands at the leaf, %v", len(want), &describeDown{g})
		poll.Until(t, patient, func() bool { return g.up.Downlinks()[0].Received >= last }, "what is on flash is known: %v", &describeDown{g})
		poll.Until(t, patient, func() bool {
			ctx, cancel := context.WithTimeout(context.Background(), patient)
			defer cancel()
			c, err := s.js.PushConsumer(ctx, fleet.Commands, fleet.DownConsumer("g1", fleet.Commands))
			return err == nil && c.CachedInfo().AckFloor.Stream >= last
		}, "the hub has heard of it")
		if got := g.received(); !slices.Equal(got, want) {
			t.Errorf("the leaf has commands %v, want %v", got, want)
		}
	}
	dir := t.TempDir()
	before := filepath.Join(t.TempDir(), "before")
	g := s.start("g1", dir)
	g.commands()
	g.append(10, "S")
	order(20)
	taken(g)
	g.close()
	s.check(os.CopyFS(before, os.DirFS(dir)))
	g = s.start("g1", dir)
	g.append(10, "S")
	order(10)
	taken(g)
	s.await(patient, "FIELD")
	g.close()
	for _, lost := range []string{filepath.Join("jetstream", "CAPTURE", "streams", fleet.Commands), downFile} {
		s.check(os.RemoveAll(filepath.Join(dir, lost)))
		if lost == downFile {
			b, err := os.ReadFile(filepath.Join(before, lost))
			s.check(err)
			s.check(os.WriteFile(filepath.Join(dir, lost), b, 0o600))
		} else {
			s.check(os.CopyFS(filepath.Join(dir, lost), os.DirFS(filepath.Join(before, lost))))
		}
	}
	g = s.start("g1", dir)
	taken(g)
	g.close()

	g = s.start("g1", before)
	poll.Until(t, patient, func() bool { return g.up.Downlinks()[0].Attached }, "the older copy takes what the hub has: %v", &describeDown{g})
	poll.Wait(context.Background(), 2*time.Second, func() bool { return false })
	if got := g.received(); len(got) != 20 {
		t.Errorf("the older copy took %d commands, want none but its 20", len(got))
	}
}

// describeDown prints the downlinks when it is printed, not before.
type describeDown struct{ g *gateway }

func (d *describeDown) String() string { return fmt.Sprintf("%+v", d.g.up.Downlinks()) }

// TestDocumentsComeDown: what the hub writes for a leaf is read there, also without a link, and only that.
func TestDocumentsComeDown(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes 10 s")
	}
	s := newSite(t, "g1", "g2")
	g := s.start("g1", t.TempDir())
	g.linked()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	there, err := s.js.KeyValue(ctx, fleet.DocumentBucket)
	if err != nil {
		t.Fatal(err)
	}
	put := func(key, value string) {
		if _, err := there.PutString(ctx, key, value); err != nil {
			t.Fatal(err)
		}
	}
	put("g1.limits", "1")
	put("g2.limits", "other")
	put("g1.limits", "2")
	app, err := g.leaf.AppConnect()
	if err != nil {
		t.Fatal(err)
	}
	defer app.Close()
	js, err := jetstream.NewWithAPIPrefix(app, "$JS.capture.API")
	if err != nil {
		t.Fatal(err)
	}
	value := func(key string) string {
		here, err := js.KeyValue(ctx, fleet.DocumentBucket)
		if err != nil {
			return err.Error()
		}
		e, err := here.Get(ctx, key)
		if err != nil {
			return err.Error()
		}
		return string(e.Value())
	}
	poll.Until(t, patient, func() bool { return value("limits") == "2" }, "the newest document, it is %q", value("limits"))
	s.wire.Cut()
	g.unlinked()
	if v := value("limits"); v != "2" {
		t.Errorf("without a link the document is %q", v)
	}
	put("g1.limits", "3")
	s.check(there.Delete(ctx, "g1.limits"))
	put("g1.rates", "5")
	s.check(s.wire.Restore())
	poll.Until(t, patient, func() bool { return value("rates") == "5" }, "a document written meanwhile")
	if v := value("limits"); v != jetstream.ErrKeyNotFound.Error() {
		t.Errorf("a deleted document is %q", v)
	}
	if v := value("g2.limits"); v == "other" {
		t.Error("another leaf's document came down")
	}
}
