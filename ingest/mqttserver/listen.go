package mqttserver

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-edge/holdfast/ingest"
	"github.com/holdfast-edge/holdfast/ingest/mqttserver/packet"
)

// Sizes and times of listening.
const (
	readBuffer   = 4 << 10
	listenAgain  = 10 * time.Second // longest pause before another attempt
	farewellTime = time.Second      // how long clients are given at the end
)

// listener is an address on which clients connect.
type listener struct {
	net.Listener
	tls *tls.Config // nil: none
}

// listen opens the configured addresses, all or none.
func (s *Source) listen(ctx context.Context) (list []listener, err error) {
	defer func() {
		if err != nil {
			for _, ln := range list {
				_ = ln.Close() // nobody has connected
			}
		}
	}()
	for _, a := range []struct {
		addr   string
		secure bool
	}{{s.cfg.Listen, false}, {s.cfg.TLS.Listen, true}} {
		if a.addr == "" {
			continue
		}
		var conf *tls.Config
		if a.secure {
			if _, err = s.certs.config(); err != nil {
				return list, err
			}
			conf = &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
				return s.certs.config()
			}}
		}
		ln, err := s.bind(ctx, a.addr, a.secure)
		if err != nil {
			return list, err
		}
		list = append(list, listener{ln, conf})
	}
	return list, nil
}

// bind listens on the socket that was opened for us, or else on an address.
func (s *Source) bind(ctx context.Context, addr string, secure bool) (net.Listener, error) {
	name := s.name
	if secure {
		name += "-tls"
	}
	if s.given != nil {
		if ln, err := s.given(name); ln != nil || err != nil {
			return ln, err
		}
	}
	var lc net.ListenConfig
	return lc.Listen(ctx, "tcp", addr)
}

// explain turns the reason why there is no listener into a state for people.
func explain(err error) ingest.State {
	st := ingest.State{Kind: ingest.Waiting, Cause: err.Error(), Remedy: "correct the address in listen or tls.listen"}
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		st.Kind, st.Remedy = ingest.Busy, "another program listens there, such as a broker: stop it, or choose another port"
	case errors.Is(err, syscall.EACCES):
		st.Kind, st.Remedy = ingest.Denied, "ports below 1024 are for root: choose one above"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		st.Remedy = "this machine does not have that address, or not yet: listen on 0.0.0.0 or correct it"
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission), errors.Is(err, errCert):
		st.Kind, st.Remedy = ingest.Denied, "correct the file, its path, or the daemon's right to read it"
	}
	return st
}

// serve accepts connections until ctx ends or a listener fails, and then ends them.
func (s *Source) serve(ctx context.Context, list []listener) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// The connections outlive ctx for a moment, to say goodbye.
	alive, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	var accepting, serving sync.WaitGroup
	for _, ln := range list {
		accepting.Go(func() { cancel(s.accept(ctx, alive, ln, &serving)) })
	}
	<-ctx.Done()
	for _, ln := range list {
		_ = ln.Close() // it makes accept return
	}
	accepting.Wait()
	s.farewell()
	late := time.AfterFunc(farewellTime, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for c := range s.conns {
			c.close()
		}
	})
	defer late.Stop()
	serving.Wait()
	return context.Cause(ctx)
}

// farewell tells every client that the server stops.
func (s *Source) farewell() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopping = true
	for c, in := range s.conns {
		if in {
			c.leave(packet.ServerShuttingDown)
		} else {
			c.close()
		}
	}
}

// accept takes connections of one listener until it is closed.
func (s *Source) accept(ctx, alive context.Context, ln listener, serving *sync.WaitGroup) error {
	back := ingest.Backoff{Min: 10 * time.Millisecond, Max: time.Second}
	for {
		nc, err := ln.Accept()
		if ctx.Err() != nil {
			if err == nil {
				_ = nc.Close() // it came too late
			}
			return ctx.Err()
		}
		if errors.Is(err, net.ErrClosed) {
			return err
		}
		if err != nil { // such as no more file descriptors
			if back.Fails() == 0 {
				s.log.Warn("connection cannot be accepted", "err", err)
			}
			s.note("connection cannot be accepted: %v", err)
			_ = back.Wait(ctx) // ctx is looked at next
			continue
		}
		back.Reset()
		w := &wire{Conn: nc}
		var with net.Conn = w
		if ln.tls != nil {
			with = tls.Server(w, ln.tls)
		}
		ctx, cancel := context.WithCancel(alive)
		c := newConn(s, with, w, ctx.Done(), cancel)
		s.arrive(c)
		serving.Go(func() {
			defer cancel()
			s.attend(ctx, c)
		})
	}
}

