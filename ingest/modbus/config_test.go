package modbus

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// faults returns what Validate says, one "key: problem; remedy" each.
func faults(c Config) []string {
	var out []string
	c.Validate(func(key, problem, remedy string) { out = append(out, fmt.Sprintf("%s: %s; %s", key, problem, remedy)) })
	return out
}

func valid() Config {
	c := lineConfig("/dev/ttyUSB0", newDevice("m", 1, time.Second, newField("a", 0, nil), newField("b", 1, nil)))
	return c
}

func TestValidate(t *testing.T) {
	field := func(set func(*Field)) func(*Config) {
		return func(c *Config) { set(&c.Devices[0].Fields[1]) }
	}
	device := func(set func(*Device)) func(*Config) {
		return func(c *Config) { set(&c.Devices[0]) }
	}
	bus := func(set func(*Bus)) func(*Config) {
		return func(c *Config) { set(&c.Bus) }
	}
	two, low, high := 2, 1.0, 5.0
	for _, tt := range []struct {
		name string
		set  func(*Config)
		want string // prefix of the one fault; empty: none
	}{
		{"as it is", func(*Config) {}, ""},
		{"mode", bus(func(b *Bus) { b.Mode = "ascii" }), "bus.mode: "},
		{"no port", bus(func(b *Bus) { b.Port = "" }), "bus.port: is missing"},
		{"relative port", bus(func(b *Bus) { b.Port = "ttyUSB0" }), "bus.port: "},
		{"address on a line", bus(func(b *Bus) { b.Address = "plc:502" }), "bus.address: is of a network"},
		{"seven bits", bus(func(b *Bus) { b.DataBits = 7 }), "bus.data_bits: 7 bits cannot hold"},
		{"baud", bus(func(b *Bus) { b.Baud = 0 }), "bus.baud: "},
		{"tcp", bus(func(b *Bus) { b.Mode, b.Port, b.Address = ModeTCP, "", "plc.local:502" }), ""},
		{"tcp, IPv6", bus(func(b *Bus) { b.Mode, b.Port, b.Address = ModeTCP, "", "[fe80::1]:502" }), ""},
		{"tcp without address", bus(func(b *Bus) { b.Mode, b.Port = ModeTCP, "" }), "bus.address: "},
		{"tcp without port", bus(func(b *Bus) { b.Mode, b.Port, b.Address = ModeTCP, "", "plc" }), "bus.address: "},
		{"tcp with a wrong port", bus(func(b *Bus) { b.Mode, b.Port, b.Address = ModeRTUOverTCP, "", "plc:70000" }), "bus.address: "},
		{"tcp with a line", bus(func(b *Bus) { b.Mode, b.Address = ModeTCP, "plc:502" }), "bus.port: is of a serial line"},
		{"timeout", bus(func(b *Bus) { b.Timeout = 0 }), "bus.timeout: "},
		{"retries", bus(func(b *Bus) { b.Retries = -1 }), "bus.retries: "},
		{"delay", bus(func(b *Bus) { b.Delay = -1 }), "bus.delay: "},
		{"gap", bus(func(b *Bus) { b.Gap = time.Hour }), "bus.gap: "},
		{"echo", bus(func(b *Bus) { b.Echo = "maybe" }), "bus.echo: "},
		{"dead interval", bus(func(b *Bus) { b.DeadInterval = 0 }), "bus.dead_interval: "},
		{"buffer", func(c *Config) { c.Buffer = 1 }, "buffer: "},
		{"no devices", func(c *Config) { c.Devices = nil }, "devices: are missing"},
		{"device twice", func(c *Config) { c.Devices = append(c.Devices, c.Devices[0]) }, "devices[1].name: m is the name of devices[0]"},
		{"device name", device(func(d *Device) { d.Name = "a b" }), "devices[0].name: "},
		{"unit 0 on a line", device(func(d *Device) { d.Unit = 0 }), "devices[0].unit: "},
		{"unit 0 over tcp", func(c *Config) { c.Bus.Mode, c.Bus.Port, c.Bus.Address, c.Devices[0].Unit = ModeTCP, "", "plc:502", 0 }, ""},
		{"unit", device(func(d *Device) { d.Unit = 256 }), "devices[0].unit: "},
		{"interval", device(func(d *Device) { d.Interval = 0 }), "devices[0].interval: "},
		{"base", device(func(d *Device) { d.AddressBase = 2 }), "devices[0].address_base: "},
		{"order", device(func(d *Device) { d.Order = "AB" }), "devices[0].order: "},
		{"batch", device(func(d *Device) { d.MaxBatch = 126 }), "devices[0].max_batch: "},
		{"field wider than a batch", func(c *Config) { c.Devices[0].MaxBatch = 1; c.Devices[0].Fields[1].Type = "u32" }, "devices[0].fields[1].len: "},
		{"gap of batches", device(func(d *Device) { d.MaxGap = -1 }), "devices[0].max_gap: "},
		{"report", device(func(d *Device) { d.Report = "never" }), "devices[0].report: "},
		{"interval without period", device(func(d *Device) { d.Report = ReportInterval }), "devices[0].report_every: "},
		{"keep", device(func(d *Device) { d.Keep = "raw" }), "devices[0].keep: "},
		{"no fields", device(func(d *Device) { d.Fields = nil }), "devices[0].fields: "},
		{"field twice", field(func(f *Field) { f.Name = "a" }), "devices[0].fields[1].name: a is the name of fields[0]"},
		{"no field name", field(func(f *Field) { f.Name = "" }), "devices[0].fields[1].name: "},
		{"table", field(func(f *Field) { f.Table = "4x" }), "devices[0].fields[1].table: "},
		{"type", field(func(f *Field) { f.Type = "float" }), "devices[0].fields[1].type: "},
		{"type of a coil", field(func(f *Field) { f.Table, f.Type = TableCoil, "f32" }), "devices[0].fields[1].type: a coil"},
		{"bool coil", field(func(f *Field) { f.Table, f.Type = TableCoil, "bool" }), ""},
		{"address", field(func(f *Field) { f.Address = 65536 }), "devices[0].fields[1].address: "},
		{"end of the address", field(func(f *Field) { f.Address, f.Type = 65535, "u32" }), "devices[0].fields[1].address: "},
		{"address 0 from 1", func(c *Config) { c.Devices[0].AddressBase = 1; c.Devices[0].Fields = c.Devices[0].Fields[:1] }, "devices[0].fields[0].address: "},
		{"order of a field", field(func(f *Field) { f.Order, f.Type = "AABB", "u32" }), "devices[0].fields[1].order: "},
		{"order of another width", field(func(f *Field) { f.Order, f.Type = "ABCD", "u64" }), "devices[0].fields[1].order: "},
		{"len of a u16", field(func(f *Field) { f.Len = 2 }), "devices[0].fields[1].len: "},
		{"string without len", field(func(f *Field) { f.Type = "string" }), "devices[0].fields[1].len: is missing"},
		{"string too long", field(func(f *Field) { f.Type, f.Len = "string", 126 }), "devices[0].fields[1].len: "},
		{"bcd of 3", field(func(f *Field) { f.Type, f.Len = "bcd", 3 }), "devices[0].fields[1].len: "},
		{"bool without bit", field(func(f *Field) { f.Type = "bool" }), "devices[0].fields[1].bit: "},
		{"bit of a number", field(func(f *Field) { f.Bit = &two }), "devices[0].fields[1].bit: "},
		{"bit of a coil", field(func(f *Field) { f.Table, f.Bit = TableCoil, &two }), "devices[0].fields[1].bit: "},
		{"mask", field(func(f *Field) { f.Mask = "ff" }), "devices[0].fields[1].mask: "},
		{"mask too wide", field(func(f *Field) { f.Mask = "0x10000" }), "devices[0].fields[1].mask: "},
		{"mask of nothing", field(func(f *Field) { f.Mask = "0x0" }), "devices[0].fields[1].mask: "},
		{"mask of a float", field(func(f *Field) { f.Type, f.Mask = "f32", "0xff" }), "devices[0].fields[1].mask: "},
		{"scale 0", field(func(f *Field) { f.Scale = 0 }), "devices[0].fields[1].scale: "},
		{"scale of a text", field(func(f *Field) { f.Type, f.Len, f.Scale = "string", 2, 2 }), "devices[0].fields[1].scale: "},
		{"min of bits", field(func(f *Field) { f.Type, f.Min = "bits", &low }), "devices[0].fields[1].min: "},
		{"max below min", field(func(f *Field) { f.Min, f.Max = &high, &low }), "devices[0].fields[1].max: "},
		{"nan too narrow", field(func(f *Field) { f.Type, f.NaN = "u32", []string{"0xffff"} }), "devices[0].fields[1].nan: "},
		{"nan too wide", field(func(f *Field) { f.NaN = []string{"0xffffffff"} }), "devices[0].fields[1].nan: "},
		{"nan out of the type", field(func(f *Field) { f.NaN = []string{"-1"} }), "devices[0].fields[1].nan: "},
		{"nan of a float in digits", field(func(f *Field) { f.Type, f.NaN = "f32", []string{"-1"} }), "devices[0].fields[1].nan: "},
		{"nan of a text", field(func(f *Field) { f.Type, f.Len, f.NaN = "string", 8, []string{"0xffff"} }), "devices[0].fields[1].nan: "},
		{"deadband", field(func(f *Field) { f.Deadband = -1 }), "devices[0].fields[1].deadband: "},
		{"labels of a number", field(func(f *Field) { f.Labels = []string{"a"} }), "devices[0].fields[1].labels: "},
		{"scale from nowhere", field(func(f *Field) { f.ScaleFrom = "sf" }), "devices[0].fields[1].scale_from: there is no field"},
		{"scale from itself", field(func(f *Field) { f.ScaleFrom = "b" }), "devices[0].fields[1].scale_from: "},
		{"writable input", field(func(f *Field) { f.Table, f.Writable = TableInput, true }), "devices[0].fields[1].writable: "},
		{"writable bits", field(func(f *Field) { f.Type, f.Writable = "bits", true }), "devices[0].fields[1].writable: "},
		{"writable coil", field(func(f *Field) { f.Table, f.Writable = TableCoil, true }), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := valid()
			tt.set(&c)
			got := faults(c)
			if tt.want == "" {
				if len(got) > 0 {
					t.Errorf("faults %q, want none", got)
				}
				return
			}
			if len(got) != 1 || !strings.HasPrefix(got[0], tt.want) {
				t.Errorf("faults %q, want one, %s", got, tt.want)
			}
			if _, err := New("s", c, slog.New(slog.DiscardHandler)); err == nil {
				t.Error("New() took it")
			}
		})
	}
}
