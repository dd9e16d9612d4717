package frame

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Types of framers.
const (
	TypeLine      = "line"            // ends with LF, CR LF or CR
	TypeDelimiter = "delimiter"       // ends with configured bytes
	TypeSTXETX    = "stx-etx"         // between STX and ETX, with or without DLE stuffing and a block check character
	TypeFixed     = "fixed"           // of one length
	TypeLength    = "length-prefixed" // says how long it is
	TypeGap       = "gap"             // between silences
	TypeSLIP      = "slip"            // RFC 1055
	TypeCOBS      = "cobs"            // zero-delimited, Consistent Overhead Byte Stuffing
	TypeHDLC      = "hdlc"            // RFC 1662 with FCS-16
	TypeNMEA      = "nmea"            // NMEA 0183 sentences, $ or !, with checksum
	TypeAIS       = "ais"             // the same, with the sentences of one AIS message joined
	TypeDSMR      = "dsmr-p1"         // telegrams of the P1 port of electricity meters
	TypeIEC       = "iec62056-21"     // identification lines and data blocks of meters
	TypeSML       = "sml"             // Smart Message Language files in transport version 1
	TypeMBus      = "mbus"            // wired M-Bus telegrams
	TypePMS       = "pms5003"         // Plantower particle sensors
	TypeMHZ       = "mh-z19"          // CO2 sensors MH-Z19, MH-Z14 and alike
	TypeDavis     = "davis"           // LOOP packets of Davis Vantage weather stations
	TypeVEDirect  = "vedirect"        // blocks and hex records of Victron devices
	TypeSDI12     = "sdi12"           // answers of SDI-12 sensors
)

// Whether messages that may have a checksum need one.
const (
	ChecksumRequired = "required"
	ChecksumOptional = "optional"
)

// What the top bits of the bytes are.
const (
	ParityNone = "none" // data
	ParityEven = "even" // even parity of the other seven
	ParityOdd  = "odd"  // odd parity of the other seven
)

// Block check characters.
const (
	BCCNone = "none"
	BCCXOR  = "xor"
)

// How a length is written.
const (
	LengthU8     = "u8"
	LengthU16BE  = "u16be"
	LengthU16LE  = "u16le"
	LengthU32BE  = "u32be"
	LengthU32LE  = "u32le"
	LengthVarint = "varint" // seven bits a byte, lowest first
)

// Bounds of what may be configured.
const (
	DefaultMax     = 64 << 10 // bytes of a line or delimited frame
	DefaultNMEAMax = 256      // bytes of a sentence; the standard says 82, devices send more
	DefaultTimeout = 10 * time.Second
	MaxMax         = 16 << 20
	maxDelimiter   = 64
	maxOffset      = 255
	minGap         = time.Millisecond
	maxGap         = time.Hour
)

// kinds says of each type what is known before any bytes come: the default maximum, and the range in which it may be set; a range
// of one means that the protocol sets it.
var kinds = map[string]struct{ std, least, most int }{
	TypeLine:      {DefaultMax, 1, MaxMax},
	TypeDelimiter: {DefaultMax, 1, MaxMax},
	TypeSTXETX:    {4 << 10, 1, 64 << 10},
	TypeFixed:     {MaxMax, MaxMax, MaxMax},
	TypeLength:    {4 << 10, 1, MaxMax},
	TypeGap:       {4 << 10, 1, MaxMax},
	TypeSLIP:      {4 << 10, 1, MaxMax},
	TypeCOBS:      {4 << 10, 1, MaxMax},
	TypeHDLC:      {2 << 10, 1, MaxMax},
	TypeNMEA:      {DefaultNMEAMax, 82, MaxMax},
	TypeAIS:       {DefaultNMEAMax, 82, 4 << 10},
	TypeDSMR:      {8 << 10, 64, 64 << 10},
	TypeIEC:       {16 << 10, 64, 64 << 10},
	TypeSML:       {8 << 10, 64, 64 << 10},
	TypeMBus:      {261, 261, 261},
	TypePMS:       {40, 40, 40},
	TypeMHZ:       {mhzSize, mhzSize, mhzSize},
	TypeDavis:     {davisSize, davisSize, davisSize},
	TypeVEDirect:  {2 << 10, 64, 64 << 10},
	TypeSDI12:     {128, 35, 4 << 10},
}

// lengthSizes are the bytes of a length; 0: it shows.
var lengthSizes = map[string]int{LengthU8: 1, LengthU16BE: 2, LengthU16LE: 2, LengthU32BE: 4, LengthU32LE: 4, LengthVarint: 0}

// Types that use a key which others do not. max_bytes and trim_nul are left alone: they have defaults for all.
var (
	scanned     = []string{TypeSTXETX, TypeFixed, TypeLength, TypeDSMR, TypeIEC, TypeSML, TypeMBus, TypePMS, TypeMHZ, TypeDavis}
	withText    = []string{TypeLine, TypeDelimiter, TypeSTXETX, TypeDSMR, TypeIEC, TypeSDI12}
	withGap     = append([]string{TypeGap}, scanned...)
	withSync    = []string{TypeFixed, TypeLength}
	withInclude = []string{TypeDelimiter, TypeLength}
)

