package carry

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/forward"
	fleet "github.com/holdfast-edge/holdfast/forward/hub"
	"github.com/holdfast-edge/holdfast/leaf"
	"github.com/holdfast-edge/holdfast/rig/hub"
	"github.com/holdfast-edge/holdfast/rig/poll"
	"github.com/holdfast-edge/holdfast/storage"
	"github.com/holdfast-edge/holdfast/storage/parcel"
)

// site is a hub that knows the leaf g1, and the IDs that each of its streams must have, in order.
type site struct {
	t    *testing.T
	hub  *hub.Cluster
	js   jetstream.JetStream
	want map[string][]string // by stream of the leaf
}

func newSite(t *testing.T) *site {
	t.Helper()
	if testing.Short() {
		t.Skip("SKIPPED: runs a hub of three nodes, not done with -short")
	}
	t.Parallel()
	fl := fleet.Leaf{Name: "g1", Password: "secret"}
	for name, c := range testStreams {
		fl.Streams = append(fl.Streams, fleet.Stream{Name: name, Mode: fleet.Mode(c.Mode), HubStream: c.HubStream})
	}
	plan, err := fleet.New(fleet.Spec{Leaves: []fleet.Leaf{fl}})
	if err != nil {
		t.Fatal(err)
	}
	s := &site{t: t, want: map[string][]string{}}
	if s.hub, err = hub.Start(hub.Options{Accounts: plan.Config()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.check(s.hub.Close()) })
	if s.js, err = s.hub.JetStream(); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, patient, func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_, err = fleet.Apply(ctx, s.js, plan)
		return err == nil
	}, "apply: %v", &err)
	return s
}

func (s *site) check(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Error(err)
	}
}

func (s *site) leafHub() leaf.Hub {
	return leaf.Hub{URLs: []string{"nats-leaf://g1:secret@" + s.hub.LeafAddr(0)}, Domain: "hub"}
}

// gateway is a daemon of g1 without sources.
type gateway struct {
	Gateway
	s    *site
	dir  string
	leaf *leaf.Server
	nc   *nats.Conn
	seqs map[string]uint64
	stop context.CancelFunc
	done chan error
}

func (s *site) start(dir string, linked bool) *gateway {
	s.t.Helper()
	g := &gateway{s: s, dir: dir, seqs: map[string]uint64{}, done: make(chan error, 1)}
	var err error
	fatal := func() {
		s.t.Helper()
		if err != nil {
			s.t.Fatal(err)
		}
	}
	log := slog.New(slog.DiscardHandler)
	if testing.Verbose() {
		log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	g.Store, err = storage.Open(storage.Options{
		Leaf: "g1", Dir: dir, Config: storage.Config{Budget: 1 << 30, AllowVolatile: true, Commit: storage.Commit{MaxRecords: 1024}},
		Streams: []storage.StreamConfig{{Name: "S"}, {Name: "M"}}, Sources: map[string]string{"s": "S", "m": "M"}, Log: log,
	})
	fatal()
	err = g.Store.Mend(context.Background(), forward.Remembered(g.Store.Home(), g.Store.ID()))
	fatal()
	g.leaf, err = leaf.Start(leaf.Options{Config: leaf.Config{Name: "g1", Data: dir}, Hub: s.leafHub(), Log: log})
	fatal()
	g.nc, err = g.leaf.Connect()
	fatal()
	g.JS, err = jetstream.New(g.nc)
	fatal()
	g.Uplink = forward.New(forward.Options{Leaf: "g1", Dir: g.Store.Home(), Streams: testStreams, Log: log}, g.Store, g.leaf)
	ctx, cancel := context.WithCancel(context.Background())
	g.stop = cancel
	err = g.Store.Attach(ctx, storage.Server{JetStream: g.JS, Restart: g.leaf.RestartJetStream, Pause: g.leaf.PauseJetStream, Forwarded: g.Uplink.Forwarded})
	fatal()
	for name, c := range testStreams {
		g.Streams = append(g.Streams, parcel.Stream{Name: name, Mode: c.Mode, HubStream: c.HubStream})
	}
	go func() { g.done <- g.Uplink.Run(ctx, g.nc) }()
	if linked {
		err = g.leaf.Enable(true)
		fatal()
	}
	s.t.Cleanup(g.close)
	return g
}

func (g *gateway) close() {
	if g.stop == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patient)
	defer cancel()
	g.s.check(g.Store.Close(ctx))
	g.stop()
	g.s.check(<-g.done)
	g.nc.Close()
	g.s.check(g.leaf.Shutdown(ctx))
	g.stop = nil
}

// append captures n records into each stream; expected says whether the hub is to get them.
func (g *gateway) append(n int) {
	g.s.t.Helper()
	for _, stream := range []string{"S", "M"} {
		var recs []storage.Record
		for range n {
			g.seqs[stream]++
			recs = append(recs, storage.Record{Stream: stream, Source: strings.ToLower(stream), Seq: g.seqs[stream], Data: fmt.Appendf(make([]byte, 200), "%s %d", stream, g.seqs[stream])})
		}
		if err := g.Store.Append(context.Background(), recs...); err != nil {
			g.s.t.Fatal(err)
		}
	}
}

