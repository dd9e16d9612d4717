// Package leaf runs the embedded JetStream server, and the one link that it keeps to the hub.
package leaf

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
)

// startTimeout bounds how long Start waits for the server, after it has read the store.
const startTimeout = 30 * time.Second

// Options say how a Server is started.
type Options struct {
	Config
	Hub      Hub
	Apps     Apps     // all limits zero: the defaults
	Append   []string // sources that local applications may append to
	Log      *slog.Logger
	Key      string // what the streams' files are encrypted with; empty: they are not
	Cipher   string // of that: aes or chacha
	MaxStore int64  // bytes of file-backed streams in all; 0: no limit of the server's own
	// Owner returns the name of the leaf for which a hub has made a file of credentials, empty when the file does not say; nil: files never say.
	Owner func(file []byte) string
}

// Server is an embedded nats-server with JetStream, the accounts CAPTURE and APP, and a link to the hub that starts disabled.
// Safe for concurrent use.
type Server struct {
	opts      atomic.Pointer[Options] // as Start or Reconfigure was given them
	log       *slog.Logger
	identity  identity
	listen    string // where local applications connect; empty: no port
	websocket string // where they do by websocket; empty: no port
	pending   int64  // bytes that may wait for one connection; a reload cannot change it
	srv       *server.Server

	reload sync.Mutex // held for a whole reload; never take mu while waiting for it

	link  *link
	watch sync.WaitGroup
	stop  context.CancelFunc

	mu      sync.Mutex // guards the fields below
	want    bool       // link enabled, as asked for
	have    bool       // link enabled, as the server was told
	present bool       // the server knows the remote
	resting bool       // wanted, and not dialled for a while

	generation int    // of the remote: each is another one to the server
	files      string // what the files of the hub section looked like when the server was told

	meter meter
}

