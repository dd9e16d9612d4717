package leaf

import (
	"fmt"
	"net"
	"regexp"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"
	"golang.org/x/crypto/bcrypt"
)

// Defaults of the apps section, which suit a board with 512 MB.
const (
	defaultAppMem          = 32 << 20
	defaultAppFile         = 256 << 20
	defaultAppConnections  = 16
	defaultAppSubs         = 256
	defaultAppPayload      = 1 << 20
	defaultAppStreams      = 64
	defaultAppSubjects     = 50_000
	defaultAppConsumers    = 64
	defaultDuplicateWindow = 2 * time.Minute
	maxAppPayload          = 1 << 20 // of the server
)

// Apps is the apps section: what programs beside the daemon may do. All limits are of all of them together unless said otherwise.
type Apps struct {
	Websocket string   `yaml:"websocket" doc:"address at which they connect by websocket, as 127.0.0.1:8222; empty: no port"`
	Origins   []string `yaml:"origins" doc:"web pages that may connect by websocket, as https://panel.example.com; empty: all"`
	TLS       AppTLS   `yaml:"tls" doc:"certificate of leaf.nats and websocket; without it both are for this machine alone"`
	Users     []User   `yaml:"users" doc:"who may connect; with none, everybody on this machine may"`

	MaxMem           int64         `yaml:"max_mem" unit:"bytes" doc:"what their memory streams may hold"`
	MaxFile          int64         `yaml:"max_file" unit:"bytes" doc:"what their file streams may take on disk, at most what the streams leave of storage.budget; 0: they get no JetStream of their own"`
	MaxStreams       int           `yaml:"max_streams" doc:"how many streams they may have, buckets and object stores among them"`
	MaxConsumers     int           `yaml:"max_consumers" doc:"how many consumers one stream of theirs may have"`
	MaxConnections   int           `yaml:"max_connections" doc:"how many may be connected"`
	MaxSubscriptions int           `yaml:"max_subscriptions" doc:"how many subscriptions one connection may have"`
	MaxSubjects      int           `yaml:"max_subjects" doc:"how many different subjects their streams may hold, keys of buckets among them: each takes memory; above, they can store nothing more until some are removed"`
	MaxPayload       int64         `yaml:"max_payload" unit:"bytes" doc:"the largest message that one of them may send"`
	DuplicateWindow  time.Duration `yaml:"max_duplicate_window" doc:"the longest duplicate_window of a stream of theirs: message IDs are kept in memory for so long"`

	Mappings []Mapping  `yaml:"mappings" doc:"subjects that are others to everybody who subscribes, streams too"`
	Captured []Captured `yaml:"captured" doc:"captured streams that they may read, below $JS.capture.API"`
	Hub      Hub        `yaml:"hub" doc:"a link of their own to an account of their own at the hub; without urls there is none"`
}

// AppTLS is the certificate of the ports for local applications.
type AppTLS struct {
	Cert string `yaml:"cert" doc:"file with the certificate and what it was signed by"`
	Key  string `yaml:"key" doc:"file with the key of cert"`
	CA   string `yaml:"ca" doc:"file with the authorities that must have signed the certificate of whoever connects; empty: none is asked for"`
}

// User is somebody who may connect at the ports for local applications.
type User struct {
	Name      string   `yaml:"name" doc:"name, with a password"`
	Password  string   `yaml:"password" doc:"hash of the password, as holdfast password prints it"`
	NKey      string   `yaml:"nkey" doc:"public key, U and 55 more, in the place of name and password"`
	Publish   Subjects `yaml:"publish" doc:"what the user may send, requests too"`
	Subscribe Subjects `yaml:"subscribe" doc:"what the user may receive, replies too: they come to _INBOX.> unless the client is told otherwise"`

	MaxConnections   int `yaml:"max_connections" doc:"how many connections the user may have of those of all; the newest are closed within a second; 0: no limit of its own"`
	MaxSubscriptions int `yaml:"max_subscriptions" doc:"how many subscriptions they may have together; 0: no limit of its own"`
}

