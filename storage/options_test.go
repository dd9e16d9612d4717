package storage

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestDefaultsAreValid(t *testing.T) {
	var c Config
	c.SetDefaults()
	c.Validate(func(key, problem, remedy string) { t.Errorf("default of storage.%s: %s (%s)", key, problem, remedy) })
	s := StreamConfig{Name: "S"}
	s.SetDefaults()
	s.Validate(func(key, problem, remedy string) { t.Errorf("default of stream %s: %s (%s)", key, problem, remedy) })
}

func TestValidate(t *testing.T) {
	cases := []struct {
		name   string
		config func(c *Config)
		stream func(c *StreamConfig)
		want   string // keys with faults
	}{
		{"nothing wrong", nil, nil, ""},
		{"no budget", func(c *Config) { c.Budget = 0 }, nil, "budget"},
		{"negative reserve", func(c *Config) { c.ReserveFree = -1 }, nil, "reserve_free"},
		{"empty groups", func(c *Config) { c.Commit.MaxRecords = 0 }, nil, "commit.max_records"},
		{"groups above the server's queue", func(c *Config) { c.Commit.MaxRecords = 5000 }, nil, "commit.max_records"},
		{"no delay", func(c *Config) { c.Commit.MaxDelay = 0 }, nil, ""},
		{"negative delay", func(c *Config) { c.Commit.MaxDelay = -time.Second }, nil, "commit.max_delay"},
		{"no name", nil, func(c *StreamConfig) { c.Name = "" }, "name"},
		{"name with a wildcard", nil, func(c *StreamConfig) { c.Name = "A*" }, "name"},
		{"name with a slash", nil, func(c *StreamConfig) { c.Name = "A/B" }, "name"},
		{"long name", nil, func(c *StreamConfig) { c.Name = strings.Repeat("A", 65) }, "name"},
		{"tiny", nil, func(c *StreamConfig) { c.MaxBytes = 1000 }, "max_bytes"},
		{"records larger than a quarter", nil, func(c *StreamConfig) { c.MaxBytes, c.MaxMsgSize = 2<<20, 800<<10 }, "max_bytes"},
		{"no records", nil, func(c *StreamConfig) { c.MaxMsgSize = 0 }, "max_msg_size"},
		{"several", nil, func(c *StreamConfig) { c.MaxMsgs, c.KeepForwarded, c.WhenFull = -1, -1, "" }, "keep_forwarded max_msgs when_full"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			fault := func(key, problem, remedy string) {
				got = append(got, key)
				if problem == "" || remedy == "" {
					t.Errorf("%s: problem %q, remedy %q", key, problem, remedy)
				}
			}
			var config Config
			config.SetDefaults()
			if c.config != nil {
				c.config(&config)
			}
			config.Validate(fault)
			stream := StreamConfig{Name: "S"}
			stream.SetDefaults()
			if c.stream != nil {
				c.stream(&stream)
			}
			stream.Validate(fault)
			want := map[string]bool{}
			for _, k := range strings.Fields(c.want) {
				want[k] = true
			}
			if len(got) != len(want) {
				t.Fatalf("faults in %q, want %q", got, c.want)
			}
			for _, k := range got {
				if !want[k] {
					t.Errorf("faults in %q, want %q", got, c.want)
				}
			}
		})
	}
}

func TestOptionsKeepExplicitZeros(t *testing.T) {
	o, err := Options{Leaf: "l", Dir: "d", Config: Config{Budget: 8 << 20, Commit: Commit{MaxRecords: 1}}}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	if o.ReserveFree != 0 || o.Commit.MaxDelay != 0 {
		t.Errorf("withDefaults = %s, want explicit zeros kept", fmt.Sprint(o.Config))
	}
}
