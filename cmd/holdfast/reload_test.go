package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"github.com/holdfast-edge/holdfast/configs"
	"github.com/holdfast-edge/holdfast/leaf"
	"github.com/holdfast-edge/holdfast/rig/leak"
	"github.com/holdfast-edge/holdfast/rig/poll"
)

// appender appends numbered messages to a source, one after the other, until ctx ends, each again until it is answered.
type appender struct {
	source string
	stored atomic.Int64
}

func (a *appender) run(ctx context.Context, t *testing.T, nc *nats.Conn) {
	for n := a.stored.Load() + 1; ctx.Err() == nil; n++ {
		m := nats.NewMsg(leaf.AppendSubject(a.source))
		m.Header.Set(nats.MsgIdHdr, fmt.Sprint(a.source, "-", n))
		m.Data = []byte(fmt.Sprint(n))
		for {
			reply, err := nc.RequestMsg(m, 2*time.Second)
			if err == nil && strings.Contains(string(reply.Data), `"stored":true`) {
				a.stored.Store(n)
				break
			}
			if err != nil && !errors.Is(err, nats.ErrNoResponders) && !errors.Is(err, nats.ErrTimeout) {
				t.Errorf("append %d to %s: %v", n, a.source, err)
				return
			}
			if ctx.Err() != nil {
				return
			}
		}
	}
}

