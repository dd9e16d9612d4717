package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/cmd/holdfast/status"
	"github.com/holdfast-edge/holdfast/configs"
	"github.com/holdfast-edge/holdfast/leaf"
	"github.com/holdfast-edge/holdfast/rig/device"
	"github.com/holdfast-edge/holdfast/rig/poll"
	"github.com/holdfast-edge/holdfast/rig/port"
	"github.com/holdfast-edge/holdfast/rig/wallclock"
	"github.com/holdfast-edge/holdfast/storage"
)

// scale is a gateway with a full store and devices that connect straight to it, in a binary of its own so that its memory can be told.
type scale struct {
	t      *testing.T
	binary string
	config string
	data   string
	mqtt   string // address of its own broker
	cfg    configs.Config
}

// newScale writes a configuration with some streams, each with a source that programs append to, and one, MQTT, with a broker for devices.
func newScale(t *testing.T, dir, hub string, streams int, maxBytes string) *scale {
	t.Helper()
	return newScaleWithin(t, dir, hub, streams, maxBytes, "20GiB")
}

func newScaleWithin(t *testing.T, dir, hub string, streams int, maxBytes, budget string) *scale {
	t.Helper()
	s := &scale{t: t, binary: filepath.Join(t.TempDir(), "holdfast"), config: filepath.Join(dir, "holdfast.yaml"), data: filepath.Join(dir, "data")}
	buildPlain(t, s.binary)
	ports, err := port.Pick(1)
	if err != nil {
		t.Fatal(err)
	}
	s.mqtt = fmt.Sprintf("127.0.0.1:%d", ports[0])
	var b strings.Builder
	fmt.Fprintf(&b, "leaf: {name: pump-07, data: %q}\n%s", s.data, hub)
	fmt.Fprintf(&b, "storage: {budget: %s, reserve_free: 0, allow_volatile: true}\nstreams:\n  - {name: MQTT, max_bytes: 64MiB}\n", budget)
	for i := range streams {
		fmt.Fprintf(&b, "  - {name: S%d, max_bytes: %s}\n", i, maxBytes)
	}
	fmt.Fprintf(&b, "sources:\n  - {name: devices, into: MQTT, mqttserver: {listen: %q, anonymous: true, access: [{publish: [\"#\"]}]}}\n", s.mqtt)
	for i := range streams {
		fmt.Fprintf(&b, "  - {name: s%d, into: S%d, append: {}}\n", i, i)
	}
	if err := os.WriteFile(s.config, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, faults, err := configs.Load(s.config)
	if err != nil || len(faults) > 0 {
		t.Fatalf("%v %v\n%s", err, faults, b.String())
	}
	s.cfg = cfg
	return s
}

// fill puts n records of a size into each of the streams, without the daemon.
func (s *scale) fill(n, size int) {
	s.t.Helper()
	log := slog.New(slog.DiscardHandler)
	store, err := storage.Open(storageOptions(s.cfg, log))
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { closing(s.t, store.Close(context.Background())) }()
	srv, err := leaf.Start(leafOptions(s.cfg, store, log))
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { closing(s.t, srv.Shutdown(context.Background())) }()
	nc, err := srv.Connect()
	if err != nil {
		s.t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		s.t.Fatal(err)
	}
	if err := store.Attach(context.Background(), storage.Server{JetStream: js, Restart: srv.RestartJetStream}); err != nil {
		s.t.Fatal(err)
	}
	const batch = 1000
	data := make([]byte, size)
	recs := make([]storage.Record, batch)
	for _, src := range s.cfg.Sources {
		if src.Append == nil {
			continue
		}
		for seq := uint64(1); seq <= uint64(n); seq += batch {
			for i := range recs {
				recs[i] = storage.Record{Stream: src.Into, Source: src.Name, Seq: seq + uint64(i), Tail: strconv.Itoa(i % 10), Data: data}
			}
			for {
				err := store.Append(context.Background(), recs...)
				if err == nil {
					break
				}
				if !errors.Is(err, storage.ErrFull) && !errors.Is(err, storage.ErrUnavailable) {
					s.t.Fatal(err)
				}
			}
		}
	}
}

// start starts the daemon, in a memory cgroup if limit is not 0, and returns how long it took until a device had its first acknowledgement.
func (s *scale) start(limit int64) (*daemon, time.Duration) {
	s.t.Helper()
	binary := s.binary
	if limit > 0 {
		binary = confined(s.t, s.binary, limit)
	}
	began := time.Now()
	d := startDaemon(s.t, binary, s.config, s.data)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	acked := poll.Wait(ctx, 3*time.Minute, func() bool {
		one, done := context.WithTimeout(ctx, 5*time.Second)
		defer done()
		sensor, err := device.NewSensor(one, "tcp://"+s.mqtt, "probe")
		if err != nil {
			return false
		}
		defer sensor.Close()
		return sensor.Publish(one, "probe", 1, []string{"x"}) == nil
	})
	if !acked {
		s.t.Fatalf("no device was acknowledged; log:\n%s", tailOf(d.logged(), 4000))
	}
	return d, time.Since(began)
}

// confined returns a program that runs another under a memory limit, which counts the page cache, too.
func confined(t *testing.T, binary string, limit int64) string {
	t.Helper()
	for _, c := range []struct{ root, file, also string }{
		// The daemon sees the limit of version 2 by itself.
		{"/sys/fs/cgroup/memory", "memory.limit_in_bytes", fmt.Sprintf("export GOMEMLIMIT=%d\n", limit/100*80)}, // version 1
		{"/sys/fs/cgroup", "memory.max", ""},
	} {
		dir := filepath.Join(c.root, "holdfast-test-"+strconv.Itoa(os.Getpid()))
		if _, err := os.Stat(filepath.Join(c.root, "cgroup.procs")); err != nil || os.Mkdir(dir, 0o755) != nil {
			continue
		}
		t.Cleanup(func() { poll.Wait(context.Background(), 10*time.Second, func() bool { return os.Remove(dir) == nil }) })
		if os.WriteFile(filepath.Join(dir, c.file), []byte(strconv.FormatInt(limit, 10)), 0o644) != nil {
			continue
		}
		script := filepath.Join(t.TempDir(), "confined")
		text := fmt.Sprintf("#!/bin/sh\necho $$ >%s/cgroup.procs\n%sexec %s \"$@\"\n", dir, c.also, binary)
		if err := os.WriteFile(script, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
		return script
	}
	t.Skip("SKIPPED: a memory limit needs root and a memory cgroup")
	return ""
}

// memory returns a figure of /proc/<pid>/status in MB, such as VmRSS or VmHWM.
func (d *daemon) memory(figure string) float64 {
	d.t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", d.cmd.Process.Pid))
	if err != nil {
		d.t.Fatal(err)
	}
	defer func() { closing(d.t, f.Close()) }()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if text, found := strings.CutPrefix(lines.Text(), figure+":"); found {
			kib, err := strconv.ParseFloat(strings.Fields(text)[0], 64)
			if err != nil {
				d.t.Fatal(err)
			}
			return kib * 1024 / 1e6
		}
	}
	d.t.Fatalf("no %s", figure)
	return 0
}

// size returns n in a full run, and a small part of it in a short one.
func size(n, small int) int {
	if *full {
		return n
	}
	return small
}

// TestManyRecords starts on 5 million records of 200 bytes (100,000 without -full): and a full journal: a device is acknowledged within 2 s, in
// at most 80 MB, while the store is read and after.
func TestManyRecords(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: builds a daemon and fills a store, not done with -short")
	}
	s := newScale(t, t.TempDir(), "", 1, "4GiB")
	n := size(5_000_000, 100_000)
	s.fill(n, 200)
	d, first := s.start(0)
	d.until(2*time.Minute, "the store is attached", func(r status.Report) bool { return running(r) })
	rss, peak := d.memory("VmRSS"), d.memory("VmHWM")
	t.Logf("%d records: first acknowledgement after %.2f s, %.0f MB resident, %.0f MB at most", n, first.Seconds(), rss, peak)
	if first > 2*time.Second && *full {
		t.Errorf("the first acknowledgement took %v, want 2 s at most", first)
	}
	if peak > 80 {
		t.Errorf("%.0f MB resident now and %.0f at the start, want 80 at most", rss, peak)
	}
	r, _ := d.status()
	if storedBy(r, "s0") != n {
		t.Errorf("%d records are counted, want %d", storedBy(r, "s0"), n)
	}
	d.stop()
}

