package leaf

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"
)

// Accounts of the embedded server.
const (
	AccountCapture = "CAPTURE" // captured streams, the daemon, the link to the hub
	AccountApp     = "APP"     // local applications
	accountSystem  = "SYS"
)

// What the link is run with. Pings notice a silent link after (pingMax+1) * pingInterval at the latest.
const (
	pingInterval     = 10 * time.Second
	pingMax          = 2
	dialTimeout      = 10 * time.Second
	firstInfoTimeout = 10 * time.Second
	tlsTimeout       = 10 * time.Second
	reconnectWait    = time.Second
	maxMemory        = 64 << 20 // of memory-backed streams and consumers
	unlimitedStore   = 1 << 40  // the keeper keeps the budget; without a limit the server takes 3/4 of the free disk at start
)

// denied subjects never cross the link, in either direction: captured records travel by the sourcing consumer alone, and nobody on
// the hub writes into captured streams.
var denied = []string{"data.>", "hf.>", "holdfast.>", "$MQTT.>"}

// deniedApps never cross the link of local applications: what is shared with them is for this machine.
var deniedApps = []string{"data.>", "holdfast.>", "$JS.capture.>", "$MQTT.>"}

// deniedFromHub are requests to our JetStream that change it and that the uplink does not need. The server announces its API to the
// hub as a whole; what the hub's permissions let through stops here.
func deniedFromHub(leaf string) []string {
	api := "$JS." + leaf + ".API."
	list := append([]string(nil), denied...)
	for _, s := range []string{
		"STREAM.CREATE.>", "STREAM.UPDATE.>", "STREAM.DELETE.>", "STREAM.PURGE.>", "STREAM.RESTORE.>", "STREAM.SNAPSHOT.>",
		"STREAM.MSG.DELETE.>", "STREAM.TEMPLATE.>", "STREAM.LEADER.>", "STREAM.PEER.>",
		"CONSUMER.CREATE.>", "CONSUMER.DURABLE.>", "CONSUMER.DELETE.>", "CONSUMER.PAUSE.>", "CONSUMER.UNPIN.>", "CONSUMER.LEADER.>",
		"ACCOUNT.>", "META.>", "SERVER.>", "$KV.>", "$OBJ.>",
	} {
		list = append(list, api+s)
	}
	return list
}

// identity holds the keys of the server's own users. They are made anew on every start and never leave the process.
type identity struct {
	daemon, app nkeys.KeyPair
	system      string // public key of a user nobody can be
}

func newIdentity() (identity, error) {
	var id identity
	var err error
	if id.daemon, err = nkeys.CreateUser(); err != nil {
		return id, fmt.Errorf("make keys of local users: %w", err)
	}
	if id.app, err = nkeys.CreateUser(); err != nil {
		return id, fmt.Errorf("make keys of local users: %w", err)
	}
	system, err := nkeys.CreateUser()
	if err != nil {
		return id, fmt.Errorf("make keys of local users: %w", err)
	}
	id.system, err = system.PublicKey()
	system.Wipe()
	return id, err
}

// serverOptions builds the server's options anew, as a reload wants them. remotes is nil to leave the hub out.
func (s *Server) serverOptions(remotes []*server.RemoteLeafOpts) (*server.Options, error) {
	o := &server.Options{}
	if err := s.accounts(o); err != nil {
		return nil, err
	}
	o.ServerName = s.options().Name
	o.NoSigs = true
	o.NoLog = true // the log is set by hand
	if err := s.ports(o); err != nil {
		return nil, err
	}
	apps := s.options().Apps
	o.MaxConn = apps.MaxConnections + spareConnections
	o.MaxPending = s.pending
	o.MaxControlLine, o.MaxSubTokens = maxControlLine, maxTokens
	o.StreamMaxBufferedSize = maxBuffered
	o.JetStreamLimits = server.JSLimitOpts{
		Duplicates: apps.DuplicateWindow, MaxBatchInflightPerStream: maxBatches, MaxBatchInflightTotal: maxBatches,
		MaxBatchSize: batchLimit(apps.MaxPayload), MaxBatchTimeout: batchTimeout,
	}
	o.JetStream = true
	o.JetStreamDomain = s.options().Name
	o.StoreDir = s.options().Data // the server adds "jetstream"
	o.JetStreamKey = s.options().Key
	if o.JetStreamCipher = server.ChaCha; s.options().Cipher == "aes" {
		o.JetStreamCipher = server.AES
	}
	o.JetStreamMaxMemory = maxMemory
	o.JetStreamMaxStore = s.options().MaxStore
	o.FeatureFlags = map[string]bool{server.FeatureFlagJsAckFormatV2: true, server.FeatureFlagJsAPIReplyFormatV2: true}
	o.ConnectErrorReports, o.ReconnectErrorReports = 1, 1 // every failed dial says why
	o.LeafNode.ReconnectInterval = reconnectWait
	o.LeafNode.PingInterval = pingInterval
	o.LeafNode.MaxPingsOut = pingMax
	o.LeafNode.DialTimeout = dialTimeout
	o.LeafNode.Remotes = remotes
	return o, nil
}

