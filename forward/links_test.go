package forward

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"flag"
	"fmt"
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

	use  float64       // least use of the link, 0: not asked for
	live time.Duration // 95 of 100 live records arrive within, 0: not asked for
	long bool          // with -full only
}

// linkCases are the links. Short ones are run side by side in `make test`.
var linkCases = []linkCase{
	{name: "9.6k 600ms", bits: 9600, rtt: 600 * time.Millisecond, backlog: 500, lasts: 20 * time.Second, use: 0.75, live: 8 * time.Second},
	{name: "64k 20ms", bits: 64e3, rtt: 20 * time.Millisecond, backlog: 5000, lasts: 20 * time.Second, use: 0.85, live: 5 * time.Second},
	{name: "64k 600ms", bits: 64e3, rtt: 600 * time.Millisecond, backlog: 5000, lasts: 20 * time.Second, use: 0.85, live: 5 * time.Second},
	{name: "1M 300ms", bits: 1e6, rtt: 300 * time.Millisecond, backlog: 40000, lasts: 20 * time.Second, use: 0.85, live: 5 * time.Second},
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
}

// TestLinks runs a gateway behind each of the links, and prints what each link carried.
func TestLinks(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute")
	}
	var names []string
	var runs []*linkRun
	for i, c := range linkCases {
		if c.long && !*full {
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
	var wg sync.WaitGroup
	for _, r := range runs {
		wg.Go(func() { r.run(ctx) })
	}
	wg.Wait()
	for _, r := range runs {
		r.wire.Throttle(0)
		r.wire.Delay(0)
	}
	streams := []string{"FIELD"}
	for _, n := range names {
		streams = append(streams, n+"_M")
	}
	s.await(2*time.Minute, streams...)
}

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
		ctx, cancel := context.WithTimeout(context.Background(), patient)
		if err := g.store.Append(ctx, recs...); err != nil {
			r.t.Errorf("append: %v", err)
		}
		cancel()
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
	r.mu.Lock()
	r.firsts = r.firsts[:min(len(r.firsts), len(r.ups))]
	r.ups = append(r.ups[:len(r.firsts)], time.Now())
	r.mu.Unlock()
	if err := r.wire.Restore(); err != nil {
		r.t.Error(err)
	}
}

func (r *linkRun) run(ctx context.Context) {
	r.restore()
	poll.Until(r.t, time.Minute, func() bool { return r.g.progress("S").Sent > 0 || r.g.progress("S").Proven > 0 }, "%s: records flow", r.name)
	ctx, cancel := context.WithTimeout(ctx, r.lasts)
	defer cancel()
	if r.faults != nil {
		go r.faults(ctx, r)
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
	records := cmp.Compare(before.Waiting, p.Waiting) * int(before.Waiting-p.Waiting)
	r.t.Logf("%-24s use %.2f, %3.0f bytes/record, live p50 %v p95 %v max %v, first records %v, %d connections", r.name, use,
		float64(now.Up-then.Up)/float64(max(1, records)), late[len(late)/2].Round(10*time.Millisecond), p95.Round(10*time.Millisecond),
		late[len(late)-1].Round(10*time.Millisecond), r.firsts, now.Accepted)
	if r.use > 0 && use < r.use {
		r.t.Errorf("%s: %.2f of the link is used, want %.2f", r.name, use, r.use)
	}
	if r.live > 0 && p95 > r.live {
		r.t.Errorf("%s: live p95 %v, want %v", r.name, p95, r.live)
	}
}
