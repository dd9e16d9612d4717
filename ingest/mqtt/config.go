package mqtt

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/holdfast-edge/holdfast/ingest/topic"
)

// Defaults of Config.
const (
	DefaultQoS        = 1
	DefaultKeepAlive  = 30 * time.Second
	DefaultQueue      = 16 << 20
	DefaultMaxMessage = 1 << 20
	DefaultRetained   = RetainedOnce
)

// What Config.Retained may say of retained messages, which a broker sends again at every subscription.
const (
	RetainedOnce = "once" // store the same payload on the same topic once
	RetainedAll  = "all"  // store each time
	RetainedSkip = "skip" // never store, count as rejected
)

// Limits of Config.
const (
	maxClientID  = 65535
	minKeepAlive = 5 * time.Second
	maxKeepAlive = 65535 * time.Second // MQTT 3.1.1 section 3.1.2.10
	maxMaxBytes  = 256 << 20           // MQTT 3.1.1 section 2.2.3
)

// Config is the mqtt section of a source.
type Config struct {
	Broker       string        `yaml:"broker" doc:"address of the broker: tcp://host:1883 or tls://host:8883"`
	Fallback     []string      `yaml:"fallback" doc:"further addresses of the same broker, such as nodes of its cluster, tried in turn while the ones before are not reached"`
	Topics       []string      `yaml:"topics" doc:"topic filters to subscribe to"`
	QoS          int           `yaml:"qos" doc:"0, 1 or 2; with 0 a lost connection loses messages, 1 and 2 lose none and store each once as long as the broker keeps its session; 2 costs more and is not safer"`
	ClientID     string        `yaml:"client_id" doc:"name of the session at the broker; empty: made of leaf and source name"`
	User         string        `yaml:"user" doc:"user name; empty: anonymous"`
	PasswordFile string        `yaml:"password_file" doc:"file with the password of the user"`
	TLS          TLS           `yaml:"tls" doc:"for a broker behind TLS"`
	KeepAlive    time.Duration `yaml:"keepalive" doc:"how often an idle connection is checked"`
	Silence      time.Duration `yaml:"silence" doc:"without a message for this long the source is reported as silent; 0: never"`
	Retained     string        `yaml:"retained" enum:"once,all,skip" doc:"which retained messages are stored"`
	Queue        int64         `yaml:"queue" unit:"bytes" doc:"memory for messages that wait for the store"`
	MaxMessage   int64         `yaml:"max_message" unit:"bytes" doc:"longest payload; longer ones are counted and refused"`
}

// TLS says how a broker behind TLS is reached. TLS 1.2 is the oldest version that is spoken.
type TLS struct {
	CA         string `yaml:"ca" doc:"PEM file of the authority that signed the broker's certificate; empty: those of the system"`
	Cert       string `yaml:"cert" doc:"PEM file of our certificate, when the broker wants one"`
	Key        string `yaml:"key" doc:"PEM file of the key of cert"`
	ServerName string `yaml:"server_name" doc:"name in the broker's certificate, when it is not the host of the address"`
}

// SetDefaults fills in what a configuration need not say.
func (c *Config) SetDefaults() {
	*c = Config{QoS: DefaultQoS, KeepAlive: DefaultKeepAlive, Queue: DefaultQueue, MaxMessage: DefaultMaxMessage, Retained: DefaultRetained}
}

// Validate calls fault for everything that cannot work, with the key, what is wrong and what to do.
func (c Config) Validate(fault func(key, problem, remedy string)) {
	if _, err := parseBroker(c.Broker); err != nil {
		fault("broker", err.Error(), `write it like "tcp://127.0.0.1:1883" or "tls://broker.example.com:8883"`)
	}
	for i, other := range c.Fallback {
		if _, err := parseBroker(other); err != nil {
			fault("fallback", err.Error(), "write each like broker")
		}
		if other == c.Broker || slices.Contains(c.Fallback[:i], other) {
			fault("fallback", fmt.Sprintf("%q is listed already", other), "remove it")
		}
	}
	c.validateTopics(fault)
	if c.QoS < 0 || c.QoS > 2 {
		fault("qos", fmt.Sprintf("%d is no quality of service", c.QoS), "set 1 (or 0 for readings that may get lost)")
	}
	if len(c.ClientID) > maxClientID || !utf8.ValidString(c.ClientID) || strings.ContainsFunc(c.ClientID, isControl) {
		fault("client_id", "it is too long or has characters that MQTT does not allow", "use up to 23 letters and digits, or leave it out")
	}
	if c.ClientID != "" && strings.TrimSpace(c.ClientID) == "" {
		fault("client_id", "it is blank, so the broker could not keep a session for it", "leave it out: it is then made of leaf and source name")
	}
	if c.PasswordFile != "" && c.User == "" {
		fault("password_file", "a password without a user cannot be sent", "set user too")
	}
	c.validateTLS(fault)
	if c.KeepAlive < minKeepAlive || c.KeepAlive > maxKeepAlive {
		fault("keepalive", fmt.Sprintf("%v is outside %v to %v", c.KeepAlive, minKeepAlive, maxKeepAlive), "set 30s")
	}
	if c.Silence < 0 {
		fault("silence", "it is below zero", "set 0 to switch it off")
	}
	switch c.Retained {
	case RetainedOnce, RetainedAll, RetainedSkip:
	default:
		fault("retained", fmt.Sprintf("%q is unknown", c.Retained), "set once, all or skip")
	}
	if c.MaxMessage < 1 || c.MaxMessage > maxMaxBytes {
		fault("max_message", fmt.Sprintf("%d bytes is outside 1 to %d", c.MaxMessage, maxMaxBytes), "set 1MiB")
	}
	if c.Queue < c.MaxMessage {
		fault("queue", "it is smaller than max_message", "set 16MiB, or lower max_message")
	}
}

