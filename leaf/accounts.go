package leaf

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// What keeps local applications from taking the memory that capture needs, beside the limits of the apps section.
const (
	spareConnections = 32       // connections of the daemon's own, and of those who have not said yet who they are
	spareAppConns    = 4        // of the daemon's own in account APP
	maxPending       = 16 << 20 // bytes on their way to a connection that does not read, at most; then it is closed
	leastPending     = 8 << 20  // and at least, so that the flow of a large object does not stop
	pendingShare     = 3        // one in so many bytes of memory may be on its way to connections that do not read
	maxBuffered      = 64 << 20 // bytes on their way into one stream, as from a client that puts a large object faster than the disk takes it; more is refused
	maxAppAckPending = 10_000   // messages that one consumer has out
	maxControlLine   = 1 << 10  // bytes of a line of the protocol: a subscription's subject takes memory
	maxTokens        = 32       // words of a subscription's subject: each takes memory

	// Atomic batches that are under way count against no limit of the server until they are committed: in memory, or on disk.
	maxBatches    = 4
	maxBatchBytes = 32 << 20 // of the messages of one batch, were each as large as it may be
	leastBatch    = 32       // messages, though
	mostBatch     = 1000     // as the server has it by itself
	batchTimeout  = 5 * time.Second
)

// restoreRequests are denied to local applications: the server unpacks what comes into a temporary folder and holds each restore, but not all of
// them together, against the limits, so that a few kilobytes could fill the disk.
const restoreRequests = "$JS.API.STREAM.RESTORE.>"

// pendingLimit returns how much may wait for each of so many connections, so that what waits for all of them fits into memory, in bytes.
func pendingLimit(memory int64, connections int) int64 {
	return min(max(memory/pendingShare/int64(max(connections, 1)), leastPending), maxPending)
}

// batchLimit returns how many messages an atomic batch may have.
func batchLimit(payload int64) int {
	return int(min(max(maxBatchBytes/max(payload, 1), leastBatch), mostBatch))
}

// memoryLimit returns what this process may take, in bytes: what the runtime was told, else half of the machine.
func memoryLimit() int64 {
	limit := debug.SetMemoryLimit(-1)
	var machine syscall.Sysinfo_t
	if err := syscall.Sysinfo(&machine); err == nil {
		limit = min(limit, int64(uint64(machine.Totalram)*uint64(machine.Unit)/2))
	}
	return limit
}

// CapturePrefix is the JetStream API prefix below which local applications find the captured streams that are open to them.
const CapturePrefix = "$JS.capture.API"

// AppendSubject is where a local application appends to a source by request; what follows the source becomes the record's tail.
func AppendSubject(source string) string { return "holdfast.append." + source }

// appendedTo is the subject that what is appended gets on its way to the daemon. Nobody subscribes below $JS but with leave, and the server refuses streams
// there that acknowledge: nobody else can answer in the daemon's place.
func appendedTo(source string) string { return "$JS.capture.append." + source }

var appended = appendedTo(">")

