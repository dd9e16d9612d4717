package mqttserver

import (
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/holdfast-edge/holdfast/ingest/topic"
)

// Defaults of Config.
const (
	DefaultMaxConnections = 500
	DefaultMaxSessions    = 1000
	DefaultSessionExpiry  = 7 * 24 * time.Hour
	DefaultMaxKeepAlive   = 5 * time.Minute
	DefaultMaxMessage     = 64 << 10 // the default of a stream's max_msg_size
	DefaultWindow         = 256
	DefaultQueue          = 16 << 20
	DefaultMaxQueued      = 1000
	DefaultOutgoing       = 16 << 20
	DefaultMaxRetained    = 1 << 20
)

// What TLS.ClientCert may say.
const (
	CertOff      = "off"      // clients need no certificate
	CertOptional = "optional" // a client with one needs no password
	CertRequired = "required" // no client without
)

// Config is the mqttserver section of a source.
type Config struct {
	Listen         string        `yaml:"listen" doc:"address for MQTT without TLS, such as 0.0.0.0:1883; empty: none"`
	TLS            TLS           `yaml:"tls" doc:"for MQTT with TLS"`
	Users          string        `yaml:"users" doc:"file of users and hashed passwords, which holdfast password writes; read again when it changes"`
	Anonymous      bool          `yaml:"anonymous" doc:"let in clients without a user; what they may do is said by entries of access without users"`
	Access         []Access      `yaml:"access" doc:"who may publish and subscribe to what; nobody may do anything else"`
	MaxConnections int           `yaml:"max_connections" doc:"most clients at once"`
	MaxSessions    int           `yaml:"max_sessions" doc:"most sessions, those of absent clients included; above it the one that is absent longest ends"`
	SessionExpiry  time.Duration `yaml:"session_expiry" doc:"how long the session of an absent client is kept at most"`
	MaxKeepAlive   time.Duration `yaml:"max_keepalive" doc:"longest keepalive that a client of MQTT 5 may have"`
	Silence        time.Duration `yaml:"silence" doc:"without a message for this long the source is reported as silent; 0: never"`
	MaxMessage     int64         `yaml:"max_message" unit:"bytes" doc:"longest message, topic included; longer ones are counted and refused; not above max_msg_size of the stream"`
	Window         int           `yaml:"window" doc:"how many messages of one client may wait for their acknowledgement"`
	Queue          int64         `yaml:"queue" unit:"bytes" doc:"memory for messages that wait for the store"`
	MaxQueued      int           `yaml:"max_queued" doc:"how many messages may wait for one client"`
	Outgoing       int64         `yaml:"outgoing" unit:"bytes" doc:"memory for messages that wait for clients"`
	MaxRetained    int64         `yaml:"max_retained" unit:"bytes" doc:"memory for retained messages; what does not fit is stored and not retained"`
	Identify       bool          `yaml:"identify" doc:"add headers with the user and the client id to every record"`
}

// TLS says how clients connect with TLS. TLS 1.2 is the oldest version that is spoken. The files are read again when they change.
type TLS struct {
	Listen     string `yaml:"listen" doc:"address for MQTT with TLS, such as 0.0.0.0:8883; empty: none"`
	Cert       string `yaml:"cert" doc:"PEM file of the server's certificate"`
	Key        string `yaml:"key" doc:"PEM file of the key of cert"`
	ClientCA   string `yaml:"client_ca" doc:"PEM file of the authority that signs certificates of clients"`
	ClientCert string `yaml:"client_cert" enum:"off,optional,required" doc:"whether clients show a certificate; its common name is their user"`
}

// Access allows users to publish and subscribe. In the filters {user} and {clientid} stand for those of the client.
type Access struct {
	Users     []string `yaml:"users" doc:"who; empty: everybody who is let in"`
	Publish   []string `yaml:"publish" doc:"filters of topics that they may publish to"`
	Subscribe []string `yaml:"subscribe" doc:"filters that they may subscribe to, and what these cover"`
}

// SetDefaults fills in what a configuration need not say.
func (c *Config) SetDefaults() {
	*c = Config{MaxConnections: DefaultMaxConnections, MaxSessions: DefaultMaxSessions, SessionExpiry: DefaultSessionExpiry,
		MaxKeepAlive: DefaultMaxKeepAlive, MaxMessage: DefaultMaxMessage, Window: DefaultWindow, Queue: DefaultQueue,
		MaxQueued: DefaultMaxQueued, Outgoing: DefaultOutgoing, MaxRetained: DefaultMaxRetained, TLS: TLS{ClientCert: CertOff}}
}

