package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/cmd/holdfast/demo"
	"github.com/holdfast-edge/holdfast/cmd/holdfast/status"
	fleet "github.com/holdfast-edge/holdfast/forward/hub"
	"github.com/holdfast-edge/holdfast/rig/broker"
	"github.com/holdfast-edge/holdfast/rig/device"
	"github.com/holdfast-edge/holdfast/rig/hub"
	"github.com/holdfast-edge/holdfast/rig/poll"
	"github.com/holdfast-edge/holdfast/rig/port"
	"github.com/holdfast-edge/holdfast/rig/wire"
	"github.com/holdfast-edge/holdfast/storage"
)

const sitePassword = "site-secret"

// site is a whole installation on this machine: hub of three processes, link, broker, devices, daemon. Its streams are SENSORS, which
// the hub sources, and EVENTS, which it mirrors. The broker's messages go into both.
type site struct {
	t      *testing.T
	leaf   string
	dir    string
	hub    *hub.Cluster
	js     jetstream.JetStream // the hub's
	wire   *wire.Wire
	broker *broker.Mosquitto
	gps    *device.GPS
	listen string // address of the daemon's own MQTT server; empty: none
	daemon *daemon
}

// siteOptions say what a site has.
type siteOptions struct {
	broker bool // Mosquitto
	saves  bool // it keeps what it acknowledged through a kill, by writing all of it at each change
	gps    bool

	devices bool // connect to the daemon's own MQTT server
}

func newSite(t *testing.T, o siteOptions) *site {
	t.Helper()
	s := &site{t: t, leaf: "pump-07", dir: t.TempDir()}
	if o.broker {
		s.broker = broker.Need(t, broker.Options{Persistence: o.saves})
	}
	s.startHub(s.leaf)
	w, err := wire.New(s.hub.LeafAddr(0))
	if err != nil {
		t.Fatal(err)
	}
	s.wire = w
	t.Cleanup(func() { closing(t, w.Close()) })
	if o.gps {
		if s.gps, err = device.NewGPS(filepath.Join(s.dir, "gps"), 4800); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { closing(t, s.gps.Unplug()) })
	}
	if o.devices {
		ports, err := port.Pick(1)
		if err != nil {
			t.Fatal(err)
		}
		s.listen = fmt.Sprintf("127.0.0.1:%d", ports[0])
	}
	s.write("holdfast.yaml", s.config(s.wire.Addr()))
	return s
}

func closing(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// startHub starts a hub that is planned for the given leaves.
func (s *site) startHub(leaves ...string) {
	s.t.Helper()
	var spec fleet.Spec
	for _, name := range leaves {
		spec.Leaves = append(spec.Leaves, fleet.Leaf{Name: name, Password: sitePassword, Streams: []fleet.Stream{
			{Name: "SENSORS", Mode: fleet.Source}, {Name: "EVENTS", Mode: fleet.Mirror},
		}})
	}
	plan, err := fleet.New(spec)
	if err != nil {
		s.t.Fatal(err)
	}
	makeDir(s.t, filepath.Join(s.dir, "hub"))
	if s.hub, err = hub.Start(hub.Options{Processes: true, Dir: filepath.Join(s.dir, "hub"), Accounts: plan.Config()}); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { closing(s.t, s.hub.Close()) })
	if s.js, err = s.hub.JetStream(); err != nil {
		s.t.Fatal(err)
	}
	if _, err := fleet.Apply(context.Background(), s.js, plan); err != nil {
		s.t.Fatal(err)
	}
}

// config is the gateway's configuration, with the hub behind addr.
func (s *site) config(addr string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "leaf: {name: %s, data: %q}\n", s.leaf, filepath.Join(s.dir, "data"))
	if addr != "" {
		fmt.Fprintf(&b, "hub: {urls: [\"nats-leaf://%s:%s@%s\"]}\n", s.leaf, sitePassword, addr)
	}
	b.WriteString("storage: {budget: 1GiB, reserve_free: 0, allow_volatile: true}\nstreams:\n")
	b.WriteString("  - {name: SENSORS, max_bytes: 256MiB, forward: {mode: source}}\n  - {name: EVENTS, max_bytes: 256MiB, forward: {mode: mirror}}\nsources:\n")
	if s.gps != nil {
		fmt.Fprintf(&b, "  - {name: gps, into: SENSORS, serial: {port: %q, baud: 4800}, frame: nmea}\n", s.gps.Path)
	}
	if s.listen != "" {
		fmt.Fprintf(&b, "  - {name: devices, into: SENSORS, mqttserver: {listen: %q, anonymous: true, access: [{publish: [\"site/#\"]}]}}\n", s.listen)
	}
	if s.broker != nil {
		fmt.Fprintf(&b, "  - {name: sensors, into: SENSORS, mqtt: {broker: %q, topics: [\"site/#\"], qos: 1}}\n", s.broker.URL())
		fmt.Fprintf(&b, "  - {name: events, into: EVENTS, mqtt: {broker: %q, topics: [\"site/#\"], qos: 1}}\n", s.broker.URL())
	}
	return b.String()
}

