package mqttserver

import (
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/ingest/ingesttest"
)

func TestExamine(t *testing.T) {
	ca := ingesttest.NewAuthority(t)
	good := func(c *Config) {
		c.Anonymous, c.Users, c.Listen = false, usersFile(t, map[string]string{"p": "x"}), "127.0.0.1:1883"
		c.Access = []Access{{Users: []string{"p"}, Publish: []string{"#"}}}
	}
	for _, tt := range []struct {
		name   string
		change func(*Config)
		want   string
	}{
		{"right", func(*Config) {}, "[users=ok]"},
		{"no file", func(c *Config) { c.Users += ".gone" }, "[users=failure access=warning]"},
		{"unknown user", func(c *Config) { c.Access[0].Users = []string{"q"} }, "[users=ok access=warning]"},
		{"anybody", func(c *Config) { c.Anonymous, c.Users, c.Listen = true, "", "0.0.0.0:1883" }, "[anonymous=warning]"},
		{"open network", func(c *Config) { c.Listen = "0.0.0.0:1883" }, "[users=ok listen=hint]"},
		{"certificate", func(c *Config) {
			c.TLS.Listen = "0.0.0.0:8883"
			c.TLS.Cert, c.TLS.Key = ca.Issue(t, "g", 100*24*time.Hour)
		}, "[users=ok certificate=ok]"},
		{"certificate that ends soon", func(c *Config) {
			c.TLS.Listen = "0.0.0.0:8883"
			c.TLS.Cert, c.TLS.Key = ca.Issue(t, "g", time.Hour)
		}, "[users=ok certificate=warning]"},
		{"certificate that has ended", func(c *Config) {
			c.TLS.Listen = "0.0.0.0:8883"
			c.TLS.Cert, c.TLS.Key = ca.Issue(t, "g", -time.Hour)
		}, "[users=ok certificate=failure]"},
		{"no certificate", func(c *Config) { c.TLS.Listen, c.TLS.Cert, c.TLS.Key = "0.0.0.0:8883", ca.File, ca.File }, "[users=ok certificate=failure]"},
	} {
		var got []string
		for _, f := range Examine(config(t, good, tt.change)) {
			got = append(got, f.What+"="+string(f.Level))
		}
		if fmt.Sprint(got) != tt.want {
			t.Errorf("%s: %v, want %s", tt.name, got, tt.want)
		}
	}
}
