package leaf

import (
	"fmt"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
)

// Defaults of the leaf and hub sections.
const (
	DefaultData   = "/var/lib/holdfast"
	DefaultDomain = "hub"
)

// Config is the leaf section.
type Config struct {
	Name string `yaml:"name" doc:"name of this gateway, unique in the fleet: letters, digits, - and _"`
	Data string `yaml:"data" doc:"directory of the store"`
	NATS string `yaml:"nats" doc:"address at which local applications connect, as 127.0.0.1:4222; empty: no port"`
}

// SetDefaults sets what the file may leave out.
func (c *Config) SetDefaults() { c.Data = DefaultData }

// nameForm is what a subject token, a JetStream domain and a file name can all hold.
var nameForm = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// reservedDomains are names that the server keeps for itself between "$JS." and ".API".
var reservedDomains = []string{"ACK", "API", "EVENT", "FC", "SNAPSHOT"}

// Validate reports every fault of the section.
func (c Config) Validate(fault func(key, problem, remedy string)) {
	switch {
	case c.Name == "":
		fault("name", "the gateway has no name", "give it one that no other gateway of the fleet has")
	case !nameForm.MatchString(c.Name):
		fault("name", fmt.Sprintf("%q cannot be part of a subject", c.Name), "use at most 64 letters, digits, - and _")
	case slices.Contains(reservedDomains, strings.ToUpper(c.Name)):
		fault("name", fmt.Sprintf("%q has a meaning of its own in JetStream subjects", c.Name), "choose another name")
	}
	if c.Data == "" {
		fault("data", "no directory for the store", "remove the key for "+DefaultData)
	}
	if c.NATS != "" && !listenAddress(c.NATS) {
		fault("nats", fmt.Sprintf("%q is not an address", c.NATS), "write host:port, as 127.0.0.1:4222")
	}
}

// Hub is the hub section. Without URLs there is no uplink.
type Hub struct {
	URLs        []string `yaml:"urls" doc:"addresses of the hub's leaf listeners, as tls://hub.example.com:7422"`
	Domain      string   `yaml:"domain" doc:"JetStream domain of the hub"`
	Credentials string   `yaml:"credentials" doc:"file with the user JWT and seed for a hub in operator mode"`
	NKey        string   `yaml:"nkey" doc:"file with the seed of an nkey user"`
	TLS         TLS      `yaml:"tls" doc:"how the hub is verified, and how the leaf proves itself"`
	Prefer      string   `yaml:"prefer,scalar" enum:"any,first" doc:"which of several urls is used: any, or the first that answers, and the first of all again as soon as it does"`
	Proxy       Proxy    `yaml:"proxy" doc:"HTTP proxy on the way to the hub"`
}

// Preferences among several addresses of the hub.
const (
	PreferAny   = "any"
	PreferFirst = "first"
)

// Proxy is an HTTP proxy that connects through to the hub. The zero value is none.
type Proxy struct {
	URL          string `yaml:"url" doc:"address of the proxy, as http://proxy.example.com:3128; empty: none"`
	User         string `yaml:"user" doc:"user at the proxy; empty: none"`
	PasswordFile string `yaml:"password_file" doc:"file with the password of user"`
}

func (p Proxy) validate(fault func(key, problem, remedy string)) {
	u, err := url.Parse(p.URL)
	switch {
	case p == Proxy{}:
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		fault("proxy.url", "is not the address of an HTTP proxy", "write http://host:port")
	case u.User != nil:
		fault("proxy.url", "has a user in it", "use proxy.user and proxy.password_file")
	case (p.User == "") != (p.PasswordFile == ""):
		fault("proxy.user", "user and password_file go together", "give both or none")
	}
}

// password reads the proxy's password.
func (p Proxy) password() (string, error) {
	if p.PasswordFile == "" {
		return "", nil
	}
	b, err := os.ReadFile(p.PasswordFile)
	if err != nil {
		return "", fmt.Errorf("password for the proxy: %w", err)
	}
	if text := strings.TrimRight(string(b), "\r\n"); text != "" {
		return text, nil
	}
	return "", fmt.Errorf("password for the proxy: %s is empty", p.PasswordFile)
}

// TLS says how the hub is verified and how the leaf proves itself. The zero value verifies the hub by the system's authorities when
// its address says tls or the hub demands it.
type TLS struct {
	CA         string `yaml:"ca" doc:"file with the authorities that may sign the hub's certificate; empty: the system's"`
	Cert       string `yaml:"cert" doc:"file with the leaf's own certificate"`
	Key        string `yaml:"key" doc:"file with the key of cert"`
	ServerName string `yaml:"server_name" doc:"name in the hub's certificate, when its address has another"`
}

// set is true when the section says anything.
func (t TLS) set() bool { return t != TLS{} }

// SetDefaults sets what the file may leave out.
func (h *Hub) SetDefaults() { h.Domain, h.Prefer = DefaultDomain, PreferAny }

// Validate reports every fault of the section.
func (h Hub) Validate(fault func(key, problem, remedy string)) {
	websocket := 0
	for i, s := range h.URLs {
		u, err := hubURL(s)
		if err != nil {
			fault(fmt.Sprintf("urls[%d]", i), err.Error(), "write tls://host:7422")
			continue
		}
		if u.Scheme == "ws" || u.Scheme == "wss" {
			websocket++
		}
	}
	if websocket > 0 && websocket < len(h.URLs) {
		fault("urls", "some addresses are of websockets and some are not", "use one kind")
	}
	if !nameForm.MatchString(h.Domain) {
		fault("domain", fmt.Sprintf("%q is not a JetStream domain", h.Domain), "use letters, digits, - and _; hubs made by our plan have "+DefaultDomain)
	}
	if h.Credentials != "" && h.NKey != "" {
		fault("nkey", "there are credentials, too", "keep one of the two")
	}
	if h.Prefer != PreferAny && h.Prefer != PreferFirst && h.Prefer != "" {
		fault("prefer", fmt.Sprintf("is %q", h.Prefer), "choose any or first")
	}
	h.Proxy.validate(fault)
	if (h.TLS.Cert == "") != (h.TLS.Key == "") {
		fault("tls", "cert and key go together", "give both or none")
	}
}

// hubSchemes are the schemes of hub addresses, with true for those that demand TLS.
var hubSchemes = map[string]bool{"nats-leaf": false, "nats": false, "leaf": false, "tls": true, "ws": false, "wss": true}

// hubURL parses an address of the hub. Errors do not show a password.
func hubURL(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	if err != nil {
		return nil, fmt.Errorf("the address cannot be parsed") // the parser's error repeats it, password and all
	}
	if _, known := hubSchemes[u.Scheme]; !known || u.Host == "" {
		return nil, fmt.Errorf("%q is not an address of a hub", u.Redacted())
	}
	if u.Hostname() == "" {
		return nil, fmt.Errorf("%q names no host", u.Redacted())
	}
	if u.Path != "" && u.Path != "/" && u.Scheme != "ws" && u.Scheme != "wss" {
		return nil, fmt.Errorf("%q has a path", u.Redacted())
	}
	return u, nil
}
