package hub_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/forward"
	fleet "github.com/holdfast-edge/holdfast/forward/hub"
	"github.com/holdfast-edge/holdfast/leaf"
	"github.com/holdfast-edge/holdfast/rig/poll"
	"github.com/holdfast-edge/holdfast/storage"
)

// gateway is a leaf with its store and uplink, all in this process. Its stream S is sourced into FIELD; others are given.
type gateway struct {
	t      *testing.T
	name   string
	store  *storage.Store
	leaf   *leaf.Server
	nc     *nats.Conn
	up     *forward.Uplink
	seq    map[string]uint64 // by stream
	cancel context.CancelFunc
	done   chan error
}

// startGateway starts a gateway with its link up.
func startGateway(t *testing.T, name, dir string, h leaf.Hub, streams map[string]forward.Config, limits ...storage.StreamConfig) *gateway {
	t.Helper()
	g := &gateway{t: t, name: name, seq: map[string]uint64{}, done: make(chan error, 1)}
	fatal := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	sources := map[string]string{}
	for s := range streams {
		sources["from-"+s] = s
		if !slices.ContainsFunc(limits, func(l storage.StreamConfig) bool { return l.Name == s }) {
			limits = append(limits, storage.StreamConfig{Name: s, KeepForwarded: 24 * time.Hour})
		}
	}
	var err error
	g.store, err = storage.Open(storage.Options{
		Leaf: name, Dir: dir, Config: storage.Config{Budget: 1 << 30, AllowVolatile: true, Commit: storage.Commit{MaxRecords: 1024}}, Streams: limits, Sources: sources,
	})
	fatal(err)
	g.leaf, err = leaf.Start(leaf.Options{Config: leaf.Config{Name: name, Data: dir}, Hub: h})
	fatal(err)
	g.nc, err = g.leaf.Connect()
	fatal(err)
	js, err := jetstream.New(g.nc)
	fatal(err)
	g.up = forward.New(forward.Options{Leaf: name, Dir: dir, Streams: streams}, g.store, g.leaf)
	var ctx context.Context
	ctx, g.cancel = context.WithCancel(context.Background())
	fatal(g.store.Attach(ctx, storage.Server{JetStream: js, Restart: g.leaf.RestartJetStream, Forwarded: g.up.Forwarded}))
	go func() { g.done <- g.up.Run(ctx, g.nc) }()
	fatal(g.leaf.Enable(true))
	t.Cleanup(g.close)
	return g
}

// close stops the gateway. Closing it again does nothing.
func (g *gateway) close() {
	if g.cancel == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := g.store.Close(ctx); err != nil {
		g.t.Error(err)
	}
	g.cancel()
	if err := <-g.done; err != nil {
		g.t.Error(err)
	}
	g.nc.Close()
	if err := g.leaf.Shutdown(ctx); err != nil {
		g.t.Error(err)
	}
	g.cancel = nil
}

// append captures n records into each of the streams.
func (g *gateway) append(n int, streams ...string) {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, s := range streams {
		recs := make([]storage.Record, n)
		for i := range recs {
			g.seq[s]++
			recs[i] = storage.Record{Stream: s, Source: "from-" + s, Seq: g.seq[s], Data: fmt.Appendf(nil, `{"n":%d}`, g.seq[s])}
		}
		if err := g.store.Append(ctx, recs...); err != nil {
			g.t.Fatalf("append to %s: %v", s, err)
		}
	}
}

// progress returns where a stream stands.
func (g *gateway) progress(stream string) forward.Progress {
	for _, p := range g.up.Progress() {
		if p.Stream == stream {
			return p
		}
	}
	g.t.Fatalf("no stream %s", stream)
	return forward.Progress{}
}

// auditOf reads hub streams and returns the account of all ordinary sources, by "leaf/source".
func auditOf(t *testing.T, js jetstream.JetStream, streams ...string) map[string]fleet.Audited {
	t.Helper()
	var result []fleet.Audited
	var err error
	if !poll.Wait(t.Context(), patience, func() bool {
		a := fleet.NewAudit()
		for _, s := range streams {
			if _, err = a.Read(t.Context(), js, s, "*", nil); err != nil {
				return false
			}
		}
		result = a.Result()
		return true
	}) {
		t.Fatal(err)
	}
	all := map[string]fleet.Audited{}
	for _, r := range result {
		if r.Source == "" || r.Source[0] != '_' {
			all[r.Leaf+"/"+r.Source] = r
		} else if !r.Verdict.Good() {
			t.Errorf("account of %s/%s: %+v", r.Leaf, r.Source, r)
		}
	}
	return all
}

// awaitAll waits until the hub has all that a gateway captured, and accounts for it: every record once, but for what gap records tell of.
func (g *gateway) awaitAll(js jetstream.JetStream, what string, hubStreams map[string]string) {
	g.t.Helper()
	for s, hubStream := range hubStreams {
		var got fleet.Audited
		if !poll.Wait(g.t.Context(), 2*patience, func() bool {
			got = auditOf(g.t, js, hubStream)[g.name+"/from-"+s]
			lost := uint64(0)
			for _, n := range got.Explained {
				lost += n
			}
			return got.Records-got.Double+lost >= g.seq[s]
		}) {
			g.t.Fatalf("%s: of %d records in %s the hub has %+v; %+v", what, g.seq[s], s, got, g.progress(s))
		}
		if !got.Verdict.Good() {
			g.t.Errorf("%s: account of %s = %+v", what, s, got)
		}
	}
}
