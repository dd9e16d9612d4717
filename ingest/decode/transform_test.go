package decode

import (
	"strings"
	"testing"
	"time"
)

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func TestTransform(t *testing.T) {
	const sample = `{"temp":21.50,"battery":null,"room":"attic","n":7,"big":4294967297000,"sensors":[{"id":1,"v":1.10},{"id":2,"v":2.20}]}`
	for _, tc := range []struct {
		name string
		cfg  Transform
		in   string
		want []string // tail and value of each record; nil: dropped
		why  string   // the reason of an error
	}{
		{"nothing to do", Transform{}, `{"a":1.50}`, []string{`t {"a":1.50}`}, ""},
		{"rename keeps digits", Transform{Rename: []string{"temp=temperature", "battery=b", "nowhere=x"}}, sample,
			[]string{`t {"b":null,"big":4294967297000,"n":7,"room":"attic","sensors":[{"id":1,"v":1.10},{"id":2,"v":2.20}],"temperature":21.50}`}, ""},
		{"drop", Transform{Drop: "value.battery == nil"}, sample, nil, ""},
		{"drop not", Transform{Drop: "value.n > 7", Payload: "value.n"}, sample, []string{"t 7"}, ""},
		{"drop sees the new names", Transform{Rename: []string{"n=m"}, Drop: "value.m == 7"}, sample, nil, ""},
		{"split keeps digits", Transform{Split: "value.sensors"}, sample, []string{`t {"id":1,"v":1.10}`, `t {"id":2,"v":2.20}`}, ""},
		{"split with an expression", Transform{Split: "filter(value.sensors, .id > 1)"}, sample, []string{`t {"id":2,"v":2.2}`}, ""},
		{"split of nothing", Transform{Split: "[]"}, sample, nil, ""},
		{"tail and index of parts", Transform{Split: "value.sensors", Tail: `"s" + string(value.id) + "." + string(index)`}, sample,
			[]string{`s1.0 {"id":1,"v":1.10}`, `s2.1 {"id":2,"v":2.20}`}, ""},
		{"payload and tail see the message", Transform{Payload: "{t: value.temp * 2, at: time}", Tail: "value.room"}, sample,
			[]string{`attic {"at":"2026-11-30T12:00:00Z","t":43}`}, ""},
		{"payload that is a value keeps digits", Transform{Payload: "value.temp"}, sample, []string{"t 21.50"}, ""},
		{"all of it", Transform{Payload: " value "}, `[1.0]`, []string{"t [1.0]"}, ""},
		{"numbers above 32 bits", Transform{Payload: "value.big + 1"}, sample, []string{"t 4294967297001"}, ""},
		{"whole division makes a point", Transform{Payload: "value.n / 2"}, sample, []string{"t 3.5"}, ""},
		{"what is not there is null", Transform{Payload: "{x: value.nowhere}"}, sample, []string{`t {"x":null}`}, ""},
		{"text is no number", Transform{Payload: "value.room * 2"}, sample, nil, ReasonExpression},
		{"nothing to compute with", Transform{Payload: "value.battery + 1"}, sample, nil, ReasonExpression},
		{"division by zero", Transform{Payload: "value.n / 0"}, sample, nil, ReasonNumber},
		{"drop is no truth", Transform{Drop: "value.room"}, sample, nil, ReasonValue},
		{"drop of what is not there", Transform{Drop: "value.nowhere", Payload: "1"}, sample, []string{"t 1"}, ""},
		{"split is no list", Transform{Split: "value.room"}, sample, nil, ReasonValue},
		{"too many parts", Transform{Split: "1..20000"}, sample, nil, ReasonValue},
		{"eats memory", Transform{Split: "map(1..100000, 1..100000)"}, sample, nil, ReasonExpression},
		{"tail with a blank", Transform{Tail: `"a b"`}, sample, nil, ReasonTail},
		{"tail with a wildcard", Transform{Tail: `"a.>"`}, sample, nil, ReasonTail},
		{"tail with an empty token", Transform{Tail: `"a..b"`}, sample, nil, ReasonTail},
		{"tail that is a list", Transform{Tail: "[1]"}, sample, nil, ReasonTail},
		{"tail of a number", Transform{Tail: "value.n"}, sample, []string{"7 " + `{"battery":null,"big":4294967297000,"n":7,"room":"attic","sensors":[{"id":1,"v":1.10},{"id":2,"v":2.20}],"temp":21.50}`}, ""},
		{"long tail", Transform{Tail: `repeat("a", 600)`}, sample, nil, ReasonTail},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tr, err := NewTransformer(tc.cfg)
			if err != nil {
				t.Fatal(err)
			}
			value, err := parseJSON([]byte(tc.in), false)
			if err != nil {
				t.Fatal(err)
			}
			before, _ := Encode(value)
			parts, err := tr.Apply(Part{Value: value, Tail: "t", Time: noon})
			if after, _ := Encode(value); string(after) != string(before) {
				t.Errorf("Apply changed its input to %s", after)
			}
			if tc.why != "" {
				if got := reason(t, err, "transform"); got != tc.why || parts != nil {
					t.Errorf("Apply failed with %v and %v, want %s", err, parts, tc.why)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, p := range parts {
				b, err := Encode(p.Value)
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, p.Tail+" "+string(b))
			}
			if strings.Join(got, "\n") != strings.Join(tc.want, "\n") {
				t.Errorf("got %q\nwant %q", got, tc.want)
			}
		})
	}
}

func TestTransformFaults(t *testing.T) {
	for _, tc := range []struct {
		name string
		cfg  Transform
		key  string
	}{
		{"syntax", Transform{Payload: "value."}, "payload"},
		{"unknown name", Transform{Payload: "vaule.temp"}, "payload"},
		{"the time of day is not the message's", Transform{Payload: "now()"}, "payload"},
		{"drop that is no truth", Transform{Drop: "1"}, "drop"},
		{"rename without a name", Transform{Rename: []string{"a"}}, "rename"},
		{"tail", Transform{Tail: "("}, "tail"},
		{"split", Transform{Split: "value[", Tail: "tail"}, "split"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var keys []string
			tc.cfg.Validate(func(key, problem, remedy string) {
				if problem == "" || remedy == "" || strings.Contains(problem, "\n") {
					t.Errorf("problem %q, remedy %q", problem, remedy)
				}
				keys = append(keys, key)
			})
			if len(keys) != 1 || keys[0] != tc.key {
				t.Errorf("faults of %q, want %q", keys, tc.key)
			}
			if tr, err := NewTransformer(tc.cfg); err == nil || tr != nil {
				t.Errorf("NewTransformer() = %v, %v", tr, err)
			}
		})
	}
	if (Transform{}).Empty() != true || (Transform{Tail: "tail"}).Empty() {
		t.Error("Empty() does not tell")
	}
}
