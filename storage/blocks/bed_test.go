package blocks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// bed is an embedded server whose files are looked at while it is down.
type bed struct {
	t   testing.TB
	dir string
	key Key
	srv *server.Server
	nc  *nats.Conn
	js  jetstream.JetStream

	last uint64 // sequence, as a test has seen it
}

func newBed(t testing.TB) *bed {
	b := &bed{t: t, dir: t.TempDir()}
	t.Cleanup(b.stop)
	return b
}

func (b *bed) start() {
	b.t.Helper()
	o := &server.Options{DontListen: true, JetStream: true, StoreDir: b.dir, NoSigs: true, NoLog: true, JetStreamKey: b.key.Secret, JetStreamCipher: server.AES}
	if b.key.Cipher == "chacha" {
		o.JetStreamCipher = server.ChaCha
	}
	srv, err := server.NewServer(o)
	if err != nil {
		b.t.Fatal(err)
	}
	srv.Start()
	b.srv = srv
	if !srv.ReadyForConnections(20 * time.Second) {
		b.t.Fatal("the server does not become ready")
	}
	if b.nc, err = nats.Connect("", nats.InProcessServer(srv)); err != nil {
		b.t.Fatal(err)
	}
	if b.js, err = jetstream.New(b.nc); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bed) stop() {
	if b.srv == nil {
		return
	}
	b.nc.Close()
	b.srv.Shutdown()
	b.srv.WaitForShutdown()
	b.srv = nil
}

// ctx ends with the test.
func (b *bed) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	b.t.Cleanup(cancel)
	return ctx
}

func (b *bed) stream() Stream {
	return Stream{Dir: filepath.Join(b.dir, "jetstream", "$G", "streams", "S"), Name: "S", Key: b.key}
}

// fill makes the stream S and publishes n records of so many bytes.
func (b *bed) fill(n, size int, compression jetstream.StoreCompression) {
	b.t.Helper()
	if _, err := b.js.CreateOrUpdateStream(b.ctx(), jetstream.StreamConfig{Name: "S", Subjects: []string{"data.>"}, Compression: compression}); err != nil {
		b.t.Fatal(err)
	}
	for i := range n {
		m := nats.NewMsg(fmt.Sprintf("data.leaf.S.a%d", i%10))
		m.Header.Set("Nats-Msg-Id", fmt.Sprintf("leaf.0123456789.a.1.%d", i+1))
		m.Data = bytes.Repeat([]byte{byte('a' + i%26)}, size)
		if i%4000 == 3999 || i == n-1 { // the server drops what comes faster
			if _, err := b.js.PublishMsg(b.ctx(), m); err != nil {
				b.t.Fatal(err)
			}
			continue
		}
		if err := b.nc.PublishMsg(m); err != nil {
			b.t.Fatal(err)
		}
	}
}

// state returns what the server says of the stream.
func (b *bed) state() jetstream.StreamState {
	b.t.Helper()
	s, err := b.js.Stream(b.ctx(), "S")
	if err != nil {
		b.t.Fatal(err)
	}
	return s.CachedInfo().State
}

func (b *bed) walk() Report {
	b.t.Helper()
	r, err := b.stream().Walk(nil)
	if err != nil {
		b.t.Fatal(err)
	}
	return r
}

// hands copy and move into a folder of the test.
func (b *bed) hands() Hands {
	aside := b.t.TempDir()
	return Hands{
		Copy: func(path string) (string, error) {
			raw, err := os.ReadFile(path)
			to := filepath.Join(aside, filepath.Base(path))
			return to, errors.Join(err, os.WriteFile(to, raw, 0o600))
		},
		Away: func(path string) (string, error) {
			to := filepath.Join(aside, filepath.Base(path))
			return to, os.Rename(path, to)
		},
		Write: func(path string, data []byte) error { return os.WriteFile(path, data, 0o600) },
	}
}