// verify reads what the source has brought into a captured stream: every message once and in order.
func (a *appender) verify(t *testing.T, nc *nats.Conn, stream string) {
	t.Helper()
	js, err := jetstream.NewWithAPIPrefix(nc, leaf.CapturePrefix)
	if err != nil {
		t.Fatal(err)
	}
	c, err := js.Consumer(t.Context(), stream, "audit")
	if err != nil {
		t.Fatal(err)
	}
	next := int64(1)
	for next <= a.stored.Load() {
		batch, err := c.Fetch(500, jetstream.FetchMaxWait(5*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		got := 0
		for m := range batch.Messages() {
			got++
			if err := m.Ack(); err != nil {
				t.Fatal(err)
			}
			if !strings.HasSuffix(m.Subject(), "."+a.source) {
				continue
			}
			if string(m.Data()) != fmt.Sprint(next) {
				t.Fatalf("message %s of %s comes where %d should", m.Data(), a.source, next)
			}
			next++
		}
		if got == 0 {
			t.Fatalf("%d of %d messages of %s are there", next-1, a.stored.Load(), a.source)
		}
	}
}

// randomConfig returns a configuration that keeps what the load needs, and whether it is valid.
func randomConfig(r *rand.Rand, user string) (text string, valid bool) {
	var b strings.Builder
	pick := func(words ...string) string { return words[r.IntN(len(words))] }
	fmt.Fprintf(&b, "hub: {urls: [%s]}\n", pick("", `"nats-leaf://127.0.0.1:1"`, `"nats-leaf://u:p@127.0.0.1:2", "nats-leaf://127.0.0.1:1"`))
	fmt.Fprintf(&b, "streams:\n  - {name: S, max_bytes: %s, keep_forwarded: %s, when_full: %s}\n", pick("64MiB", "96MiB", "128MiB"), pick("1h", "7d"), pick("refuse", "drop-oldest"))
	b.WriteString("sources:\n  - {name: load, into: S, append: {}}\n")
	for _, name := range []string{"extra", "other", "third"} {
		if r.IntN(2) == 0 {
			fmt.Fprintf(&b, "  - {name: %s, into: S, %s}\n", name, pick("append: {queue: 1MiB}", "append: {queue: 2MiB}", "serial: {port: /dev/no-"+name+", baud: 9600}, frame: line",
				"mqtt: {broker: \"tcp://127.0.0.1:1\", topics: [\"a/#\"], qos: 1}"))
		}
	}
	fmt.Fprintf(&b, "apps:\n  max_connections: %s\n  max_mem: %s\n  captured: [{stream: S, live: %s, consumers: [audit%s]}]\n  users:\n    - {nkey: %s}\n",
		pick("16", "32"), pick("16MiB", "32MiB"), pick("true", "false"), pick("", ", second"), user)
	if r.IntN(2) == 0 {
		b.WriteString("    - {name: guest, password: \"$2a$04$PRpdQ4iEdvwJ9h8nWfMTL.mK8kZQC8q9s0nHfD6m1zYB1b7tXg2Wm\", subscribe: {deny: [\"x.>\"]}}\n")
	}
	b.WriteString("jetstream:\n  kv: [")
	if r.IntN(2) == 0 {
		fmt.Fprintf(&b, "{bucket: settings, history: %s}", pick("5", "6"))
	}
	b.WriteString("]\n")
	if r.IntN(2) == 0 {
		fmt.Fprintf(&b, "  streams: [{name: ORDERS, subjects: [\"orders.>\"], max_age: %s}]\n", pick("1h", "2h"))
	}
	text = b.String()
	if r.IntN(3) > 0 {
		return text, true
	}
	switch r.IntN(7) {
	case 0:
		return strings.Replace(text, "max_bytes", "max_bites", 1), false
	case 1:
		return strings.Replace(text, "into: S", "into: NOWHERE", 1), false
	case 2:
		return strings.Replace(text, "sources:", "sources: [", 1), false
	case 3:
		return strings.Replace(text, "hub: {", "hub: {credentials: not-there.creds, ", 1) + "", !strings.Contains(text, "nats-leaf")
	case 4:
		return text + "  objects: [{bucket: \"not a name\"}]\n", false
	case 5:
		return strings.Replace(text, "kv: [", "consumers: [{stream: NONE, durable_name: c, ack_policy: explicit, backoff: [1s]}]\n  kv: [", 1) + "oops: 1\n", false
	}
	return text[:len(text)/2] + "\x00", false
}

// TestReloadFuzz reloads random configurations, a third of them faulty, while programs append and keep state. Nothing is lost, nobody is
// disconnected, and nothing is left open or running. 50 reloads; 500 with -full.
func TestReloadFuzz(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: reloads for half a minute, not done with -short")
	}
	leak.Check(t)
	rounds := 50
	if *full {
		rounds = 500
	}
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	keys, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	public, err := keys.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	base, ok := "", false
	for !ok {
		base, ok = randomConfig(r, public)
	}
	d := startInside(t, base)
	var disconnected atomic.Int64
	nc := d.dial(nats.Nkey(public, keys.Sign), nats.DisconnectErrHandler(func(*nats.Conn, error) { disconnected.Add(1) }))
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	kv, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "mine"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	load := &appender{source: "load"}
	wg.Go(func() { load.run(ctx, t, nc) })
	var puts atomic.Int64
	wg.Go(func() {
		for ctx.Err() == nil {
			if _, err := kv.PutString(ctx, "n", fmt.Sprint(puts.Load()+1)); err == nil {
				puts.Add(1)
			} else if ctx.Err() == nil && !errors.Is(err, nats.ErrTimeout) && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, jetstream.ErrNoStreamResponse) {
				t.Errorf("put: %v", err)
				return
			}
		}
	})
	settled := func() (goroutines, files int) {
		if _, err := d.reload(base); err != nil {
			t.Fatal(err)
		}
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip("needs /proc:", err)
		}
		return runtime.NumGoroutine(), len(entries)
	}
	everything := strings.NewReplacer("consumers: [audit]", "consumers: [audit, second]", "kv: []", "kv: [{bucket: settings, history: 5}]").Replace(base)
	if !strings.Contains(everything, "ORDERS") {
		everything += "  streams: [{name: ORDERS, subjects: [\"orders.>\"], max_age: 1h}]\n"
	}
	if _, err := d.reload(everything); err != nil { // what is not declared any more stays
		t.Fatal(err)
	}
	goroutines, files := settled()
	good, bad := 0, 0
	for i := range rounds {
		text, valid := randomConfig(r, public)
		p, err := d.reload(text)
		switch {
		case valid && err != nil:
			t.Fatalf("reload %d of a valid configuration: %v\n%s", i, err, text)
		case !valid && err == nil:
			t.Fatalf("reload %d of a faulty configuration did %+v\n%s", i, p, text)
		case !valid && !strings.Contains(err.Error(), "nothing is changed"):
			t.Fatalf("reload %d: %v, want it to say that nothing is changed", i, err)
		case len(p.Failed) > 0 || len(p.Restart) > 0:
			t.Fatalf("reload %d: failed %q, needs a restart %q\n%s", i, p.Failed, p.Restart, text)
		}
		if valid {
			good++
		} else {
			bad++
		}
		n, k := load.stored.Load(), puts.Load()
		poll.Until(t, reloadPatience, func() bool { return load.stored.Load() > n && puts.Load() > k }, "the load to go on after reload %d", i)
	}
	if good == 0 || bad == 0 {
		t.Fatalf("%d valid and %d faulty reloads, want some of both", good, bad)
	}
	g, f := settled()
	if !poll.Wait(t.Context(), reloadPatience, func() bool {
		g, f = settled()
		return g <= goroutines+5 && f <= files+5
	}) {
		var stacks strings.Builder
		if err := pprof.Lookup("goroutine").WriteTo(&stacks, 2); err != nil {
			t.Error(err)
		}
		t.Errorf("%d goroutines and %d open files, before the reloads there were %d and %d:\n%.20000s", g, f, goroutines, files, stacks.String())
	}
	if n := disconnected.Load(); n > 0 {
		t.Errorf("the application was disconnected %d times", n)
	}
	cancel()
	wg.Wait()
	load.verify(t, nc, "S")
	t.Logf("%d valid and %d faulty reloads, %d records appended, %d values put", good, bad, load.stored.Load(), puts.Load())
	d.stop()
}

