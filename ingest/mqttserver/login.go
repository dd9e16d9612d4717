package mqttserver

import (
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/holdfast-edge/holdfast/ingest/mqttserver/packet"
)

// Limits of the login.
const (
	loginTime   = 10 * time.Second // from the first byte of TCP to CONNACK
	maxPending  = 128              // connections that have not logged in; above it the oldest is closed
	maxClientID = 256              // bytes
	maxV3Window = 65535
)

// refused is why a client is not let in.
type refused struct {
	reason packet.Reason
	cause  string
}

func (r *refused) Error() string { return r.cause }

func refusef(reason packet.Reason, format string, args ...any) error {
	return &refused{reason, fmt.Sprintf(format, args...)}
}

// login takes CONNECT, finds out who the client is, and answers. After nil the connection has a session.
func (c *conn) login() error {
	_ = c.nc.SetDeadline(time.Now().Add(loginTime)) // fails only when closed, as the read does then
	user, byCert := "", false
	if t, ok := c.nc.(*tls.Conn); ok {
		if err := t.Handshake(); err != nil {
			return fmt.Errorf("TLS handshake: %w", err)
		}
		if chain := t.ConnectionState().PeerCertificates; len(chain) > 0 {
			user, byCert = chain[0].Subject.CommonName, true
		}
	}
	h, err := packet.ReadHeader(c.r)
	if err != nil {
		return err
	}
	if h.Type != packet.CONNECT || h.Length > maxConnect {
		return &packet.Error{Reason: packet.ProtocolError, Text: "the first packet is no CONNECT"}
	}
	body := make([]byte, h.Length)
	if _, err := io.ReadFull(c.r, body); err != nil {
		return err
	}
	p, err := packet.DecodeConnect(body)
	c.version = p.Version
	if err == nil {
		err = c.identify(&p, user, byCert)
	}
	if err == nil {
		err = c.enter(&p)
	}
	if err != nil {
		c.refuse(err)
	}
	return err
}

// refuse tells the client why it is not let in.
func (c *conn) refuse(err error) {
	answer := packet.Connack{Reason: packet.UnspecifiedError}
	var r *refused
	var bad *packet.Error
	switch {
	case errors.As(err, &r):
		answer.Reason, answer.Text = r.reason, r.cause
	case errors.As(err, &bad):
		answer.Reason, answer.Text = bad.Reason, bad.Text
	}
	if c.version != 0 {
		_ = c.nc.SetWriteDeadline(time.Now().Add(2 * time.Second)) // fails only when closed
		_, _ = c.nc.Write(answer.Append(nil, c.version))           // the client is gone then
	}
}

// identify finds the user out. The cause is not told in detail to who guesses passwords, but in the log.
func (c *conn) identify(p *packet.Connect, user string, byCert bool) error {
	s := c.s
	switch {
	case p.Properties.AuthMethod != "":
		return refusef(packet.BadAuthMethod, "no method of authentication is known but user and password")
	case byCert && p.HasUser && p.User != user:
		s.note("client %q from %s says it is %q, and its certificate says %q", p.ClientID, c.from, p.User, user)
		return refusef(packet.BadUserOrPassword, "user and certificate do not fit")
	case byCert:
		if err := checkUser(user); err != nil {
			s.note("the certificate of client %q from %s names no user: %v", p.ClientID, c.from, err)
			return refusef(packet.NotAuthorized, "the certificate names no user")
		}
		p.User = user
		return nil
	case !p.HasUser && s.cfg.Anonymous:
		return nil
	case !p.HasUser:
		s.note("client %q from %s gave no user", p.ClientID, c.from)
		return refusef(packet.NotAuthorized, "a user is needed")
	}
	if err := s.users.load(time.Now()); err != nil {
		s.note("%v", err)
	}
	switch s.users.check(c.dead, p.User, p.Password, c.from) {
	case accepted:
		c.byPassword = true
		return nil
	case throttled:
		s.note("too many wrong passwords from %s: only passwords that were right before are looked at", c.from)
		return refusef(packet.ServerBusy, "too many wrong passwords from this address")
	}
	s.note("wrong user or password from %s: user %q, client %q", c.from, p.User, p.ClientID)
	return refusef(packet.BadUserOrPassword, "wrong user or password")
}

