package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/cmd/holdfast/status"
	fleet "github.com/holdfast-edge/holdfast/forward/hub"
	"github.com/holdfast-edge/holdfast/rig/broker"
	"github.com/holdfast-edge/holdfast/rig/device"
	"github.com/holdfast-edge/holdfast/rig/hub"
	"github.com/holdfast-edge/holdfast/rig/wire"
	"github.com/holdfast-edge/holdfast/storage"
)

// leafName is the gateway of the demo, and the user it has on the demo's hub.
const leafName = "demo"

// Options say how the demo runs.
type Options struct {
	Holdfast string        // path of the holdfast binary, run as the leaf
	Out      io.Writer     // progress and account
	Before   time.Duration // with the link up
	Outage   time.Duration // with the link cut
	After    time.Duration // with the link up again and the devices still talking
	Verbose  bool          // show the leaf's log
}

// bench is everything that runs.
type bench struct {
	o   Options
	dir string
	hub *hub.Cluster
	// hubStreams is the JetStream of the hub, as its administrator sees it.
	hubStreams jetstream.JetStream
	wire       *wire.Wire
	broker     *broker.NATS
	gps        *device.GPS
	sensors    *device.Sensor
	leaf       *exec.Cmd
	leafLog    bytes.Buffer
	ended      chan error // closed by the goroutine that waits for the leaf
	start      time.Time
}

// Run runs the demo and reports whether the account balances.
func Run(ctx context.Context, o Options) (balanced bool, err error) {
	b := &bench{o: o, start: time.Now()}
	defer func() { err = errors.Join(err, b.close()) }()
	b.say("starting a hub of three nodes, an MQTT broker, a GPS on a serial line, and a leaf with both")
	if err := b.setUp(ctx); err != nil {
		return false, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	talk, hush := context.WithCancel(ctx)
	defer hush()
	var devices sync.WaitGroup
	failed := make(chan error, 2) // holds one error of each device; never closed
	devices.Go(func() { failed <- b.gps.Run(talk, &device.Sentences{}, 0) })
	devices.Go(func() { failed <- b.talkMQTT(talk) })
	defer devices.Wait()
	defer hush()

	b.say("the link is up; the devices talk for %v", b.o.Before)
	if err := b.watch(ctx, b.o.Before, failed, nil); err != nil {
		return false, err
	}
	b.say("CUTTING THE LINK for %v; the devices go on", b.o.Outage)
	b.wire.Cut()
	if err := b.watch(ctx, b.o.Outage, failed, nil); err != nil {
		return false, err
	}
	b.say("the link is back")
	if err := b.wire.Restore(); err != nil {
		return false, err
	}
	if err := b.watch(ctx, b.o.After, failed, nil); err != nil {
		return false, err
	}
	b.say("the devices stop; waiting for the last record to reach the hub")
	hush()
	devices.Wait()
	err = b.watch(ctx, 45*time.Second, nil, func(r status.Report) bool { return b.stored(r) && r.Verdict.Waiting == 0 })
	if err != nil {
		return false, err
	}
	return b.account(ctx)
}

func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(b.o.Out, "%5.1f s  %s\n", time.Since(b.start).Seconds(), fmt.Sprintf(format, args...))
}

// setUp starts hub, link, broker, devices and leaf.
func (b *bench) setUp(ctx context.Context) error {
	var err error
	if b.dir, err = os.MkdirTemp("", "holdfast-demo-"); err != nil {
		return err
	}
	const password = "demo-password"
	plan, err := fleet.New(fleet.Spec{Leaves: []fleet.Leaf{{
		Name: leafName, Password: password,
		Streams: []fleet.Stream{{Name: "POSITION", Mode: fleet.Source}, {Name: "SENSORS", Mode: fleet.Mirror}},
	}}})
	if err != nil {
		return fmt.Errorf("plan the hub: %w", err)
	}
	if b.hub, err = hub.Start(hub.Options{Accounts: plan.Config()}); err != nil {
		return fmt.Errorf("start the hub: %w", err)
	}
	if b.hubStreams, err = b.hub.JetStream(); err != nil {
		return err
	}
	if _, err := fleet.Apply(ctx, b.hubStreams, plan); err != nil {
		return fmt.Errorf("make the hub's streams: %w", err)
	}
	if b.wire, err = wire.New(b.hub.LeafAddr(0)); err != nil {
		return err
	}
	if b.broker, err = broker.StartNATS(""); err != nil {
		return err
	}
	if b.gps, err = device.NewGPS(filepath.Join(b.dir, "gps"), 4800); err != nil {
		return err
	}
	if err := b.startLeaf(ctx, password); err != nil {
		return err
	}
	b.sensors, err = device.NewSensor(ctx, b.broker.URL(), "demo-sensors")
	return err
}