// expect notes that the hub must have everything that the gateway has now.
func (g *gateway) expect() { g.expectOf("") }

// expectOf notes that the hub must have what the gateway has now of one store.
func (g *gateway) expectOf(store storage.StoreID) {
	g.s.t.Helper()
	if err := g.Store.Settle(context.Background()); err != nil {
		g.s.t.Fatal(err)
	}
	for _, stream := range []string{"S", "M"} {
		for _, id := range ids(g.s.t, g.JS, stream) {
			if strings.Contains(id, string(store)) && !slices.Contains(g.s.want[stream], id) {
				g.s.want[stream] = append(g.s.want[stream], id)
			}
		}
	}
}

// ids returns the IDs of all records of a stream, in its order.
func ids(t *testing.T, js jetstream.JetStream, stream string) []string {
	t.Helper()
	var b bytes.Buffer
	w, err := parcel.NewWriter(&b, parcel.Header{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patient)
	defer cancel()
	var all []string
	if err := dump(ctx, js, "data.>", parcel.Stream{Name: stream}, w); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Close(false); err != nil {
		t.Fatal(err)
	}
	r, err := parcel.NewReader(&b)
	if err != nil {
		t.Fatal(err)
	}
	for {
		rec, err := r.Next()
		if err != nil {
			return all
		}
		_, rest, _ := strings.Cut(string(rec.Header), storage.HeaderID+": ")
		id, _, _ := strings.Cut(rest, "\r\n")
		all = append(all, id)
	}
}

// await fails unless the hub comes to have exactly what is wanted, in order.
func (s *site) await() {
	s.t.Helper()
	for _, stream := range []string{"S", "M"} {
		var got []string
		name := testStreams[stream].HubStream
		poll.Wait(context.Background(), patient, func() bool {
			st, err := s.js.Stream(context.Background(), name)
			return err == nil && int(st.CachedInfo().State.Msgs) >= len(s.want[stream])
		})
		poll.Wait(context.Background(), 3*time.Second, func() bool {
			got = ids(s.t, s.js, name)
			return slices.Equal(got, s.want[stream])
		})
		if !slices.Equal(got, s.want[stream]) {
			n := 0
			for n < min(len(got), len(s.want[stream])) && got[n] == s.want[stream][n] {
				n++
			}
			s.t.Fatalf("hub stream %s has %d records, want %d; they differ from %d on: %v, %v", name, len(got), len(s.want[stream]), n, got[n:min(n+3, len(got))], s.want[stream][n:min(n+3, len(s.want[stream]))])
		}
	}
}

// audited fails unless the audit of the hub's streams comes to find so many records missing from one source of each, and nothing else wrong.
func (s *site) audited(missing uint64) {
	s.t.Helper()
	var wrong []fleet.Audited
	poll.Wait(context.Background(), patient, func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), patient)
		defer cancel()
		a := fleet.NewAudit()
		for _, c := range testStreams {
			if _, err := a.Read(ctx, s.js, c.HubStream, "g1", nil); err != nil {
				s.t.Fatal(err)
			}
		}
		wrong = nil
		for _, r := range a.Result() {
			if r.Verdict != fleet.Contiguous {
				wrong = append(wrong, r)
			}
		}
		if missing == 0 {
			return len(wrong) == 0
		}
		return len(wrong) == 2 && wrong[0].Missing == missing && wrong[1].Missing == missing
	})
	for _, r := range wrong {
		if missing == 0 || len(wrong) != 2 || r.Missing != missing {
			s.t.Errorf("audit: %+v, want %d missing", r, missing)
		}
	}
	if missing > 0 && len(wrong) == 0 {
		s.t.Error("the audit does not find what was taken away")
	}
}

// takeAway removes the newest record of the first store of a source from the hub.
func (s *site) takeAway(stream, source string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patient)
	defer cancel()
	js, err := s.js.Stream(ctx, testStreams[stream].HubStream)
	if err != nil {
		s.t.Fatal(err)
	}
	first, err := storage.ParseID(s.want[stream][0])
	if err != nil {
		s.t.Fatal(err)
	}
	for seq := js.CachedInfo().State.LastSeq; seq > 0; seq-- {
		m, err := js.GetMsg(ctx, seq)
		if err != nil {
			continue // a number that holds nothing
		}
		if id, err := storage.ParseID(m.Header.Get(storage.HeaderID)); err == nil && id.Store == first.Store && id.Source == source {
			s.check(js.DeleteMsg(ctx, seq))
			return
		}
	}
	s.t.Fatalf("no record of %s at the hub", source)
}

// export writes a part into a folder.
func (g *gateway) export(dir string, limit int64, again bool) (string, parcel.End) {
	g.s.t.Helper()
	var b bytes.Buffer
	if err := g.Export(context.Background(), &b, again); err != nil {
		g.s.t.Fatal(err)
	}
	path, h, end, err := Save(&b, dir, limit)
	if err != nil {
		g.s.t.Fatal(err)
	}
	if err := g.Exported(h.Part, end.Last); err != nil {
		g.s.t.Fatal(err)
	}
	return path, end
}
