package mqtt

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/eclipse/paho.mqtt.golang/packets"

	"github.com/holdfast-edge/holdfast/ingest"
)

// stage is how far a connection came.
type stage uint8

const (
	stageSetup stage = iota // reading our own files
	stageDial               // name and TCP
	stageTLS                // TLS handshake
	stageLogin              // CONNECT until CONNACK
	stageUse                // subscribed
)

// linkError is why there is no connection.
type linkError struct {
	stage stage
	err   error
}

func (e *linkError) Error() string {
	return [...]string{"read credentials", "reach broker", "TLS handshake with broker", "log in at broker", "connection to broker"}[e.stage] + ": " + e.err.Error()
}

func (e *linkError) Unwrap() error { return e.err }

// errSubackTimeout means that SUBSCRIBE or UNSUBSCRIBE got no answer.
var errSubackTimeout = errors.New("the broker did not answer a subscription")

// explain turns the reason why there is no connection into a state for people.
func (s *Source) explain(err error) ingest.State {
	var le *linkError
	at := stageUse
	if errors.As(err, &le) {
		at, err = le.stage, le.err
	}
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission), at == stageSetup:
		return ingest.State{Kind: ingest.Denied, Cause: err.Error(), Remedy: "correct the path in the configuration, or give the daemon the right to read the file"}
	case isTLS(err) || at == stageTLS:
		return s.explainTLS(err)
	case at == stageDial:
		return s.explainDial(err)
	case at == stageLogin:
		return s.explainLogin(err)
	}
	return s.explainLoss(err)
}

func (s *Source) explainDial(err error) ingest.State {
	st := ingest.State{Kind: ingest.Waiting}
	var dns *net.DNSError
	switch {
	case errors.As(err, &dns):
		st.Cause = fmt.Sprintf("the broker's name %q is not resolved: %s", dns.Name, dns.Err)
		st.Remedy = "check the name in the address of the broker, and this machine's DNS"
	case errors.Is(err, syscall.ECONNREFUSED):
		st.Cause = fmt.Sprintf("nothing listens on %s", s.addr.addr)
		st.Remedy = "start the broker, or correct its port"
	case isTimeout(err):
		st.Cause = fmt.Sprintf("no answer from %s within %v", s.addr.addr, s.timing.connect)
		st.Remedy = "check the network between here and the broker, and its firewall"
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH):
		st.Cause = fmt.Sprintf("there is no route to %s", s.addr.addr)
		st.Remedy = "check this machine's network"
	default:
		st.Cause = fmt.Sprintf("%s is not reached: %v", s.addr.addr, err)
		st.Remedy = "check the address of the broker and the network"
	}
	return st
}

// isTLS says whether the error comes from TLS itself. With TLS 1.3 the broker's view of our certificate only shows when the
// answer to CONNECT is read.
func isTLS(err error) bool {
	var alert tls.AlertError
	var op *net.OpError
	return errors.As(err, &alert) || errors.As(err, &op) && op.Op == "remote error"
}

func (s *Source) explainTLS(err error) ingest.State {
	st := ingest.State{Kind: ingest.Waiting}
	var authority x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	var record tls.RecordHeaderError
	switch {
	case errors.As(err, &authority):
		st.Cause = "the broker's certificate is signed by an authority that is not trusted here"
		st.Remedy = "set tls.ca to the certificate of the authority that signed it"
	case errors.As(err, &host):
		st.Cause = "the broker's certificate is for another name: " + host.Error()
		st.Remedy = "write the address with the name in the certificate, or set tls.server_name"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		st.Cause = fmt.Sprintf("the broker's certificate is not valid at this machine's time, %s", time.Now().UTC().Format(time.DateTime))
		st.Remedy = "if that time is wrong, wait for or repair the time synchronisation; else renew the broker's certificate"
	case errors.As(err, &record):
		st.Cause = fmt.Sprintf("%s does not speak TLS", s.addr.addr)
		st.Remedy = "use the broker's TLS port, or the address tcp://…"
	case isTLS(err):
		st.Kind = ingest.Denied
		st.Cause = "the broker refuses TLS with us: " + err.Error()
		st.Remedy = "set tls.cert and tls.key to a certificate that the broker accepts"
	case isEnd(err):
		st.Cause = fmt.Sprintf("%s broke the TLS handshake off", s.addr.addr)
		st.Remedy = "check that this is the broker's TLS port; if it speaks no TLS there, use the address tcp://…"
	case isTimeout(err):
		st.Cause = fmt.Sprintf("%s did not finish the TLS handshake within %v", s.addr.addr, s.timing.connect)
		st.Remedy = "check that this is the broker's TLS port"
	default:
		st.Cause = fmt.Sprintf("TLS with %s: %v", s.addr.addr, err)
		st.Remedy = "check that this is the broker's TLS port, and its certificate"
	}
	return st
}

func (s *Source) explainLogin(err error) ingest.State {
	switch {
	case errors.Is(err, packets.ErrorRefusedBadUsernameOrPassword), errors.Is(err, packets.ErrorRefusedNotAuthorised):
		who := "without a user"
		if s.cfg.User != "" {
			who = fmt.Sprintf("the user %q", s.cfg.User)
		}
		return ingest.State{Kind: ingest.Denied, Cause: "the broker does not let in " + who + " with client id " + s.client,
			Remedy: "check user and password_file, and the broker's list of users"}
	case errors.Is(err, packets.ErrorRefusedIDRejected):
		return ingest.State{Kind: ingest.Refused, Cause: fmt.Sprintf("the broker refuses the client id %q", s.client),
			Remedy: "set client_id to one that the broker allows"}
	case errors.Is(err, packets.ErrorRefusedBadProtocolVersion):
		return ingest.State{Kind: ingest.Refused, Cause: "the broker does not speak MQTT 3.1.1", Remedy: "use a broker that does"}
	case errors.Is(err, packets.ErrorRefusedServerUnavailable):
		return ingest.State{Kind: ingest.Waiting, Cause: "the broker says that it is not available", Remedy: "look at the broker's log"}
	case isTimeout(err):
		return ingest.State{Kind: ingest.Waiting, Cause: fmt.Sprintf("%s did not answer the login within %v", s.addr.addr, s.timing.connect),
			Remedy: "check that this is the port of an MQTT broker"}
	case isEnd(err):
		return ingest.State{Kind: ingest.Waiting, Cause: fmt.Sprintf("%s closed the connection in place of an answer to the login", s.addr.addr),
			Remedy: "check that this is the port of an MQTT broker without TLS, and look at the broker's log"}
	}
	return ingest.State{Kind: ingest.Waiting, Cause: fmt.Sprintf("login at %s: %v", s.addr.addr, err),
		Remedy: "check that this is the port of an MQTT broker, and look at the broker's log"}
}

func (s *Source) explainLoss(err error) ingest.State {
	st := ingest.State{Kind: ingest.Waiting, Remedy: "none needed if it comes back; else look at the broker's log"}
	switch {
	case errors.Is(err, errSubackTimeout):
		st.Cause = fmt.Sprintf("%v within %v", err, s.timing.connect)
	case isEnd(err):
		st.Cause = "the broker closed the connection"
	default:
		st.Cause = fmt.Sprintf("the connection to the broker is lost: %v", err)
		st.Remedy = "check the network between here and the broker"
	}
	return st
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &n) && n.Timeout()
}

// isEnd says whether the other side closed the connection, in order or with something unread. The library passes some errors
// on as text only.
func isEnd(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || strings.HasSuffix(err.Error(), "EOF") ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
