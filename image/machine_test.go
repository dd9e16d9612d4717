package image

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	forwardhub "github.com/holdfast-edge/holdfast/forward/hub"
	"github.com/holdfast-edge/holdfast/rig/broker"
	"github.com/holdfast-edge/holdfast/rig/disk"
	"github.com/holdfast-edge/holdfast/rig/hub"
	"github.com/holdfast-edge/holdfast/rig/machine"
	"github.com/holdfast-edge/holdfast/rig/poll"
	"github.com/holdfast-edge/holdfast/rig/wire"
)

var (
	cuts = flag.Int("cuts", 10, "power cuts of the whole machine in TestMachinePowerCuts")
	seed = flag.Uint64("seed", 0, "seed of their instants and of what survives; 0 picks one and prints it")
)

// Patience with an emulated machine beside other work.
const (
	bootPatience   = 3 * time.Minute
	finishPatience = 4 * time.Minute
)

const gatewayConfig = `leaf: {name: pump-07, data: /data/store}
hub: {urls: ["nats://pump-07:secret@HUB"]}
storage: {budget: 40MiB, reserve_free: 8MiB, journal: {size: 16MiB}}
streams:
  - {name: SENSORS, max_bytes: 16MiB, when_full: refuse}
  - {name: EVENTS, max_bytes: 16MiB, when_full: refuse, forward: {mode: mirror}}
sources:
  - {name: meter, into: SENSORS, serial: {port: /dev/ttyS1, baud: 115200}, frame: line}
  - {name: plant, into: EVENTS, mqtt: {broker: "tcp://BROKER", topics: ["plant/#"], qos: 1}}
`

// gateway is a whole machine that runs the daemon, with a serial device, a broker and a hub outside it.
type gateway struct {
	t      *testing.T
	dir    string
	kernel *machine.Kernel
	disk   *disk.Network
	hub    *hub.Cluster
	wire   *wire.Wire // to the hub
	broker *broker.Mosquitto
	rand   *rand.Rand
	vm     *machine.VM
	shown  func() string // the machine's log

	stop    context.CancelFunc // of the devices
	devices sync.WaitGroup
	mu      sync.Mutex // guards the fields below
	line    io.ReadWriteCloser
	lines   int // sent over the serial line
	acked   int // messages that the broker acknowledged
}

func newGateway(t *testing.T) *gateway {
	t.Helper()
	if testing.Short() {
		t.Skip("emulates a machine")
	}
	if err := machine.VMAvailable(); err != nil {
		t.Skipf("SKIPPED, NOT TESTED: %v", err)
	}
	number := *seed
	if number == 0 {
		number = rand.Uint64()
	}
	t.Logf("seed %d", number)
	g := &gateway{t: t, dir: t.TempDir(), rand: rand.New(rand.NewPCG(number, number))}
	g.broker = broker.Need(t, broker.Options{})
	kernel, err := virtualKernel(t)
	if err != nil {
		t.Skipf("SKIPPED, NOT TESTED: no kernel (is a mirror in reach?): %v", err)
	}
	g.kernel = kernel
	g.startHub()

	image := filepath.Join(g.dir, "ext4")
	command(t, nil, "truncate", "-s", "128M", image)
	command(t, []string{"PATH=/usr/sbin:/sbin:/usr/bin:/bin"}, "mkfs.ext4", "-q", "-F", image)
	if g.disk, err = disk.Serve(g.file("disk"), 128<<20, image); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closing(t, g.disk.Close()) })
	g.disk.Tune(disk.Tuning{FlushLatency: 25 * time.Millisecond, WriteLatency: 200 * time.Microsecond}) // a slow SD card, so that cuts find it at work

	root, err := kernel.Root("/holdfast run -config /holdfast.yaml 2>&1")
	if err != nil {
		t.Fatal(err)
	}
	inside := func(addr string) string { return strings.Replace(addr, "127.0.0.1", machine.Host, 1) }
	root["/holdfast.yaml"] = []byte(strings.NewReplacer("HUB", inside(g.wire.Addr()), "BROKER", inside(g.broker.Addr())).Replace(gatewayConfig))
	if err := errors.Join(root.Add("/holdfast", program(t)), root.WriteFile(g.file("initrd"))); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if g.vm != nil {
			g.vm.Kill()
		}
	})
	return g
}

// fetched is the virtual machines' kernel, which is fetched once.
var fetched struct {
	once   sync.Once
	kernel *machine.Kernel
	err    error
}

