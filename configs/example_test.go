package configs

import (
	"flag"
	"os"
	"reflect"
	"strings"
	"testing"

	decoding "github.com/holdfast-edge/holdfast/ingest/decode"
	"github.com/holdfast-edge/holdfast/ingest/frame"
	"github.com/holdfast-edge/holdfast/ingest/modbus"
	"github.com/holdfast-edge/holdfast/ingest/mqtt"
	"github.com/holdfast-edge/holdfast/ingest/mqttserver"
	"github.com/holdfast-edge/holdfast/ingest/reject"
	"github.com/holdfast-edge/holdfast/ingest/request"
	"github.com/holdfast-edge/holdfast/ingest/serial"
	"github.com/holdfast-edge/holdfast/leaf"
)

var update = flag.Bool("update", false, "rewrite golden and generated files")

// golden compares got with a file, or writes the file.
func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s is not what it should be; got:\n%s\nwant:\n%s\nIf the change is meant: go test ./configs -update", file, got, want)
	}
}

// bench is a machine for tests: a disk of 64 GiB, and one serial adapter known by several names.
func bench() system {
	return system{
		disk: func(string) int64 { return 64 << 30 },
		device: func(path string) string {
			if strings.HasPrefix(path, "/dev/serial/by-") {
				return "/dev/ttyUSB0"
			}
			return path
		},
	}
}

// build returns a section at its defaults, changed by set.
func build[T any](set func(*T)) *T {
	v := new(T)
	setDefaults(reflect.ValueOf(v).Elem(), true)
	set(v)
	return v
}

// example is the configuration of the example file: all defaults, and the least that is needed.
func example() Config {
	cfg := Defaults()
	cfg.Leaf.Name = "gateway-1"
	cfg.Streams = []Stream{*build(func(s *Stream) { s.Name = "SENSORS" })}
	cfg.Sources = []Source{
		{
			Name: "gps", Into: "SENSORS",
			Serial: build(func(c *serial.Config) { c.Port = "/dev/serial/by-id/usb-u-blox_GNSS_receiver-if00" }),
			Frame:  build(func(c *frame.Config) { c.Type = "nmea" }),
			Keep:   "both",
		},
		{
			Name: "zigbee", Into: "SENSORS",
			MQTT: build(func(c *mqtt.Config) { c.Broker, c.Topics = "tcp://127.0.0.1:1883", []string{"zigbee2mqtt/#"} }),
			Keep: "both",
		},
		{Name: "devices", Into: "SENSORS", MQTTServer: build(exampleDevices), Keep: "both"},
		{
			Name: "dust", Into: "SENSORS",
			Serial: build(func(c *serial.Config) { c.Port = "/dev/ttyAMA0" }),
			Frame:  build(func(c *frame.Config) { c.Type = "pms5003" }),
			Decode: build(func(c *decoding.Config) {
				c.Format, c.Fields = "registers", []decoding.Field{{Name: "pm25", At: 12, Type: "u16", Unit: "ug/m3"}}
			}),
			Keep:      "both",
			Transform: build(func(*decoding.Transform) {}),
		},
		{Name: "meters", Into: "SENSORS", Modbus: build(exampleBus), Keep: "both"},
		{Name: "panel", Into: "SENSORS", Append: build(func(*request.Config) {}), Keep: "both"},
		{Name: "rejects", Into: "SENSORS", Rejects: build(func(*reject.Config) {}), Keep: "both"},
	}
	cfg.Apps.Users = []leaf.User{{Name: "panel", Password: "$2a$10$PRpdQ4iEdvwJ9h8nWfMTL.mK8kZQC8q9s0nHfD6m1zYB1b7tXg2Wm"}}
	cfg.Apps.Captured = []leaf.Captured{{Stream: "SENSORS"}}
	cfg.Apps.Mappings = []leaf.Mapping{{From: "door.*", To: "event.{{wildcard(1)}}"}}
	return cfg
}