func (b *bench) startLeaf(ctx context.Context, password string) error {
	urls, err := hub.WithUser([]string{"nats-leaf://" + b.wire.Addr()}, leafName, password)
	if err != nil {
		return err
	}
	config := fmt.Sprintf(`leaf: {name: %s, data: %q}
hub: {urls: [%q]}
storage: {budget: 256MiB, reserve_free: 0, allow_volatile: true}
streams:
  - {name: POSITION, max_bytes: 64MiB, forward: {mode: source}}
  - {name: SENSORS, max_bytes: 64MiB, forward: {mode: mirror}}
sources:
  - {name: gps, into: POSITION, serial: {port: %q, baud: 4800}, frame: nmea}
  - {name: sensors, into: SENSORS, mqtt: {broker: %q, topics: ["site/#"], qos: 1}}
`, leafName, b.data(), urls[0], b.gps.Path, b.broker.URL())
	path := filepath.Join(b.dir, "holdfast.yaml")
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		return err
	}
	b.leaf = exec.Command(b.o.Holdfast, "run", "-config", path)
	b.leaf.Stderr = &b.leafLog
	if b.o.Verbose {
		b.leaf.Stderr = b.o.Out
	}
	b.leaf.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := b.leaf.Start(); err != nil {
		return fmt.Errorf("start the leaf: %w", err)
	}
	b.ended = make(chan error, 1)
	go func() { b.ended <- b.leaf.Wait(); close(b.ended) }()
	return b.watch(ctx, 30*time.Second, nil, func(r status.Report) bool {
		for _, s := range r.Sources {
			if s.State != "running" {
				return false
			}
		}
		return r.Link.State == "up"
	})
}

func (b *bench) data() string { return filepath.Join(b.dir, "data") }

// talkMQTT publishes the readings of three sensors until ctx ends. Each reading is different, so that it can be followed to the hub.
func (b *bench) talkMQTT(ctx context.Context) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for n := 0; ; n++ {
		sensor := []string{"boiler/temp", "tank/level", "pump/flow.rate"}[n%3]
		payload := fmt.Sprintf(`{"sensor":%q,"n":%d,"value":%.2f}`, sensor, n, 20+float64(n%97)/10)
		// What is begun is finished: only an acknowledged reading counts.
		if err := b.sensors.Publish(context.WithoutCancel(ctx), "site/"+sensor, 1, []string{payload}); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// watch shows progress every two seconds for d. With done it ends when that is true, and fails when it is not by the end of d.
func (b *bench) watch(ctx context.Context, d time.Duration, failed <-chan error, done func(status.Report) bool) error {
	end := time.NewTimer(d)
	defer end.Stop()
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-failed:
			return fmt.Errorf("a device ended: %w", err)
		case err := <-b.ended:
			return fmt.Errorf("the leaf ended: %w\n%s", err, b.leafLog.String())
		case <-end.C:
			if done == nil {
				return nil
			}
			r, err := b.ask(ctx)
			if err != nil {
				return fmt.Errorf("not there after %v: %w", d, err)
			}
			return fmt.Errorf("not there after %v: %s", d, status.Line(r))
		case <-tick.C:
		}
		r, err := b.ask(ctx)
		if err != nil {
			continue // not listening yet
		}
		if done != nil && done(r) {
			return nil
		}
		if n%4 == 0 {
			b.progress(ctx, r)
		}
	}
}

