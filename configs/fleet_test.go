package configs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFleetExample(t *testing.T) {
	f, faults, err := LoadFleet("fleet.yaml")
	if err != nil || len(faults) > 0 || len(f.Leaves) != 2 || f.Leaves[0].Streams[1].Mode != "mirror" {
		t.Errorf("fleet.yaml = %+v, %v\n%s", f, err, Format(faults))
	}
}

func TestLoadFleet(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       []string // a part of each fault, in order
	}{
		{"good", "leaves:\n  - {name: a, password: x, streams: [{name: S}, {name: M, mode: mirror}]}\n  - {name: b, nkey: UABC, streams: [{name: S, hub_stream: FIELD}]}\n", nil},
		{"nobody yet", "replicas: 3\nleaves: []\n", nil},
		{"with limits", "auth: jwt\naccount: ADKEY\nservers: [\"tls://h:4222\"]\nleaf_urls: [\"tls://h:7422\"]\nstreams: [{name: S, max_bytes: 1TiB, max_age: 90d, when_full: refuse, shards: 4}]\n" +
			"leaf_streams: [{name: S}]\nleaves: [{name: a, commands: true, documents: true}]\n", nil},
		{"impossible limits", "streams: [{name: a b, max_bytes: -1KiB, replicas: 2, shards: 99, when_full: cry}]\nleaf_streams: [{name: S}, {name: S}]\n",
			[]string{"streams[0].name", "max_bytes", "replicas", "shards", "when_full", "leaf_streams[1].name"}},
		{"everything wrong", "replicas: 2\nacount: X\nleaves:\n  - {name: a.b}\n  - {name: c, password: x, nkey: U, streams: [{name: S, mode: both}]}\n  - {name: c, password: topsecret, streams: [{name: S}, {name: S}]}\n",
			[]string{"replicas: is 2", "acount", "leaves[0].name", "leaves[1].nkey", "mode", "leaves[2].name", "listed twice"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "fleet.yaml")
			if err := os.WriteFile(path, []byte(tt.text), 0o600); err != nil {
				t.Fatal(err)
			}
			_, faults, err := LoadFleet(path)
			if err != nil {
				t.Fatal(err)
			}
			text := Format(faults)
			if len(faults) != len(tt.want) {
				t.Errorf("%d faults, want %d:\n%s", len(faults), len(tt.want), text)
			}
			for _, w := range tt.want {
				if !strings.Contains(text, w) {
					t.Errorf("no fault says %q:\n%s", w, text)
				}
			}
			if strings.Contains(text, "topsecret") {
				t.Errorf("a secret is shown:\n%s", text)
			}
		})
	}
}