// Start starts the server on its store directory and returns when it takes connections from this process. Reading a store of
// millions of records takes seconds. The link to the hub stays off until Enable. A port for local applications that cannot be
// opened is logged and left out: it is no reason not to capture.
func Start(o Options) (*Server, error) {
	if o.MaxStore <= 0 {
		o.MaxStore = unlimitedStore
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Apps = o.Apps.limited()
	s := &Server{log: o.Log, listen: o.NATS, websocket: o.Apps.Websocket, pending: pendingLimit(memoryLimit(), o.Apps.MaxConnections)}
	if memory := s.pending * int64(o.Apps.MaxConnections); memory > memoryLimit()/2 {
		s.log.Warn("apps.max_connections is more than there is memory for if none of them reads", "bytes", memory)
	}
	s.opts.Store(&o)
	s.probePorts()
	var err error
	if s.identity, err = newIdentity(); err != nil {
		return nil, fmt.Errorf("start server: %w", err)
	}
	opts, err := s.serverOptions(nil)
	if err != nil {
		return nil, fmt.Errorf("start server: %w", err)
	}
	if s.srv, err = server.NewServer(opts); err != nil {
		return nil, fmt.Errorf("start server: %w", err)
	}
	tap := newTap(o.Log)
	s.link = newLink(o.Log, o.Name, len(o.Hub.URLs) > 0)
	tap.link = s.link.hear
	s.srv.SetLoggerV2(tap, false, false, false)
	s.srv.Start()
	if err := tap.fatal(); err != nil || !s.srv.ReadyForConnections(startTimeout) || !s.srv.JetStreamEnabled() {
		s.srv.Shutdown()
		s.srv.WaitForShutdown()
		if err == nil {
			err = errStart
		}
		return nil, fmt.Errorf("start server in %s: %w", o.Data, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.stop = cancel
	s.watch.Add(1)
	go func() {
		defer s.watch.Done()
		s.supervise(ctx)
	}()
	return s, nil
}

// options returns what the server runs with. What it points to is never changed.
func (s *Server) options() *Options { return s.opts.Load() }

// probePorts leaves out the ports that cannot be opened: the server would not start.
func (s *Server) probePorts() {
	if _, err := s.options().Apps.TLS.config(); s.options().Apps.TLS.Cert != "" && err != nil {
		s.log.Error("no port for local applications", "err", err)
		s.listen, s.websocket = "", ""
	}
	for _, address := range []*string{&s.listen, &s.websocket} {
		if *address == "" {
			continue
		}
		l, err := net.Listen("tcp", *address)
		if err == nil {
			err = l.Close()
		}
		if err != nil {
			s.log.Error("no port for local applications", "address", *address, "err", err)
			*address = ""
		}
	}
}

// Listening returns the address at which local applications connect, or "" when there is none.
func (s *Server) Listening() string { return s.listen }

// Connect opens a connection of the daemon's own, within the process and in account CAPTURE, where it may do everything. Its inboxes
// begin with "_INBOX_<name>", which the hub lets through. It survives everything but Shutdown.
func (s *Server) Connect(opts ...nats.Option) (*nats.Conn, error) {
	return s.connect(s.identity.daemon, opts...)
}

// AppConnect opens a connection within the process as a local application, in account APP.
func (s *Server) AppConnect(opts ...nats.Option) (*nats.Conn, error) {
	return s.connect(s.identity.app, opts...)
}

func (s *Server) connect(keys nkeys.KeyPair, opts ...nats.Option) (*nats.Conn, error) {
	public, err := keys.PublicKey()
	if err != nil {
		return nil, fmt.Errorf("connect to own server: %w", err)
	}
	base := []nats.Option{
		nats.InProcessServer(s.srv), nats.Nkey(public, keys.Sign), nats.CustomInboxPrefix(InboxPrefix(s.options().Name)),
		nats.Name("holdfast"), nats.MaxReconnects(-1), nats.ReconnectWait(100 * time.Millisecond),
	}
	nc, err := nats.Connect("", append(base, opts...)...)
	if err != nil {
		return nil, fmt.Errorf("connect to own server: %w", err)
	}
	return nc, nil
}

// InboxPrefix returns what the inboxes of a leaf's daemon begin with.
func InboxPrefix(name string) string { return "_INBOX_" + name }

// RestartJetStream stops JetStream and starts it again in place, with everything stored still there. It is the cure for streams that
// stay failed after a full disk (nats-server keeps the write error). Connections live through it; requests meanwhile fail.
func (s *Server) RestartJetStream() error { return s.PauseJetStream(func() {}) }

// PauseJetStream is RestartJetStream with something done in between, while no file of any stream is open.
func (s *Server) PauseJetStream(while func()) error {
	s.reload.Lock()
	defer s.reload.Unlock()
	if err := s.srv.DisableJetStream(); err != nil {
		return fmt.Errorf("stop JetStream: %w", err)
	}
	while()
	cfg := &server.JetStreamConfig{
		StoreDir: s.options().Data, Domain: s.options().Name, MaxMemory: maxMemory, MaxStore: s.options().MaxStore, SyncInterval: 0,
	}
	if err := s.srv.EnableJetStream(cfg); err != nil {
		return fmt.Errorf("start JetStream again: %w", err)
	}
	return nil
}

// Shutdown hangs up, closes all streams and stops the server. A dial under way delays it, behind the closing of the streams, by up to
// 10 s: nats-server does not interrupt one. When ctx ends first Shutdown returns its error and the server goes on stopping.
func (s *Server) Shutdown(ctx context.Context) error {
	s.stop()
	s.watch.Wait()
	down := make(chan struct{})
	go func() {
		defer close(down)
		s.srv.Shutdown()
		s.srv.WaitForShutdown()
	}()
	select {
	case <-down:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stop server: %w", context.Cause(ctx))
	}
}

// errStart is what Start reports when the server did not say why it stopped.
var errStart = errors.New("the server did not become ready")