// Validate calls fault for everything that cannot work, with the key, what is wrong and what to do.
func (c Config) Validate(fault func(key, problem, remedy string)) {
	if c.Listen == "" && c.TLS.Listen == "" {
		fault("listen", "there is no address to listen on", "set listen, such as 0.0.0.0:1883, or tls.listen")
	}
	checkAddress("listen", c.Listen, fault)
	checkAddress("tls.listen", c.TLS.Listen, fault)
	c.TLS.validate(fault)
	if c.Users == "" && !c.Anonymous && c.TLS.ClientCert == CertOff {
		fault("users", "nobody could log in", "set users to a file that holdfast password writes, or let clients in by certificate")
	}
	if len(c.Access) == 0 {
		fault("access", "nobody may publish or subscribe to anything", `add an entry, such as {publish: ["devices/{user}/#"]}`)
	}
	for i, a := range c.Access {
		a.validate(fmt.Sprintf("access[%d]", i), fault)
	}
	between := func(key string, v, low, high int64, remedy string) {
		if v < low || v > high {
			fault(key, fmt.Sprintf("%d is outside %d to %d", v, low, high), remedy)
		}
	}
	between("max_connections", int64(c.MaxConnections), 1, 50_000, "set 500")
	between("max_sessions", int64(c.MaxSessions), int64(max(c.MaxConnections, 1)), 200_000, "set at least max_connections")
	between("max_message", c.MaxMessage, 128, 64<<20, "set 64KiB")
	between("window", int64(c.Window), 1, 65535, "set 256")
	between("max_queued", int64(c.MaxQueued), 1, 65535, "set 1000")
	if c.Queue < 2*c.MaxMessage {
		fault("queue", "it is smaller than two messages of max_message", "set 16MiB, or lower max_message")
	}
	if c.Outgoing < c.MaxMessage {
		fault("outgoing", "it is smaller than max_message", "set 16MiB, or lower max_message")
	}
	if c.MaxRetained < 0 {
		fault("max_retained", "it is below zero", "set 1MiB, or 0 to retain nothing")
	}
	if c.SessionExpiry < time.Minute || c.SessionExpiry > 365*24*time.Hour {
		fault("session_expiry", fmt.Sprintf("%v is outside 1m to 365d", c.SessionExpiry), "set 7d")
	}
	if c.MaxKeepAlive < 5*time.Second || c.MaxKeepAlive > 65535*time.Second {
		fault("max_keepalive", fmt.Sprintf("%v is outside 5s to 65535s", c.MaxKeepAlive), "set 5m")
	}
	if c.Silence < 0 {
		fault("silence", "it is below zero", "set 0 to switch it off")
	}
}

func checkAddress(key, addr string, fault func(key, problem, remedy string)) {
	if addr == "" {
		return
	}
	if _, port, err := net.SplitHostPort(addr); err != nil || port == "" {
		fault(key, fmt.Sprintf("%q is not an address with a port", addr), "write it like 0.0.0.0:1883 or [::]:1883")
	}
}

func (t TLS) validate(fault func(key, problem, remedy string)) {
	switch t.ClientCert {
	case CertOff, CertOptional, CertRequired:
	default:
		fault("tls.client_cert", fmt.Sprintf("%q is unknown", t.ClientCert), "set off, optional or required")
	}
	if t.Listen == "" {
		if t.Cert != "" || t.Key != "" || t.ClientCA != "" {
			fault("tls.listen", "is missing, so the rest of tls would be ignored", "set it, such as 0.0.0.0:8883, or remove tls")
		}
		return
	}
	if t.Cert == "" || t.Key == "" {
		fault("tls.cert", "a server needs a certificate and its key", "set tls.cert and tls.key")
	}
	if (t.ClientCert == CertOptional || t.ClientCert == CertRequired) && t.ClientCA == "" {
		fault("tls.client_ca", "is missing, so no certificate of a client could be checked", "set it to the authority that signs them, or set client_cert: off")
	}
	if t.ClientCert == CertOff && t.ClientCA != "" {
		fault("tls.client_ca", "is not used with client_cert: off", "set client_cert: required or optional, or remove it")
	}
}

func (a Access) validate(path string, fault func(key, problem, remedy string)) {
	if len(a.Publish) == 0 && len(a.Subscribe) == 0 {
		fault(path, "allows nothing", "add publish or subscribe, or remove the entry")
	}
	for _, u := range a.Users {
		if err := checkUser(u); err != nil {
			fault(path+".users", fmt.Sprintf("%q: %v", u, err), "list users of the users file, or names in certificates")
		}
	}
	for _, list := range []struct {
		key     string
		filters []string
	}{{path + ".publish", a.Publish}, {path + ".subscribe", a.Subscribe}} {
		for _, f := range list.filters {
			if err := checkPattern(f); err != nil {
				fault(list.key, fmt.Sprintf("%q: %v", f, err), `write it like "devices/{user}/#"`)
			}
		}
	}
}

// checkPattern says what is wrong with a filter of an access entry.
func checkPattern(f string) error {
	plain := strings.NewReplacer("{user}", "u", "{clientid}", "c").Replace(f)
	switch {
	case strings.ContainsAny(plain, "{}"):
		return fmt.Errorf("there is no such placeholder: {user} and {clientid} are known")
	case strings.HasPrefix(plain, "$"):
		return fmt.Errorf("topics with a dollar in front belong to servers")
	}
	return topic.CheckFilter(plain)
}
