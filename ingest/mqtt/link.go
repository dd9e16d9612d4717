package mqtt

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"
	"github.com/eclipse/paho.mqtt.golang/packets"

	"github.com/holdfast-edge/holdfast/ingest"
)

// refusal is the answer to a subscription that the broker does not allow (MQTT 3.1.1 section 3.9.3).
const refusal = 0x80

// link is one connection to the broker with a client of its own, so that an acknowledgement can never go to another connection
// than the one its message came from. The library's own reconnect is not used: it would keep the client.
type link struct {
	guard  *guard
	client paho.Client
	lost   chan error // holds why the connection ended; never closed

	session  atomic.Uint64 // the broker's session, as delivered counts it
	received atomic.Uint64 // messages handed to us; only the client's router raises it
	overrun  atomic.Bool   // a message was let go of because the queue was full: reconnect to get it again

	// Only the worker uses these.
	handled uint64  // messages handled, in order
	base    uint64  // acknowledgements that the broker has read
	acks    []acked // acknowledgements after these, in order
}

// acked is an acknowledgement of a message with a mark.
type acked struct {
	packet uint16
	nr     uint32
	marked bool
}

// lose notes why the connection ends, unless something else was the reason.
func (l *link) lose(err error) {
	select {
	case l.lost <- err:
	default:
	}
}

// reason returns why the connection ended, which the library tells after it has cleaned up, or else err.
func (l *link) reason(err error) error {
	if !l.done() {
		return err
	}
	t := time.NewTimer(time.Second)
	defer t.Stop()
	select {
	case lost := <-l.lost:
		return lost
	case <-t.C:
		return err
	}
}

// done says whether the connection is closed.
func (l *link) done() bool {
	select {
	case <-l.guard.closed:
		return true
	default:
		return false
	}
}

// close ends the connection in order and waits for the client's goroutines.
func (l *link) close() {
	l.client.Disconnect(1000)
	_ = l.guard.Close() // the client has closed it, unless it hangs
}

// open connects to the broker. Messages may arrive before it returns.
func (s *Source) open(ctx context.Context) (*link, error) {
	password, err := s.password()
	if err != nil {
		return nil, &linkError{stageSetup, err}
	}
	conn, err := s.dial(ctx)
	if err != nil {
		return nil, err
	}
	s.arrive()
	l := &link{guard: newGuard(conn, s.cfg.MaxMessage, s.timing.connect, s.queue.wake), lost: make(chan error, 1)}
	l.session.Store(s.delivered.present())
	o := paho.NewClientOptions().
		AddBroker("tcp://" + s.addr.addr). // only a name: the connection is there already
		SetCustomOpenConnectionFn(func(*url.URL, paho.ClientOptions) (net.Conn, error) { return l.guard, nil }).
		SetProtocolVersion(4). // else a refusal is followed by an attempt with MQTT 3.1
		SetClientID(s.client).
		SetCleanSession(s.clean).
		SetUsername(s.cfg.User).SetPassword(password).
		SetAutoAckDisabled(true).
		SetOrderMatters(true).
		SetAutoReconnect(false).
		SetStore(nothing{}).
		SetKeepAlive(s.cfg.KeepAlive).
		SetPingTimeout(s.timing.ping).
		SetConnectTimeout(s.timing.connect).
		SetWriteTimeout(s.timing.handover).
		SetDefaultPublishHandler(func(_ paho.Client, m paho.Message) {
			if err := ingest.Guard(func() error { s.receive(l, m); return nil }); err != nil {
				l.lose(err)
			}
		}).
		SetConnectionLostHandler(func(_ paho.Client, err error) { l.lose(err) })
	l.client = paho.NewClient(o)
	token := l.client.Connect()
	select {
	case <-token.Done():
		err = token.Error()
	case <-ctx.Done():
		_ = l.guard.Close() // makes the attempt fail
		<-token.Done()
		err = ctx.Err()
		if token.Error() == nil {
			l.close()
		}
	}
	if err != nil {
		_ = l.guard.Close() // closed by the client, except before it was handed over
		return nil, &linkError{stageLogin, err}
	}
	return l, nil
}

// arrive is called when an address was reached. At another one than before there may be another session, so nothing that is noted
// by packet id has a meaning any more: what was under way may be stored twice, and nothing is taken for something else.
func (s *Source) arrive() {
	old := s.session.last
	s.moved = old.Client == s.client && old.Broker != s.addr.url
	if s.moved {
		s.delivered.begin()
		s.saveSession(session{Broker: s.addr.url, Client: s.client})
	}
}

// dial opens the network connection.
func (s *Source) dial(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timing.connect)
	defer cancel()
	var config *tls.Config
	if s.addr.secure {
		var err error
		if config, err = s.cfg.TLS.client(s.addr.host); err != nil {
			return nil, &linkError{stageSetup, err}
		}
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", s.addr.addr)
	if err != nil {
		return nil, &linkError{stageDial, err}
	}
	if config == nil {
		return conn, nil
	}
	secure := tls.Client(conn, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = conn.Close() // nothing was sent that could be lost
		return nil, &linkError{stageTLS, err}
	}
	return secure, nil
}

