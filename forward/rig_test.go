package forward

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	fleet "github.com/holdfast-edge/holdfast/forward/hub"
	"github.com/holdfast-edge/holdfast/leaf"
	"github.com/holdfast-edge/holdfast/rig/hub"
	"github.com/holdfast-edge/holdfast/rig/poll"
	"github.com/holdfast-edge/holdfast/rig/wire"
	"github.com/holdfast-edge/holdfast/storage"
)

const password = "secret"

// patient bounds what must happen and has no time limit of its own.
const patient = time.Minute

// testStreams are the streams of a gateway under test: S is sourced, M mirrored and live.
var testStreams = map[string]Config{"S": {Mode: ModeSource, HubStream: "FIELD", Lane: LaneBulk}, "M": {Mode: ModeMirror, Lane: LaneLive}}

func TestMain(m *testing.M) {
	if code, ran := hub.Main(os.Args); ran {
		os.Exit(code)
	}
	_ = flag.Set("test.parallel", "8") // most of the tests wait for outages; the command line has the last word
	os.Exit(m.Run())
}

// site is a hub of three nodes that knows some leaves, and a wire to its first node.
type site struct {
	t    *testing.T
	hub  *hub.Cluster
	plan fleet.Plan
	js   jetstream.JetStream
	wire *wire.Wire

	demand *leaf.OnDemand // of the gateways; nil: their links are always up

	mu   sync.Mutex          // guards want where several gateways capture at once
	want map[string][]string // hub stream -> IDs it must have, in order per leaf
}

// wantMore adds IDs to those that a hub stream must have.
func (s *site) wantMore(stream string, ids ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.want[stream] = append(s.want[stream], ids...)
}

// newSite starts a hub for some leaves, "g1" if none are named.
func newSite(t *testing.T, leaves ...string) *site {
	t.Helper()
	return newSiteWith(t, func(config string) string { return config }, leaves...)
}

// newSiteWith is newSite with accounts that somebody has edited.
func newSiteWith(t *testing.T, edit func(config string) string, leaves ...string) *site {
	t.Helper()
	return newSiteIn(t, "", edit, leaves...)
}

// newSiteIn is newSiteWith with the hub's stores in a directory; empty: one that is removed.
func newSiteIn(t *testing.T, dir string, edit func(config string) string, leaves ...string) *site {
	t.Helper()
	if len(leaves) == 0 {
		leaves = []string{"g1"}
	}
	var spec fleet.Spec
	for _, l := range leaves {
		fl := fleet.Leaf{Name: l, Password: password, Commands: true, Documents: true}
		for name, c := range testStreams {
			fl.Streams = append(fl.Streams, fleet.Stream{Name: name, Mode: fleet.Mode(c.Mode), HubStream: c.HubStream})
		}
		spec.Leaves = append(spec.Leaves, fl)
	}
	s := &site{t: t, want: map[string][]string{}}
	var err error
	if s.plan, err = fleet.New(spec); err != nil {
		t.Fatal(err)
	}
	if s.hub, err = hub.Start(hub.Options{Dir: dir, Accounts: edit(s.plan.Config()), LeafNodes: "authorization { timeout: 30 }", Log: logTo("hub")}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.check(s.hub.Close()) })
	if s.js, err = s.hub.JetStream(); err != nil {
		t.Fatal(err)
	}
	s.apply()
	if s.wire, err = wire.New(s.hub.LeafAddr(0)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.check(s.wire.Close()) })
	return s
}

// calm watches whether the machine has time for us. The function that it returns ends that, and is true when it had: only then do measured times
// say something about the code. At full length it is always true.
func calm(t *testing.T) func() bool {
	const step, late = 20 * time.Millisecond, 100 * time.Millisecond
	done, result := make(chan struct{}), make(chan time.Duration, 1)
	began := time.Now()
	go func() {
		tick := time.NewTicker(step)
		defer tick.Stop()
		var lost time.Duration
		for last := began; ; last = time.Now() {
			select {
			case <-done:
				result <- lost
				return
			case <-tick.C:
				if d := time.Since(last); d > late {
					lost += d
				}
			}
		}
	}()
	return func() bool {
		close(done)
		lost, all := <-result, time.Since(began)
		if lost > all/50 && !*full {
			t.Logf("NOT JUDGED: the machine was busy with something else for %v of %v", lost.Round(time.Millisecond), all.Round(time.Millisecond))
			return false
		}
		return true
	}
}