// exampleDevices lets each user publish below a topic of its own.
func exampleDevices(c *mqttserver.Config) {
	c.Listen, c.Users = "0.0.0.0:1883", "devices.users"
	c.Access = []mqttserver.Access{{Publish: []string{"devices/{user}/#"}, Subscribe: []string{"commands/{user}/#"}}}
}

// exampleBus has a device with a number and a bit, so that all keys of a field are there.
func exampleBus(c *modbus.Config) {
	c.Bus.Port = "/dev/ttyS1"
	least, most, lowest := 0.0, 300.0, 0
	c.Devices = []modbus.Device{*build(func(d *modbus.Device) {
		d.Name, d.Unit = "pump", 1
		d.Fields = []modbus.Field{
			*build(func(f *modbus.Field) {
				f.Name, f.Type, f.Unit, f.Min, f.Max = "voltage", "f32", "V", &least, &most
			}),
			*build(func(f *modbus.Field) { f.Name, f.Address, f.Type, f.Bit = "running", 10, "bool", &lowest }),
		}
	})}
}

const exampleHead = `# Configuration of Holdfast: every key, at its default. Keys with an example in the place of a default: leaf.name, and
# in streams, sources and apps name, password, into, stream, port, type, broker, topics, format, fields, and what describes
# a Modbus device. Whatever is left out has its default; a key that is not known is a fault. Sizes are 64MiB or 2GB,
# durations 5ms, 10s, 12h or 30d. Relative file names are taken from the folder of this file. After a change: holdfast check
#
# Generated from the code: go test ./configs -update

`

func TestExampleFile(t *testing.T) {
	golden(t, "holdfast.yaml", exampleHead+write(example(), true))
	got, faults := parse(Example, bench())
	if len(faults) > 0 {
		t.Fatalf("holdfast.yaml has faults:\n%s", Format(faults))
	}
	if want := example(); !reflect.DeepEqual(got, want) {
		t.Errorf("holdfast.yaml says %+v, want %+v", got, want)
	}
}

// TestExampleHasEveryKey makes sure that the example leaves out no section.
func TestExampleHasEveryKey(t *testing.T) {
	d := newDecoder(reflect.TypeFor[Config]())
	lines := strings.Split(string(Example), "\n")
	for _, o := range d.owners {
		found := false
		for _, line := range lines {
			line = strings.TrimLeft(line, " -")
			found = found || strings.HasPrefix(line, o.key+":")
		}
		if !found {
			t.Errorf("holdfast.yaml has no key %s", join(o.section, o.key))
		}
	}
}

// TestKeysAreExplained wants a phrase for every key, written alike.
func TestKeysAreExplained(t *testing.T) {
	var walk func(reflect.Type, string)
	walk = func(rt reflect.Type, section string) {
		for rt.Kind() == reflect.Pointer || rt.Kind() == reflect.Slice {
			rt = rt.Elem()
		}
		if rt.Kind() != reflect.Struct {
			return
		}
		for i := range rt.NumField() {
			if sf := rt.Field(i); sf.IsExported() && sf.Tag.Get("yaml") == "" {
				t.Errorf("%s.%s has no yaml tag, so no file can set it", rt, sf.Name)
			}
		}
		for _, f := range fieldsOf(rt) {
			switch {
			case f.doc == "":
				t.Errorf("%s has no doc tag in %s", join(section, f.key), rt)
			case strings.HasSuffix(f.doc, "."):
				t.Errorf("%s: doc %q ends in a full stop, but is a phrase", join(section, f.key), f.doc)
			}
			walk(f.typ, join(section, f.key))
		}
	}
	walk(reflect.TypeFor[Config](), "")
}

// TestDefaultsAreRepeatable guards against defaults that share a slice or map.
func TestDefaultsAreRepeatable(t *testing.T) {
	a, b := Defaults(), Defaults()
	if !reflect.DeepEqual(a, b) {
		t.Errorf("Defaults() = %+v, then %+v", a, b)
	}
	if a.Storage.Budget == 0 || a.Hub.Domain == "" {
		t.Errorf("Defaults() = %+v, want the sections' defaults", a)
	}
}
