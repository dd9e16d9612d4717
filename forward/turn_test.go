package forward

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	fleet "github.com/holdfast-edge/holdfast/forward/hub"
	"github.com/holdfast-edge/holdfast/rig/poll"

	"github.com/nats-io/nats.go/jetstream"
)

// TestHubSetBackSendsDown: a hub that is restored to yesterday gives numbers to commands and documents that others have had here. They come all the same, each once
// and in order, also when the gateway is started anew in between, and when the hub's stream is made anew.
func TestHubSetBackSendsDown(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes 40 s")
	}
	dir, ctx := t.TempDir(), t.Context()
	store, yesterday := filepath.Join(dir, "hub"), filepath.Join(dir, "yesterday")
	s := newSiteIn(t, store, func(config string) string { return config })
	g := s.start("g1", filepath.Join(dir, "g1"))
	g.commands()
	g.append(10, "S")
	var want []string
	var last uint64 // number of the newest
	order := func(n int) {
		t.Helper()
		for range n {
			id := fmt.Sprintf("c%d", len(want))
			poll.Until(t, patient, func() bool {
				ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
				defer cancel()
				ack, err := s.js.Publish(ctx, fleet.CommandSubject("g1", "pump"), []byte("on"), jetstream.WithMsgID(id))
				if err == nil {
					last = ack.Sequence
				}
				return err == nil
			}, "command %s is at the hub", id)
			want = append(want, id)
		}
	}
	document := func(value string) {
		t.Helper()
		poll.Until(t, patient, func() bool {
			ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
			defer cancel()
			b, err := s.js.KeyValue(ctx, fleet.DocumentBucket)
			if err == nil {
				_, err = b.PutString(ctx, "g1.limits", value)
			}
			return err == nil
		}, "the document is at the hub")
	}
	taken := func(what, value string) {
		t.Helper()
		poll.Until(t, patient, func() bool { return len(g.received()) >= len(want) }, "%s: %d commands at the leaf, %v", what, len(want), &describeDown{g})
		var got string
		poll.Until(t, patient, func() bool {
			b, err := g.js.KeyValue(ctx, fleet.DocumentBucket)
			if err != nil {
				return false
			}
			e, err := b.Get(ctx, "limits")
			if err == nil {
				got = string(e.Value())
			}
			return got == value
		}, "%s: the document %s", what, value)
		poll.Until(t, patient, func() bool { return g.up.Downlinks()[0].Received == last }, "%s: what is on flash is known: %v", what, &describeDown{g})
		if all := g.received(); !slices.Equal(all, want) {
			t.Fatalf("%s: the leaf has commands %v, want %v", what, all, want)
		}
	}
	away := func() {
		for i := range s.hub.Len() {
			s.check(s.hub.Stop(ctx, i))
		}
	}
	back := func() {
		for i := range s.hub.Len() {
			s.check(s.hub.Restart(i))
		}
		s.check(s.hub.WaitReady(ctx))
	}
	order(10)
	document("1")
	taken("at first", "1")
	away()
	s.check(os.CopyFS(yesterday, os.DirFS(store)))
	back()
	order(10)
	document("2")
	taken("until today", "2")
	away()
	s.check(os.RemoveAll(store))
	s.check(os.CopyFS(store, os.DirFS(yesterday)))
	back()
	order(3)
	document("3")
	taken("set back to yesterday", "3")
	order(12) // beyond the numbers of before
	taken("some time later", "3")
	g.close()
	order(2)
	g = s.start("g1", filepath.Join(dir, "g1"))
	taken("started anew", "3")

	g.close()
	away()
	s.check(os.RemoveAll(store))
	s.check(os.CopyFS(store, os.DirFS(yesterday)))
	back()
	order(2)
	document("4")
	g = s.start("g1", filepath.Join(dir, "g1"))
	taken("set back while the gateway was off", "4")

	s.wire.Cut()
	g.unlinked()
	for _, stream := range []string{fleet.Commands, fleet.Documents} {
		s.check(s.js.DeleteStream(context.Background(), stream))
	}
	s.apply()
	order(3)
	document("5")
	s.check(s.wire.Restore())
	taken("streams made anew", "5")
	order(3)
	taken("and then", "5")
}