// TestReloadSaysWhatItDid reloads once for each kind of change.
func TestReloadSaysWhatItDid(t *testing.T) {
	leak.Check(t)
	const base = `streams: [{name: S, max_bytes: 64MiB}, {name: T, max_bytes: 64MiB}]
sources:
  - {name: calc, into: S, append: {}}
jetstream: {streams: [{name: ORDERS, subjects: ["orders.>"]}]}
`
	d := startInside(t, base)
	nc := d.dial()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if _, err := js.Publish(t.Context(), "orders.x", nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct{ name, from, to, want string }{
		{"nothing", "", "", "nothing changes\n"},
		{"limits of a stream", "name: S, max_bytes: 64MiB", "name: S, max_bytes: 32MiB", "change streams[S].max_bytes: 64MiB -> 32MiB\n"},
		{"a new source", "  - {name: calc", "  - {name: more, into: T, append: {}}\n  - {name: calc", "change sources[more]: added\n"},
		{"a source that goes", "sources:\n  - {name: calc, into: S, append: {}}\n", "", "change sources[calc]: removed\n"},
		{"a source of another stream", "calc, into: S", "calc, into: T", "needs a restart: sources[calc].into: S -> T\n"},
		{"a new stream", "[{name: S,", "[{name: U, max_bytes: 1MiB, max_msg_size: 1KiB}, {name: S,", "needs a restart: streams[U]: added\n"},
		{"an address", "streams: [{name: S", "apps: {websocket: \"127.0.0.1:1\"}\nstreams: [{name: S", "needs a restart: apps.websocket: \"\" -> 127.0.0.1:1\n"},
		{"an asset", `subjects: ["orders.>"]`, `subjects: ["orders.>"], max_msgs: 100`, "update stream ORDERS: max_msgs: -1 -> 100\n"},
		{"an asset that would lose data", `subjects: ["orders.>"]`, `subjects: ["orders.>"], max_msgs: 5`,
			"update stream ORDERS: max_msgs: -1 -> 5; loses 5 messages above max_msgs\n" +
				"failed: update stream ORDERS: max_msgs: -1 -> 5; loses 5 messages above max_msgs; not done: it loses data; holdfast reload -allow-loss does it\n"},
		{"a link of their own", "streams: [{name: S", "apps: {hub: {urls: [\"nats-leaf://127.0.0.1:1\"]}}\nstreams: [{name: S", "change apps.hub.urls: [] -> [nats-leaf://127.0.0.1:1]\n"},
		{"a fault", "max_bytes", "max_bites", "nothing is changed"},
	} {
		text := strings.Replace(base, tt.from, tt.to, 1)
		cfg, faults := configs.Read([]byte(fmt.Sprintf("leaf: {name: gw1, data: %q, nats: %q}\nstorage: {budget: 1GiB, reserve_free: 0, allow_volatile: true}\n", d.data, d.nats)+text), "/")
		if len(faults) == 0 {
			p, err := askPlan(t.Context(), d.data, "/plan", nil, configBytes(t, d, text))
			if err != nil || !strings.HasPrefix(tt.want, p.String()) {
				t.Errorf("%s: plan %q, %v, want %q", tt.name, p, err, tt.want)
			}
			if cfg.Leaf.Name != "gw1" {
				t.Fatal("the configuration is not the one that was written")
			}
		}
		p, err := d.reload(text)
		got := p.String()
		if err != nil {
			got = err.Error()
		}
		if got != tt.want && (err == nil || !strings.Contains(got, tt.want)) {
			t.Errorf("%s: reload %q, want %q", tt.name, got, tt.want)
		}
		r, err := askStatus(t.Context(), d.data)
		if err != nil || r.Apps == nil {
			t.Fatalf("%s: status %+v, %v", tt.name, r, err)
		}
		if failed := strings.Contains(tt.want, "failed: "); failed != (len(r.Apps.Failed) > 0) || tt.name == "a link of their own" && r.Apps.Link != "down" {
			t.Errorf("%s: the state has of local applications %+v", tt.name, r.Apps)
		}
		if _, err := d.reload(base); err != nil {
			t.Fatal(err)
		}
	}
	d.stop()
}