// enter gives the client its session and answers CONNECT.
func (c *conn) enter(p *packet.Connect) error {
	s := c.s
	answer := packet.Connack{Receive: uint16(min(s.cfg.Window, maxV3Window)), MaxPacket: uint32(s.cfg.MaxMessage + 5)}
	if p.ClientID == "" {
		if !p.Clean && c.version != packet.V5 {
			return refusef(packet.ClientIDNotValid, "a client without an id has no session to keep")
		}
		var id [8]byte
		rand.Read(id[:])
		p.ClientID = "auto-" + hex.EncodeToString(id[:])
		answer.ClientID = p.ClientID
	}
	if len(p.ClientID) > maxClientID {
		return refusef(packet.ClientIDNotValid, "the client id is longer than %d bytes", maxClientID)
	}
	expiry := s.cfg.SessionExpiry
	switch {
	case c.version == packet.V5:
		expiry = s.expiry(p.Properties.SessionExpiry)
		answer.SessionExpiry, answer.HasExpiry = uint32(expiry/time.Second), uint64(expiry/time.Second) != uint64(p.Properties.SessionExpiry)
	case p.Clean:
		expiry = 0
	}
	c.keepAlive = time.Duration(p.KeepAlive) * time.Second
	if c.version == packet.V5 && (c.keepAlive == 0 || c.keepAlive > s.cfg.MaxKeepAlive) {
		c.keepAlive = s.cfg.MaxKeepAlive
		answer.KeepAlive = uint16(c.keepAlive / time.Second)
	}
	c.maxPacket, c.sendWindow = p.Properties.MaxPacket, outWindow
	if r := int(p.Properties.ReceiveMaximum); r > 0 {
		c.sendWindow = min(r, outWindow)
	}
	present, save, err := s.admit(c, p, expiry)
	if err != nil {
		return err
	}
	if save {
		if err := s.saver.save(c.session); err != nil {
			s.log.Error("client refused, its session cannot be saved", "client", p.ClientID, "err", err)
			s.depart(c, true)
			return refusef(packet.ServerUnavailable, "the session cannot be saved")
		}
	}
	answer.Present = present
	_ = c.nc.SetDeadline(time.Time{}) // fails only when closed
	err = c.mine(func() error {
		c.put(func(b []byte) []byte { return c.session.resend(answer.Append(b, c.version), c.version) })
		return nil
	})
	c.nudge() // what waits for the client
	return err
}

// expiry returns how long a session of so many seconds is kept; the largest number means for ever, which nothing here is.
func (s *Source) expiry(seconds uint32) time.Duration {
	return min(time.Duration(seconds)*time.Second, s.cfg.SessionExpiry)
}

// admit makes the connection the one of its client. present says that the session was there, and save that it is a new one that
// has to be saved.
func (s *Source) admit(c *conn, p *packet.Connect, expiry time.Duration) (present, save bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return false, false, refusef(packet.ServerShuttingDown, "the server stops")
	}
	x := s.sessions[p.ClientID]
	if x != nil && x.user != p.User {
		s.note("user %q wants the client id %q, which is user %q's", p.User, p.ClientID, x.user)
		return false, false, refusef(packet.ClientIDNotValid, "the client id belongs to another user")
	}
	taken := x != nil && x.conn != nil
	if !taken && s.connected >= s.cfg.MaxConnections {
		s.note("client %q refused: max_connections, %d, are there", p.ClientID, s.cfg.MaxConnections)
		return false, false, refusef(packet.ServerBusy, "too many clients")
	}
	if taken {
		s.takeOver(x, p.Clean)
	}
	if x != nil && (p.Clean || x.expiry == 0) {
		s.speak(x)
		s.end(x)
		s.gone = append(s.gone, x.id)
		x = nil
	}
	if present = x != nil; !present {
		if len(s.sessions) >= s.cfg.MaxSessions && !s.evict() {
			s.note("client %q refused: max_sessions, %d, are there", p.ClientID, s.cfg.MaxSessions)
			return false, false, refusef(packet.ServerBusy, "too many sessions")
		}
		x = newSession(p.ClientID, p.User)
		s.sessions[p.ClientID] = x
		clear(s.routes)
	}
	save = expiry > 0 && (!present || x.expiry == 0)
	x.expiry, x.conn, x.rights, x.will, x.after = expiry, c, s.cfg.rightsOf(p.User, p.ClientID), nil, time.Time{}
	for f := range x.subs {
		if !x.rights.maySubscribe(f) { // the configuration was changed
			delete(x.subs, f)
			clear(s.routes)
		}
	}
	if p.Will != nil {
		x.will = &inbound{Publish: *p.Will, user: p.User, client: p.ClientID, will: true}
		x.will.ID, x.will.Dup = 0, false
	}
	c.session = x
	s.connected++
	return present, save, nil
}

