package forward

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/rig/poll"
	"github.com/holdfast-edge/holdfast/rig/wire"
	"github.com/holdfast-edge/holdfast/storage"
)

var full = flag.Bool("full", false, "run the link rig in full length")

// linkCase is a link with its faults. While they last a live stream gets a record now and then, and a bulk stream has a backlog.
type linkCase struct {
	name    string
	bits    float64       // per second, 0: as much as the machine can
	rtt     time.Duration // round trip
	backlog int           // records of bulk
	lasts   time.Duration // of the measurement
	faults  func(ctx context.Context, l *linkRun)

	use   float64       // least use of the link, 0: not asked for
	live  time.Duration // 95 of 100 live records arrive within, 0: not asked for
	first time.Duration // after each link-up a record arrives within, 0: not asked for
	long  bool          // with -full only
	soak  bool          // with -full and HOLDFAST_SOAK only
	left  bool          // the backlog is not waited for
}

// linkCases are the links. A round trip of 2 s is too long for nats-server, which waits 2 s for the hub's first word (connectProcessTimeout).
// Those that are not long are run side by side in `make test`.
var linkCases = []linkCase{
	{name: "9.6k 600ms", bits: 9600, rtt: 600 * time.Millisecond, backlog: 500, lasts: 20 * time.Second, use: 0.75, live: 8 * time.Second, long: true},
	{name: "64k 20ms", bits: 64e3, rtt: 20 * time.Millisecond, backlog: 20_000, lasts: 20 * time.Second, use: 0.85, live: 5 * time.Second},
	{name: "64k 600ms", bits: 64e3, rtt: 600 * time.Millisecond, backlog: 5000, lasts: 20 * time.Second, use: 0.85, live: 5 * time.Second, long: true},
	{name: "1M 300ms", bits: 1e6, rtt: 300 * time.Millisecond, backlog: 40000, lasts: 20 * time.Second, use: 0.85, live: 5 * time.Second},
	{name: "64k cut every 6s", bits: 64e3, rtt: 100 * time.Millisecond, backlog: 3000, lasts: 20 * time.Second, faults: flap(4*time.Second, 2*time.Second), first: 4 * time.Second},
	{name: "1M 1.8s", bits: 1e6, rtt: 1800 * time.Millisecond, backlog: 60000, lasts: 90 * time.Second, use: 0.75, live: 8 * time.Second, long: true},
	{name: "64k 1.8s", bits: 64e3, rtt: 1800 * time.Millisecond, backlog: 8000, lasts: 90 * time.Second, use: 0.85, live: 8 * time.Second, long: true},
	{name: "9.6k 1.5s", bits: 9600, rtt: 1500 * time.Millisecond, backlog: 1000, lasts: 90 * time.Second, use: 0.75, live: 10 * time.Second, long: true},
	{name: "64k, a million wait", bits: 64e3, rtt: 100 * time.Millisecond, backlog: 1_000_000, lasts: 90 * time.Second, use: 0.85, live: 5 * time.Second, long: true, left: true},
	{name: "flapping 5/20", bits: 1e6, rtt: 60 * time.Millisecond, backlog: 5000, lasts: 126 * time.Second, faults: flap(5*time.Second, 20*time.Second), first: 5 * time.Second, long: true},
	{name: "flapping 60/600", bits: 1e6, rtt: 60 * time.Millisecond, backlog: 5000, lasts: 22 * time.Minute, faults: flap(time.Minute, 10*time.Minute), first: 12 * time.Second, long: true, soak: true},
	{name: "half-open, a router forgot", bits: 1e6, rtt: 60 * time.Millisecond, backlog: 5000, lasts: 2 * time.Minute, faults: forget, first: 37 * time.Second, long: true},
	{name: "silent for 8s", bits: 64e3, rtt: 60 * time.Millisecond, backlog: 3000, lasts: time.Minute, faults: silence, long: true},
	{name: "hub at another address", bits: 1e6, rtt: 60 * time.Millisecond, backlog: 5000, lasts: time.Minute, faults: readdress, first: 12 * time.Second, long: true},
	{name: "hub node lost", bits: 0, rtt: 20 * time.Millisecond, backlog: 5000, lasts: 30 * time.Second, faults: reset, first: 12 * time.Second, long: true},
}

// flap cuts the link for down after it was up for up, and so on.
func flap(up, down time.Duration) func(ctx context.Context, r *linkRun) {
	return func(ctx context.Context, r *linkRun) {
		for rest(ctx, up) {
			r.wire.Cut()
			if !rest(context.WithoutCancel(ctx), down) {
				return
			}
			r.restore()
		}
	}
}

// forget loses the connection without a sign, as a router does that forgets it: both ends find out by themselves.
func forget(ctx context.Context, r *linkRun) {
	for rest(ctx, 10*time.Second) {
		r.wire.Swallow(true)
		rest(context.WithoutCancel(ctx), 2*time.Second)
		r.wire.Swallow(false)
		r.again()
		rest(ctx, 40*time.Second)
	}
}

