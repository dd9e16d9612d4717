package mqttserver

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-edge/holdfast/ingest"
	"github.com/holdfast-edge/holdfast/ingest/mqttserver/packet"
	"github.com/holdfast-edge/holdfast/rig/poll"
)

// medium is a store whose commit is an append to a file, an fdatasync, and what a slow card adds to it.
type medium struct {
	file *os.File
	slow time.Duration

	mu    sync.Mutex // guards the fields below
	took  []time.Duration
	count int
}

func (m *medium) deliver(_ context.Context, batch ...ingest.Reading) error {
	begun := time.Now()
	var b []byte
	for _, r := range batch {
		b = append(b, r.Data...)
	}
	if m.file != nil {
		if _, err := m.file.Write(b); err != nil {
			return err
		}
		if err := unix.Fdatasync(int(m.file.Fd())); err != nil {
			return err
		}
	}
	if m.slow > 0 {
		<-time.After(m.slow)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.took = append(m.took, time.Since(begun))
	m.count += len(batch)
	return nil
}

func (m *medium) stored() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.count
}

// percentile returns the value below which so many of a hundred are.
func percentile(list []time.Duration, p int) time.Duration {
	slices.Sort(list)
	return list[min(len(list)-1, len(list)*p/100)]
}

// serveOn runs a source on a medium until the test ends.
func serveOn(tb testing.TB, m *medium) *Source {
	tb.Helper()
	s, err := New(Options{Name: "m", Config: config(tb), StateDir: stateDir(tb), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Run(ctx, m.deliver) // it ends with ctx
	}()
	tb.Cleanup(func() { cancel(); <-done })
	poll.Until(tb, patience, func() bool { return len(s.Addrs()) > 0 }, "the source to listen")
	return s
}

// TestManyClients lets 200 clients publish ten messages a second each. Of a hundred acknowledgements, 99 come within three times what 99 of
// a hundred commits take: a message waits for the commit that is under way, and for its own.
func TestManyClients(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: measures time, not done with -short")
	}
	const clients, each, period = 200, 30, 100 * time.Millisecond
	var said []string
	for range 3 { // a machine that does other things at the moment gets another chance
		f, err := os.Create(filepath.Join(t.TempDir(), "medium"))
		if err != nil {
			t.Fatal(err)
		}
		m := &medium{file: f, slow: 5 * time.Millisecond}
		s := serveOn(t, m)
		var mu sync.Mutex
		var waits []time.Duration
		var wg sync.WaitGroup
		for i := range clients {
			d, err := tryConnect(t, s.Addrs()[0], login{id: fmt.Sprint("client-", i), keep: i%2 == 0, version: []byte{4, 5}[i%2]})
			if err != nil {
				t.Fatal(err)
			}
			wg.Go(func() {
				defer func() { _ = d.Close() }()
				var mine []time.Duration
				<-time.After(period * time.Duration(i) / clients)
				for n := range each {
					begun := time.Now()
					_, _ = d.Write(qos1(uint16(n+1), "d/"+fmt.Sprint(i), strings.Repeat("x", 200)).Append(nil, d.version))
					if first, body, err := d.read(); err != nil || first != 0x40 || int(body[1]) != n+1 {
						t.Errorf("client %d: %#x % x, %v in place of PUBACK %d", i, first, body, err, n+1)
						return
					}
					mine = append(mine, time.Since(begun))
					<-time.After(period - time.Since(begun))
				}
				mu.Lock()
				defer mu.Unlock()
				waits = append(waits, mine...)
			})
		}
		wg.Wait()
		if n := m.stored(); n != clients*each || len(waits) != n {
			t.Fatalf("%d stored and %d acknowledged of %d", n, len(waits), clients*each)
		}
		m.mu.Lock()
		wait, commit := percentile(waits, 99), percentile(m.took, 99)
		text := fmt.Sprintf("p99 of PUBACK %v, of a commit %v: %.1f times; median %v and %v; %.1f messages a commit", wait, commit, float64(wait)/float64(commit),
			percentile(waits, 50), percentile(m.took, 50), float64(m.count)/float64(len(m.took)))
		m.mu.Unlock()
		t.Log(text)
		if wait <= 3*commit {
			return
		}
		said = append(said, text)
	}
	t.Errorf("acknowledgements take longer than three times a commit, in each of three runs: %q", said)
}

// BenchmarkServer takes messages with QoS 1 from clients that have up to a window of them under way.
func BenchmarkServer(b *testing.B) {
	for _, bb := range []struct {
		clients, window int
		commit          time.Duration
	}{{1, 1, 0}, {1, 100, 0}, {1, 100, 3 * time.Millisecond}, {20, 100, 3 * time.Millisecond}} {
		b.Run(fmt.Sprintf("clients=%d/window=%d/commit=%v", bb.clients, bb.window, bb.commit), func(b *testing.B) {
			m := &medium{slow: bb.commit}
			s := serveOn(b, m)
			round := 5000
			if bb.window == 1 {
				round = 200
			}
			var conns []*device
			for i := range bb.clients {
				d, err := tryConnect(b, s.Addrs()[0], login{id: fmt.Sprint("client-", i), keep: true})
				if err != nil {
					b.Fatal(err)
				}
				conns = append(conns, d)
			}
			b.ReportAllocs()
			b.SetBytes(200 * int64(round*bb.clients))
			sent := 0
			for b.Loop() {
				var wg sync.WaitGroup
				for _, d := range conns {
					wg.Go(func() { pump(b, d, round, bb.window) })
				}
				wg.Wait()
				sent += round * bb.clients
			}
			b.ReportMetric(float64(sent)/b.Elapsed().Seconds(), "msg/s")
			for _, d := range conns {
				_ = d.Close()
			}
		})
	}
}

// pump sends n messages, window of them under way, and waits for the last acknowledgement.
func pump(b *testing.B, d *device, n, window int) {
	room := make(chan struct{}, window)
	go func() {
		w := bufio.NewWriterSize(d, 1<<14)
		payload := make([]byte, 200)
		var buf []byte
		for i := range n {
			select {
			case room <- struct{}{}:
			default:
				_ = w.Flush() // the reader notices a loss
				room <- struct{}{}
			}
			buf = packet.Publish{QoS: 1, ID: uint16(i%65535 + 1), Topic: "d/line-1/sensor", Payload: payload}.Append(buf[:0], packet.V311)
			_, _ = w.Write(buf)
		}
		_ = w.Flush()
	}()
	_ = d.SetDeadline(time.Now().Add(time.Minute))
	ack := make([]byte, 4)
	for i := range n {
		if _, err := io.ReadFull(d.r, ack); err != nil || binary.BigEndian.Uint16(ack[2:]) != uint16(i%65535+1) {
			b.Errorf("% x, %v in place of PUBACK %d", ack, err, i%65535+1)
			return
		}
		<-room
	}
}