// TestManyFullStreams starts with 100 full streams under a limit of 256 MB and captures.
func TestManyFullStreams(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: builds a daemon and fills 100 streams, not done with -short")
	}
	streams := size(100, 10)
	s := newScale(t, t.TempDir(), "", streams, "1MiB")
	s.fill(4000, 200)
	d, first := s.start(int64(size(256, 128)) << 20)
	d.until(2*time.Minute, "all streams are there", func(r status.Report) bool { return len(r.Streams) == streams+1 && running(r) })
	t.Logf("%d full streams: first acknowledgement after %.2f s, %.0f MB resident, %.0f MB at most", streams, first.Seconds(), d.memory("VmRSS"), d.memory("VmHWM"))
	r, _ := d.status()
	for _, st := range r.Streams {
		if st.Wrong || st.Name != "MQTT" && st.Dropped["drop-oldest"] == 0 {
			t.Errorf("stream %s: %+v, want it full and its account right", st.Name, st)
		}
	}
	d.stop()
}

// TestBacklogInLittleMemory starts on a backlog of 2 GB (100 MB without -full) under a limit of 128 MB: it captures, and all of it goes to the hub.
func TestBacklogInLittleMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: builds a daemon, fills a store and runs a hub, not done with -short")
	}
	site := newSite(t, siteOptions{})
	site.wire.Cut()
	hub := fmt.Sprintf("hub: {urls: [\"nats-leaf://%s:%s@%s\"]}\n", site.leaf, sitePassword, site.wire.Addr())
	s := newScale(t, site.dir, hub, 1, "4GiB")
	raw, err := os.ReadFile(s.config)
	if err != nil {
		t.Fatal(err)
	}
	// The hub knows SENSORS.
	text := strings.NewReplacer("name: S0", "name: SENSORS", "into: S0", "into: SENSORS", "name: MQTT, max_bytes: 64MiB", "name: MQTT, max_bytes: 64MiB, forward: {mode: none}").Replace(string(raw))
	if err := os.WriteFile(s.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if s.cfg, _, err = configs.Load(s.config); err != nil {
		t.Fatal(err)
	}
	const record = 4000
	n := size(500_000, 25_000)
	s.fill(n, record)
	d, first := s.start(128 << 20)
	t.Logf("backlog of %d MB: first acknowledgement after %.2f s, %.0f MB resident", n*record/1e6, first.Seconds(), d.memory("VmRSS"))
	closing(t, site.wire.Restore())
	began := time.Now()
	d.until(30*time.Minute, "everything at the hub", func(r status.Report) bool { return r.Link.State == "up" && r.Verdict.Waiting == 0 })
	t.Logf("drained in %.0f s, %.0f MB at most", time.Since(began).Seconds(), d.memory("VmHWM"))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	at, err := site.js.Stream(ctx, "SENSORS")
	if err != nil {
		t.Fatal(err)
	}
	info, err := at.Info(ctx, jetstream.WithSubjectFilter(storage.DataSubject(site.leaf, "SENSORS", "s0.>")))
	if err != nil {
		t.Fatal(err)
	}
	var have uint64
	for _, count := range info.State.Subjects {
		have += count
	}
	if have != uint64(n) {
		t.Errorf("the hub has %d records, want %d", have, n)
	}
	d.stop()
}

