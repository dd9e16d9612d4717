package forward

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/holdfast-edge/holdfast/storage"
)

func TestParseNewest(t *testing.T) {
	const id = "g1.0011223344.s.7.42"
	for _, c := range []struct {
		name   string
		header nats.Header
		mirror bool
		want   storage.Position // 0: an error
	}{
		{"source", nats.Header{storage.HeaderID: {id}, headerSource: {"S:KULbcpqa 1601 > > data.g1.S.s Xy"}, headerSequence: {"9"}}, false, 1601},
		{"source without hash", nats.Header{storage.HeaderID: {id}, headerSource: {"S 1601 > > data.g1.S.s"}}, false, 1601},
		{"mirror", nats.Header{storage.HeaderID: {id}, headerSequence: {"1883288500174947"}}, true, 1883288500174947},
		{"no ID", nats.Header{headerSource: {"S:K 1601 > > x"}}, false, 0},
		{"no source", nats.Header{storage.HeaderID: {id}, headerSequence: {"9"}}, false, 0},
		{"other stream", nats.Header{storage.HeaderID: {id}, headerSource: {"T:K 1601 > > x"}}, false, 0},
		{"sequence 0", nats.Header{storage.HeaderID: {id}, headerSource: {"S:K 0 > > x"}}, false, 0},
		{"no number", nats.Header{storage.HeaderID: {id}, headerSequence: {"-1"}}, true, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			n, err := parseNewest(c.header, "S", c.mirror)
			if (err != nil) != (c.want == 0) || n.pos != c.want {
				t.Errorf("parseNewest(%v) = %+v, %v, want %d", c.header, n, err, c.want)
			}
		})
	}
}

func TestMemory(t *testing.T) {
	dir := t.TempDir()
	open := func(id storage.StoreID, broken bool) *memory {
		t.Helper()
		m, err := openMemory(dir, id)
		if (err != nil) != broken {
			t.Fatalf("openMemory = %v, want an error: %v", err, broken)
		}
		return m
	}
	m := open("aa", false)
	if _, ok := m.of("S", "H"); ok {
		t.Error("an empty memory remembers a stream")
	}
	at := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	m.set("S", remembered{HubStream: "H", Proven: 42, At: at})
	if err := m.save(false); err != nil {
		t.Fatal(err)
	}
	m.set("S", remembered{HubStream: "H", Proven: 43, At: at})
	if err := m.save(false); err != nil { // too soon
		t.Fatal(err)
	}
	if r, ok := open("aa", false).of("S", "H"); !ok || r.Proven != 42 || !r.At.Equal(at) {
		t.Errorf("remembered %+v, %v, want 42", r, ok)
	}
	if err := m.save(true); err != nil {
		t.Fatal(err)
	}
	if r, ok := open("aa", false).of("S", "H"); !ok || r.Proven != 43 {
		t.Errorf("remembered %+v, %v, want 43", r, ok)
	}
	if _, ok := open("aa", false).of("S", "other"); ok {
		t.Error("the position in one hub stream is taken for that in another")
	}
	if _, ok := open("bb", false).of("S", "H"); ok {
		t.Error("one store remembers the position of another")
	}
	if err := os.WriteFile(filepath.Join(dir, memoryFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, ok := open("aa", true).of("S", "H"); ok {
		t.Error("a damaged memory remembers something")
	}
}

func TestRedialer(t *testing.T) {
	began := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	var r redialer
	for _, c := range []struct {
		after time.Duration
		stuck bool
		want  bool
	}{
		{time.Second, true, false}, // too soon after link-up
		{9 * time.Second, true, false},
		{11 * time.Second, false, false},
		{12 * time.Second, true, true},
		{60 * time.Second, true, false}, // too soon after the last
		{73 * time.Second, true, true},
		{150 * time.Second, true, false}, // ever more rarely
		{195 * time.Second, true, true},
	} {
		if got := r.wants(c.stuck, began, began.Add(c.after)); got != c.want {
			t.Errorf("wants(%v) %v after link-up = %v, want %v", c.stuck, c.after, got, c.want)
		}
	}
}

func TestRateAndETA(t *testing.T) {
	at := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	var m meter
	var rate float64
	for i := range 61 {
		rate = m.update(uint64(i*100), at.Add(time.Duration(i)*time.Second))
	}
	if rate < 99 || rate > 101 {
		t.Errorf("rate of 100/s = %v", rate)
	}
	m.update(0, at.Add(61*time.Second)) // begins anew
	for i := range 61 {
		rate = m.update(uint64(i*10), at.Add(time.Duration(62+i)*time.Second))
	}
	if rate < 9 || rate > 11 {
		t.Errorf("rate of 10/s after 100/s = %v", rate)
	}
	for _, c := range []struct {
		waiting uint64
		rate    float64
		want    time.Duration
	}{{0, 10, 0}, {100, 0, 0}, {100, 10, 11 * time.Second}, {1 << 60, 0.02, 365 * 24 * time.Hour}} {
		if got := eta(c.waiting, c.rate); got != c.want {
			t.Errorf("eta(%d, %v) = %v, want %v", c.waiting, c.rate, got, c.want)
		}
	}
}

func TestConfigFaults(t *testing.T) {
	for _, c := range []struct {
		name string
		cfg  Config
		want string // the key; empty: none
	}{
		{"source", Config{Mode: ModeSource, Lane: LaneLive}, ""},
		{"mirror to another name", Config{Mode: ModeMirror, Lane: LaneBulk, HubStream: "pump_7-B"}, ""},
		{"nothing", Config{Mode: ModeNone, Lane: LaneBulk}, ""},
		{"bad name", Config{Mode: ModeSource, Lane: LaneBulk, HubStream: "a.b"}, "hub_stream"},
		{"name for nothing", Config{Mode: ModeNone, Lane: LaneBulk, HubStream: "A"}, "hub_stream"},
		{"bad lane", Config{Mode: ModeSource, Lane: "fast"}, "lane"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := ""
			c.cfg.Validate(func(key, problem, remedy string) {
				got = key
				if problem == "" || remedy == "" {
					t.Errorf("fault of %s has problem %q and remedy %q", key, problem, remedy)
				}
			})
			if got != c.want {
				t.Errorf("fault in %q, want %q", got, c.want)
			}
		})
	}
	var c Config
	if c.SetDefaults(); c.Mode != ModeSource || c.Lane != LaneBulk {
		t.Errorf("defaults %q, %q, want %q, %q", c.Mode, c.Lane, ModeSource, LaneBulk)
	}
}