// Subjects says which subjects are allowed. Without an allow list all are that deny leaves.
type Subjects struct {
	Allow []string `yaml:"allow" doc:"subjects, with wildcards; none: all"`
	Deny  []string `yaml:"deny" doc:"subjects out of those that are not allowed after all"`
}

// Mapping gives what local applications publish another subject.
type Mapping struct {
	From string `yaml:"from" doc:"subject as it is published; * stands for a word"`
	To   string `yaml:"to" doc:"subject that it gets, as orders.{{wildcard(1)}}.{{partition(3,1)}}"`
}

// Captured is a captured stream that local applications may read.
type Captured struct {
	Stream    string   `yaml:"stream" doc:"name of a stream of this configuration"`
	Live      bool     `yaml:"live" doc:"new records reach subscribers of data.<leaf>.<stream>.> at once"`
	Consumers []string `yaml:"consumers" doc:"names of durable pull consumers that are made on it; what they acknowledge is kept on flash"`
}

// SetDefaults sets what the file may leave out.
func (a *Apps) SetDefaults() {
	a.MaxMem, a.MaxFile, a.MaxPayload = defaultAppMem, defaultAppFile, defaultAppPayload
	a.MaxStreams, a.MaxConsumers = defaultAppStreams, defaultAppConsumers
	a.MaxSubjects = defaultAppSubjects
	a.MaxConnections, a.MaxSubscriptions = defaultAppConnections, defaultAppSubs
	a.DuplicateWindow = defaultDuplicateWindow
}

// limited returns a with the default limits if it has none.
func (a Apps) limited() Apps {
	if a.MaxConnections > 0 {
		return a
	}
	limits := Apps{Websocket: a.Websocket, Origins: a.Origins, TLS: a.TLS, Users: a.Users, Mappings: a.Mappings, Captured: a.Captured, Hub: a.Hub}
	limits.SetDefaults()
	return limits
}

// Validate reports every fault of the section.
func (a Apps) Validate(fault func(key, problem, remedy string)) {
	if a.Websocket != "" && !listenAddress(a.Websocket) {
		fault("websocket", fmt.Sprintf("%q is not an address", a.Websocket), "write host:port, as 127.0.0.1:8222")
	}
	if (a.TLS.Cert == "") != (a.TLS.Key == "") {
		fault("tls", "cert and key go together", "give both or none")
	}
	if a.TLS.CA != "" && a.TLS.Cert == "" {
		fault("tls.ca", "is for checking others, and there is no certificate of our own", "add cert and key")
	}
	for _, n := range []struct {
		key         string
		value, most int64
	}{
		{"max_mem", a.MaxMem, maxMemory}, {"max_file", a.MaxFile, unlimitedStore}, {"max_payload", a.MaxPayload, maxAppPayload},
		{"max_streams", int64(a.MaxStreams), 10_000}, {"max_consumers", int64(a.MaxConsumers), 10_000},
		{"max_subjects", int64(a.MaxSubjects), 100_000_000},
		{"max_connections", int64(a.MaxConnections), 10_000}, {"max_subscriptions", int64(a.MaxSubscriptions), 1_000_000},
	} {
		least := int64(1)
		if n.key == "max_file" {
			least = 0
		}
		if n.value < least || n.value > n.most {
			fault(n.key, fmt.Sprintf("is %d", n.value), fmt.Sprintf("choose %d to %d", least, n.most))
		}
	}
	if a.DuplicateWindow < time.Second {
		fault("max_duplicate_window", "is shorter than a second", "choose 1s at least")
	}
	for i, m := range a.Mappings {
		if _, err := server.NewSubjectTransform(m.From, m.To); err != nil || m.From == "" || m.To == "" {
			fault(fmt.Sprintf("mappings[%d]", i), fmt.Sprintf("%q cannot become %q", m.From, m.To), "every * of from stands in to as {{wildcard(1)}} or in {{partition(3,1)}}; see the documentation of NATS on subject mapping")
		}
	}
	for i, m := range a.Mappings {
		if server.SubjectsCollide(m.From, AppendSubject(">")) {
			fault(fmt.Sprintf("mappings[%d].from", i), fmt.Sprintf("%q takes what is appended to sources by %s", m.From, AppendSubject(">")), "choose another subject")
		}
	}
	a.users(fault)
	seen := map[string]bool{}
	for i, c := range a.Captured {
		key := fmt.Sprintf("captured[%d]", i)
		if seen[c.Stream] {
			fault(key+".stream", c.Stream+" is there already", "keep one of the two")
		}
		seen[c.Stream] = true
		for j, name := range c.Consumers {
			if !nameForm.MatchString(name) || strings.HasPrefix(name, "up_") {
				fault(fmt.Sprintf("%s.consumers[%d]", key, j), fmt.Sprintf("%q is not a name of a consumer", name), "use at most 64 letters, digits, - and _; up_ in front is ours")
			}
		}
	}
}