// accounts sets the accounts and users of o. The daemon's user works inside the process only.
func (s *Server) accounts(o *server.Options) error {
	id, apps := s.identity, s.options().Apps
	daemon, err := id.daemon.PublicKey()
	if err != nil {
		return fmt.Errorf("keys of local users: %w", err)
	}
	app, err := id.app.PublicKey()
	if err != nil {
		return fmt.Errorf("keys of local users: %w", err)
	}
	only := ", allowed_connection_types: [IN_PROCESS]"
	open := len(apps.Users) == 0 && (s.listen != "" || s.websocket != "")
	appOnly := only
	if open {
		appOnly = fmt.Sprintf(", permissions: { publish: { deny: [%q] }, subscribe: { deny: [%q] } }", restoreRequests, appended)
	}
	exports, imports := s.shared()
	text := fmt.Sprintf(`accounts {
  %s { users: [ { nkey: %s %s } ] }
  %s { jetstream: enabled, users: [ { nkey: %s %s } ], exports: [ %s ] }
  %s { jetstream: %s, users: [ { nkey: %s %s } ], imports: [ %s ], limits: { max_conn: %d, max_subs: %d, max_payload: %d } }
}
system_account: %s
`, accountSystem, id.system, only, AccountCapture, daemon, only, exports, AccountApp, apps.jetstream(), app, appOnly, imports,
		apps.MaxConnections+spareAppConns, apps.MaxSubscriptions, apps.MaxPayload, accountSystem)
	if open {
		text += "no_auth_user: " + app + "\n"
	}
	if err := o.ProcessConfigString(text); err != nil {
		return fmt.Errorf("server accounts: %w", err)
	}
	for _, account := range o.Accounts {
		if account.Name == AccountApp {
			addUsers(o, account, apps.Users)
			if err := account.AddMapping(AppendSubject(">"), appended); err != nil {
				return fmt.Errorf("mapping of %s: %w", AppendSubject(">"), err)
			}
			for _, m := range apps.Mappings {
				if err := account.AddMapping(m.From, m.To); err != nil {
					return fmt.Errorf("mapping of %s: %w", m.From, err)
				}
			}
		}
	}
	return nil
}

// jetstream returns what account APP may have of JetStream.
func (a Apps) jetstream() string {
	if a.MaxFile <= 0 {
		return "disabled"
	}
	return fmt.Sprintf("{ max_mem: %d, max_file: %d, max_streams: %d, max_consumers: %d, max_ack_pending: %d }",
		a.MaxMem, a.MaxFile, a.MaxStreams, a.MaxConsumers, maxAppAckPending)
}

func addUsers(o *server.Options, account *server.Account, users []User) {
	for _, u := range users {
		permissions := &server.Permissions{Publish: u.Publish.appending().without(restoreRequests).permission(), Subscribe: u.Subscribe.without(appended).permission()}
		if u.NKey != "" {
			o.Nkeys = append(o.Nkeys, &server.NkeyUser{Nkey: u.NKey, Permissions: permissions, Account: account})
			continue
		}
		o.Users = append(o.Users, &server.User{Username: u.Name, Password: u.Password, Permissions: permissions, Account: account})
	}
}

// appending returns s with what it says of appending said of the subject that it gets, too: the server looks at that.
func (s Subjects) appending() Subjects {
	with := func(list []string) []string {
		list = slices.Clone(list)
		for _, subject := range list {
			if tokens := strings.SplitN(subject, ".", 3); !server.SubjectsCollide(subject, AppendSubject(">")) {
				continue
			} else if len(tokens) == 3 && tokens[1] != ">" {
				list = append(list, appendedTo(tokens[2]))
			} else {
				list = append(list, appended)
			}
		}
		return list
	}
	return Subjects{Allow: with(s.Allow), Deny: with(s.Deny)}
}

// without returns s with one subject more that is denied.
func (s Subjects) without(subject string) Subjects {
	return Subjects{Allow: s.Allow, Deny: append(slices.Clone(s.Deny), subject)}
}

func (s Subjects) permission() *server.SubjectPermission {
	if len(s.Allow)+len(s.Deny) == 0 {
		return nil
	}
	return &server.SubjectPermission{Allow: s.Allow, Deny: s.Deny}
}

