package mqtt

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/ingest"
	"github.com/holdfast-edge/holdfast/ingest/ingesttest"
	"github.com/holdfast-edge/holdfast/rig/broker"
	"github.com/holdfast-edge/holdfast/rig/leak"
	"github.com/holdfast-edge/holdfast/rig/poll"
)

// dial returns a publisher at Mosquitto.
func dial(t *testing.T, b *broker.Mosquitto, login broker.Login) *broker.Publisher {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if login.ClientID == "" {
		login.ClientID = "device"
	}
	p, err := broker.Dial(ctx, b.Addr(), login)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func publish(t *testing.T, p *broker.Publisher, msgs ...broker.Message) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := p.Publish(ctx, msgs...); err != nil {
		t.Fatal(err)
	}
}

// numbered returns messages with the payloads from to to-1.
func numbered(topic string, qos byte, from, to int) []broker.Message {
	var msgs []broker.Message
	for i := from; i < to; i++ {
		msgs = append(msgs, broker.Message{Topic: topic, Payload: fmt.Appendf(nil, "%d", i), QoS: qos})
	}
	return msgs
}

// wantNumbers wants the numbers 0 to n-1 once and in order.
func wantNumbers(t *testing.T, got []string, n int) {
	t.Helper()
	for i := range min(n, len(got)) {
		if got[i] != fmt.Sprint(i) {
			t.Fatalf("record %d is %q", i, got[i])
		}
	}
	if len(got) != n {
		t.Fatalf("%d records, want %d", len(got), n)
	}
}

func TestSessionSurvivesRestart(t *testing.T) {
	leak.Check(t)
	b := broker.Need(t, broker.Options{})
	dir, st := t.TempDir(), &fakeStore{epoch: 1}
	r := run(t, dir, config(b.URL()), st)
	r.until(ingest.Running, "")
	r.stop()
	p := dial(t, b, broker.Login{})
	publish(t, p, numbered("a", 1, 0, 3000)...) // more than Mosquitto queues by default
	st.reboot()
	r = run(t, dir, config(b.URL()), st)
	untilStored(t, st, 3000)
	wantNumbers(t, st.payloads(), 3000)
	if r.Stats().Forgotten != 0 {
		t.Errorf("Stats = %+v", r.Stats())
	}
}

func TestING078RemovedFilter(t *testing.T) {
	b := broker.Need(t, broker.Options{Persistence: true})
	dir, st := t.TempDir(), &fakeStore{epoch: 1}
	r := run(t, dir, config(b.URL(), "a/#", "b/#"), st)
	r.until(ingest.Running, "")
	r.stop()
	p := dial(t, b, broker.Login{})
	publish(t, p, broker.Message{Topic: "b/1", Payload: []byte("queued"), QoS: 1})
	st.reboot()
	r = run(t, dir, config(b.URL(), "a/#"), st)
	r.until(ingest.Running, "")
	poll.Until(t, patience, func() bool { return r.Counts().Rejected[ReasonNotSubscribed] == 1 }, "the queued message to be counted")
	publish(t, p, broker.Message{Topic: "b/1", Payload: []byte("later"), QoS: 1}, broker.Message{Topic: "a/1", Payload: []byte("last"), QoS: 1})
	untilStored(t, st, 1)
	wantPayloads(t, st, "last")
	if c := r.Counts(); c.Received != 2 || c.Rejected[ReasonNotSubscribed] != 1 {
		t.Errorf("Counts = %+v, want one message of the removed filter: it is unsubscribed", c)
	}
	r.stop()
	// It was acknowledged, so it does not come a second time.
	st.reboot()
	r = run(t, dir, config(b.URL(), "a/#"), st)
	publish(t, p, broker.Message{Topic: "a/1", Payload: []byte("once more"), QoS: 1})
	untilStored(t, st, 2)
	if c := r.Counts(); c.Received != 1 {
		t.Errorf("Counts = %+v", c)
	}
}

func TestING086QoS0WhileAway(t *testing.T) {
	b := broker.Need(t, broker.Options{})
	dir, st := t.TempDir(), &fakeStore{epoch: 1}
	r := run(t, dir, config(b.URL()), st)
	r.until(ingest.Running, "")
	r.stop()
	p := dial(t, b, broker.Login{})
	publish(t, p, numbered("a", 0, 0, 100)...)
	publish(t, p, numbered("b", 1, 0, 1)...)
	st.reboot()
	run(t, dir, config(b.URL()), st)
	untilStored(t, st, 1)
	publish(t, p, numbered("a", 0, 1, 2)...)
	untilStored(t, st, 2)
	wantNumbers(t, st.payloads(), 2)
	if st.header(0, HeaderQoS) != "" || st.header(1, HeaderQoS) != "0" {
		t.Errorf("%s = %q, %q", HeaderQoS, st.header(0, HeaderQoS), st.header(1, HeaderQoS))
	}
}

func TestING087RetainedComesAgain(t *testing.T) {
	b := broker.Need(t, broker.Options{Persistence: true})
	dir, st := t.TempDir(), &fakeStore{epoch: 1}
	p := dial(t, b, broker.Login{})
	publish(t, p, broker.Message{Topic: "a", Payload: []byte("old"), QoS: 1, Retain: true})
	for i := range 3 {
		r := run(t, dir, config(b.URL()), st)
		poll.Until(t, patience, func() bool { return st.len() == 1 && r.Stats().Repeated == uint64(min(i, 1)) }, "the retained message, time %d", i)
		r.stop()
		st.reboot()
	}
	wantPayloads(t, st, "old")
	if st.header(0, HeaderRetained) != "1" {
		t.Errorf("the record is not marked")
	}
}

// TestBrokerKilledAndRestarted kills Mosquitto while it waits for acknowledgements. What it had sent is in our queue and is
// stored whatever the broker remembers of it; the rest is on its disk.
func TestBrokerKilledAndRestarted(t *testing.T) {
	leak.Check(t)
	b := broker.Need(t, broker.Options{Persistence: true})
	dir, st := t.TempDir(), &fakeStore{epoch: 1}
	r := run(t, dir, config(b.URL()), st)
	const rounds, each = 3, 100
	for round := range rounds {
		r.until(ingest.Running, "")
		release := st.block()
		p := dial(t, b, broker.Login{})
		publish(t, p, numbered("a", 1, round*each, (round+1)*each)...)
		// Mosquitto saves a change after it has acknowledged it, so that a kill takes the last message: one that does not count.
		publish(t, p, broker.Message{Topic: "a", Payload: []byte("bait"), QoS: 1})
		b.Kill()
		r.until(ingest.Waiting, "nothing listens on "+b.Addr())
		if err := b.Restart(); err != nil {
			t.Fatal(err)
		}
		r.until(ingest.Running, "")
		release()
		poll.Until(t, patience, func() bool { return len(unique(st.payloads())) == (round+1)*each }, "%d different messages", (round+1)*each)
	}
	doubles := -rounds * each
	for _, s := range st.payloads() {
		if s != "bait" {
			doubles++
		}
	}
	t.Logf("%d messages were stored twice: a broker that comes back may give unacknowledged messages new packet ids", doubles)
	if doubles > rounds*40 { // Mosquitto has about 20 under way
		t.Errorf("%d doubles after %d kills", doubles, rounds)
	}
}

// unique returns the different payloads that count.
func unique(all []string) map[string]bool {
	set := map[string]bool{}
	for _, s := range all {
		if s != "bait" {
			set[s] = true
		}
	}
	return set
}

func TestPasswordWrong(t *testing.T) {
	leak.Check(t)
	b := broker.Need(t, broker.Options{Users: map[string]string{"pump": "secret"}})
	st := &fakeStore{epoch: 1}
	file := filepath.Join(t.TempDir(), "password")
	write := func(s string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("wrong-one\n")
	cfg := config(b.URL())
	cfg.User, cfg.PasswordFile = "pump", file
	r := run(t, t.TempDir(), cfg, st)
	if state := r.until(ingest.Denied, `the user "pump"`); state.Remedy == "" {
		t.Error("no remedy")
	}
	write("secret\n")
	r.until(ingest.Running, "")
	publish(t, dial(t, b, broker.Login{User: "pump", Password: "secret"}), numbered("a", 1, 0, 1)...)
	untilStored(t, st, 1)
	if r.log.contains("wrong-one") || r.log.contains("secret") {
		t.Error("a password is in the log")
	}
}

// TestTwin runs two sources with one client id against a real broker.
func TestTwin(t *testing.T) {
	leak.Check(t)
	b := broker.Need(t, broker.Options{})
	cfg := config(b.URL())
	cfg.ClientID = "x"
	r1 := run(t, t.TempDir(), cfg, &fakeStore{epoch: 1})
	r2 := run(t, t.TempDir(), cfg, &fakeStore{epoch: 1})
	poll.Until(t, patience, func() bool {
		const warning = "client id is used by another client too"
		return r1.log.contains(warning) || r2.log.contains(warning)
	}, "a warning")
}

// TestKillDuringDelivery kills a process that stores, again and again: every message is stored once and in order.
func TestKillDuringDelivery(t *testing.T) {
	const messages, kills = 2000, 4
	b := broker.Need(t, broker.Options{})
	dir := t.TempDir()
	c := startChild(t, dir, b.URL())
	poll.Until(t, patience, func() bool { return exists(filepath.Join(dir, "running")) }, "the child to subscribe")
	p := dial(t, b, broker.Login{})
	publish(t, p, numbered("a", 1, 0, messages)...)
	for i := range kills {
		want := (i + 1) * messages / (kills + 2)
		poll.Until(t, patience, func() bool { return len(c.payloads()) >= want }, "%d records", want)
		c.Kill()
		c = startChild(t, dir, b.URL())
	}
	poll.Until(t, patience, func() bool { return len(c.payloads()) >= messages }, "all records")
	publish(t, p, numbered("a", 1, messages, messages+1)...)
	poll.Until(t, patience, func() bool { got := c.payloads(); return got[len(got)-1] == fmt.Sprint(messages) }, "the last record")
	c.Kill()
	wantNumbers(t, c.payloads(), messages+1)
	text, err := os.ReadFile(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes of log, redelivered: %v", len(text), redelivered(text))
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func TestTLS(t *testing.T) {
	leak.Check(t)
	ca, other := ingesttest.NewAuthority(t), ingesttest.NewAuthority(t)
	cert, key := ca.Issue(t, "localhost", time.Hour)
	late, lateKey := ca.Issue(t, "localhost", -time.Hour)
	mine, mineKey := ca.Issue(t, "gateway", time.Hour)
	for _, tt := range []struct {
		name   string
		broker broker.Options
		tls    TLS
		url    func(b *broker.Mosquitto) string
		kind   ingest.Kind
		cause  string
	}{
		{"right CA", broker.Options{Cert: cert, Key: key}, TLS{CA: ca.File, ServerName: "localhost"}, nil, ingest.Running, ""},
		{"wrong CA", broker.Options{Cert: cert, Key: key}, TLS{CA: other.File, ServerName: "localhost"}, nil, ingest.Waiting, "authority that is not trusted"},
		{"wrong name", broker.Options{Cert: cert, Key: key}, TLS{CA: ca.File}, nil, ingest.Waiting, "for another name"},
		{"expired", broker.Options{Cert: late, Key: lateKey}, TLS{CA: ca.File, ServerName: "localhost"}, nil, ingest.Waiting, "not valid at this machine's time"},
		{"own certificate", broker.Options{Cert: cert, Key: key, ClientCA: ca.File}, TLS{CA: ca.File, ServerName: "localhost", Cert: mine, Key: mineKey}, nil, ingest.Running, ""},
		{"own certificate missing", broker.Options{Cert: cert, Key: key, ClientCA: ca.File}, TLS{CA: ca.File, ServerName: "localhost"}, nil, ingest.Denied, "refuses TLS with us"},
		{"file missing", broker.Options{Cert: cert, Key: key}, TLS{CA: "/nowhere/ca.pem"}, nil, ingest.Denied, "/nowhere/ca.pem"},
		{"no TLS there", broker.Options{}, TLS{CA: ca.File}, func(b *broker.Mosquitto) string { return "tls://" + b.Addr() }, ingest.Waiting, "broke the TLS handshake off"},
		{"only TLS there", broker.Options{Cert: cert, Key: key}, TLS{}, func(b *broker.Mosquitto) string { return "tcp://" + b.Addr() }, ingest.Waiting, "closed the connection in place of an answer"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := broker.Need(t, tt.broker)
			cfg := config(b.URL())
			if tt.url != nil {
				cfg.Broker = tt.url(b)
			}
			cfg.TLS = tt.tls
			r := run(t, t.TempDir(), cfg, &fakeStore{epoch: 1}, func(s *Source) { s.timing.connect = 2 * time.Second })
			if st := r.until(tt.kind, tt.cause); (st.Remedy == "") != (tt.kind == ingest.Running) {
				t.Errorf("state = %+v", st)
			}
		})
	}
}

func TestWhyThereIsNoConnection(t *testing.T) {
	for _, tt := range []struct {
		name  string
		url   string
		code  byte // answer to CONNECT of a scripted broker, when there is no url
		kind  ingest.Kind
		cause string
	}{
		{"name unknown", "tcp://broker.invalid:1883", 0, ingest.Waiting, `the broker's name "broker.invalid" is not resolved`},
		{"nothing listens", "tcp://127.0.0.1:1", 0, ingest.Waiting, "nothing listens on 127.0.0.1:1"},
		{"protocol", "", 1, ingest.Refused, "does not speak MQTT 3.1.1"},
		{"client id", "", 2, ingest.Refused, "refuses the client id"},
		{"not available", "", 3, ingest.Waiting, "not available"},
		{"password", "", 4, ingest.Denied, "does not let in without a user"},
		{"not authorised", "", 5, ingest.Denied, "does not let in without a user"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			url := tt.url
			if url == "" {
				b := newScript(t)
				url = b.url()
				stop := make(chan struct{})
				t.Cleanup(func() { <-stop })
				go func() { // until the listener is closed
					defer close(stop)
					for {
						c, err := b.ln.Accept()
						if err != nil {
							return
						}
						buf := make([]byte, 100)
						_, _ = c.Read(buf)
						_, _ = c.Write([]byte{0x20, 2, 0, tt.code})
						_ = c.Close()
					}
				}()
				t.Cleanup(func() { _ = b.ln.Close() })
			}
			r := run(t, t.TempDir(), config(url), &fakeStore{epoch: 1})
			if st := r.until(tt.kind, tt.cause); st.Remedy == "" {
				t.Errorf("state = %+v, want a remedy", st)
			}
		})
	}
}

func TestConfigFaults(t *testing.T) {
	good := config("tcp://localhost:1883")
	for _, tt := range []struct {
		name   string
		change func(c *Config)
		keys   []string
	}{
		{"good", func(*Config) {}, nil},
		{"good TLS", func(c *Config) { c.Broker = "mqtts://broker"; c.TLS = TLS{CA: "a", Cert: "b", Key: "c"} }, nil},
		{"no broker", func(c *Config) { c.Broker = "" }, []string{"broker"}},
		{"scheme", func(c *Config) { c.Broker = "http://broker" }, []string{"broker"}},
		{"no scheme", func(c *Config) { c.Broker = "broker:1883" }, []string{"broker"}},
		{"password in address", func(c *Config) { c.Broker = "tcp://me:secret@broker" }, []string{"broker"}},
		{"path", func(c *Config) { c.Broker = "tcp://broker/x" }, []string{"broker"}},
		{"no topic", func(c *Config) { c.Topics = nil }, []string{"topics"}},
		{"bad filters", func(c *Config) { c.Topics = []string{"a/#/b", "a+", "", "$SYS/#", "$share/g/a"} }, []string{"topics", "topics", "topics", "topics", "topics"}},
		{"covered filter", func(c *Config) { c.Topics = []string{"a/b", "a/#"} }, []string{"topics"}},
		{"same filter", func(c *Config) { c.Topics = []string{"a", "a"} }, []string{"topics"}},
		{"qos", func(c *Config) { c.QoS = 3 }, []string{"qos"}},
		{"blank client id", func(c *Config) { c.ClientID = " " }, []string{"client_id"}},
		{"password without user", func(c *Config) { c.PasswordFile = "x" }, []string{"password_file"}},
		{"cert without key", func(c *Config) { c.Broker = "tls://b"; c.TLS.Cert = "x" }, []string{"tls.key"}},
		{"TLS unused", func(c *Config) { c.TLS.CA = "x" }, []string{"tls"}},
		{"times", func(c *Config) { c.KeepAlive = 0; c.Silence = -1 }, []string{"keepalive", "silence"}},
		{"sizes", func(c *Config) { c.MaxMessage = 0; c.Queue = -1 }, []string{"max_message", "queue"}},
		{"retained", func(c *Config) { c.Retained = "first" }, []string{"retained"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := good
			tt.change(&c)
			var keys []string
			c.Validate(func(key, problem, remedy string) {
				keys = append(keys, key)
				if problem == "" || remedy == "" {
					t.Errorf("fault of %s: problem %q, remedy %q", key, problem, remedy)
				}
			})
			if !reflect.DeepEqual(keys, tt.keys) {
				t.Errorf("faults in %q, want %q", keys, tt.keys)
			}
			_, err := New(Options{Name: "m", Config: c, Log: nopLog()})
			if (err != nil) != (len(tt.keys) > 0) {
				t.Errorf("New = %v", err)
			}
		})
	}
}
