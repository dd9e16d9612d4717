package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/cmd/holdfast/status"
	fleet "github.com/holdfast-edge/holdfast/forward/hub"
	"github.com/holdfast-edge/holdfast/rig/device"
	"github.com/holdfast-edge/holdfast/rig/hub"
	"github.com/holdfast-edge/holdfast/rig/wire"
)

// arrivals notes when records of each leaf arrive at the hub.
type arrivals struct {
	mu sync.Mutex // guards at
	at map[string][]time.Time
}

func (a *arrivals) add(leaf string, at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.at[leaf] = append(a.at[leaf], at)
}

// after returns the first arrival of a leaf's record that is not before t.
func (a *arrivals) after(leaf string, t time.Time) (time.Time, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	i := slices.IndexFunc(a.at[leaf], func(at time.Time) bool { return !at.Before(t) })
	if i < 0 {
		return time.Time{}, false
	}
	return a.at[leaf][i], true
}

func (a *arrivals) watch(t *testing.T, js jetstream.JetStream, stream string) {
	t.Helper()
	c, err := js.OrderedConsumer(context.Background(), stream, jetstream.OrderedConsumerConfig{HeadersOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	consume, err := c.Consume(func(m jetstream.Msg) {
		if meta, err := m.Metadata(); err == nil {
			a.add(strings.Split(m.Subject(), ".")[1], meta.Timestamp)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(consume.Stop)
}

// TestLinkUp measures the seconds from the moment the link works again to the first record at the hub, after outages of 5, 12, 25 and 45 s,
// five of each by as many gateways of one fleet, each with one sourced stream. The hub takes the arrival's time.
func TestLinkUp(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: runs a fleet, not done with -short")
	}
	outages := []time.Duration{5 * time.Second, 12 * time.Second, 25 * time.Second, 45 * time.Second}
	const each = 5
	dir := t.TempDir()
	var spec fleet.Spec
	for _, o := range outages {
		for i := range each {
			spec.Leaves = append(spec.Leaves, fleet.Leaf{
				Name: fmt.Sprintf("leaf-%.0f-%d", o.Seconds(), i), Password: sitePassword,
				Streams: []fleet.Stream{{Name: "SENSORS", Mode: fleet.Source}},
			})
		}
	}
	plan, err := fleet.New(spec)
	if err != nil {
		t.Fatal(err)
	}
	makeDir(t, filepath.Join(dir, "hub"))
	h, err := hub.Start(hub.Options{Processes: true, Dir: filepath.Join(dir, "hub"), Accounts: plan.Config()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closing(t, h.Close()) })
	js, err := h.JetStream()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fleet.Apply(context.Background(), js, plan); err != nil {
		t.Fatal(err)
	}
	seen := &arrivals{at: map[string][]time.Time{}}
	seen.watch(t, js, "SENSORS")
	wires := map[string]*wire.Wire{}
	for i, l := range spec.Leaves {
		wires[l.Name] = startMember(t, filepath.Join(dir, l.Name), l.Name, h.LeafAddr(i%h.Len()))
	}
	for _, l := range spec.Leaves {
		awaitArrival(t, seen, l.Name, time.Time{}, time.Minute)
	}

	var all []float64
	took := cutAll(t, spec.Leaves, outages, each, wires, seen)
	for _, o := range outages {
		slices.Sort(took[o])
		t.Logf("outage %v: first record after %.1f s", o, took[o])
		all = append(all, took[o]...)
	}
	slices.Sort(all)
	if len(all) != len(spec.Leaves) {
		t.Fatalf("%d of %d links came back", len(all), len(spec.Leaves))
	}
	median, worst := all[len(all)/2], all[len(all)-1]
	t.Logf("median %.1f s, worst %.1f s of %d", median, worst, len(all))
	if median > 2 || worst > 12 {
		t.Errorf("first record after link-up: median %.1f s, worst %.1f s, want at most 2 and 12", median, worst)
	}
}

// cutAll cuts the link of every leaf for the outage that it stands for, and returns the seconds from each link-up to the first record at the hub.
func cutAll(t *testing.T, leaves []fleet.Leaf, outages []time.Duration, each int, wires map[string]*wire.Wire, seen *arrivals) map[time.Duration][]float64 {
	t.Helper()
	var wg sync.WaitGroup
	var mu sync.Mutex // guards took
	took := map[time.Duration][]float64{}
	for i, l := range leaves {
		wg.Go(func() {
			outage := outages[i/each]
			wires[l.Name].Cut()
			pause(context.Background(), outage)
			back := time.Now()
			if err := wires[l.Name].Restore(); err != nil {
				t.Error(err)
				return
			}
			first, ok := waitArrival(seen, l.Name, back, time.Minute)
			if !ok {
				t.Errorf("%s: no record at the hub within a minute of link-up", l.Name)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			took[outage] = append(took[outage], first.Sub(back).Seconds())
		})
	}
	wg.Wait()
	return took
}

func waitArrival(seen *arrivals, leaf string, after time.Time, timeout time.Duration) (time.Time, bool) {
	deadline := time.Now().Add(timeout)
	for time.Now().Before(deadline) {
		if at, ok := seen.after(leaf, after); ok {
			return at, true
		}
		pause(context.Background(), 20*time.Millisecond)
	}
	return time.Time{}, false
}

func awaitArrival(t *testing.T, seen *arrivals, leaf string, after time.Time, timeout time.Duration) {
	t.Helper()
	if _, ok := waitArrival(seen, leaf, after, timeout); !ok {
		t.Fatalf("%s: no record at the hub within %v", leaf, timeout)
	}
}

// startMember starts one gateway of the fleet with a GPS that says about one sentence a second, and returns its link.
func startMember(t *testing.T, dir, name, hubAddr string) *wire.Wire {
	t.Helper()
	s := &site{t: t, leaf: name, dir: dir}
	w, err := wire.New(hubAddr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closing(t, w.Close()) })
	makeDir(t, dir)
	if s.gps, err = device.NewGPS(filepath.Join(dir, "gps"), 600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closing(t, s.gps.Unplug()) })
	config := fmt.Sprintf(`leaf: {name: %s, data: %q}
hub: {urls: ["nats-leaf://%s:%s@%s"]}
storage: {budget: 1GiB, reserve_free: 0, allow_volatile: true}
streams: [{name: SENSORS, max_bytes: 64MiB}]
sources: [{name: gps, into: SENSORS, serial: {port: %q, baud: 4800}, frame: nmea}]
`, name, filepath.Join(dir, "data"), name, sitePassword, w.Addr(), s.gps.Path)
	s.write("holdfast.yaml", config)
	s.start()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.gps.Run(ctx, &device.Sentences{}, 0) }()
	t.Cleanup(func() { cancel(); closing(t, <-ended) })
	s.daemon.until(30*time.Second, "capturing", func(r status.Report) bool { return running(r) })
	return w
}