func (a Apps) users(fault func(key, problem, remedy string)) {
	seen := map[string]bool{}
	for i, u := range a.Users {
		key := fmt.Sprintf("users[%d]", i)
		switch {
		case u.Name == "" && u.NKey == "":
			fault(key, "has neither name nor nkey", "give it name and password, or nkey")
		case u.NKey != "" && (u.Name != "" || u.Password != ""):
			fault(key+".nkey", "there is a name or password, too", "keep one of the two")
		case u.NKey != "" && !nkeys.IsValidPublicUserKey(u.NKey):
			fault(key+".nkey", "is not the public key of a user", "write the one that begins with U; the seed stays with the application")
		case u.Name != "" && !nameForm.MatchString(u.Name):
			fault(key+".name", fmt.Sprintf("%q is not a name", u.Name), "use at most 64 letters, digits, - and _")
		case u.Name != "" && !hashForm.MatchString(u.Password):
			fault(key+".password", "is not the hash of a password", "run `holdfast password`, which makes one")
		case u.MaxConnections < 0 || u.MaxSubscriptions < 0:
			fault(key+".max_connections", "a limit is negative", "use 0 for none")
		case seen[u.Name+u.NKey]:
			fault(key, "is there already", "keep one of the two")
		}
		seen[u.Name+u.NKey] = true
		for _, list := range []struct {
			key      string
			subjects []string
		}{
			{"publish.allow", u.Publish.Allow}, {"publish.deny", u.Publish.Deny},
			{"subscribe.allow", u.Subscribe.Allow}, {"subscribe.deny", u.Subscribe.Deny},
		} {
			for j, s := range list.subjects {
				if !subjectForm(s) {
					fault(fmt.Sprintf("%s.%s[%d]", key, list.key, j), fmt.Sprintf("%q is not a subject", s), "write words with dots between; * stands for one, > at the end for all that follow")
				}
			}
		}
	}
}

// hashForm is a bcrypt hash.
var hashForm = regexp.MustCompile(`^\$2[abxy]\$[0-9]{2}\$[./A-Za-z0-9]{53}$`)

// hashCost of bcrypt: a tenth of a second on a small board, at each connect.
const hashCost = 10

// HashPassword returns the hash of a password for User.Password. A password of more than 72 bytes is an error.
func HashPassword(password string) (string, error) {
	hash, err := bcrypt.GenerateFromPassword([]byte(password), hashCost)
	if err != nil {
		return "", fmt.Errorf("hash password: %w", err)
	}
	return string(hash), nil
}

// subjectForm tells whether a permission can name s.
func subjectForm(s string) bool {
	tokens := strings.Split(s, ".")
	for i, token := range tokens {
		if token == "" || strings.ContainsAny(token, " \t\r\n\"\\") || token == ">" && i < len(tokens)-1 {
			return false
		}
	}
	return true
}

func listenAddress(s string) bool {
	_, port, err := net.SplitHostPort(s)
	return err == nil && port != ""
}

// Loopback tells whether an address that is listened at can be reached from this machine alone.
func Loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	return err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
}
