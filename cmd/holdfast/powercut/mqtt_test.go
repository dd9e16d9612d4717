package powercut

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/ingest"
	"github.com/holdfast-edge/holdfast/ingest/mqttserver"
	"github.com/holdfast-edge/holdfast/ingest/mqttserver/packet"
	"github.com/holdfast-edge/holdfast/rig/poll"
	"github.com/holdfast-edge/holdfast/rig/port"
	"github.com/holdfast-edge/holdfast/storage"
)

// mqttSource is the name of the leaf's MQTT server.
const mqttSource = "mqtt"

// serve runs an MQTT server as the daemon does.
func (c *child) serve(ctx context.Context, store *storage.Store) error {
	var cfg mqttserver.Config
	cfg.SetDefaults()
	cfg.Listen, cfg.Anonymous, cfg.Access = c.spec.Listen, true, []mqttserver.Access{{Publish: []string{"#"}}}
	s, err := mqttserver.New(mqttserver.Options{Name: mqttSource, Config: cfg, StateDir: filepath.Join(c.spec.Data, "ingest", mqttSource),
		Last:  func() (uint64, uint64) { return store.Last(mqttSource) },
		Marks: func() []storage.Mark { return store.Marks(mqttSource) }, Log: c.log})
	if err != nil {
		return err
	}
	return ingest.NewRunner(store, c.log, ingest.Entry{Source: s, Stream: sourced}).Run(ctx)
}

// client is a device with a session that outlives the power of the leaf: it counts, with QoS 1, and sends again what was not acknowledged.
type client struct {
	addr string

	mu     sync.Mutex // guards the fields below
	acked  int        // numbers below it are acknowledged
	losses []int      // acked at each loss of the connection
	faults []string
}

func (d *client) run(ctx context.Context) {
	for ctx.Err() == nil {
		if nc, err := net.DialTimeout("tcp", d.addr, time.Second); err == nil {
			stop := context.AfterFunc(ctx, func() { _ = nc.Close() })
			d.session(nc)
			stop()
			_ = nc.Close()
		}
		pause(ctx, 20*time.Millisecond)
	}
}

// session logs in and publishes until the connection ends.
func (d *client) session(nc net.Conn) {
	body := append([]byte{0, 4, 'M', 'Q', 'T', 'T', 4, 0, 0, 0, 0, 6}, "device"...)
	if _, err := nc.Write(append([]byte{0x10, byte(len(body))}, body...)); err != nil {
		return
	}
	r := bufio.NewReader(nc)
	if _, err := io.ReadFull(r, make([]byte, 4)); err != nil {
		return
	}
	const window = 16
	d.mu.Lock()
	first := d.acked
	d.mu.Unlock()
	next := first
	send := func(dup bool) bool {
		p := packet.Publish{QoS: 1, ID: uint16(next%65535 + 1), Dup: dup, Topic: "d", Payload: []byte(strconv.Itoa(next))}
		next++
		_, err := nc.Write(p.Append(nil, packet.V311))
		return err == nil
	}
	for next < first+window { // all of it may have been sent before
		if !send(true) {
			break
		}
	}
	ack := make([]byte, 4)
	for {
		if _, err := io.ReadFull(r, ack); err != nil {
			d.mu.Lock()
			d.losses = append(d.losses, d.acked)
			d.mu.Unlock()
			return
		}
		d.mu.Lock()
		if want := uint16(d.acked%65535 + 1); ack[0] != 0x40 || binary.BigEndian.Uint16(ack[2:]) != want {
			d.faults = append(d.faults, fmt.Sprintf("% x in place of PUBACK %d", ack, want))
		}
		d.acked++
		d.mu.Unlock()
		send(false)
	}
}

func (d *client) progress() (acked, losses int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.acked, len(d.losses)
}

// TestPowerCutsOfMQTTServer cuts the power under an MQTT server: what it has acknowledged is on flash, and in the end everything is there in order.
func TestPowerCutsOfMQTTServer(t *testing.T) {
	need(t)
	ports, err := port.Pick(1)
	if err != nil {
		t.Fatal(err)
	}
	d := &client{addr: fmt.Sprintf("127.0.0.1:%d", ports[0])}
	r := newRig(t, nil, "devices", pick(t), func(s *spec) { s.Devices, s.Listen = nil, d.addr })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); d.run(ctx) }()
	defer func() { cancel(); <-done }()
	for i := range max(*cuts/3, 3) {
		from, _ := d.progress()
		more := 1 + r.rand.IntN(400)
		poll.Until(t, *patience, func() bool { acked, _ := d.progress(); return acked >= from+more }, "%d more acknowledgements", more)
		r.cut(r.mode(), false)
		poll.Until(t, *patience, func() bool { _, losses := d.progress(); return losses > i }, "the device to notice")
		d.mu.Lock()
		acked := d.losses[i]
		d.mu.Unlock()
		r.settle()
		r.life.mu.Lock()
		have := map[string]bool{}
		for _, n := range r.life.holds {
			have[n] = true
		}
		r.life.mu.Unlock()
		for n := range acked {
			if !have[strconv.Itoa(n)] {
				t.Fatalf("cut %d: %d was acknowledged and is gone; %d acknowledged", i, n, acked)
			}
		}
	}
	from, _ := d.progress()
	poll.Until(t, *patience, func() bool { acked, _ := d.progress(); return acked >= from+100 }, "more acknowledgements")
	cancel()
	<-done
	r.life.say("dump")
	r.life.until("the last dump", func() bool { return r.life.dumps == 2 })
	acked, _ := d.progress()
	next, double := 0, 0
	for _, text := range r.life.holds {
		switch n, err := strconv.Atoi(text); {
		case err != nil || n > next:
			t.Fatalf("record %q where %d was due", text, next)
		case n < next:
			double++
		default:
			next++
		}
	}
	t.Logf("%d cuts, %d acknowledged, %d stored, %d of them twice", r.cuts, acked, next, double)
	if next < acked || double > 0 || len(d.faults) > 0 {
		t.Errorf("%d stored of %d acknowledged, faults %q", next, acked, d.faults)
	}
	r.end()
}