// client reads the files anew for each connection, so that renewed certificates need no restart.
func (t TLS) client(host string) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: host}
	if t.ServerName != "" {
		c.ServerName = t.ServerName
	}
	if t.CA != "" {
		pem, err := os.ReadFile(t.CA)
		if err != nil {
			return nil, fmt.Errorf("tls.ca: %w", err)
		}
		if c.RootCAs = x509.NewCertPool(); !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("tls.ca: %s holds no certificate in PEM form", t.CA)
		}
	}
	if t.Cert != "" {
		pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
		if err != nil {
			return nil, fmt.Errorf("tls.cert and tls.key: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// stamp tells the present files from others.
func (t TLS) stamp() (text string) {
	for _, file := range []string{t.CA, t.Cert, t.Key} {
		if info, err := os.Stat(file); err == nil {
			text += fmt.Sprintln(info.Size(), info.ModTime().UnixNano())
		}
	}
	return text
}

// password reads the password file, without the line break that editors put at its end.
func (s *Source) password() (string, error) {
	if s.cfg.PasswordFile == "" {
		return "", nil
	}
	data, err := os.ReadFile(s.cfg.PasswordFile)
	if err != nil {
		return "", fmt.Errorf("password_file: %w", err)
	}
	return strings.TrimSuffix(strings.TrimSuffix(string(data), "\n"), "\r"), nil
}

// subscribe makes the broker's subscriptions those of the configuration and returns the filters that it refuses and those it
// grants with QoS 0 where more was asked for.
func (s *Source) subscribe(ctx context.Context, l *link) (refused, weak []string, err error) {
	want := session{Broker: s.addr.url, Client: s.client, Filters: slices.Clone(s.cfg.Topics)}
	old := s.session.last
	if old.Broker != want.Broker || old.Client != want.Client || !l.guard.sessionPresent() {
		old.Filters = nil // not of this session
	}
	var gone []string
	both := want
	both.Filters = slices.Clone(want.Filters)
	for _, f := range old.Filters {
		if !slices.Contains(want.Filters, f) {
			gone = append(gone, f)
			both.Filters = append(both.Filters, f)
		}
	}
	s.saveSession(both) // before anything is subscribed: what may be subscribed must be known
	if len(gone) > 0 {
		if err := s.await(ctx, l, l.client.Unsubscribe(gone...)); err != nil {
			return nil, nil, fmt.Errorf("unsubscribe: %w", err)
		}
		s.log.Info("unsubscribed from topics that are no longer configured", "filters", gone)
	}
	s.saveSession(want)
	return s.ask(ctx, l, want.Filters)
}

// ask subscribes to the filters. An accepted subscription is replaced by itself (MQTT 3.1.1 section 3.8.4).
func (s *Source) ask(ctx context.Context, l *link, filters []string) (refused, weak []string, err error) {
	tokens := make([]paho.Token, len(filters))
	for i, f := range filters {
		// One filter per packet: see guard.
		tokens[i] = l.client.Subscribe(f, byte(s.cfg.QoS), nil)
	}
	for i, f := range filters {
		if err := s.await(ctx, l, tokens[i]); err != nil {
			return nil, nil, fmt.Errorf("subscribe to %q: %w", f, err)
		}
		// A refusal is not an error for the library.
		granted, ok := tokens[i].(*paho.SubscribeToken).Result()[f]
		switch {
		case !ok || granted == refusal:
			refused = append(refused, f)
		case granted == 0 && s.cfg.QoS > 0:
			weak = append(weak, f)
		}
	}
	return refused, weak, nil
}

// await waits for a token. The library may never complete one whose connection is lost.
func (s *Source) await(ctx context.Context, l *link, token paho.Token) error {
	timer := time.NewTimer(s.timing.connect)
	defer timer.Stop()
	select {
	case <-token.Done():
		return token.Error()
	case <-ctx.Done():
		return ctx.Err()
	case <-l.guard.closed:
		return errors.New("the connection was closed meanwhile")
	case <-timer.C:
		return errSubackTimeout
	}
}

// nothing is the library's message store: none. What we publish is a command, which must not be sent again later, and what comes in is kept by the broker until we
// acknowledge it. The library's own store in memory would hold every message a second time, also those that the queue had no
// room for; its store on disk writes each message without a sync, and panics when that fails.
type nothing struct{}

var _ paho.Store = nothing{}

func (nothing) Open()                             {}
func (nothing) Put(string, packets.ControlPacket) {}
func (nothing) Get(string) packets.ControlPacket  { return nil }
func (nothing) All() []string                     { return nil }
func (nothing) Del(string)                        {}
func (nothing) Close()                            {}
func (nothing) Reset()                            {}
