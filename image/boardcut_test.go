package image

import (
	"flag"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/rig/broker"
	"github.com/holdfast-edge/holdfast/rig/disk"
	"github.com/holdfast-edge/holdfast/rig/machine"
	"github.com/holdfast-edge/holdfast/rig/poll"
)

var imageCuts = flag.Int("imagecuts", 10, "power cuts of a board that runs the image in TestImagePowerCuts")

// TestImagePowerCuts cuts the power of a board that runs the image, from its first start on: while the data partition grows, while the gateway is provisioned, and
// while it captures. It starts every time, and the account is the one of TestMachinePowerCuts.
func TestImagePowerCuts(t *testing.T) {
	const size = 1280 << 20 // twice of it lies in memory
	c := newCard(t, machine.Kind(*boardKind), size)
	number := *seed
	if number == 0 {
		number = rand.Uint64()
	}
	t.Logf("seed %d", number)
	g := &gateway{t: t, dir: filepath.Dir(c.file), rand: rand.New(rand.NewPCG(number, number))}
	g.broker = broker.Need(t, broker.Options{})
	g.startHub()
	inside := func(addr string) string { return strings.Replace(addr, "127.0.0.1", machine.Host, 1) }
	c.put("holdfast.yaml", strings.NewReplacer("HUB", inside(g.wire.Addr()), "BROKER", inside(g.broker.Addr()),
		"/data/store", "/var/lib/holdfast", "/dev/ttyS1", "/dev/holdfast/serial-"+machine.AdapterSerial+"-if00").Replace(gatewayConfig))
	c.put("holdfast.txt", "config = holdfast.yaml\n")
	c.nbd = filepath.Join(g.dir, "disk")
	var err error
	if g.disk, err = disk.Serve(c.nbd, size, c.file); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closing(t, g.disk.Close()) })
	g.disk.Tune(disk.Tuning{FlushLatency: 25 * time.Millisecond, WriteLatency: 200 * time.Microsecond})

	modes := []disk.Mode{disk.CutNone, disk.CutRandom, disk.CutAll}
	var dirty int
	for i := range *imageCuts + 1 {
		b := c.start()
		if i >= 3 || i == *imageCuts { // the first cuts fall into the first start
			g.plug(b)
			if g.stop == nil {
				g.run()
			}
		}
		if i == *imageCuts {
			b.until("systemctl is-active holdfast", "active")
			g.halt()
			plant, meter := g.final()
			t.Logf("%d cuts with %d blocks not flushed; broker acknowledged %d, at the hub %+v; adapter %d, at the hub %+v", *imageCuts, dirty, g.acked, plant, g.lines, meter)
			if plant.missing > 0 || plant.double > 0 || plant.disordered > 0 || plant.gaps > 0 || plant.arrived == 0 {
				t.Error("the account of the broker's messages does not balance")
			}
			if meter.double > 0 || meter.disordered > 0 || meter.arrived == 0 {
				t.Error("the account of the adapter does not balance")
			}
			b.off()
			return
		}
		poll.Wait(t.Context(), time.Duration(g.rand.IntN(8000))*time.Millisecond, func() bool { return false })
		if i%2 == 1 {
			g.amidWrites()
		}
		lost, err := g.disk.Cut(modes[i%len(modes)], g.rand.Uint64(), b.Kill)
		if err != nil {
			t.Fatal(err)
		}
		dirty += lost.Dirty
		t.Logf("cut %d: %d blocks not flushed", i+1, lost.Dirty)
		g.mu.Lock()
		g.line = nil
		g.mu.Unlock()
		for _, line := range b.Errors() {
			// Both say this of every power cut that finds them at work.
			if !strings.Contains(line, "systemd-journald") && !strings.Contains(line, "FAT-fs") {
				t.Errorf("console: %s", line)
			}
		}
	}
}

// plug waits until the daemon captures and gives it the adapter.
func (g *gateway) plug(b *board) {
	g.t.Helper()
	b.until("systemctl is-active holdfast", "active")
	line, err := b.Plug(g.t.Context())
	if err != nil {
		g.t.Fatal(err)
	}
	g.shown = func() string {
		return b.run("sleep 1; journalctl -b -u holdfast --no-pager -o cat | grep source=plant || true")
	}
	g.mu.Lock()
	g.line = line
	g.mu.Unlock()
}
