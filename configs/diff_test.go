package configs

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
)

func TestDiff(t *testing.T) {
	const text = `leaf: {name: a, data: /d}
hub: {urls: ["tls://u:hunter2@h:7422"], credentials: /a.creds}
storage: {budget: 1GiB}
streams: [{name: S, max_bytes: 64MiB}, {name: T, max_bytes: 64MiB}]
sources:
  - {name: gps, into: S, serial: {port: /dev/ttyA, baud: 9600}, frame: line}
  - {name: calc, into: S, append: {}}
jetstream:
  streams: [{name: ORDERS, subjects: [a]}]
`
	for _, tt := range []struct{ name, from, to, want string }{
		{"nothing", "", "", "[]"},
		{"a size", "{name: S, max_bytes: 64MiB}", "{name: S, max_bytes: 32MiB}", "[streams[S].max_bytes: 64MiB -> 32MiB]"},
		{"another order", "{name: S, max_bytes: 64MiB}, {name: T, max_bytes: 64MiB}", "{name: T, max_bytes: 64MiB}, {name: S, max_bytes: 64MiB}", "[]"},
		{"a secret", "hunter2", "hunter3", "[hub.urls: [tls://…@h:7422] -> [tls://…@h:7422]]"},
		{"a source less", "  - {name: calc, into: S, append: {}}\n", "", "[sources[calc]: removed]"},
		{"a source more", "  - {name: calc", "  - {name: more, into: T, append: {}}\n  - {name: calc", "[sources[more]: added]"},
		{"another kind of source", "append: {}", "mqtt: {broker: \"tcp://b:1883\", topics: [x], qos: 1}", "[sources[calc].mqtt: added sources[calc].append: removed]"},
		{"an asset", "subjects: [a]", "subjects: [b]", "[jetstream.streams[0]: changed]"},
	} {
		a, faults := parse([]byte(text), bench())
		b, more := parse([]byte(strings.Replace(text, tt.from, tt.to, 1)), bench())
		if len(faults)+len(more) > 0 {
			t.Fatal(tt.name, Format(append(faults, more...)))
		}
		if got := fmt.Sprint(Diff(a, b)); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
		if tt.want == "[]" && tt.from == "" && !reflect.DeepEqual(a, b) {
			t.Errorf("%s: not equal", tt.name)
		}
	}
}
