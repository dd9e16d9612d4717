package leaf

import (
	"fmt"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
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
	Link        string   `yaml:"link,scalar" enum:"always,on-demand" doc:"whether the link is kept up, for about 400 MB a month for each stream when idle, or opened when on_demand says so"`
	OnDemand    OnDemand `yaml:"on_demand" doc:"when the link is opened with link: on-demand; the first that is reached counts, 0 never is"`
	Rate        int64    `yaml:"rate" unit:"bytes" doc:"what records may take of the link per second on average, counted before compression; 0: all of it"`
	Commands    bool     `yaml:"commands" doc:"execute what the hub's stream COMMANDS has for this gateway, as the fleet file allows"`
	Documents   bool     `yaml:"documents" doc:"keep what the hub's bucket DOCUMENTS has for this gateway in a local one, for local applications to read"`
}

// How the link is kept.
const (
	LinkAlways   = "always"
	LinkOnDemand = "on-demand"
)

// OnDemand says when a link that is opened on demand is opened.
type OnDemand struct {
	Records int           `yaml:"records" doc:"so many records wait"`
	Bytes   int64         `yaml:"bytes" unit:"bytes" doc:"they have so many bytes"`
	Age     time.Duration `yaml:"age" doc:"something has waited for so long"`
	Every   time.Duration `yaml:"every" doc:"the link has not been up for so long, whether something waits or not: for commands, and so that the hub hears of us"`
	Linger  time.Duration `yaml:"linger" doc:"the link is closed when nothing has waited for so long"`
}

func (d OnDemand) validate(fault func(key, problem, remedy string)) {
	if d.Records < 0 || d.Bytes < 0 || d.Age < 0 || d.Every < 0 || d.Linger < 0 {
		fault("on_demand", "a value is negative", "use 0 for what does not matter")
	}
	if d.Records == 0 && d.Bytes == 0 && d.Age == 0 && d.Every == 0 {
		fault("on_demand", "the link would never be opened", "set records, bytes, age or every")
	}
}

// DocumentStream is the stream of the bucket with the hub's documents.
const DocumentStream = "KV_DOCUMENTS"

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
func (h *Hub) SetDefaults() {
	h.Domain, h.Prefer, h.Link = DefaultDomain, PreferAny, LinkAlways
	h.OnDemand = OnDemand{Records: 1000, Bytes: 1 << 20, Age: 15 * time.Minute, Linger: 10 * time.Second}
}

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
	switch h.Link {
	case LinkAlways, "":
	case LinkOnDemand:
		h.OnDemand.validate(fault)
	default:
		fault("link", fmt.Sprintf("is %q", h.Link), "choose always or on-demand")
	}
	if h.Rate < 0 {
		fault("rate", fmt.Sprintf("is %d", h.Rate), "use 0 for no limit")
	}
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
