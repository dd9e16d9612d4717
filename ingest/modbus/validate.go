package modbus

import (
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"time"
)

// Bounds of the configuration.
const (
	minTimeout  = 5 * time.Millisecond
	maxTimeout  = time.Minute
	minInterval = 5 * time.Millisecond
	maxRetries  = 10
	minBuffer   = 4 << 10
	maxBuffer   = 256 << 20
	maxUnit     = 255
	giveTimeout = "give 5ms or more"
)

// nameForm is what a subject token can hold.
var nameForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$`)

// Validate reports what cannot work on any bus, keys with the place of device and field: devices[0].fields[2].order.
func (c Config) Validate(fault func(key, problem, remedy string)) {
	c.Bus.validate(func(key, problem, remedy string) { fault("bus."+key, problem, remedy) })
	if c.Buffer < minBuffer || c.Buffer > maxBuffer {
		fault("buffer", fmt.Sprintf("%d bytes are out of range", c.Buffer), "give 4KiB to 256MiB")
	}
	if len(c.Devices) == 0 {
		fault("devices", "are missing", "list at least one, with name, unit and fields")
	}
	names := map[string]int{}
	for i, d := range c.Devices {
		at := fmt.Sprintf("devices[%d].", i)
		if first, taken := names[d.Name]; taken {
			fault(at+"name", fmt.Sprintf("%s is the name of devices[%d] already", d.Name, first), "rename one of the two")
		} else {
			names[d.Name] = i
		}
		d.validate(c.Bus.Mode, func(key, problem, remedy string) { fault(at+key, problem, remedy) })
	}
}

func (b Bus) validate(fault func(key, problem, remedy string)) {
	switch b.Mode {
	case ModeRTU:
		b.validateLine(fault)
	case ModeTCP, ModeRTUOverTCP:
		b.validateAddress(fault)
	default:
		fault("mode", fmt.Sprintf("%q is unknown", b.Mode), "give rtu, tcp or rtu_over_tcp")
	}
	for _, d := range []struct {
		key  string
		have time.Duration
		min  time.Duration
		tell string
	}{
		{"timeout", b.Timeout, minTimeout, giveTimeout}, {"dead_interval", b.DeadInterval, minTimeout, "give 5ms or more"},
		{"busy_wait", b.BusyWait, 0, "give 0 or more"}, {"delay", b.Delay, 0, "give 0 or more"}, {"gap", b.Gap, 0, "give 0 or more"},
	} {
		if d.have < d.min || d.key != "dead_interval" && d.have > maxTimeout {
			fault(d.key, fmt.Sprintf("%s is out of range", d.have), d.tell+", up to a minute")
		}
	}
	if b.Retries < 0 || b.Retries > maxRetries {
		fault("retries", fmt.Sprintf("%d is out of range", b.Retries), fmt.Sprintf("give 0 to %d", maxRetries))
	}
	if b.Echo != EchoAuto && b.Echo != EchoOn && b.Echo != EchoOff {
		fault("echo", fmt.Sprintf("%q is unknown", b.Echo), "give auto, on or off")
	}
}

func (b Bus) validateLine(fault func(key, problem, remedy string)) {
	if b.Address != "" {
		fault("address", "is of a network, and mode is rtu", "set mode: tcp or rtu_over_tcp, or give port instead")
	}
	line := b.line()
	line.Validate(func(key, problem, remedy string) {
		if slices.Contains([]string{"port", "baud", "data_bits", "parity", "stop_bits"}, key) {
			fault(key, problem, remedy)
		}
	})
	if b.DataBits < 8 && b.DataBits >= 5 {
		fault("data_bits", fmt.Sprintf("%d bits cannot hold a byte of Modbus RTU", b.DataBits), "set 8; Modbus ASCII is not supported")
	}
}

// Check returns the first fault of a bus; nil for a sound one.
func (b Bus) Check() (err error) {
	b.validate(func(key, problem, remedy string) {
		if err == nil {
			err = fmt.Errorf("%s: %s: %s", key, problem, remedy)
		}
	})
	return err
}

func (b Bus) validateAddress(fault func(key, problem, remedy string)) {
	if b.Port != "" {
		fault("port", "is of a serial line, and mode is "+b.Mode, "set mode: rtu, or give address instead")
	}
	host, port, err := net.SplitHostPort(b.Address)
	if n, bad := strconv.Atoi(port); b.Address == "" || err != nil || host == "" || bad != nil || n < 1 || n > 65535 {
		fault("address", fmt.Sprintf("%q is no host and port", b.Address), "write it like 192.168.1.20:502")
	}
}

func (d Device) validate(mode string, fault func(key, problem, remedy string)) {
	if !nameForm.MatchString(d.Name) {
		fault("name", fmt.Sprintf("%q is not a name", d.Name), "use 1 to 32 letters, digits, - and _, beginning with a letter or digit")
	}
	least := 1 // 0 is for everybody on a line, and nobody replies
	if mode == ModeTCP {
		least = 0
	}
	if d.Unit < least || d.Unit > maxUnit {
		fault("unit", fmt.Sprintf("%d is out of range", d.Unit), fmt.Sprintf("give %d to %d", least, maxUnit))
	}
	if d.Interval < minInterval {
		fault("interval", fmt.Sprintf("%s is too short", d.Interval), "give 5ms or more")
	}
	if d.AddressBase != 0 && d.AddressBase != 1 {
		fault("address_base", fmt.Sprintf("%d is out of range", d.AddressBase), "give 0 or 1")
		d.AddressBase = 0 // for the fields below
	}
	if !slices.Contains([]string{"ABCD", "CDAB", "BADC", "DCBA"}, d.Order) {
		fault("order", fmt.Sprintf("%q is unknown", d.Order), "give ABCD, CDAB, BADC or DCBA")
	}
	if d.MaxBatch < 1 || d.MaxBatch > maxRegisters {
		fault("max_batch", fmt.Sprintf("%d is out of range", d.MaxBatch), fmt.Sprintf("give 1 to %d", maxRegisters))
	}
	if d.MaxGap < 0 || d.MaxGap > maxRegisters {
		fault("max_gap", fmt.Sprintf("%d is out of range", d.MaxGap), fmt.Sprintf("give 0 to %d", maxRegisters))
	}
	switch d.Report {
	case ReportEvery, ReportChange:
	case ReportInterval:
		if d.ReportEvery <= 0 {
			fault("report_every", "is missing", "give how often a record is made, such as 1m")
		}
	default:
		fault("report", fmt.Sprintf("%q is unknown", d.Report), "give every, change or interval")
	}
	if d.ReportEvery < 0 {
		fault("report_every", fmt.Sprintf("%s is negative", d.ReportEvery), "give 0 or more")
	}
	if d.Keep != KeepDecoded && d.Keep != KeepBoth {
		fault("keep", fmt.Sprintf("%q is unknown", d.Keep), "give decoded or both")
	}
	d.validateFields(fault)
}

func (d Device) validateFields(fault func(key, problem, remedy string)) {
	if len(d.Fields) == 0 {
		fault("fields", "are missing", "list at least one, with name and address")
	}
	names := map[string]int{}
	for i, f := range d.Fields {
		at := fmt.Sprintf("fields[%d].", i)
		if first, taken := names[f.Name]; taken {
			fault(at+"name", fmt.Sprintf("%s is the name of fields[%d] already", f.Name, first), "rename one of the two")
		} else {
			names[f.Name] = i
		}
		d.validateField(f, func(key, problem, remedy string) { fault(at+key, problem, remedy) })
	}
}

func (d Device) validateField(f Field, fault func(key, problem, remedy string)) {
	if f.Name == "" || len(f.Name) > 64 {
		fault("name", "is missing or longer than 64 bytes", "name what the value is, such as voltage")
	}
	if !slices.Contains([]string{TableHolding, TableInput, TableCoil, TableDiscrete}, f.Table) {
		fault("table", fmt.Sprintf("%q is unknown", f.Table), "give holding, input, coil or discrete")
		return
	}
	if _, known := typeLens[f.Type]; !known && f.Type != "string" {
		fault("type", fmt.Sprintf("%q is unknown", f.Type), "give u16, i16, u32, i32, u64, i64, f32, f64, bcd, string, bits, epoch or bool")
		return
	}
	if (f.Table == TableCoil || f.Table == TableDiscrete) && f.Type != "bool" && f.Type != "u16" { // u16 is the default
		fault("type", "a coil is no "+f.Type, "set type: bool, or leave it out")
		return
	}
	p, key, problem, remedy := newPoint(f, d)
	if problem != "" {
		fault(key, problem, remedy)
		return
	}
	if !p.coil() && p.count > d.MaxBatch && d.MaxBatch > 0 {
		fault("len", fmt.Sprintf("%d registers are more than max_batch, %d", p.count, d.MaxBatch), "raise max_batch of the device")
	}
	if f.Writable && p.settable() != "" {
		fault("writable", p.settable(), "remove it")
	}
	p.validateNumber(fault)
	d.validateScaleFrom(f, fault)
}

// validateNumber faults keys that are for numbers on fields that are none.
func (p *point) validateNumber(fault func(key, problem, remedy string)) {
	isNumber := !slices.Contains([]string{"string", "bits", "epoch", "bool"}, p.Type)
	for _, k := range []struct {
		key string
		set bool
	}{
		{"scale", p.Scale != 1}, {"offset", p.Offset != 0}, {"scale_from", p.ScaleFrom != ""},
		{"min", p.Min != nil}, {"max", p.Max != nil}, {"deadband", p.Deadband != 0},
	} {
		if k.set && !isNumber {
			fault(k.key, "is for numbers, and the field is "+p.Type, "remove it")
		}
	}
	switch {
	case p.Scale == 0:
		fault("scale", "0 leaves nothing of the value", "give a factor, such as 0.1")
	case p.Deadband < 0:
		fault("deadband", "is negative", "give 0 or more")
	case p.Min != nil && p.Max != nil && *p.Min > *p.Max:
		fault("max", "is below min", "exchange the two")
	case len(p.read.NaN) > 0 && (p.coil() || p.Type == "string"):
		fault("nan", "is for numbers, and the field is "+p.Type, "remove it")
	case p.read.Mask != 0 && slices.Contains([]string{"f32", "f64", "bcd", "string", "bool", "epoch"}, p.Type):
		fault("mask", "is for whole numbers, and the field is "+p.Type, "remove it")
	case len(p.Labels) > 0 && p.Type != "bits":
		fault("labels", "are for bits, and the field is "+p.Type, "set type: bits")
	}
}

func (d Device) validateScaleFrom(f Field, fault func(key, problem, remedy string)) {
	if f.ScaleFrom == "" {
		return
	}
	for _, other := range d.Fields {
		if other.Name != f.ScaleFrom {
			continue
		}
		if other.ScaleFrom != "" || other.Name == f.Name {
			fault("scale_from", f.ScaleFrom+" has scale_from itself", "name a field that is a plain number")
		}
		return
	}
	fault("scale_from", fmt.Sprintf("there is no field %q in this device", f.ScaleFrom), "add it, of type i16")
}