// arrive notes a connection that has not logged in. Of too many, the one that has taken longest is closed: clients log in at once.
func (s *Source) arrive(c *conn) {
	s.mu.Lock()
	s.conns[c] = false
	s.pending = append(s.pending, c)
	var oldest *conn
	if len(s.pending) > maxPending {
		oldest, s.pending = s.pending[0], s.pending[1:]
	}
	s.mu.Unlock()
	if oldest != nil {
		oldest.close()
		s.evicted.Add(1)
	}
}

// loggedIn notes that a connection is a client's.
func (s *Source) loggedIn(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leavePending(c)
	if s.conns[c] = true; s.stopping {
		c.leave(packet.ServerShuttingDown)
	}
}

func (s *Source) leavePending(c *conn) {
	for i, other := range s.pending {
		if other == c {
			s.pending = append(s.pending[:i:i], s.pending[i+1:]...)
			return
		}
	}
}

// attend serves one connection until it ends.
func (s *Source) attend(ctx context.Context, c *conn) {
	var writing sync.WaitGroup
	err := ingest.Guard(func() error {
		c.r = bufio.NewReaderSize(c.nc, readBuffer)
		if err := c.login(); err != nil {
			return err
		}
		s.loggedIn(c)
		writing.Go(func() {
			if err := ingest.Guard(func() error { c.write(); return nil }); err != nil {
				s.broken(c, err)
			}
		})
		return c.read(ctx)
	})
	s.depart(c, false)
	s.ended(c, err)
	writing.Wait()
	c.close()
	s.mu.Lock()
	s.leavePending(c)
	delete(s.conns, c)
	s.mu.Unlock()
}

// ended closes a connection for a reason.
func (s *Source) ended(c *conn, err error) {
	var bad *packet.Error
	var p *ingest.Panic
	var r *refused
	switch {
	case errors.As(err, &p):
		s.broken(c, err)
	case c.session == nil: // it did not log in
		if errors.As(err, &bad) || !errors.As(err, &r) && c.wire.written.Load() > 0 {
			s.note("connection from %s is no client: %v", c.from, err)
		}
		c.close()
	case errors.As(err, &bad):
		s.note("client %q disconnected: %v", c.session.client, err)
		c.leave(bad.Reason)
	case errors.Is(err, errLeft), errors.Is(err, net.ErrClosed), errors.Is(err, io.EOF):
		c.leave(packet.Success)
	default:
		s.log.Debug("connection lost", "client", c.session.client, "err", err)
		c.close()
	}
}

// broken ends a connection after a fault of our own.
func (s *Source) broken(c *conn, err error) {
	var p *ingest.Panic
	stack := ""
	if errors.As(err, &p) {
		stack = string(p.Stack)
	}
	s.log.Error("connection ended by a fault of the daemon", "err", err, "stack", stack)
	c.close()
}

// errCert says that a certificate file cannot be used.
var errCert = errors.New("it holds no certificate in PEM form")

// certs keeps the TLS configuration and reads its files again when they change.
type certs struct {
	cfg TLS

	mu    sync.Mutex // guards the fields below
	stamp string
	conf  *tls.Config
}

// config returns the present configuration. While changed files cannot be read, the old ones count.
func (t *certs) config() (*tls.Config, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	stamp := ""
	for _, file := range []string{t.cfg.Cert, t.cfg.Key, t.cfg.ClientCA} {
		if info, err := os.Stat(file); err == nil {
			stamp += fmt.Sprintln(file, info.Size(), info.ModTime().UnixNano())
		}
	}
	if t.conf != nil && stamp == t.stamp {
		return t.conf, nil
	}
	conf, err := t.cfg.server()
	switch {
	case err == nil:
		t.conf, t.stamp = conf, stamp
	case t.conf == nil:
		return nil, err
	}
	return t.conf, nil
}

func (t TLS) server() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) && strings.HasPrefix(err.Error(), "tls:") {
			err = fmt.Errorf("%w (%w)", err, errCert)
		}
		return nil, fmt.Errorf("tls.cert and tls.key: %w", err)
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}
	if t.ClientCert == CertOff {
		return conf, nil
	}
	pem, err := os.ReadFile(t.ClientCA)
	if err != nil {
		return nil, fmt.Errorf("tls.client_ca: %w", err)
	}
	if conf.ClientCAs = x509.NewCertPool(); !conf.ClientCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("tls.client_ca: %s: %w", t.ClientCA, errCert)
	}
	conf.ClientAuth = tls.VerifyClientCertIfGiven
	if t.ClientCert == CertRequired {
		conf.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return conf, nil
}