// shared returns the exports of account CAPTURE and the imports of APP: what local applications may do with captured streams, one by one. A wildcard
// over the API would let them delete the uplink's consumer, or make one that pushes onto the hub's subject.
func (s *Server) shared() (exports, imports string) {
	var out, in strings.Builder
	share := func(kind, subject, to, options string) {
		fmt.Fprintf(&out, "{ %s: %q, accounts: [%s] %s }\n", kind, subject, AccountApp, options)
		if to != "" {
			to = fmt.Sprintf(", to: %q", to)
		}
		fmt.Fprintf(&in, "{ %s: { account: %s, subject: %q } %s }\n", kind, AccountCapture, subject, to)
	}
	api := func(request, options string) {
		share("service", "$JS.API."+request, CapturePrefix+"."+request, options)
	}
	const many = ", response_type: stream"
	for _, c := range s.options().Apps.Captured {
		api("STREAM.INFO."+c.Stream, "")
		api("DIRECT.GET."+c.Stream, many)
		api("DIRECT.GET."+c.Stream+".>", many)
		if c.Live {
			share("stream", "data."+s.options().Name+"."+c.Stream+".>", "", "")
		}
		for _, name := range c.Consumers {
			api("CONSUMER.INFO."+c.Stream+"."+name, "")
			api("CONSUMER.MSG.NEXT."+c.Stream+"."+name, many)
			share("service", "$JS.ACK."+s.options().Name+".*."+c.Stream+"."+name+".>", "", "")
		}
	}
	if s.options().Hub.Documents {
		api("STREAM.INFO."+DocumentStream, "")
		api("DIRECT.GET."+DocumentStream, many)
		api("DIRECT.GET."+DocumentStream+".>", many)
	}
	for _, source := range s.options().Append {
		share("service", AppendSubject(source), appendedTo(source), "")
		share("service", AppendSubject(source)+".>", appendedTo(source)+".>", "")
	}
	return out.String(), in.String()
}

// ports sets where local applications connect.
func (s *Server) ports(o *server.Options) error {
	apps := s.options().Apps
	o.DontListen = s.listen == ""
	var cert *tls.Config
	if apps.TLS.Cert != "" && (s.listen != "" || s.websocket != "") {
		var err error
		if cert, err = apps.TLS.config(); err != nil {
			return err
		}
	}
	if s.listen != "" {
		host, port, err := splitAddress(s.listen)
		if err != nil {
			return err
		}
		o.Host, o.Port = host, port
		if cert != nil {
			o.TLS, o.TLSConfig, o.TLSTimeout, o.TLSVerify = true, cert, tlsTimeout.Seconds(), apps.TLS.CA != ""
		}
	}
	if s.websocket != "" {
		host, port, err := splitAddress(s.websocket)
		if err != nil {
			return err
		}
		o.Websocket = server.WebsocketOpts{
			Host: host, Port: port, TLSConfig: cert, NoTLS: cert == nil, AllowedOrigins: apps.Origins, NoAuthUser: o.NoAuthUser,
		}
	}
	return nil
}

func splitAddress(address string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(address)
	if err == nil {
		port, err = strconv.Atoi(text)
	}
	if err != nil {
		return "", 0, fmt.Errorf("listen address %s: %w", address, err)
	}
	return host, port, nil
}

// config reads the files of t.
func (t AppTLS) config() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
	if err != nil {
		return nil, fmt.Errorf("certificate for local applications: %w", err)
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}
	if t.CA != "" {
		pem, err := os.ReadFile(t.CA)
		if err != nil {
			return nil, fmt.Errorf("authorities of local applications: %w", err)
		}
		cfg.ClientCAs, cfg.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
		if !cfg.ClientCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("authorities of local applications: %s holds no certificate in PEM", t.CA)
		}
	}
	return cfg, nil
}

// certSoon is how long before its end a certificate is a problem already.
const certSoon = 14 * 24 * time.Hour

// Examine reads the files of t and says what keeps the ports for local applications from opening, or from being accepted, now or soon. All is well if
// problem is empty; lasting is true of a problem that there is now.
func (t AppTLS) Examine(now time.Time) (problem, remedy string, lasting bool) {
	if t.Cert == "" {
		return "", "", false
	}
	cfg, err := t.config()
	if err != nil {
		return err.Error(), "put the files that belong together there, readable for the service", true
	}
	cert := cfg.Certificates[0].Leaf
	day := cert.NotAfter.UTC().Format(time.DateOnly)
	switch {
	case now.After(cert.NotAfter):
		return t.Cert + ": it has ended on " + day, "renew it, or set the clock if that is wrong", true
	case now.Before(cert.NotBefore):
		return t.Cert + ": it is for the time after " + cert.NotBefore.UTC().Format(time.DateOnly), "set the clock if that is wrong", true
	case cert.NotAfter.Sub(now) < certSoon:
		return t.Cert + ": it ends on " + day, "renew it, then `holdfast reload`", false
	}
	return "", "", false
}
