package mqttserver

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/ingest/ingesttest"
	"github.com/holdfast-edge/holdfast/ingest/mqttserver/packet"
	"github.com/holdfast-edge/holdfast/rig/poll"
)

// kills is how often TestKillAfterEveryAcknowledgement kills the server. `make soak` gives more.
var kills = flag.Int("kills", 100, "kills of TestKillAfterEveryAcknowledgement")

func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == "child" {
		if err := childMain(os.Args[2], os.Args[3]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// childMain is a small daemon with a source whose store is a ledger.
func childMain(dir, addr string) error {
	ledger, err := ingesttest.OpenLedger(dir)
	if err != nil {
		return err
	}
	ledger.Slow = 100 * time.Microsecond
	var c Config
	c.SetDefaults()
	c.Listen, c.Anonymous, c.Access = addr, true, []Access{{Publish: []string{"#"}, Subscribe: []string{"#"}}}
	s, err := New(Options{Name: "m", Config: c, StateDir: filepath.Join(dir, "state"), Last: ledger.Last, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	return s.Run(context.Background(), ledger.Deliver)
}

// TestKillAfterEveryAcknowledgement kills the server with -9 as soon as its device has one more acknowledgement. What was acknowledged is
// stored by then; in the end every message is stored once and in order.
func TestKillAfterEveryAcknowledgement(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: kills a process 100 times, not done with -short")
	}
	dir := t.TempDir()
	addr := config(t).Listen
	const window = 8
	var open []packet.Publish // sent and not acknowledged, in order
	next, acked := 0, 0
	for range *kills {
		child := ingesttest.StartChild(t, "child", dir, addr)
		var d *device
		poll.Until(t, patience, func() bool {
			nc, err := net.Dial("tcp", addr)
			if err == nil {
				_ = nc.Close()
				d, err = tryConnect(t, addr, login{id: "device", keep: true})
			}
			return err == nil
		}, "the server to be back")
		for i := range open {
			open[i].Dup = true
			d.publish(open[i])
		}
		for len(open) < window {
			p := qos1(uint16(next%65535+1), "d/x", fmt.Sprint(next))
			next++
			open = append(open, p)
			d.publish(p)
		}
		d.acks(packet.PUBACK, open[0].ID)
		child.Kill()
		acked++
		open = open[1:]
		// What was on its way when the process died counts too.
		for {
			first, body, err := d.read()
			if err != nil {
				break
			}
			if id := uint16(body[0])<<8 | uint16(body[1]); first != 0x40 || id != open[0].ID {
				t.Fatalf("the server sent %#x % x, want PUBACK %d", first, body, open[0].ID)
			}
			acked++
			open = open[1:]
		}
		_ = d.Close()
		stored := 0
		entries, err := ingesttest.ReadLedger(dir)
		if err != nil {
			t.Fatal(err)
		}
		for i, e := range entries {
			if e.Payload != fmt.Sprint(i) {
				t.Fatalf("record %d is %q: %d acknowledged", i, e.Payload, acked)
			}
			stored++
		}
		if stored < acked {
			t.Fatalf("%d records after %d acknowledgements", stored, acked)
		}
	}
	t.Logf("%d kills, %d messages acknowledged, %d sent", *kills, acked, next)
}
