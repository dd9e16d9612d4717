package hub

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files")

func fleet() Spec {
	return Spec{Leaves: []Leaf{
		{Name: "pump-07", Password: `$2a$11$x"y`, Streams: []Stream{
			{Name: "SENSORS", HubStream: "FIELD"}, {Name: "EVENTS", Mode: Mirror}, {Name: "LOCAL", Mode: None},
		}},
		{Name: "pump-08", NKey: "UAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", Streams: []Stream{{Name: "SENSORS", Mode: Source, HubStream: "FIELD"}}},
		{Name: "idle", User: "someone", Password: "p"},
	}}
}

func TestPlanIsAsBefore(t *testing.T) {
	p, err := New(fleet())
	if err != nil {
		t.Fatal(err)
	}
	streams, err := json.MarshalIndent(p.Streams(), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	for name, got := range map[string]string{"plan.conf": p.Config(), "streams.json": string(streams) + "\n"} {
		path := filepath.Join("testdata", name)
		if *update {
			if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s differs from what is planned now (-update writes it):\n%s", path, got)
		}
	}
}

func TestNewNamesEveryFault(t *testing.T) {
	for _, c := range []struct {
		name   string
		leaves []Leaf
		want   []string
	}{
		{"bad names", []Leaf{{Name: "a.b"}, {Name: "hub"}, {Name: "ACK"}, {Name: ""}}, []string{`leaf "a.b"`, `leaf "hub"`, `leaf "ACK"`, `leaf ""`}},
		{"leaf twice", []Leaf{{Name: "a"}, {Name: "a"}}, []string{"listed twice"}},
		{"one user for two", []Leaf{{Name: "a", User: "x"}, {Name: "b", User: "x"}}, []string{"same user"}},
		{"nkey and password", []Leaf{{Name: "a", NKey: "U1", Password: "p"}}, []string{"give one"}},
		{"stream twice", []Leaf{{Name: "a", Streams: []Stream{{Name: "S"}, {Name: "S", HubStream: "T"}}}}, []string{`stream "S": listed twice`}},
		{"bad stream", []Leaf{{Name: "a", Streams: []Stream{{Name: "S*"}}}}, []string{`stream "S*"`}},
		{"bad mode", []Leaf{{Name: "a", Streams: []Stream{{Name: "S", Mode: "copy"}}}}, []string{`mode "copy"`}},
		{"source into a mirror", []Leaf{{Name: "a", Streams: []Stream{{Name: "S", Mode: Mirror}, {Name: "T", HubStream: "a_S"}}}}, []string{"is a mirror"}},
		{"two mirrors in one", []Leaf{{Name: "a", Streams: []Stream{{Name: "S", Mode: Mirror, HubStream: "X"}, {Name: "T", Mode: Mirror, HubStream: "X"}}}}, []string{"is a mirror"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := New(Spec{Leaves: c.leaves})
			if err == nil {
				t.Fatalf("New(%+v) = nil, want an error", c.leaves)
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("New(%+v) = %v, want %q in it", c.leaves, err, w)
				}
			}
		})
	}
}

func TestAccountHash(t *testing.T) {
	for account, want := range map[string]string{"EDGE": "v71kSBge", "CAPTURE": "9UlZYYrs"} {
		if got := AccountHash(account); got != want {
			t.Errorf("AccountHash(%s) = %s, want %s", account, got, want)
		}
	}
}

func TestOlder(t *testing.T) {
	for _, c := range []struct {
		version string
		want    bool
	}{
		{"2.14.9", true}, {"2.9.0", true}, {"1.4.1", true}, {"2.15.0", false}, {"2.15.3", false}, {"v2.16.0-beta.1", false}, {"3.0.0", false}, {"nightly", false}, {"", false},
	} {
		if got := older(c.version, MinVersion); got != c.want {
			t.Errorf("older(%q, %q) = %v, want %v", c.version, MinVersion, got, c.want)
		}
	}
}