func (s *site) write(name, text string) string {
	s.t.Helper()
	path := filepath.Join(s.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return path
}

// daemon is a holdfast process.
type daemon struct {
	t    *testing.T
	data string
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has been waited for
	mu   sync.Mutex    // guards log
	log  bytes.Buffer
}

func (d *daemon) Write(p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.log.Write(p)
}

func (d *daemon) logged() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.log.String()
}

// startDaemon runs the binary on a configuration until the test ends. The test binary itself is used when binary is empty.
func startDaemon(t *testing.T, binary, config, data string, env ...string) *daemon {
	t.Helper()
	args := []string{"run", "-config", config}
	if binary == "" {
		binary, args = os.Args[0], append([]string{asHoldfast}, args...)
	}
	cmd := exec.Command(binary, args...)
	cmd.Env = append(os.Environ(), env...)
	return runDaemonAs(t, cmd, data)
}

// runDaemonAs runs a command that becomes the daemon until the test ends.
func runDaemonAs(t *testing.T, cmd *exec.Cmd, data string) *daemon {
	t.Helper()
	d := &daemon{t: t, data: data, cmd: cmd, done: make(chan struct{})}
	d.cmd.Stderr = d
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = d.cmd.Wait() // how it ended is in cmd.ProcessState
		close(d.done)
	}()
	t.Cleanup(func() {
		d.kill()
		if t.Failed() {
			t.Logf("the daemon's log:\n%s", tailOf(d.logged(), 6000))
		}
	})
	return d
}

func tailOf(s string, n int) string { return s[max(0, len(s)-n):] }

// kill ends the process as kill -9 does.
func (d *daemon) kill() {
	_ = d.cmd.Process.Kill() // it may be dead already
	<-d.done
}

// stop ends the process properly and checks that it says so.
func (d *daemon) stop() {
	d.t.Helper()
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		d.t.Fatal(err)
	}
	select {
	case <-d.done:
	case <-time.After(30 * time.Second):
		d.t.Fatalf("the daemon does not stop; log:\n%s", tailOf(d.logged(), 4000))
	}
	if code := d.cmd.ProcessState.ExitCode(); code != exitDone {
		d.t.Fatalf("the daemon ended with code %d; log:\n%s", code, tailOf(d.logged(), 4000))
	}
}

func (s *site) start() {
	s.t.Helper()
	s.daemon = startDaemon(s.t, "", filepath.Join(s.dir, "holdfast.yaml"), filepath.Join(s.dir, "data"))
}

// status asks the daemon; ok is false while it does not answer.
func (d *daemon) status() (r status.Report, ok bool) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	r, err := askStatus(ctx, d.data)
	return r, err == nil
}

// until waits for a report that cond likes.
func (d *daemon) until(timeout time.Duration, what string, cond func(status.Report) bool) {
	d.t.Helper()
	var last status.Report
	if !poll.Wait(context.Background(), timeout, func() bool {
		r, ok := d.status()
		if ok {
			last = r
		}
		return ok && cond(r)
	}) {
		text, _ := json.Marshal(last) // for the message only
		d.t.Fatalf("not within %v: %s; last report %s\nlog:\n%s", timeout, what, text, tailOf(d.logged(), 4000))
	}
}

func running(r status.Report) bool {
	for _, s := range r.Sources {
		if s.State != "running" {
			return false
		}
	}
	return true
}

func storedBy(r status.Report, source string) int {
	for _, s := range r.Sources {
		if s.Name == source {
			return int(s.Stored)
		}
	}
	return 0
}

// messages returns n different payloads.
func messages(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf(`{"n":%d,"value":%.3f,"pad":"%s"}`, i, float64(i)/7, strings.Repeat("x", i%120))
	}
	return out
}

// account reads the hub and compares it with what the devices gave.
func (s *site) account(source, stream, hubStream string, sent []string) demo.Account {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var got []demo.Received
	var err error
	if !poll.Wait(ctx, 2*time.Minute, func() bool { // a cluster may move the consumer meanwhile, and a request to its old place is not answered
		try, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		got, err = demo.Fetch(try, s.js, hubStream, storage.DataSubject(s.leaf, stream, ">"))
		return err == nil
	}) {
		s.t.Fatal(err)
	}
	return demo.Balance(source, sent, got)
}

// allAtHub waits until the hub has all that the leaf has, and nothing waits.
func (s *site) allAtHub(timeout time.Duration) {
	s.t.Helper()
	s.daemon.until(timeout, "everything at the hub", func(r status.Report) bool { return r.Link.State == "up" && r.Verdict.Waiting == 0 })
}
