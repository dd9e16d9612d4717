package hub_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
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
)

func TestMain(m *testing.M) {
	if code, ran := hub.Main(os.Args); ran {
		os.Exit(code)
	}
	_ = flag.Set("test.parallel", "8") // most of the tests wait for hubs; the command line has the last word
	os.Exit(m.Run())
}

// sized returns a size that the environment gives, for the long runs.
func sized(t *testing.T, name string, n int) int {
	t.Helper()
	if text := os.Getenv(name); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	return n
}

// TestFleetComesBackAtOnce: all leaves of a fleet, each with an hour of records at one every ten seconds (one a second in the long run), come back
// in the same moment. Every record is at the hub once. The time that takes and what the hub's three processes spend on it are shown.
func TestFleetComesBackAtOnce(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("SKIPPED: runs many leaves, not done with -short")
	}
	n := sized(t, "HOLDFAST_FLEET", 8)
	backlog := sized(t, "HOLDFAST_BACKLOG", 360)
	var spec fleet.Spec
	for i := range n {
		spec.Leaves = append(spec.Leaves, fleet.Leaf{Name: fmt.Sprintf("g%03d", i), Password: "secret", Streams: []fleet.Stream{{Name: "S", HubStream: "FIELD"}}})
	}
	p, err := fleet.New(spec)
	if err != nil {
		t.Fatal(err)
	}
	h, err := hub.Start(hub.Options{Accounts: p.Config(), Processes: true})
	if err != nil {
		t.Fatal(err)
	}
	closed := false
	shut := func() {
		if !closed {
			closed = true
			if err := h.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(shut)
	js, err := h.JetStream()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fleet.Apply(t.Context(), js, p); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	all := make([]*gateway, n)
	for i, l := range spec.Leaves {
		urls, err := hub.WithUser(h.LeafURLs(), l.Name, "secret")
		if err != nil {
			t.Fatal(err)
		}
		all[i] = startGateway(t, l.Name, filepath.Join(dir, l.Name), leaf.Hub{URLs: urls, Domain: "hub"},
			map[string]forward.Config{"S": {Mode: forward.ModeSource, HubStream: "FIELD"}}, storage.StreamConfig{Name: "S", KeepForwarded: time.Hour})
		all[i].append(1, "S")
	}
	field, err := js.Stream(t.Context(), "FIELD")
	if err != nil {
		t.Fatal(err)
	}
	held := func(want int) func() bool {
		return func() bool {
			info, err := field.Info(t.Context())
			return err == nil && info.State.Msgs >= uint64(want)
		}
	}
	poll.Until(t, 10*time.Minute, held(2*n), "all leaves have forwarded a record and an epoch")
	for _, g := range all {
		if err := g.leaf.Enable(false); err != nil {
			t.Fatal(err)
		}
	}
	for _, g := range all {
		for left := backlog; left > 0; left -= 1000 {
			g.append(min(left, 1000), "S")
		}
	}
	begun := time.Now()
	var wg sync.WaitGroup
	for _, g := range all {
		wg.Go(func() {
			if err := g.leaf.Enable(true); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	poll.Until(t, 20*time.Minute, held(n*(backlog+2)), "everything at the hub")
	took := time.Since(begun)
	for what, r := range auditOf(t, js, "FIELD") {
		if r.Verdict != fleet.Contiguous || r.Records != uint64(backlog+1) {
			t.Errorf("account of %s = %+v, want %d records once", what, r, backlog+1)
		}
	}
	for _, g := range all {
		g.close()
	}
	shut()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_CHILDREN, &usage); err != nil {
		t.Fatal(err)
	}
	cpu := time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	t.Logf("%d leaves with %d records each: all at the hub %v after the link was back, %.0f records/s; the hub's processes used %v of CPU in all",
		n, backlog, took.Round(10*time.Millisecond), float64(n*backlog)/took.Seconds(), cpu.Round(10*time.Millisecond))
}

// TestAuditOfManyRecords reads a hub stream of many records, ten million in the long run, as the command does.
func TestAuditOfManyRecords(t *testing.T) {
	t.Parallel()
	n := sized(t, "HOLDFAST_AUDIT", 100_000)
	if testing.Short() {
		n = 5000
	}
	h, err := hub.Start(hub.Options{Nodes: 1, Processes: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	js, err := h.JetStream()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"data.g1.S.>"}, AllowDirect: true}); err != nil {
		t.Fatal(err)
	}
	mirror, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "g1_S", Mirror: &jetstream.StreamSource{Name: "S"}, AllowDirect: true})
	if err != nil {
		t.Fatal(err)
	}
	fill(t, js, n)
	poll.Until(t, time.Hour, func() bool {
		info, err := mirror.Info(t.Context())
		return err == nil && info.State.Msgs == uint64(n)
	}, "the mirror holds all records")
	runtime.GC()
	if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0o600); err != nil { // proc(5): the peak begins anew
		t.Logf("the peak is that of the whole test: %v", err)
	}
	a := fleet.NewAudit()
	begun := time.Now()
	read, err := a.Read(t.Context(), js, "g1_S", "*", nil)
	took := time.Since(begun)
	if err != nil || read != uint64(n) {
		t.Fatalf("read %d records, %v, want %d", read, err, n)
	}
	for _, r := range a.Result() {
		if r.Verdict != fleet.Contiguous {
			t.Errorf("account = %+v", r)
		}
	}
	peak := peakMemory(t)
	t.Logf("%d records accounted for in %v, %.0f records/s; at most %d MiB of memory", n, took.Round(time.Millisecond), float64(n)/took.Seconds(), peak>>20)
	if n >= 1_000_000 && peak > 256<<20 {
		t.Errorf("the account took %d MiB of memory, want at most 256", peak>>20)
	}
}

// peakMemory returns the most resident memory that this process has had, in bytes.
func peakMemory(t *testing.T) int64 {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "VmHWM:" {
			kib, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kib << 10
		}
	}
	t.Fatal("the kernel does not tell the peak of memory")
	return 0
}

// fill publishes records of twenty sources.
func fill(t *testing.T, js jetstream.JetStream, n int) {
	t.Helper()
	const sources = 20
	nc := js.Conn()
	for i := range n {
		source, seq := i%sources, i/sources+1
		m := nats.NewMsg(fmt.Sprintf("data.g1.S.s%d", source))
		m.Header.Set(storage.HeaderID, fmt.Sprintf("g1.0123456789.s%d.1.%d", source, seq))
		m.Data = []byte(`{"value":21.5}`)
		if i%1000 == 999 || i == n-1 {
			if _, err := js.PublishMsg(t.Context(), m); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := nc.PublishMsg(m); err != nil {
			t.Fatal(err)
		}
	}
}
