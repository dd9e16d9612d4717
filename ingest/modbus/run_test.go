package modbus

import (
	"context"
	"encoding/json"
	"log/slog"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/ingest"
)

// fieldRecord and record are what a record says.
type fieldRecord struct {
	Value   any
	Unit    string
	Quality string
	Detail  string
	Raw     string
}

type record struct {
	Device  string
	Unit    int
	Quality string
	Skipped int
	Fields  map[string]fieldRecord
	time    time.Time
}

// running is a source that runs, and what it delivered.
type running struct {
	*Source
	t      testing.TB
	cancel context.CancelFunc
	done   chan struct{}
	once   sync.Once

	mu  sync.Mutex // guards the fields below
	got []ingest.Reading
}

func newField(name string, address int, set func(*Field)) Field {
	var f Field
	f.SetDefaults()
	f.Name, f.Address = name, address
	if set != nil {
		set(&f)
	}
	return f
}

func newDevice(name string, unit int, interval time.Duration, fields ...Field) Device {
	var d Device
	d.SetDefaults()
	d.Name, d.Unit, d.Interval, d.Fields = name, unit, interval, fields
	return d
}

// shortTimeout is for tests in which a device does not answer; the others have time, on a busy machine too.
const shortTimeout = 100 * time.Millisecond

// lineConfig is a fast serial line with short times.
func lineConfig(port string, devices ...Device) Config {
	var c Config
	c.SetDefaults()
	c.Bus.SetDefaults()
	c.Bus.Port, c.Bus.Baud, c.Bus.Timeout, c.Bus.BusyWait, c.Bus.DeadInterval = port, 115200, time.Second, 10*time.Millisecond, 300*time.Millisecond
	c.Devices = devices
	return c
}

func netConfig(mode, address string, devices ...Device) Config {
	c := lineConfig("", devices...)
	c.Bus.Mode, c.Bus.Address = mode, address
	return c
}

// quick gives a configuration a short time-out.
func quick(c Config) Config {
	c.Bus.Timeout = shortTimeout
	return c
}

func newSource(t testing.TB, c Config) *Source {
	t.Helper()
	s, err := New("meters", c, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func start(t testing.TB, c Config) *running {
	t.Helper()
	return startSource(t, newSource(t, c))
}

func startSource(t testing.TB, s *Source) *running {
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{Source: s, t: t, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		_ = s.Run(ctx, r.deliver) // ends by cancel
	}()
	t.Cleanup(r.stop)
	return r
}

// startHeld starts a source whose records the store does not take until release is called.
func (r *running) startHeld() (release func()) {
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	gate := make(chan struct{})
	go func() {
		defer close(r.done)
		_ = r.Run(ctx, func(ctx context.Context, batch ...ingest.Reading) error { // ends by cancel
			select {
			case <-gate:
			case <-ctx.Done():
				return ctx.Err()
			}
			return r.deliver(ctx, batch...)
		})
	}()
	r.t.Cleanup(r.stop)
	return func() { close(gate) }
}

func (r *running) stop() {
	r.once.Do(func() {
		r.cancel()
		select {
		case <-r.done:
		case <-time.After(patience):
			r.t.Error("Run did not end")
		}
	})
}

func (r *running) deliver(ctx context.Context, batch ...ingest.Reading) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got = append(r.got, batch...)
	return ctx.Err()
}

// records returns what was delivered of a device.
func (r *running) records(device string) []record {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []record
	for _, g := range r.got {
		var rec record
		d := json.NewDecoder(strings.NewReader(string(g.Data)))
		d.UseNumber()
		d.DisallowUnknownFields()
		if err := d.Decode(&rec); err != nil {
			r.t.Fatalf("record %s: %v", g.Data, err)
		}
		if g.Tail != rec.Device {
			r.t.Fatalf("tail %q of a record of %q", g.Tail, rec.Device)
		}
		if rec.time = g.Time; rec.Device == device {
			out = append(out, rec)
		}
	}
	return out
}

// want waits for n records of a device and returns them.
func (r *running) want(device string, n int) []record {
	r.t.Helper()
	until(r.t, "records of "+device, func() bool { return len(r.records(device)) >= n })
	return r.records(device)
}

// wantField waits for a record in which a field is as given: quality and value, which is nil, bool, a text, or a json.Number.
func (r *running) wantField(device, field, quality string, value any) record {
	r.t.Helper()
	var last record
	defer func() {
		if r.t.Failed() {
			r.t.Logf("last record of %s: %+v; stats %+v; state %+v", device, last, r.Stats(), r.State())
		}
	}()
	until(r.t, field+" of "+device, func() bool {
		for _, rec := range r.records(device) {
			last = rec
			if f := rec.Fields[field]; f.Quality == quality && reflect.DeepEqual(f.Value, value) {
				return true
			}
		}
		return false
	})
	return last
}

func num(s string) any { return json.Number(s) }