// silence loses everything for 8 s; what was lost on the way makes the connection useless.
func silence(ctx context.Context, r *linkRun) {
	for rest(ctx, 10*time.Second) {
		r.wire.Swallow(true)
		rest(context.WithoutCancel(ctx), 8*time.Second)
		r.wire.Swallow(false)
		r.wire.Reset()
		r.again()
	}
}

// readdress moves the hub's address from node to node.
func readdress(ctx context.Context, r *linkRun) {
	for i := 1; rest(ctx, 12*time.Second); i++ {
		r.wire.Retarget(r.g.site.hub.LeafAddr(i % 3))
		r.wire.Reset()
		r.again()
	}
}

func reset(ctx context.Context, r *linkRun) {
	for rest(ctx, 3*time.Second) {
		r.wire.Reset()
		r.again()
	}
}

// rest waits, and is false when ctx has ended.
func rest(ctx context.Context, d time.Duration) bool {
	poll.Wait(ctx, d, func() bool { return false })
	return ctx.Err() == nil
}

// linkRun is one case that is run.
type linkRun struct {
	linkCase
	t    *testing.T
	wire *wire.Wire
	g    *gateway

	mu     sync.Mutex           // guards the fields below
	sent   map[string]time.Time // live records by ID
	took   []time.Duration      // from capture to the hub, of live records
	ups    []time.Time          // when the link was given back
	firsts []time.Duration      // from there to the first record at the hub
	unused int                  // times that the link was there and nothing arrived
	missed []string             // goals that were
}

// TestLinks runs a gateway behind each of the links, and prints what each link carried.
func TestLinks(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute")
	}
	t.Parallel()
	var only []string
	if text := os.Getenv("HOLDFAST_LINKS"); text != "" { // names of cases, with ; between them
		only = strings.Split(text, ";")
	}
	var names []string
	var runs []*linkRun
	for i, c := range linkCases {
		if c.long && !*full || c.soak && os.Getenv("HOLDFAST_SOAK") == "" || len(only) > 0 && !slices.Contains(only, c.name) {
			continue
		}
		names = append(names, fmt.Sprintf("l%d", i))
		runs = append(runs, &linkRun{linkCase: c, sent: map[string]time.Time{}})
	}
	s := newSite(t, names...)
	for i, r := range runs {
		w, err := wire.New(s.hub.LeafAddr(0))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.check(w.Close()) })
		w.Cut()
		r.t, r.wire = t, w
		r.g = s.start(names[i], t.TempDir(), w.Addr())
		r.fill(r.backlog, "S")
		w.Throttle(int64(r.bits / 8))
		w.Delay(r.rtt / 2)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for _, r := range runs {
		r.watch(ctx, s.js)
	}
	undisturbed := calm(t)
	var wg sync.WaitGroup
	for _, r := range runs {
		wg.Go(func() { r.run(ctx) })
	}
	wg.Wait()
	if undisturbed() {
		for _, r := range runs {
			for _, missed := range r.missed {
				t.Errorf("%s: %s", r.name, missed)
			}
		}
	}
	for _, r := range runs {
		r.wire.Throttle(0)
		r.wire.Delay(0)
	}
	for _, r := range runs {
		if r.left { // takes too long
			return
		}
	}
	streams := []string{"FIELD"}
	for _, n := range names {
		streams = append(streams, n+"_M")
	}
	s.await(2*time.Minute, streams...)
}

// TestRoundTripTooLong: over a round trip of 2 s no link comes up, and the state says why.
func TestRoundTripTooLong(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes 10 s")
	}
	s := newSite(t)
	s.wire.Delay(1100 * time.Millisecond)
	g := s.start("g1", t.TempDir())
	g.append(10, "S")
	poll.Until(t, 2*patient, func() bool {
		l := g.leaf.Link()
		return strings.Contains(l.Cause, "greeting") && strings.Contains(l.Remedy, "longer round trip")
	}, "a cause, the link is %v", linkOf{g})
	poll.Until(t, patient, func() bool { p := g.progress("S"); return p.State != Live && strings.Contains(p.Cause, "greeting") }, "the stream says so: %v", describe{g, "S"})
	s.wire.Delay(0)
	s.await(2*patient, "FIELD")
}

// linkOf prints the link when it is printed, not before.
type linkOf struct{ g *gateway }

func (l linkOf) String() string { return fmt.Sprintf("%+v", l.g.leaf.Link()) }

// fill captures records of about 250 bytes that compress to about half.
func (r *linkRun) fill(n int, stream string) []string {
	r.t.Helper()
	g, source := r.g, strings.ToLower(stream)
	var all []string
	for n > 0 {
		batch := min(n, 1000)
		n -= batch
		recs := make([]storage.Record, 0, batch)
		for range batch {
			g.seqs[stream]++
			noise := make([]byte, 60)
			_, _ = rand.Read(noise) // never fails
			data := fmt.Sprintf(`{"device":"meter-7","voltage":%d,"noise":"%s","state":"running"}`, g.seqs[stream], hex.EncodeToString(noise))
			recs = append(recs, storage.Record{Stream: stream, Source: source, Seq: g.seqs[stream], Data: []byte(data)})
			id := storage.ID{Leaf: g.name, Store: g.store.ID(), Source: source, Epoch: g.store.Epoch(), Seq: g.seqs[stream]}
			all = append(all, id.String())
		}
		ctx, cancel := context.WithTimeout(context.Background(), 4*patient)
		var err error
		poll.Wait(ctx, 4*patient, func() bool { // a million may outrun the way from the journal into the streams
			err = g.store.Append(ctx, recs...)
			return !errors.Is(err, storage.ErrFull)
		})
		if cancel(); err != nil {
			r.t.Errorf("append: %v", err)
		}
	}
	g.site.wantMore(g.hubStream(stream), all...)
	return all
}