var hours = flag.Int("hours", 48, "how many hours TestTwoDaysAtSpeed captures with -full")

// TestTwoDaysAtSpeed captures what 50 records a second make in 48 hours (40,000 records without -full) as fast as it goes, while the wall clock goes along
// with it: memory and files stay what they were after a fifth of it, and the account balances.
func TestTwoDaysAtSpeed(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: builds a daemon with another clock, not done with -short")
	}
	s := newScale(t, t.TempDir(), "", 0, "")
	if err := wallclock.Build(s.binary, ".", false, 0); err != nil {
		t.Fatal(err)
	}
	// A stream that is full after a tenth of it, so that most of the time the oldest records go.
	const perSecond, chunk, record = 50, 2000, 200
	n := size(*hours*3600*perSecond, 40_000)
	raw, err := os.ReadFile(s.config)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(string(raw), "max_bytes: 64MiB", fmt.Sprintf("max_bytes: %d", max(n/10*350, 2<<20)), 1)
	if err := os.WriteFile(s.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	clock := wallclock.File(filepath.Join(t.TempDir(), "clock"))
	tick := func(done int) {
		t.Helper()
		if err := clock.Set(time.Duration(done/perSecond)*time.Second, "synced", "soak"); err != nil {
			t.Fatal(err)
		}
	}
	tick(0)
	t.Setenv(wallclock.Variable, string(clock))
	d, _ := s.start(0)
	ctx, cancel := context.WithTimeout(context.Background(), 6*time.Hour)
	defer cancel()
	sensor, err := device.NewSensor(ctx, "tcp://"+s.mqtt, "soak")
	if err != nil {
		t.Fatal(err)
	}
	defer sensor.Close()
	payloads := make([]string, chunk)
	var rss float64
	var files int
	began := time.Now()
	for done := 0; done < n; done += chunk {
		for i := range payloads {
			payloads[i] = fmt.Sprintf("%0*d", record, done+i)
		}
		if err := sensor.Publish(ctx, "soak/"+strconv.Itoa(done%7), 200, payloads); err != nil {
			t.Fatal(err)
		}
		tick(done + chunk)
		if rss == 0 && done >= n/5 {
			rss, files = d.memory("VmRSS"), countFiles(t, s.data)
		}
	}
	r, _ := d.status()
	end, endFiles := d.memory("VmRSS"), countFiles(t, s.data)
	t.Logf("%d records in %.0f s: %.0f MB resident and %d files after a fifth, %.0f MB and %d at the end", n, time.Since(began).Seconds(), rss, files, end, endFiles)
	if end > rss*1.25+15 || endFiles > files+16 {
		t.Error("memory or files grow")
	}
	st := r.Streams[0]
	if storedBy(r, "devices") != n+1 || st.Wrong || st.Stored != st.Waiting+st.Forwarded+st.Dropped["drop-oldest"] || st.Dropped["drop-oldest"] == 0 {
		t.Errorf("the account is %+v, want %d stored", st, n+1)
	}
	d.stop()
}

func countFiles(t *testing.T, dir string) (n int) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			n++
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}