// Config is the frame section of a source: how its bytes are cut into messages.
type Config struct {
	Type           string        `yaml:"type,scalar" enum:"line,delimiter,stx-etx,fixed,length-prefixed,gap,slip,cobs,hdlc,nmea,ais,dsmr-p1,iec62056-21,sml,mbus,pms5003,mh-z19,davis,vedirect,sdi12" doc:"how messages begin and end"`
	MaxBytes       int64         `yaml:"max_bytes" unit:"bytes" doc:"longest message; longer ones are rejected; 0: what suits the type, such as 64KiB for line and 256 for nmea"`
	TrimNUL        bool          `yaml:"trim_nul" doc:"line: drop NUL bytes before and after a line, as an idle or broken line gives, and count them as noise"`
	Parity         string        `yaml:"parity" enum:"none,even,odd" doc:"for a line with 7 data bits that is read with 8: check the top bit and take it off"`
	Delimiter      string        `yaml:"delimiter" doc:"delimiter: the bytes that end a message, with \\r \\n \\t \\0 \\xHH and \\\\, or hex:0d0a"`
	Include        bool          `yaml:"include" doc:"keep the delimiter in the message; length-prefixed: keep what is before and behind the payload"`
	Checksum       string        `yaml:"checksum" enum:"required,optional" doc:"nmea, ais, dsmr-p1, iec62056-21, sdi12: whether a message without a checksum is rejected or taken"`
	BCC            string        `yaml:"bcc" enum:"none,xor" doc:"stx-etx: the block check character behind ETX"`
	DLE            bool          `yaml:"dle" doc:"stx-etx: DLE stands before STX and ETX, and is doubled in the message"`
	Sync           string        `yaml:"sync" doc:"fixed, length-prefixed: the bytes that a message begins with, written like delimiter"`
	Length         int           `yaml:"length" doc:"fixed: how many bytes a message has, with those of sync"`
	LengthType     string        `yaml:"length_type" doc:"length-prefixed: u8, u16be, u16le, u32be, u32le or varint"`
	Offset         int           `yaml:"offset" doc:"length-prefixed: how many bytes are before the length, with those of sync"`
	IncludesHeader bool          `yaml:"includes_header" doc:"length-prefixed: the length counts itself and what is before it"`
	Trailer        int           `yaml:"trailer" doc:"length-prefixed: how many bytes behind the payload the length does not count"`
	Gap            time.Duration `yaml:"gap" doc:"gap: the silence that ends a message; fixed, length-prefixed and protocols with checksums: a silence that no message has inside"`
	Timeout        time.Duration `yaml:"timeout" doc:"ais: how long the sentences of one message may take; 0: 10s"`
}

// SetDefaults sets every key that does not depend on the type.
func (c *Config) SetDefaults() {
	c.TrimNUL = true
	c.Parity = ParityNone
	c.Checksum = ChecksumRequired
	c.BCC = BCCNone
}

// Validate reports what cannot work.
func (c Config) Validate(fault func(key, problem, remedy string)) {
	kind, known := kinds[c.Type]
	if c.Type == "" {
		fault("type", "is missing", "name how messages end: "+strings.Join(types(), ", "))
	} else if !known {
		fault("type", fmt.Sprintf("%q is unknown", c.Type), "use one of "+strings.Join(types(), ", "))
	}
	switch n := int(c.MaxBytes); {
	case c.MaxBytes < 0 || c.MaxBytes > MaxMax:
		fault("max_bytes", fmt.Sprintf("%d is out of range", c.MaxBytes), "give 1 B to 16MiB, or 0 for the default")
	case known && n > 0 && kind.least == kind.most:
		fault("max_bytes", "is not used with type "+c.Type, "remove it: "+c.Type+" says how long its messages are")
	case known && n > 0 && (n < kind.least || n > kind.most):
		fault("max_bytes", fmt.Sprintf("%d does not suit type %s", n, c.Type), fmt.Sprintf("give %d to %d, or 0 for the default of %d", kind.least, kind.most, kind.std))
	}
	c.validateUse(fault)
	c.validateBytes("delimiter", c.Delimiter, c.Type == TypeDelimiter, `give the bytes that end a message, such as "\r\n" or hex:03`, fault)
	c.validateBytes("sync", c.Sync, false, "", fault)
	switch c.Type {
	case TypeFixed:
		c.validateFixed(fault)
	case TypeLength:
		c.validateLength(fault)
	}
	switch {
	case c.Type == TypeGap && c.Gap == 0:
		fault("gap", "is missing", "give the silence that ends a message; 20ms or more, since adapters and their drivers hold bytes back that long")
	case c.Gap < 0 || c.Gap > 0 && (c.Gap < minGap || c.Gap > maxGap):
		fault("gap", fmt.Sprintf("%s is out of range", c.Gap), "give 1ms to 1h; below 20ms an adapter's own delays look like a gap")
	}
	if c.Timeout < 0 || c.Timeout > maxGap {
		fault("timeout", fmt.Sprintf("%s is out of range", c.Timeout), "give up to 1h, or 0 for the default of 10s")
	}
}