// takeOver ends the connection that a client had; s.mu is held.
func (s *Source) takeOver(x *session, clean bool) {
	old := x.conn
	x.conn = nil
	s.connected--
	for _, m := range x.pending {
		m.conn = nil
	}
	if x.will != nil && (clean || x.expiry == 0 || x.will.Properties.WillDelay == 0) {
		s.speak(x)
	}
	old.leave(packet.SessionTakenOver)
	now := time.Now()
	s.takeovers = append(s.takeovers, takeover{now, x.client})
	n := 0
	for _, t := range s.takeovers {
		if t.client == x.client && now.Sub(t.at) < time.Minute {
			n++
		}
	}
	s.takeovers = s.takeovers[max(0, len(s.takeovers)-64):]
	if n > 3 {
		s.note("client %q was taken over %d times within a minute: two devices seem to have one client id", x.client, n)
	}
}

// takeover is a connection that ended because its client came again.
type takeover struct {
	at     time.Time
	client string
}

// evict ends the session that is absent longest; false: all are connected. s.mu is held.
func (s *Source) evict() bool {
	var oldest *session
	for _, x := range s.sessions {
		if x.conn == nil && (oldest == nil || x.left.Before(oldest.left)) {
			oldest = x
		}
	}
	if oldest == nil {
		return false
	}
	s.log.Warn("session of an absent client ended: max_sessions is reached", "client", oldest.client, "waiting", len(oldest.queue))
	s.speak(oldest)
	s.end(oldest)
	s.gone = append(s.gone, oldest.id)
	return true
}

// depart is called when a connection has ended; refused says that the client was not let in after all.
func (s *Source) depart(c *conn, refused bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := c.session
	if x == nil || x.conn != c {
		return // it was taken over
	}
	x.conn, x.left = nil, time.Now()
	s.connected--
	for _, m := range x.pending {
		if m.conn == c {
			m.conn = nil
		}
	}
	if s.stopping || refused {
		x.will = nil
	}
	if x.will != nil {
		delay := min(time.Duration(x.will.Properties.WillDelay)*time.Second, x.expiry)
		if delay > 0 {
			x.after = x.left.Add(delay)
		} else {
			s.speak(x)
		}
	}
	if x.expiry == 0 || refused {
		s.end(x)
		s.gone = append(s.gone, x.id)
	}
}

// speak says the will of a client that is lost, or counts it as rejected; s.mu is held.
func (s *Source) speak(x *session) {
	m := x.will
	if m == nil {
		return
	}
	x.will, x.after = nil, time.Time{}
	m.at, m.refuse = time.Now(), x.rights.judge(&m.Publish)
	size := int64(len(m.Topic)+len(m.Payload)+len(m.Properties.Forward)) + overhead
	switch {
	case m.refuse != nil:
	case size-overhead > s.cfg.MaxMessage:
		m.refuse = &refusal{reason: ReasonTooLarge, bytes: len(m.Payload)}
	case !s.intake.tryReserve(size): // nobody can be made to wait: the client is gone
		m.refuse = &refusal{reason: ReasonQueueFull, bytes: len(m.Payload)}
	}
	if m.refuse != nil {
		s.reject(m)
		return
	}
	m.size = size
	s.intake.push(m)
}
