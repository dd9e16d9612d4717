package leaf

import (
	"reflect"
	"sort"
	"strings"
	"testing"
)

// faults returns the keys that a Validate complains of, sorted.
func faults(t *testing.T, validate func(fault func(key, problem, remedy string))) []string {
	t.Helper()
	keys := []string{}
	validate(func(key, problem, remedy string) {
		if problem == "" || remedy == "" {
			t.Errorf("fault of %q says %q and %q", key, problem, remedy)
		}
		if strings.Contains(problem+remedy, "hunter2") {
			t.Errorf("fault of %q shows a password: %s", key, problem)
		}
		keys = append(keys, key)
	})
	sort.Strings(keys)
	return keys
}

func TestValidateConfig(t *testing.T) {
	for _, tc := range []struct {
		name string
		cfg  Config
		want []string
	}{
		{"good", Config{Name: "pump-07", Data: "/d"}, []string{}},
		{"with port", Config{Name: "a_B", Data: "/d", NATS: "127.0.0.1:4222"}, []string{}},
		{"ipv6 port", Config{Name: "a", Data: "/d", NATS: "[::1]:4222"}, []string{}},
		{"empty", Config{}, []string{"data", "name"}},
		{"dot", Config{Name: "a.b", Data: "/d"}, []string{"name"}},
		{"wildcard", Config{Name: "*", Data: "/d"}, []string{"name"}},
		{"umlaut", Config{Name: "pümp", Data: "/d"}, []string{"name"}},
		{"long", Config{Name: strings.Repeat("a", 65), Data: "/d"}, []string{"name"}},
		{"reserved", Config{Name: "ack", Data: "/d"}, []string{"name"}},
		{"no port", Config{Name: "a", Data: "/d", NATS: "127.0.0.1"}, []string{"nats"}},
	} {
		if got := faults(t, tc.cfg.Validate); !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%s: faults %v, want %v", tc.name, got, tc.want)
		}
	}
	var c Config
	c.SetDefaults()
	if c.Data != DefaultData {
		t.Errorf("default data = %q", c.Data)
	}
}

func TestValidateHub(t *testing.T) {
	for _, tc := range []struct {
		name string
		hub  Hub
		want []string
	}{
		{"none", Hub{Domain: "hub"}, []string{}},
		{"good", Hub{Domain: "hub", URLs: []string{"tls://h.example.com:7422", "nats-leaf://u:p@10.0.0.1"}}, []string{}},
		{"websocket", Hub{Domain: "hub", URLs: []string{"wss://h/leafnode"}}, []string{}},
		{"mixed", Hub{Domain: "hub", URLs: []string{"wss://h", "tls://h"}}, []string{"urls"}},
		{"no scheme", Hub{Domain: "hub", URLs: []string{"h.example.com:7422"}}, []string{"urls[0]"}},
		{"http", Hub{Domain: "hub", URLs: []string{"tls://h", "http://u:hunter2@h"}}, []string{"urls[1]"}},
		{"garbage", Hub{Domain: "hub", URLs: []string{"tls://u:hunter2@h:port"}}, []string{"urls[0]"}},
		{"no host", Hub{Domain: "hub", URLs: []string{"tls://:7422"}}, []string{"urls[0]"}},
		{"path", Hub{Domain: "hub", URLs: []string{"tls://h:7422/x"}}, []string{"urls[0]"}},
		{"two identities", Hub{Domain: "hub", Credentials: "a", NKey: "b"}, []string{"nkey"}},
		{"key without certificate", Hub{Domain: "hub", TLS: TLS{Key: "k"}}, []string{"tls"}},
		{"bad domain", Hub{Domain: "a.b"}, []string{"domain"}},
	} {
		if got := faults(t, tc.hub.Validate); !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%s: faults %v, want %v", tc.name, got, tc.want)
		}
	}
	var h Hub
	h.SetDefaults()
	if h.Domain != DefaultDomain {
		t.Errorf("default domain = %q", h.Domain)
	}
}
