package request

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/holdfast-edge/holdfast/ingest"
	"github.com/holdfast-edge/holdfast/ingest/ingesttest"
	"github.com/holdfast-edge/holdfast/rig/leak"
	"github.com/holdfast-edge/holdfast/rig/poll"
)

const patience = 20 * time.Second

// connect returns a connection to a server of its own.
func connect(t *testing.T) *nats.Conn {
	t.Helper()
	srv, err := server.NewServer(&server.Options{DontListen: true, NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	srv.Start()
	t.Cleanup(func() {
		srv.Shutdown()
		srv.WaitForShutdown()
	})
	nc, err := nats.Connect("", nats.InProcessServer(srv))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func newSource(t *testing.T) (*Source, *nats.Conn) {
	t.Helper()
	nc := connect(t)
	return New(Options{
		Name: "calc", Subject: "holdfast.append.calc", MaxSize: 1000, Log: slog.New(slog.DiscardHandler),
		Conn: func(context.Context) (*nats.Conn, error) { return nc, nil },
	}), nc
}

func TestContract(t *testing.T) {
	ingesttest.Run(t, func(t *testing.T) ingesttest.Device {
		s, nc := newSource(t)
		var acknowledged atomic.Int64
		inbox := nats.NewInbox()
		if _, err := nc.Subscribe(inbox, func(m *nats.Msg) {
			if strings.Contains(string(m.Data), `"stored":true`) {
				acknowledged.Add(1)
			}
		}); err != nil {
			t.Fatal(err)
		}
		return ingesttest.Device{
			Source: s,
			Send: func(payload string) {
				if err := nc.PublishRequest("holdfast.append.calc.x", inbox, []byte(payload)); err != nil {
					t.Error(err)
				}
			},
			Ready: func() {
				poll.Until(t, patience, func() bool { return s.State().Kind == ingest.Running }, "subscribed")
			},
			Acknowledged: func() int { return int(acknowledged.Load()) },
		}
	})
}

func TestAnswers(t *testing.T) {
	leak.Check(t)
	s, nc := newSource(t)
	var mu sync.Mutex
	var got []ingest.Reading
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = s.Run(ctx, func(_ context.Context, batch ...ingest.Reading) error { // ends with ctx
			mu.Lock()
			defer mu.Unlock()
			got = append(got, batch...)
			return nil
		})
	})
	defer wg.Wait()
	defer cancel()
	poll.Until(t, patience, func() bool { return s.State().Kind == ingest.Running }, "subscribed")
	for _, tt := range []struct {
		name, tail, id, data string
		want                 Answer
	}{
		{"plain", "", "", "1", Answer{Stored: true}},
		{"with a tail", ".a.b", "", "2", Answer{Stored: true}},
		{"with an ID", ".a", "id1", "3", Answer{Stored: true}},
		{"the same again", ".a", "id1", "3", Answer{Stored: true, Duplicate: true}},
		{"too large", "", "", strings.Repeat("x", 1001), Answer{Error: "1001 bytes are above max_msg_size of the stream, 1000"}},
		{"wildcard", ".a.*", "", "4", Answer{Error: "the subject has a wildcard"}},
	} {
		m := nats.NewMsg("holdfast.append.calc" + tt.tail)
		m.Data = []byte(tt.data)
		m.Header.Set("Unit", "kPa")
		m.Header.Set("Nats-Rollup", "all")
		if tt.id != "" {
			m.Header.Set(nats.MsgIdHdr, tt.id)
		}
		reply, err := nc.RequestMsg(m, patience)
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		var a Answer
		if err := json.Unmarshal(reply.Data, &a); err != nil || a != tt.want {
			t.Errorf("%s: answer %s, %v, want %+v", tt.name, reply.Data, err, tt.want)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	var data []string
	for _, r := range got {
		data = append(data, r.Tail+"="+string(r.Data))
		if len(r.Header) != 1 || r.Header["Unit"] != "kPa" {
			t.Errorf("headers of %s: %v, want Unit alone", r.Data, r.Header)
		}
	}
	if text := strings.Join(data, " "); text != "=1 a.b=2 a=3" {
		t.Errorf("stored %q", text)
	}
}