// types returns the names of all types.
func types() []string {
	var names []string
	for name := range kinds {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// validateUse reports keys that the type makes no use of.
func (c Config) validateUse(fault func(key, problem, remedy string)) {
	for _, use := range []struct {
		key string
		set bool
		by  []string
	}{
		{"parity", c.Parity != "" && c.Parity != ParityNone, withText},
		{"delimiter", c.Delimiter != "", []string{TypeDelimiter}},
		{"include", c.Include, withInclude},
		{"bcc", c.BCC != "" && c.BCC != BCCNone, []string{TypeSTXETX}},
		{"dle", c.DLE, []string{TypeSTXETX}},
		{"sync", c.Sync != "", withSync},
		{"length", c.Length != 0, []string{TypeFixed}},
		{"length_type", c.LengthType != "", []string{TypeLength}},
		{"offset", c.Offset != 0, []string{TypeLength}},
		{"includes_header", c.IncludesHeader, []string{TypeLength}},
		{"trailer", c.Trailer != 0, []string{TypeLength}},
		{"gap", c.Gap != 0, withGap},
		{"timeout", c.Timeout != 0, []string{TypeAIS}},
	} {
		if use.set && c.Type != "" && !slices.Contains(use.by, c.Type) {
			fault(use.key, "is not used with type "+c.Type, "remove it, or set type to one of "+strings.Join(use.by, ", "))
		}
	}
	for _, enum := range []struct {
		key, value string
		of         []string
	}{
		{"parity", c.Parity, []string{"", ParityNone, ParityEven, ParityOdd}},
		{"checksum", c.Checksum, []string{"", ChecksumRequired, ChecksumOptional}},
		{"bcc", c.BCC, []string{"", BCCNone, BCCXOR}},
	} {
		if !slices.Contains(enum.of, enum.value) {
			fault(enum.key, fmt.Sprintf("%q is unknown", enum.value), "use one of "+strings.Join(enum.of[1:], ", "))
		}
	}
}

// validateBytes reports what is wrong with bytes that are written as text.
func (c Config) validateBytes(key, value string, needed bool, example string, fault func(key, problem, remedy string)) {
	b, err := Unescape(value)
	switch {
	case value == "" && needed:
		fault(key, "is missing", example)
	case err != nil:
		fault(key, err.Error(), `write \r \n \t \0 \xHH, \\ for a backslash, or hex: and pairs of digits`)
	case len(b) > maxDelimiter:
		fault(key, fmt.Sprintf("is %d bytes long", len(b)), fmt.Sprintf("give at most %d bytes", maxDelimiter))
	}
}

func (c Config) validateFixed(fault func(key, problem, remedy string)) {
	sync, _ := Unescape(c.Sync)
	switch {
	case c.Length == 0:
		fault("length", "is missing", "give the bytes of a message")
	case c.Length < 0 || c.Length > MaxMax:
		fault("length", fmt.Sprintf("%d is out of range", c.Length), "give 1 to 16777216 bytes")
	case c.Length < len(sync):
		fault("length", "is less than the bytes of sync", "count the bytes of sync too")
	}
	if c.Sync == "" && c.Gap == 0 {
		fault("sync", "is missing and so is gap: one lost byte would shift all messages for ever", "give the bytes that a message begins with, or the gap between messages")
	}
}

func (c Config) validateLength(fault func(key, problem, remedy string)) {
	sync, _ := Unescape(c.Sync)
	if _, ok := lengthSizes[c.LengthType]; !ok {
		fault("length_type", fmt.Sprintf("%q is no way to write a length", c.LengthType), "use one of u8, u16be, u16le, u32be, u32le, varint")
	}
	if c.Offset < 0 || c.Offset > maxOffset {
		fault("offset", fmt.Sprintf("%d is out of range", c.Offset), "give 0 to 255 bytes")
	} else if c.Offset < len(sync) {
		fault("offset", "is less than the bytes of sync", "count the bytes of sync too")
	}
	if c.Trailer < 0 || c.Trailer > maxOffset {
		fault("trailer", fmt.Sprintf("%d is out of range", c.Trailer), "give 0 to 255 bytes")
	}
}

// limit returns the maximum in force.
func (c Config) limit() int {
	switch {
	case c.Type == TypeFixed:
		return c.Length
	case c.MaxBytes > 0:
		return int(c.MaxBytes)
	}
	return kinds[c.Type].std
}

// Pause returns how long a silence the framer has to be told of by Tick, at the latest that long after it began; 0: any will do.
func (c Config) Pause() time.Duration {
	if c.Type == TypeAIS {
		return c.timeout()
	}
	return c.Gap
}

func (c Config) timeout() time.Duration {
	if c.Timeout == 0 {
		return DefaultTimeout
	}
	return c.Timeout
}