func virtualKernel(t *testing.T) (*machine.Kernel, error) {
	fetched.once.Do(func() {
		dir := filepath.Join(filepath.Dir(program(t)), "kernel")
		if fetched.err = os.Mkdir(dir, 0o755); fetched.err == nil {
			fetched.kernel, fetched.err = machine.FetchKernel(context.Background(), dir) // not of one test
		}
	})
	return fetched.kernel, fetched.err
}

func (g *gateway) file(name string) string { return filepath.Join(g.dir, name) }

func closing(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

func (g *gateway) startHub() {
	g.t.Helper()
	plan, err := forwardhub.New(forwardhub.Spec{Leaves: []forwardhub.Leaf{{Name: "pump-07", Password: "secret", Streams: []forwardhub.Stream{
		{Name: "SENSORS", Mode: forwardhub.Source}, {Name: "EVENTS", Mode: forwardhub.Mirror}}}}})
	if err != nil {
		g.t.Fatal(err)
	}
	if g.hub, err = hub.Start(hub.Options{Accounts: plan.Config()}); err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { closing(g.t, g.hub.Close()) })
	if g.wire, err = wire.New(g.hub.LeafAddr(0)); err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { closing(g.t, g.wire.Close()) })
	js, err := g.hub.JetStream()
	if err != nil {
		g.t.Fatal(err)
	}
	if _, err := forwardhub.Apply(g.t.Context(), js, plan); err != nil {
		g.t.Fatal(err)
	}
}

// on switches the machine on and waits until the daemon captures.
func (g *gateway) on() {
	g.t.Helper()
	socket := g.file("line")
	vm, err := machine.StartVM(machine.VMOptions{Kernel: g.kernel.Image, Initrd: g.file("initrd"), Disk: g.file("disk"), Serial: socket})
	if err != nil {
		g.t.Fatal(err)
	}
	g.vm, g.shown = vm, vm.Console
	line, err := machine.Line(g.t.Context(), socket)
	if err != nil {
		g.t.Fatal(err)
	}
	g.mu.Lock()
	g.line = line
	g.mu.Unlock()
	if err := vm.WaitFor(g.t.Context(), bootPatience, "msg=ready"); err != nil {
		g.t.Fatal(err)
	}
	if !strings.Contains(vm.Console(), "guest: the data disk is mounted") {
		g.t.Fatalf("the daemon does not write to the disk that is cut:\n%s", vm.Console())
	}
}

// cut takes the power away.
func (g *gateway) cut(mode disk.Mode) disk.Survivors {
	g.t.Helper()
	lost, err := g.disk.Cut(mode, g.rand.Uint64(), g.vm.Kill)
	if err != nil {
		g.t.Fatal(err)
	}
	g.mu.Lock()
	closing(g.t, g.line.Close())
	g.line = nil
	g.mu.Unlock()
	for _, line := range g.vm.Errors() {
		g.t.Errorf("console: %s", line)
	}
	g.vm = nil
	return lost
}