func (c Config) validateTopics(fault func(key, problem, remedy string)) {
	if len(c.Topics) == 0 {
		fault("topics", "no topic is given", `list at least one, like ["sensors/#"]`)
	}
	for i, f := range c.Topics {
		if err := topic.CheckFilter(f); err != nil {
			fault("topics", fmt.Sprintf("%q: %v", f, err), `write it like "sensors/+/temperature" or "sensors/#"`)
			continue
		}
		switch {
		case strings.HasPrefix(f, "$SYS/") || f == "$SYS":
			fault("topics", fmt.Sprintf("%q is the broker's own monitoring", f), "remove it")
		case strings.HasPrefix(f, "$share/") || strings.HasPrefix(f, "$queue/"):
			fault("topics", fmt.Sprintf("%q is a shared subscription, which splits the order of readings between clients", f), "subscribe to the topic itself")
		}
		for j, other := range c.Topics {
			if j != i && topic.Covers(other, f) && (other != f || j < i) {
				fault("topics", fmt.Sprintf("%q is already covered by %q: its messages would arrive twice", f, other), "remove one of them")
				break
			}
		}
	}
}

func (c Config) validateTLS(fault func(key, problem, remedy string)) {
	if (c.TLS.Cert == "") != (c.TLS.Key == "") {
		key := "tls.cert"
		if c.TLS.Key == "" {
			key = "tls.key"
		}
		fault(key, "a certificate and its key are only of use together", "set tls.cert and tls.key, or neither")
	}
	secure := false
	for _, b := range c.brokers() {
		a, err := parseBroker(b)
		secure = secure || err != nil || a.secure
	}
	if !secure && c.TLS != (TLS{}) {
		fault("tls", "the broker's address is not a TLS address, so this would be ignored", `write the address as "tls://…", or remove tls`)
	}
}

// brokers returns all addresses, the first choice first.
func (c Config) brokers() []string { return append([]string{c.Broker}, c.Fallback...) }

// address is where a broker listens.
type address struct {
	url    string // as it is configured
	host   string
	addr   string // host and port
	secure bool
}

func parseBroker(s string) (address, error) {
	if s == "" {
		return address{}, fmt.Errorf("no address is given")
	}
	u, err := url.Parse(s)
	if err != nil {
		// The text of the error repeats the address, in which somebody may have written a password.
		return address{}, fmt.Errorf("it is not an address")
	}
	a, port := address{url: s, host: u.Hostname()}, "1883"
	switch u.Scheme {
	case "tcp", "mqtt":
	case "tls", "ssl", "mqtts":
		a.secure, port = true, "8883"
	default:
		return address{}, fmt.Errorf("it does not begin with tcp:// or tls://")
	}
	switch {
	case u.User != nil:
		return address{}, fmt.Errorf("user and password do not belong here: set user and password_file")
	case a.host == "":
		return address{}, fmt.Errorf("the host is missing")
	case u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "":
		return address{}, fmt.Errorf("there is something behind host and port")
	}
	if p := u.Port(); p != "" {
		port = p
	}
	a.addr = net.JoinHostPort(a.host, port)
	return a, nil
}

// clientID returns the configured client id, or one that is always the same for this source of this leaf and not used by
// another: a session at the broker belongs to its client id. It has 23 characters at most, as old brokers want it
// (MQTT 3.1.1 section 3.1.3.1).
func (c Config) clientID(leaf, source string) string {
	if c.ClientID != "" {
		return c.ClientID
	}
	sum := sha256.Sum256([]byte(leaf + "\x00" + source))
	hash := strings.ToLower(base32.StdEncoding.EncodeToString(sum[:])[:10])
	var name []byte
	for i := 0; i < len(source) && len(name) < 9; i++ {
		if b := source[i]; '0' <= b && b <= '9' || 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z' {
			name = append(name, b)
		}
	}
	return "hf-" + string(name) + "-" + hash
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }
