package mqtt

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-edge/holdfast/ingest"
	"github.com/holdfast-edge/holdfast/rig/broker"
	"github.com/holdfast-edge/holdfast/rig/leak"
)

func levels(list []ingest.Finding) string {
	var out []string
	for _, f := range list {
		what, _, _ := strings.Cut(f.What, " tcp")
		out = append(out, what+"="+string(f.Level))
	}
	return strings.Join(out, ", ")
}

func TestExamine(t *testing.T) {
	leak.Check(t)
	b := broker.Need(t, broker.Options{Persistence: true, Users: map[string]string{"hf": "secret"}, ACL: "user hf\ntopic read a/#\ntopic read $SYS/#"})
	password := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(password, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	examine := func(change func(*Config)) []ingest.Finding {
		cfg := config(b.URL(), "a/#")
		cfg.User, cfg.PasswordFile = "hf", password
		change(&cfg)
		return Examine(t.Context(), Options{Name: "m", Leaf: "l", Config: cfg})
	}
	for _, tt := range []struct {
		name   string
		change func(*Config)
		want   string
	}{
		{"right", func(*Config) {}, "broker reached=ok, subscriptions granted=ok, session kept=ok"},
		{"wrong user", func(c *Config) { c.User = "x" }, "broker reached=failure"},
		{"QoS 0", func(c *Config) { c.QoS = 0 }, "qos=warning, broker reached=ok"},
		{"one of two", func(c *Config) { c.Fallback = []string{"tcp://127.0.0.1:1"} }, "broker reached=ok, subscriptions granted=ok, session kept=ok, broker keeps data"},
	} {
		list := examine(tt.change)
		if got := levels(list); !strings.HasPrefix(got, tt.want) {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
		for _, f := range list {
			if (f.Cause == "") != (f.Level == ingest.Fine) || (f.Remedy == "") != (f.Level == ingest.Fine) {
				t.Errorf("%s: %+v", tt.name, f)
			}
		}
		if tt.name == "one of two" && list[len(list)-1].Level != ingest.Failure {
			t.Errorf("%s: %s, want a failure for the second address", tt.name, levels(list))
		}
	}
}

// TestExamineForgetfulBroker looks at a broker that refuses the subscription and keeps no session.
func TestExamineForgetfulBroker(t *testing.T) {
	b := newScript(t)
	done := make(chan []ingest.Finding, 1)
	go func() { done <- Examine(t.Context(), Options{Name: "m", Leaf: "l", Config: config(b.url())}) }()
	p := b.accept()
	p.connack(0, false)
	for p.suback(0x80) != sysDropped {
	}
	p.next()
	for range 2 {
		p = b.accept()
		p.connack(0, false)
		p.next()
	}
	if got := levels(<-done); !strings.Contains(got, "subscriptions granted=failure, session kept=failure") {
		t.Errorf("found %s", got)
	}
}

// TestING083ING085BrokerHints is ING-083, a queue that drops, and ING-085, versions that do not queue.
func TestING083ING085BrokerHints(t *testing.T) {
	good := "# comment\npersistence true\nautosave_on_changes true\nautosave_interval 1\nmax_queued_messages 0\n"
	for _, tt := range []struct {
		name, version, dropped, host, conf string
		want                               string // causes
	}{
		{"right", "2.0.11", "0", "127.0.0.1", good, ""},
		{"defaults", "2.0.11", "0", "localhost", "", "persistence is off,it queues 1000"},
		{"saves seldom", "2.0.21", "0", "127.0.0.1", "persistence true\nmax_queued_messages 0\n", "it saves every half hour"},
		{"dropped", "2.0.11", "17", "127.0.0.1", good, "it has dropped 17"},
		{"version", "2.0.15", "0", "127.0.0.1", good, "Mosquitto 2.0.15 does not queue"},
		{"elsewhere", "2.0.11", "0", "10.0.0.7", good, "on another machine"},
		{"another broker", "", "", "127.0.0.1", good, "cannot be found out"},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "mosquitto.conf"), []byte(tt.conf), 0o600); err != nil {
			t.Fatal(err)
		}
		told := map[string]string{}
		if tt.version != "" {
			told[sysVersion], told[sysDropped] = "mosquitto version "+tt.version, tt.dropped
		}
		list := brokerHints(told, tt.host, dir)
		var causes []string
		for _, f := range list {
			causes = append(causes, f.Cause)
		}
		for _, want := range strings.Split(tt.want, ",") {
			if !strings.Contains(fmt.Sprint(causes), want) {
				t.Errorf("%s: found %q, want %q", tt.name, causes, want)
			}
		}
		if tt.want == "" && levels(list) != "broker keeps data=ok" {
			t.Errorf("%s: found %+v", tt.name, list)
		}
	}
	if list := brokerHints(map[string]string{sysVersion: "mosquitto version 2.0.11"}, "localhost", "/nowhere"); len(list) != 1 || list[0].Level != ingest.Unsure {
		t.Errorf("without its configuration: %+v", list)
	}
}