// remotes returns the links to the hub, switched on or off: the daemon's first. Errors name the file that cannot be used.
func (s *Server) remotes(on bool) ([]*server.RemoteLeafOpts, error) {
	var all []*server.RemoteLeafOpts
	if len(s.options().Hub.URLs) > 0 {
		r, err := s.options().Hub.remote(on)
		if err == nil {
			err = s.options().Ours()
		}
		if err != nil {
			return nil, err
		}
		r.LocalAccount, r.DenyExports, r.DenyImports = AccountCapture, denied, deniedFromHub(s.options().Name)
		s.mu.Lock()
		generation := s.generation
		s.mu.Unlock()
		if generation > 0 {
			for _, u := range r.URLs {
				u.Fragment = strconv.Itoa(generation) // part of its name, of no other meaning
			}
		}
		all = append(all, r)
	}
	if len(s.options().Apps.Hub.URLs) > 0 {
		s.mu.Lock()
		want := s.want // a redial is not for this one
		s.mu.Unlock()
		r, err := s.options().Apps.Hub.remote(want)
		if err != nil {
			return nil, fmt.Errorf("link of local applications: %w", err)
		}
		r.LocalAccount, r.DenyExports, r.DenyImports = AccountApp, deniedApps, deniedApps
		all = append(all, r)
	}
	return all, nil
}

// Ours returns an error when the credentials for the hub say that they are of another leaf: the hub would let us in, and nothing of ours through. It
// returns one, too, when their file cannot be read.
func (o Options) Ours() error {
	for _, path := range []string{o.Hub.Credentials, o.Hub.NKey} {
		if path == "" || o.Owner == nil {
			continue
		}
		file, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("credentials for the hub: %w", err)
		}
		if owner := o.Owner(file); owner != "" && owner != o.Name {
			return fmt.Errorf("credentials for the hub: %s was made for leaf %s, and this leaf is %s: bring the file that `holdfast hub enrol %[3]s` writes", path, owner, o.Name)
		}
	}
	return nil
}

// remote returns a link, switched on or off, without account and rules.
func (h Hub) remote(on bool) (*server.RemoteLeafOpts, error) {
	r := &server.RemoteLeafOpts{
		Credentials:             h.Credentials,
		FirstInfoTimeout:        firstInfoTimeout,
		DialTimeout:             dialTimeout,
		TLSTimeout:              tlsTimeout.Seconds(),
		Compression:             server.CompressionOpts{Mode: server.CompressionS2Best},
		RequestIsolation:        true,
		IgnoreDiscoveredServers: true,
		NoRandomize:             h.Prefer == PreferFirst,
		Disabled:                !on,
	}
	var err error
	r.Proxy.URL, r.Proxy.Username, r.Proxy.Timeout = h.Proxy.URL, h.Proxy.User, 0
	if r.Proxy.Password, err = h.Proxy.password(); err != nil {
		return nil, err
	}
	for _, raw := range h.URLs {
		u, err := hubURL(raw)
		if err != nil {
			return nil, fmt.Errorf("hub address: %w", err)
		}
		r.TLS = r.TLS || hubSchemes[u.Scheme]
		r.URLs = append(r.URLs, u)
	}
	if h.Credentials != "" {
		if _, err := os.ReadFile(h.Credentials); err != nil {
			return nil, fmt.Errorf("credentials for the hub: %w", err)
		}
	}
	if h.NKey != "" {
		seed, err := readSeed(h.NKey)
		if err != nil {
			return nil, err
		}
		r.Nkey = seed
	}
	if r.TLS || h.TLS.set() {
		cfg, err := h.TLS.config()
		if err != nil {
			return nil, err
		}
		r.TLS, r.TLSConfig = true, cfg
	}
	return r, nil
}

func readSeed(path string) (string, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("nkey for the hub: %w", err)
	}
	for line := range strings.Lines(string(raw)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		kp, err := nkeys.FromSeed([]byte(line))
		if err != nil {
			return "", fmt.Errorf("nkey for the hub: %s holds no seed", path)
		}
		kp.Wipe()
		return line, nil
	}
	return "", fmt.Errorf("nkey for the hub: %s is empty", path)
}

// config reads the files of t.
func (t TLS) config() (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	if t.CA != "" {
		pem, err := os.ReadFile(t.CA)
		if err != nil {
			return nil, fmt.Errorf("authorities of the hub's certificate: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("authorities of the hub's certificate: %s holds no certificate in PEM", t.CA)
		}
	}
	if t.Cert != "" {
		pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
		if err != nil {
			return nil, fmt.Errorf("certificate of the leaf: %w", err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, nil
}
