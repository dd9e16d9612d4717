package storage

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// bench is a directory with an embedded server and a store on it, as a daemon has them.
type bed struct {
	t       testing.TB
	dir     string
	options Options
	max     int64 // JetStream's MaxStore

	srv *server.Server
	nc  *nats.Conn
	js  jetstream.JetStream
	s   *Store

	mu       sync.Mutex
	restarts int
}

// newBed makes a directory for a store with the streams A and B and the sources a1, a2, a3 into A and b1 into B.
func newBed(t testing.TB) *bed {
	t.Helper()
	b := &bed{t: t, dir: t.TempDir(), max: 1 << 40} // what the streams reserve counts, not what is there
	b.options = Options{
		Leaf:    "leaf",
		Dir:     b.dir,
		Streams: []StreamConfig{{Name: "A"}, {Name: "B"}},
		Sources: map[string]string{"a1": "A", "a2": "A", "a3": "A", "b1": "B"},
		Config:  Config{AllowVolatile: true, Journal: Journal{Size: 4 << 20}},
	}
	if testing.Verbose() {
		b.options.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	t.Cleanup(func() { b.crash() })
	return b
}

// open opens the store without a server.
func (b *bed) open() *Store {
	b.t.Helper()
	s, err := Open(b.options)
	if err != nil {
		b.t.Fatal(err)
	}
	b.s = s
	return s
}

// serve starts the server.
func (b *bed) serve() {
	b.t.Helper()
	o := &server.Options{}
	if err := o.ProcessConfigString("accounts { " + account + " { jetstream: enabled, users: [{user: d, password: d}] } }"); err != nil {
		b.t.Fatal(err)
	}
	o.DontListen, o.JetStream, o.NoSigs, o.NoLog = true, true, true, true
	o.StoreDir, o.JetStreamMaxStore = b.dir, b.max
	if b.s != nil {
		key, cipher := b.s.ServerKey()
		if o.JetStreamKey = key; cipher == cipherAES {
			o.JetStreamCipher = server.AES
		}
	}
	srv, err := server.NewServer(o)
	if err != nil {
		b.t.Fatal(err)
	}
	b.srv = srv
	srv.Start()
	if !srv.ReadyForConnections(20 * time.Second) {
		b.t.Fatal("the server does not become ready")
	}
	if b.nc, err = nats.Connect("", nats.InProcessServer(srv), nats.UserInfo("d", "d"), nats.CustomInboxPrefix("_INBOX_leaf")); err != nil {
		b.t.Fatal(err)
	}
	if b.js, err = jetstream.New(b.nc); err != nil {
		b.t.Fatal(err)
	}
}

// restart is what the daemon gives the store as the cure.
func (b *bed) restart() error {
	b.mu.Lock()
	b.restarts++
	b.mu.Unlock()
	return b.pause(func() {})
}

// pause stops JetStream, calls while, and starts it again.
func (b *bed) pause(while func()) error {
	c := b.srv.JetStreamConfig()
	c.StoreDir = b.dir // the server adds its own folder
	if err := b.srv.DisableJetStream(); err != nil {
		return err
	}
	while()
	return b.srv.EnableJetStream(c)
}

func (b *bed) server() Server { return Server{JetStream: b.js, Restart: b.restart, Pause: b.pause} }

// start opens, serves and attaches.
func (b *bed) start() *Store {
	b.t.Helper()
	b.open()
	b.serve()
	b.attach()
	return b.s
}

func (b *bed) attach() {
	b.t.Helper()
	if err := b.s.Attach(b.ctx(), b.server()); err != nil {
		b.t.Fatal(err)
	}
}

// stop closes store and server in order.
func (b *bed) stop() {
	b.t.Helper()
	if err := b.s.Close(b.ctx()); err != nil {
		b.t.Fatal(err)
	}
	b.shutdown()
	b.s = nil
}

// kill ends store and server as kill -9 does: whatever was written stays in the page cache, nothing more is written.
func (b *bed) kill() { b.t.Helper(); b.crash() }

// crash ends the store without a clean stop, as a killed process would, and the server too.
func (b *bed) crash() {
	if b.s != nil {
		done, cancel := context.WithCancel(context.Background())
		cancel()
		b.s.mu.Lock()
		if b.s.failure == nil {
			b.s.failure = fmt.Errorf("%w: crash of a test", ErrFailing)
		}
		b.s.mu.Unlock()
		_ = b.s.Close(done)
		b.s = nil
	}
	b.shutdown()
}

func (b *bed) shutdown() {
	if b.nc != nil {
		b.nc.Close()
		b.nc = nil
	}
	if b.srv != nil {
		b.srv.Shutdown()
		b.srv.WaitForShutdown()
		b.srv = nil
	}
}

func (b *bed) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	b.t.Cleanup(cancel)
	return ctx
}

// record makes the n-th record of a source.
func (b *bed) record(source string, n uint64) Record {
	return Record{Stream: b.options.Sources[source], Source: source, Seq: n, Data: fmt.Appendf(nil, "%s %d", source, n)}
}

// add appends the records from first to last of a source in one call.
func (b *bed) add(source string, first, last uint64) {
	b.t.Helper()
	var recs []Record
	for n := first; n <= last; n++ {
		recs = append(recs, b.record(source, n))
	}
	if err := b.s.Append(b.ctx(), recs...); err != nil {
		b.t.Fatalf("Append(%s %d to %d): %v", source, first, last, err)
	}
}

// kept is a record read back.
type kept struct {
	Position
	ID
	Subject string
	Header  nats.Header
	Data    string
}

// settle waits until the streams have what is in the journal, if they take it.
func (b *bed) settle() {
	if b.s != nil && b.s.publisher.stop != nil {
		_ = b.s.publisher.drain(b.ctx())
	}
}

// read returns what a stream holds, placeholders included.
func (b *bed) read(stream string) []kept {
	b.t.Helper()
	b.settle()
	st, err := b.js.Stream(b.ctx(), stream)
	if err != nil {
		b.t.Fatal(err)
	}
	var all []kept
	for seq, last := st.CachedInfo().State.FirstSeq, st.CachedInfo().State.LastSeq; seq <= last; {
		m, err := st.GetMsg(b.ctx(), seq, jetstream.WithGetMsgSubject(">"))
		if err == jetstream.ErrMsgNotFound {
			break
		}
		if err != nil {
			b.t.Fatal(err)
		}
		id, _ := ParseID(m.Header.Get(HeaderID))
		all = append(all, kept{Position(m.Sequence), id, m.Subject, m.Header, string(m.Data)})
		seq = m.Sequence + 1
	}
	return all
}

// captured returns what a stream holds of configured sources.
func (b *bed) captured(stream string) []kept {
	b.t.Helper()
	var out []kept
	for _, k := range b.read(stream) {
		if b.options.Sources[k.Source] != "" {
			out = append(out, k)
		}
	}
	return out
}

// last returns a stream's last sequence.
func (b *bed) last(stream string) Position {
	b.t.Helper()
	b.settle()
	st, err := b.js.Stream(b.ctx(), stream)
	if err != nil {
		b.t.Fatal(err)
	}
	return Position(st.CachedInfo().State.LastSeq)
}

// expect fails unless the stream holds exactly the given records of its sources, each source in order.
func (b *bed) expect(stream string, want ...string) {
	b.t.Helper()
	var got []string
	for _, k := range b.captured(stream) {
		got = append(got, k.Data)
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		b.t.Fatalf("stream %s holds %q, want %q", stream, got, want)
	}
}

// poll waits until a condition holds.
func poll(t testing.TB, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("gave up waiting until %s", what)
		}
		<-tick.C
	}
}