// progress shows what the leaf has stored, how much of it the hub has by the hub's own count, and what the link's state is.
func (b *bench) progress(ctx context.Context, r status.Report) {
	var stored, atHub uint64
	for _, s := range r.Streams {
		stored += s.Stored
	}
	for _, src := range b.captured() {
		n, err := Count(ctx, b.hubStreams, src.hubStream, storage.DataSubject(leafName, src.stream, src.name+".>"))
		if err != nil {
			b.say("  the hub does not say how much it has: %v", err)
			return
		}
		atHub += n
	}
	waiting := stored - min(stored, atHub)
	b.say("  link %-10s  stored %6s  at the hub %6s  to go %5s  %s", r.Link.State, status.Count(stored), status.Count(atHub),
		status.Count(waiting), strings.Repeat("▪", int(min(waiting/10, 30))))
}

// captured is one source, where its records go, and what its devices gave.
type captured struct {
	name, stream, hubStream string
	sent                    []string
}

func (b *bench) captured() []captured {
	return []captured{
		{"gps", "POSITION", "POSITION", b.gps.Sent()},
		{"sensors", "SENSORS", fleet.MirrorName(leafName, "SENSORS"), b.sensors.Acked()},
	}
}

// stored says that the leaf has stored all that the devices gave.
func (b *bench) stored(r status.Report) bool {
	want := map[string]int{"gps": len(b.gps.Sent()), "sensors": len(b.sensors.Acked())}
	for _, s := range r.Sources {
		if int(s.Stored) < want[s.Name] {
			return false
		}
	}
	return true
}

// ask runs `holdfast status --json`, as a person would.
func (b *bench) ask(ctx context.Context) (status.Report, error) {
	out, err := exec.CommandContext(ctx, b.o.Holdfast, "status", "-json", "-data", b.data()).Output()
	var r status.Report
	if jsonErr := json.Unmarshal(out, &r); jsonErr != nil {
		return r, errors.Join(err, jsonErr)
	}
	return r, nil // exit code 1 says that something is a problem; the report names it
}

// account compares what the devices gave with what is at the hub.
func (b *bench) account(ctx context.Context) (bool, error) {
	balanced := true
	fmt.Fprintf(b.o.Out, "\n%-10s %9s %9s %9s %9s %13s\n", "source", "captured", "at hub", "missing", "double", "out of order")
	for _, src := range b.captured() {
		got, err := Fetch(ctx, b.hubStreams, src.hubStream, storage.DataSubject(leafName, src.stream, ">"))
		if err != nil {
			return false, err
		}
		a := Balance(src.name, src.sent, got)
		balanced = balanced && a.Balances() && a.Captured > 0 && a.Redelivered == 0
		fmt.Fprintf(b.o.Out, "%-10s %9d %9d %9d %9d %13d\n", a.Source, a.Captured, a.AtHub, a.Missing, a.Double+a.Redelivered, a.OutOfOrder+a.Shuffled)
	}
	verdict := "every record is at the hub, once and in order"
	if !balanced {
		verdict = "THE ACCOUNT DOES NOT BALANCE"
	}
	fmt.Fprintf(b.o.Out, "\n%s (%.0f s)\n", verdict, time.Since(b.start).Seconds())
	return balanced, nil
}

// close stops everything that was started.
func (b *bench) close() error {
	var errs []error
	if b.ended != nil {
		if err := b.leaf.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
			errs = append(errs, err)
		}
		for err := range b.ended {
			if err != nil {
				errs = append(errs, fmt.Errorf("stop the leaf: %w\n%s", err, b.leafLog.String()))
			}
		}
	}
	if b.sensors != nil {
		b.sensors.Close()
	}
	if b.gps != nil {
		errs = append(errs, b.gps.Unplug())
	}
	if b.broker != nil {
		errs = append(errs, b.broker.Close())
	}
	if b.wire != nil {
		errs = append(errs, b.wire.Close())
	}
	if b.hub != nil {
		errs = append(errs, b.hub.Close())
	}
	if b.dir != "" {
		errs = append(errs, os.RemoveAll(b.dir))
	}
	return errors.Join(errs...)
}
