package storage

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// keepServer is an embedded server with file storage, for tests of what touches streams.
type keepServer struct {
	t   testing.TB
	srv *server.Server
	nc  *nats.Conn
	js  jetstream.JetStream
}

// startKeepServer starts a server on dir and stops it at the end of the test.
func startKeepServer(t testing.TB, dir string) *keepServer {
	t.Helper()
	srv, err := server.NewServer(&server.Options{DontListen: true, JetStream: true, StoreDir: dir, NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	srv.Start()
	s := &keepServer{t: t, srv: srv}
	t.Cleanup(s.stop)
	if !srv.ReadyForConnections(20 * time.Second) {
		t.Fatal("the server does not become ready")
	}
	if s.nc, err = nats.Connect("", nats.InProcessServer(srv)); err != nil {
		t.Fatal(err)
	}
	if s.js, err = jetstream.New(s.nc); err != nil {
		t.Fatal(err)
	}
	return s
}

// stop shuts the server down; its directory may be used again afterwards.
func (s *keepServer) stop() {
	if s.srv == nil {
		return
	}
	if s.nc != nil {
		s.nc.Close()
	}
	s.srv.Shutdown()
	s.srv.WaitForShutdown()
	s.srv = nil
}

// stream makes a captured stream as the store does.
func (s *keepServer) stream(name string, first uint64) jetstream.Stream {
	s.t.Helper()
	st, err := s.js.CreateOrUpdateStream(testContext(s.t), jetstream.StreamConfig{
		Name: name, Subjects: []string{DataSubject("leaf", name, ">"), LeapSubject(name)}, Storage: jetstream.FileStorage,
		Discard: jetstream.DiscardNew, AllowDirect: true, FirstSeq: first, Duplicates: 100 * time.Millisecond,
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return st
}

// publish stores n records of 50 bytes under the subject.
func (s *keepServer) publish(subject string, n int) {
	s.t.Helper()
	for range n {
		if _, err := s.js.Publish(testContext(s.t), subject, make([]byte, 50)); err != nil {
			s.t.Fatal(err)
		}
	}
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}