func (s *site) check(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Error(err)
	}
}

func (s *site) apply() {
	s.t.Helper()
	var err error
	poll.Until(s.t, patient, func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_, err = fleet.Apply(ctx, s.js, s.plan)
		return err == nil
	}, "apply: %v", &err)
}

// logTo returns where a part logs: nowhere, unless FORWARD_TEST_LOG names a folder.
func logTo(part string) *os.File {
	dir := os.Getenv("FORWARD_TEST_LOG")
	if dir == "" {
		return nil
	}
	f, err := os.OpenFile(filepath.Join(dir, part+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil
	}
	return f
}

// gateway is a leaf with its store and uplink, all in this process.
type gateway struct {
	site  *site
	name  string
	dir   string
	store *storage.Store
	leaf  *leaf.Server
	nc    *nats.Conn
	js    jetstream.JetStream
	up    *Uplink
	seqs  map[string]uint64 // by stream
	stop  context.CancelFunc
	done  chan error // closed after Run's error
}

// start starts a gateway on a data directory, behind the site's wire or at the given addresses.
func (s *site) start(name, dir string, addrs ...string) *gateway {
	s.t.Helper()
	if len(addrs) == 0 {
		addrs = []string{s.wire.Addr()}
	}
	urls := make([]string, len(addrs))
	for i, a := range addrs {
		urls[i] = fmt.Sprintf("nats-leaf://%s:%s@%s", name, password, a)
	}
	g := &gateway{site: s, name: name, dir: dir, seqs: map[string]uint64{}, done: make(chan error, 1)}
	log := slog.New(slog.DiscardHandler)
	if f := logTo(name); f != nil {
		log = slog.New(slog.NewTextHandler(f, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	var err error
	fatal := func(what string) {
		s.t.Helper()
		if err != nil {
			s.t.Fatalf("%s: %v", what, err)
		}
	}
	g.store, err = storage.Open(storage.Options{
		Leaf: name, Dir: dir, Config: storage.Config{Budget: 1 << 30, AllowVolatile: true, Commit: storage.Commit{MaxRecords: 1024}},
		Streams: []storage.StreamConfig{{Name: "S", KeepForwarded: time.Hour}, {Name: "M", KeepForwarded: time.Hour}}, Sources: map[string]string{"s": "S", "m": "M"}, Log: log,
	})
	fatal("open store")
	err = g.store.Mend(context.Background(), Remembered(dir, g.store.ID()))
	fatal("mend")
	g.leaf, err = leaf.Start(leaf.Options{Config: leaf.Config{Name: name, Data: dir}, Hub: leaf.Hub{URLs: urls, Domain: "hub", Documents: true}, Log: log})
	fatal("start leaf")
	g.nc, err = g.leaf.Connect()
	fatal("connect")
	g.js, err = jetstream.New(g.nc)
	fatal("jetstream")
	g.up = New(Options{Leaf: name, Dir: dir, Streams: testStreams, Commands: true, Documents: true, Demand: s.demand, Log: log}, g.store, g.leaf)
	ctx, cancel := context.WithCancel(context.Background())
	g.stop = cancel
	err = g.up.Hold(ctx, g.js)
	fatal("hold the downlink")
	err = g.store.Attach(ctx, storage.Server{JetStream: g.js, Restart: g.leaf.RestartJetStream, Pause: g.leaf.PauseJetStream, Forwarded: g.up.Forwarded})
	fatal("attach store")
	for stream := range testStreams {
		g.expectSystemRecords(stream)
	}
	go func() { g.done <- g.up.Run(ctx, g.nc) }()
	if s.demand == nil {
		err = g.leaf.Enable(true)
		fatal("enable link")
	}
	s.t.Cleanup(g.close)
	return g
}

// close stops the gateway properly. Closing it again does nothing.
func (g *gateway) close() {
	if g.stop == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patient)
	defer cancel()
	g.site.check(g.store.Close(ctx))
	g.stop()
	g.site.check(<-g.done)
	g.nc.Close()
	g.site.check(g.leaf.Shutdown(ctx))
	g.stop = nil
}

// hubStream returns where a stream of the gateway goes.
func (g *gateway) hubStream(stream string) string {
	if c := testStreams[stream]; c.HubStream != "" {
		return c.HubStream
	}
	return fleet.MirrorName(g.name, stream)
}

// append captures n records into each of the streams.
func (g *gateway) append(n int, streams ...string) {
	g.site.t.Helper()
	for _, stream := range streams {
		source := strings.ToLower(stream)
		recs := make([]storage.Record, 0, n)
		for range n {
			g.seqs[stream]++
			recs = append(recs, storage.Record{Stream: stream, Source: source, Seq: g.seqs[stream], Data: fmt.Appendf(nil, "%s %d", stream, g.seqs[stream])})
			id := storage.ID{Leaf: g.name, Store: g.store.ID(), Source: source, Epoch: g.store.Epoch(), Seq: g.seqs[stream]}
			g.site.want[g.hubStream(stream)] = append(g.site.want[g.hubStream(stream)], id.String())
		}
		ctx, cancel := context.WithTimeout(context.Background(), patient)
		if err := g.store.Append(ctx, recs...); err != nil {
			g.site.t.Fatalf("append: %v", err)
		}
		cancel()
	}
}

// expectSystemRecords adds the IDs of the epoch and gap records that a stream holds above what is expected already.
func (g *gateway) expectSystemRecords(stream string) {
	g.site.t.Helper()
	want := g.site.want[g.hubStream(stream)]
	for _, id := range g.local(stream) {
		p, err := storage.ParseID(id)
		if err != nil {
			g.site.t.Fatal(err)
		}
		if strings.HasPrefix(p.Source, "_") && !slices.Contains(want, id) {
			want = append(want, id)
		}
	}
	g.site.want[g.hubStream(stream)] = want
}

// count returns how many records a hub stream has, or 0 while it does not answer.
func (s *site) count(stream string) int {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	st, err := s.js.Stream(ctx, stream)
	if err != nil {
		return 0
	}
	return int(st.CachedInfo().State.Msgs)
}

// await waits until the hub streams have as many records as are expected, and verifies that they are the right ones: each once, and in
// order per leaf.
func (s *site) await(within time.Duration, streams ...string) {
	s.t.Helper()
	for _, stream := range streams {
		want := s.want[stream]
		poll.Wait(context.Background(), within, func() bool { return s.count(stream) >= len(want) })
		var problems []string
		poll.Wait(context.Background(), 3*time.Second, func() bool { // a replica that lags may be read
			problems = compare(ids(s.t, s.js, stream), want)
			return len(problems) == 0
		})
		for _, p := range problems {
			s.t.Errorf("hub stream %s: %s", stream, p)
		}
	}
	if s.t.Failed() {
		s.t.FailNow()
	}
}

// up waits until the link is up and returns when that was.
func (g *gateway) linked() time.Time {
	g.site.t.Helper()
	poll.Until(g.site.t, patient, func() bool { return g.leaf.Link().State == leaf.LinkUp }, "link up, it is %v", g.leaf.Link())
	return g.leaf.Link().Since
}

// unlinked waits until the link is down.
func (g *gateway) unlinked() {
	g.site.t.Helper()
	poll.Until(g.site.t, patient, func() bool { return g.leaf.Link().State != leaf.LinkUp }, "link down")
}

// progress returns the progress of one stream.
func (g *gateway) progress(stream string) Progress {
	for _, p := range g.up.Progress() {
		if p.Stream == stream {
			return p
		}
	}
	g.site.t.Fatalf("no progress of stream %s", stream)
	return Progress{}
}

// reach waits until a stream is in a state.
func (g *gateway) reach(stream string, want State, within time.Duration) Progress {
	g.site.t.Helper()
	var p Progress
	ok := poll.Wait(context.Background(), within, func() bool { p = g.progress(stream); return p.State == want })
	if !ok {
		g.site.t.Fatalf("stream %s is %+v after %v, want state %v", stream, p, within, want)
	}
	return p
}