// watch notes when live records, and any after a link-up, arrive at the hub.
func (r *linkRun) watch(ctx context.Context, js jetstream.JetStream) {
	for _, stream := range []string{"M", "S"} {
		c, err := js.OrderedConsumer(ctx, r.g.hubStream(stream), jetstream.OrderedConsumerConfig{HeadersOnly: true, FilterSubjects: []string{"data." + r.g.name + ".>"}})
		if err != nil {
			r.t.Fatal(err)
		}
		consume, err := c.Consume(func(m jetstream.Msg) { r.arrived(m.Headers().Get(storage.HeaderID)) })
		if err != nil {
			r.t.Fatal(err)
		}
		r.t.Cleanup(consume.Stop)
	}
}

func (r *linkRun) arrived(id string) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if at, ok := r.sent[id]; ok {
		r.took = append(r.took, now.Sub(at))
		delete(r.sent, id)
	}
	if len(r.firsts) < len(r.ups) {
		r.firsts = append(r.firsts, now.Sub(r.ups[len(r.firsts)]))
	}
}

// restore gives the link back.
func (r *linkRun) restore() {
	r.again()
	if err := r.wire.Restore(); err != nil {
		r.t.Error(err)
	}
}

// again notes that the link can be used from now on.
func (r *linkRun) again() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.firsts) < len(r.ups) {
		r.unused++
		r.ups = r.ups[:len(r.firsts)]
	}
	r.ups = append(r.ups, time.Now())
}

func (r *linkRun) run(ctx context.Context) {
	r.restore()
	poll.Until(r.t, time.Minute, func() bool { return r.g.progress("S").Sent > 0 || r.g.progress("S").Proven > 0 }, "%s: records flow", r.name)
	ctx, cancel := context.WithTimeout(ctx, r.lasts)
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	if r.faults != nil {
		wg.Go(func() { r.faults(ctx, r) })
	}
	quarter := r.wire.Stats()
	before := r.g.progress("S")
	began := time.Now()
	next := 0
	var quarterAt time.Time
	for ctx.Err() == nil {
		id := r.fill(1, "M")[0]
		r.mu.Lock()
		r.sent[id] = time.Now()
		r.mu.Unlock()
		if next++; quarterAt.IsZero() && time.Since(began) > r.lasts/4 {
			quarter, quarterAt, before = r.wire.Stats(), time.Now(), r.g.progress("S")
		}
		poll.Wait(ctx, time.Second, func() bool { return false })
	}
	r.report(r.wire.Stats(), quarter, time.Since(quarterAt), r.g.progress("S"), before)
}

// miss notes a goal that was missed.
func (r *linkRun) miss(format string, args ...any) {
	r.missed = append(r.missed, fmt.Sprintf(format, args...))
}

func (r *linkRun) report(now, then wire.Stats, span time.Duration, p, before Progress) {
	r.mu.Lock()
	defer r.mu.Unlock()
	late := slices.Clone(r.took)
	for _, at := range r.sent { // still on the way
		late = append(late, time.Since(at))
	}
	slices.Sort(late)
	p95 := late[len(late)*95/100]
	use := 0.0
	if r.bits > 0 {
		use = float64(now.Up-then.Up) / span.Seconds() / (r.bits / 8)
	}
	records := int(before.Waiting - min(p.Waiting, before.Waiting))
	firsts := make([]string, len(r.firsts))
	for i, d := range r.firsts {
		firsts[i] = fmt.Sprintf("%.1f", d.Seconds())
		if i > 0 && r.first > 0 && d > r.first { // the first of all waits for the hub to look at a new leaf
			r.miss("first record %v after link-up, want %v", d, r.first)
		}
	}
	if r.unused > 0 {
		r.miss("%d times the link was there and carried nothing", r.unused)
	}
	r.t.Logf("%-26s use %.2f, %3.0f bytes/record, live p50 %.1f p95 %.1f max %.1f s, first records %v s, %d connections", r.name, use,
		float64(now.Up-then.Up)/float64(max(1, records)), late[len(late)/2].Seconds(), p95.Seconds(), late[len(late)-1].Seconds(), firsts, now.Accepted)
	if r.use > 0 && use < r.use {
		r.miss("%.2f of the link is used, want %.2f", use, r.use)
	}
	if r.live > 0 && p95 > r.live {
		r.miss("live p95 %v, want %v", p95, r.live)
	}
}
