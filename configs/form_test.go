package configs

import (
	"strings"
	"testing"

	"github.com/holdfast-edge/holdfast/rig/leak"
)

const declaring = `leaf: {name: a, data: /d}
streams: [{name: S, max_bytes: 64MiB}]
jetstream:
  streams:
    - {name: ORDERS, subjects: ["orders.>"], max_age: 30d, max_bytes: 64MiB, duplicate_window: 60000000000, allow_direct: true, metadata: {a: b}}
  consumers:
    - {stream: ORDERS, durable_name: billing, ack_policy: explicit, ack_wait: 1s, backoff: [1s, 5s], filter_subjects: []}
  kv: [{bucket: settings, history: 5, ttl: 1h}]
  objects: [{bucket: firmware, max_bytes: 100MiB, sync: interval}]
`

func TestJSONForm(t *testing.T) {
	leak.Check(t)
	cfg, faults := parse([]byte(declaring), bench())
	if len(faults) > 0 {
		t.Fatal(Format(faults))
	}
	if len(cfg.JetStream.Streams) != 1 || len(cfg.JetStream.Consumers) != 1 || len(cfg.JetStream.KV) != 1 || len(cfg.JetStream.Objects) != 1 {
		t.Errorf("jetstream = %+v, want one of each", cfg.JetStream)
	}
	for _, tt := range []struct{ name, from, to, want string }{
		{"misspelt", "max_age:", "max_agee:", "jetstream.streams[0].max_agee: unknown key\n    did you mean max_age?"},
		{"misspelt within", "subjects: [", "republish: {srcc: a}, subjects: [", "jetstream.streams[0].republish.srcc: unknown key"},
		{"no duration", "max_age: 30d", "max_age: later", `jetstream.streams[0].max_age: "later" is not a duration`},
		{"no size", "64MiB, dup", "much, dup", `jetstream.streams[0].max_bytes: "much" is not a size`},
		{"list for a word", "name: ORDERS", "name: [ORDERS]", "jetstream.streams[0].name: is a list"},
		{"word for a list", `subjects: ["orders.>"]`, "subjects: orders", "jetstream.streams[0].subjects: is a text where a section or list is wanted"},
		{"not a word of NATS", "ack_policy: explicit", "ack_policy: sometimes", `jetstream.consumers[0]: does not fit: can not unmarshal`},
		{"number for a switch", "allow_direct: true", "allow_direct: 1", `jetstream.streams[0].allow_direct: "1" does not fit`},
		{"sync", "sync: interval", "sync: always", `jetstream.objects[0].sync: "always" cannot be had`},
		{"refused by the server", "max_age: 30d", "max_age: 1s", "jetstream.streams[0]: the server refuses it: "},
		{"refused in pedantic mode", "ack_wait: 1s", "ack_wait: 2s", "pedantic mode"},
		{"more than apps.max_file with the others", "max_bytes: 100MiB", "max_bytes: 200MiB", "jetstream.objects[0]: the server refuses it: insufficient storage"},
		{"more than the streams leave of the budget", "S, max_bytes: 64MiB", "S, max_bytes: 3950MiB", "jetstream.objects[0]: the server refuses it: insufficient storage"},
		{"no room", "jetstream:", "apps: {max_file: 0}\njetstream:", "jetstream: has no room"},
	} {
		text := strings.Replace(declaring, tt.from, tt.to, 1)
		if _, faults := parse([]byte(text), bench()); len(faults) != 1 || !strings.Contains(Format(faults), tt.want) {
			t.Errorf("%s: faults\n%swant %s", tt.name, Format(faults), tt.want)
		}
	}
}
