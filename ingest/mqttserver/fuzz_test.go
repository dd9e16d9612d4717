package mqttserver

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/holdfast-edge/holdfast/ingest"
	"github.com/holdfast-edge/holdfast/ingest/mqttserver/packet"
)

// FuzzConnection sends any bytes to a server, from the first packet to the records: it survives, and no record gets where it may not.
func FuzzConnection(f *testing.F) {
	hello, five := login{id: "a"}.bytes(), login{id: "a", version: 5, keep: true}.bytes()
	message := packet.Publish{QoS: 1, ID: 1, Topic: "d/x", Payload: []byte("1"), Retain: true}
	f.Add(bytes.Join([][]byte{hello, message.Append(nil, 4), {0xC0, 0}, {0xE0, 0}}, nil))
	f.Add(bytes.Join([][]byte{five, message.Append(nil, 5), message.Append(nil, 5)}, nil))
	f.Add(bytes.Join([][]byte{hello, pkt(0x82, append(append([]byte{0, 1}, str("d/#")...), 1)), message.Append(nil, 4), {0x40, 2, 0, 1}}, nil))
	f.Add(bytes.Join([][]byte{hello, pkt(0x34, append(str("d/q"), 0, 2, 'x')), {0x62, 2, 0, 2}}, nil))
	f.Add(bytes.Join([][]byte{login{id: "a", will: &message}.bytes(), pkt(0x30, append(str("$JS/API"), 'x'))}, nil))
	f.Add(bytes.Join([][]byte{hello, pkt(0x30, append(str("d/+/#"), 'x')), pkt(0x30, append(str("d/\xff\x00 *.>"), 'x'))}, nil))

	var c Config
	c.SetDefaults()
	c.Listen, c.Anonymous, c.MaxMessage, c.Queue = "127.0.0.1:0", true, 4096, 1<<20
	c.Access = []Access{{Publish: []string{"d/#"}, Subscribe: []string{"d/#"}}}
	s, err := New(Options{Name: "m", Config: c, StateDir: f.TempDir(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		f.Fatal(err)
	}
	s.open()
	f.Cleanup(s.close)
	var mu sync.Mutex
	var wrong []string
	ctx, cancel := context.WithCancel(context.Background())
	f.Cleanup(cancel)
	go func() {
		_ = s.commit(ctx, func(_ context.Context, batch ...ingest.Reading) error {
			for _, r := range batch {
				for _, token := range strings.Split(r.Tail, ".") {
					if token == "" || strings.ContainsAny(token, "*> \t\r\n") || !utf8.ValidString(token) {
						mu.Lock()
						wrong = append(wrong, r.Tail)
						mu.Unlock()
					}
				}
				if r.Tail != "d" && !strings.HasPrefix(r.Tail, "d.") && !strings.HasPrefix(r.Tail, "%23.") {
					mu.Lock()
					wrong = append(wrong, r.Tail)
					mu.Unlock()
				}
			}
			return nil
		}) // it ends with the test
	}()
	f.Fuzz(func(t *testing.T, data []byte) {
		client, server := net.Pipe()
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		w := &wire{Conn: server}
		c := newConn(s, w, w, ctx.Done(), cancel)
		s.arrive(c)
		var wg sync.WaitGroup
		wg.Go(func() { s.attend(ctx, c) })
		wg.Go(func() { _, _ = io.Copy(io.Discard, client) })
		_ = client.SetWriteDeadline(time.Now().Add(5 * time.Second))
		_, _ = client.Write(data) // the server may have had enough
		_ = client.Close()
		wg.Wait()
		mu.Lock()
		defer mu.Unlock()
		if len(wrong) > 0 {
			t.Fatalf("records under %q", wrong)
		}
		if n := s.Stats(); n.Connected != 0 || n.Outgoing < 0 {
			t.Fatalf("Stats = %+v", n)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.conns) > 0 || len(s.pending) > 0 {
			t.Fatalf("%d connections stay, %d wait", len(s.conns), len(s.pending))
		}
	})
}