// run waits until the daemon has subscribed and lets the devices talk until halt: 20 lines a second on the serial line, and messages as fast as the broker takes them, in bursts.
func (g *gateway) run() {
	g.t.Helper()
	subscribed := func() bool {
		for line := range strings.Lines(g.shown()) {
			if strings.Contains(line, "source=plant") && strings.Contains(line, "state=running") {
				return true
			}
		}
		return false
	}
	poll.Until(g.t, bootPatience, subscribed, "the daemon subscribes at the broker")
	ctx, stop := context.WithCancel(g.t.Context())
	g.stop = stop
	g.devices.Go(func() {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			g.mu.Lock()
			if g.line != nil {
				g.lines++
				_, _ = fmt.Fprintf(g.line, "%08d meter\n", g.lines) // a line that is cut off is a line without power
			}
			g.mu.Unlock()
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	})
	g.devices.Go(func() {
		p, err := broker.Dial(ctx, g.broker.Addr(), broker.Login{ClientID: "plant"})
		if err != nil {
			g.t.Error(err)
			return
		}
		defer func() { _ = p.Close() }()
		for n, burst := 1, 1; ctx.Err() == nil; n += burst {
			burst = 1 + n%40
			var batch []broker.Message
			for i := range burst {
				batch = append(batch, broker.Message{Topic: "plant/pressure", Payload: fmt.Appendf(nil, "%08d plant", n+i), QoS: 1})
			}
			if err := p.Publish(ctx, batch...); err != nil && ctx.Err() == nil {
				g.t.Error(err)
				return
			} else if err == nil {
				g.mu.Lock()
				g.acked = n + burst - 1
				g.mu.Unlock()
			}
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	})
}

func (g *gateway) halt() {
	g.stop()
	g.devices.Wait()
}

const mirrorName = "pump-07_EVENTS"

// final waits until every acknowledged message of the broker is at the hub, and returns both accounts.
func (g *gateway) final() (plant, meter account) {
	g.t.Helper()
	var err error
	poll.Wait(g.t.Context(), finishPatience, func() bool {
		plant, err = g.read(mirrorName, "plant", g.acked)
		return err == nil && plant.missing == 0
	})
	poll.Wait(g.t.Context(), finishPatience, func() bool { // a busy hub
		meter, err = g.read("SENSORS", "meter", 0)
		return err == nil
	})
	if err != nil {
		g.t.Fatalf("read the hub: %v", err)
	}
	return plant, meter
}

// TestMachinePowerCuts cuts the power of a whole machine, kernel and all, under load from a serial line and a broker, with a hub outside.
// Every message that the broker was acknowledged must be at the hub, once and in order. A serial line cannot ask again: what it said while
// the machine was off or had it in hand is a gap, counted here.
func TestMachinePowerCuts(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	modes := []disk.Mode{disk.CutNone, disk.CutRandom, disk.CutAll}
	var dirty int
	for i := range *cuts {
		g.on()
		if i == 0 {
			g.run()
		}
		poll.Wait(t.Context(), time.Duration(500+g.rand.IntN(4000))*time.Millisecond, func() bool { return false })
		if i%2 == 1 {
			g.amidWrites()
		}
		dirty += g.cut(modes[i%len(modes)]).Dirty
	}
	g.on()
	g.halt()
	plant, meter := g.final()
	t.Logf("%d cuts with %d blocks not flushed; broker acknowledged %d, at the hub %+v; serial line %d, at the hub %+v", *cuts, dirty, g.acked, plant, g.lines, meter)
	if plant.missing > 0 || plant.double > 0 || plant.disordered > 0 || plant.gaps > 0 {
		t.Error("the account of the broker's messages does not balance")
	}
	if meter.double > 0 || meter.disordered > 0 || meter.arrived == 0 {
		t.Error("the account of the serial line does not balance")
	}
	if dirty == 0 && *cuts >= 10 {
		t.Error("every cut found an idle disk: the rig did not test a cut")
	}
}

// amidWrites returns when the disk has blocks that are not flushed: at most instants it has none, since each commit ends with a flush. If there are none for
// some seconds it returns all the same.
func (g *gateway) amidWrites() {
	tick := time.NewTicker(100 * time.Microsecond)
	defer tick.Stop()
	for end := time.Now().Add(5 * time.Second); g.disk.Stats().Dirty == 0 && time.Now().Before(end); {
		<-tick.C
	}
}

// TestMachineRigSees shows that the rig can fail: a card that answers flushes without flushing loses what was acknowledged.
func TestMachineRigSees(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	g.disk.Tune(disk.Tuning{IgnoreFlush: true})
	g.wire.Cut() // the hub would have most of it
	g.on()
	g.run()
	poll.Until(t, bootPatience, func() bool { g.mu.Lock(); defer g.mu.Unlock(); return g.acked > 500 }, "messages are acknowledged")
	g.halt()
	poll.Wait(t.Context(), 5*time.Second, func() bool { return false })
	g.cut(disk.CutNone)
	g.disk.Tune(disk.Tuning{})
	if err := g.wire.Restore(); err != nil {
		t.Fatal(err)
	}
	vm, err := machine.StartVM(machine.VMOptions{Kernel: g.kernel.Image, Initrd: g.file("initrd"), Disk: g.file("disk"), Serial: g.file("line")})
	if err != nil {
		t.Fatal(err)
	}
	defer vm.Kill()
	// The file system may not even mount, or the store begins anew.
	if err := vm.WaitFor(t.Context(), 30*time.Second, "msg=ready"); err == nil {
		poll.Wait(t.Context(), 20*time.Second, func() bool { return false })
	}
	if plant, err := g.read(mirrorName, "plant", g.acked); err == nil && plant.missing == 0 {
		t.Errorf("a lying card lost nothing of %d: the rig cannot fail", g.acked)
	}
}
