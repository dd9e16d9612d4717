package leaf

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

const (
	greetingMax     = 64 << 10         // bytes of a greeting
	alertWait       = 2 * time.Second  // for what a hub has to say against our certificate after a TLS 1.3 handshake
	examineInterval = 30 * time.Second // between examinations of a hub that does not say why it hangs up
)

// Greeting is what a hub node tells everybody who connects to its leaf port.
type Greeting struct {
	Name      string `json:"server_name"`
	Version   string `json:"version"` // of nats-server, as 2.15.3
	Cluster   string `json:"cluster"`
	Domain    string `json:"domain"`
	JetStream bool   `json:"jetstream"`
	APILevel  int    `json:"api_lvl"` // JetStream API level: 5 is nats-server 2.15; 0 is not said
	TLS       bool   `json:"tls_required"`
}

// Greet makes a connection of its own to the hub node that the link is at, or was at last, and returns how that node greets. It is the
// way to learn the hub's version; the link itself does not keep it. Nodes behind websockets, and those that want TLS before they greet,
// cannot be asked: ctx or the dial time-out ends that.
func (s *Server) Greet(ctx context.Context) (Greeting, error) {
	conn, g, err := s.greet(ctx)
	if err != nil {
		return Greeting{}, err
	}
	_ = conn.Close() // nothing was sent
	return g, nil
}

func (s *Server) greet(ctx context.Context) (net.Conn, Greeting, error) {
	var g Greeting
	host := s.link.current().Remote
	if host == "" {
		return nil, g, errors.New("ask the hub for its version: the link has not been on yet")
	}
	if s.options().Hub.Proxy.URL != "" {
		return nil, g, errors.New("ask the hub for its version: it cannot be asked through a proxy")
	}
	for _, raw := range s.options().Hub.URLs {
		if strings.HasPrefix(raw, "ws") {
			return nil, g, errors.New("ask the hub for its version: it cannot be asked through a websocket")
		}
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", host)
	if err != nil {
		return nil, g, fmt.Errorf("ask the hub for its version: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) }) // ends the read below
	line, err := bufio.NewReaderSize(io.LimitReader(conn, greetingMax), 4096).ReadString('\n')
	stop()
	if err == nil {
		err = json.Unmarshal([]byte(strings.TrimPrefix(line, "INFO ")), &g)
	}
	if err != nil {
		_ = conn.Close()
		return nil, g, fmt.Errorf("ask the hub at %s for its version: %w: %w", host, errNoGreeting, err)
	}
	return conn, g, conn.SetReadDeadline(time.Time{})
}

// examine finds out why a hub hangs up without a word, as far as a greeting and a TLS handshake show it.
func (s *Server) examine(ctx context.Context) (problem, bool) {
	host := s.link.current().Remote
	conn, g, err := s.greet(ctx)
	if errors.Is(err, errNoGreeting) && speaksHTTP(ctx, host) {
		return hubProblem(host, s.options().Name, saysHTTP, time.Now())
	}
	if err != nil {
		return problem{}, false
	}
	defer func() { _ = conn.Close() }() // after an examination nothing is left to report
	remotes, err := s.remotes(true)
	if err != nil {
		return problem{}, false
	}
	if !g.TLS {
		if !remotes[0].TLS {
			return problem{}, false
		}
		return hubProblem(host, s.options().Name, errNoTLS, time.Now())
	}
	cfg := remotes[0].TLSConfig
	if cfg == nil {
		cfg = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if cfg.ServerName == "" {
		cfg.ServerName, _, _ = net.SplitHostPort(host) // what was dialled has this form
	}
	secure := tls.Client(conn, cfg)
	if err := conn.SetDeadline(time.Now().Add(tlsTimeout)); err != nil {
		return problem{}, false
	}
	if err = secure.HandshakeContext(ctx); err == nil {
		if err = conn.SetDeadline(time.Now().Add(alertWait)); err == nil {
			_, err = secure.Read(make([]byte, 1))
		}
	}
	if err == nil {
		return problem{}, false
	}
	return hubProblem(host, s.options().Name, err.Error(), time.Now())
}

// errNoGreeting means that somebody takes connections, and greets in no way that we know.
var errNoGreeting = errors.New("it does not greet like a NATS server")

// saysHTTP stands for the answer of a web server among what hubs say.
const saysHTTP = "http/"

// speaksHTTP asks who does not greet as a web server would want it.
func speaksHTTP(ctx context.Context, host string) bool {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", host)
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }() // its answer is all that is wanted
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	answer := make([]byte, len(saysHTTP))
	if _, err = io.WriteString(conn, "GET / HTTP/1.0\r\n\r\n"); err == nil {
		_, err = io.ReadFull(conn, answer)
	}
	return err == nil && strings.EqualFold(string(answer), saysHTTP)
}

// errNoTLS is what crypto/tls says of a peer that does not speak it.
const errNoTLS = "first record does not look like a TLS handshake"
