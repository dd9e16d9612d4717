package command

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/ingest"
	"github.com/holdfast-edge/holdfast/rig/leak"
	"github.com/holdfast-edge/holdfast/rig/poll"
	"github.com/holdfast-edge/holdfast/storage"
)

const patience = 20 * time.Second

// bench is a leaf's server with a captured stream, and what an executor needs of a gateway.
type bench struct {
	t   *testing.T
	js  jetstream.JetStream
	dir string
	log bytes.Buffer

	mu    sync.Mutex // guards the fields below
	clock storage.ClockState
	full  bool // records are not stored, and wait
	sent  []string
}

func newBench(t *testing.T) *bench {
	leak.Check(t)
	s, err := server.NewServer(&server.Options{JetStream: true, StoreDir: t.TempDir(), DontListen: true, NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	nc, err := nats.Connect("", nats.InProcessServer(s))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"data.gw.S.>"}}); err != nil {
		t.Fatal(err)
	}
	return &bench{t: t, js: js, dir: t.TempDir(), clock: storage.ClockSynced}
}

func (b *bench) ID() storage.StoreID { return "00c0ffee00" }
func (b *bench) Sync() error         { return nil }

func (b *bench) Clock() storage.ClockState {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.clock
}

func (b *bench) record(ctx context.Context, source string, batch ...ingest.Reading) error {
	for {
		b.mu.Lock()
		full := b.full
		b.mu.Unlock()
		if !full {
			break
		}
		if err := ingest.Pause(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
	for _, r := range batch {
		m := nats.NewMsg(storage.DataSubject("gw", "S", source) + "." + r.Tail)
		m.Data = r.Data
		for k, v := range r.Header {
			m.Header.Set(k, v)
		}
		if _, err := b.js.PublishMsg(ctx, m); err != nil {
			return err
		}
	}
	return nil
}

// start runs an executor until stop is called, or the test ends.
func (b *bench) start(sources ...ingest.Source) (e *Executor, stop func()) {
	b.t.Helper()
	opt := Options{Leaf: "gw", Dir: b.dir, JetStream: b.js, Store: b, Record: b.record, Log: slog.New(slog.NewTextHandler(&b.log, nil))}
	for _, s := range sources {
		opt.Entries = append(opt.Entries, ingest.Entry{Source: s, Stream: "S"})
	}
	e = New(opt)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = e.Run(ctx) }()
	stop = func() { cancel(); <-done }
	b.t.Cleanup(stop)
	return e, stop
}

// order publishes a command as a hub would.
func (b *bench) order(c ingest.Command, more ...string) {
	b.t.Helper()
	m := Message("gw", c)
	for i := 0; i < len(more); i += 2 {
		m.Header.Set(more[i], more[i+1])
	}
	poll.Until(b.t, patience, func() bool {
		_, err := b.js.PublishMsg(context.Background(), m)
		return err == nil
	}, "the command to be taken")
}

// outcomes waits for so many outcome records and returns them.
func (b *bench) outcomes(n int) []Outcome {
	b.t.Helper()
	var got []Outcome
	poll.Until(b.t, patience, func() bool {
		got = got[:0]
		s, err := b.js.Stream(context.Background(), "S")
		if err != nil {
			b.t.Fatal(err)
		}
		for i := range s.CachedInfo().State.Msgs {
			m, err := s.GetMsg(context.Background(), i+1)
			if err != nil {
				b.t.Fatal(err)
			}
			var o Outcome
			if err := json.Unmarshal(m.Data, &o); err != nil || o.Command != m.Header.Get(HeaderCommand) || o.Time.IsZero() {
				b.t.Fatalf("outcome record %s %v: %v", m.Data, m.Header, err)
			}
			got = append(got, o)
		}
		return len(got) >= n
	}, "%d outcomes", n)
	if len(got) > n {
		b.t.Fatalf("%d outcomes, want %d: %+v", len(got), n, got)
	}
	return got
}

// device is a commander that notes what it is told to do.
type device struct {
	bench *bench
	name  string
	do    func(ctx context.Context, c ingest.Command) ingest.Outcome // nil: done
}

func (d *device) Name() string                                    { return d.name }
func (d *device) Run(ctx context.Context, _ ingest.Deliver) error { <-ctx.Done(); return ctx.Err() }

func (d *device) Command(ctx context.Context, c ingest.Command) ingest.Outcome {
	d.bench.mu.Lock()
	d.bench.sent = append(d.bench.sent, c.ID)
	d.bench.mu.Unlock()
	if d.do != nil {
		return d.do(ctx, c)
	}
	return ingest.Outcome{State: ingest.OutcomeDone, Reply: []byte("ok " + string(c.Data))}
}

// deaf is a source that takes no commands.
type deaf struct{ ingest.Source }

func (deaf) Name() string { return "deaf" }

func states(all []Outcome) string {
	var s []string
	for _, o := range all {
		s = append(s, o.Command+"="+o.State)
	}
	return strings.Join(s, " ")
}

func (b *bench) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}
