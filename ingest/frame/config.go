package frame

import (
	"encoding/hex"
	"fmt"
	"strings"
)

// Types of framers.
const (
	TypeLine      = "line"      // ends with LF, CR LF or CR
	TypeDelimiter = "delimiter" // ends with configured bytes
	TypeNMEA      = "nmea"      // NMEA 0183 sentences, $ or !, with checksum
)

// Whether NMEA sentences need a checksum.
const (
	ChecksumRequired = "required"
	ChecksumOptional = "optional"
)

// Default maxima and bounds of what may be configured.
const (
	DefaultMax     = 64 << 10 // bytes of a line or delimited frame
	DefaultNMEAMax = 256      // bytes of a sentence; the standard says 82, devices send more
	MaxMax         = 16 << 20
	maxDelimiter   = 64
)

// Config is the frame section of a source: how its bytes are cut into messages.
type Config struct {
	Type      string `yaml:"type,scalar" enum:"line,delimiter,nmea" doc:"how messages end: line (LF, CR LF or CR), delimiter, or nmea"`
	MaxBytes  int64  `yaml:"max_bytes" unit:"bytes" doc:"longest message; longer ones are rejected as overlong; 0: 64KiB, for nmea 256"`
	TrimNUL   bool   `yaml:"trim_nul" doc:"line: drop NUL bytes before and after a line, as an idle or broken line gives, and count them as noise"`
	Delimiter string `yaml:"delimiter" doc:"delimiter: the bytes that end a message, with \\r \\n \\t \\0 \\xHH and \\\\, or hex:0d0a"`
	Include   bool   `yaml:"include" doc:"delimiter: keep the delimiter at the end of the message"`
	Checksum  string `yaml:"checksum" enum:"required,optional" doc:"nmea: whether a sentence without a checksum is rejected (required) or taken (optional)"`
}

// SetDefaults sets every key that does not depend on the type.
func (c *Config) SetDefaults() {
	c.TrimNUL = true
	c.Checksum = ChecksumRequired
}

// Validate reports what cannot work.
func (c Config) Validate(fault func(key, problem, remedy string)) {
	if c.Type == "" {
		fault("type", "is missing", "name one of line, delimiter, nmea")
	}
	if c.MaxBytes < 0 || c.MaxBytes > MaxMax {
		fault("max_bytes", fmt.Sprintf("%d is out of range", c.MaxBytes), "give 1 B to 16MiB, or 0 for the default")
	}
	if c.Type == TypeNMEA && c.MaxBytes > 0 && c.MaxBytes < 82 {
		fault("max_bytes", fmt.Sprintf("%d is shorter than a sentence may be", c.MaxBytes), "give at least 82, or 0 for the default of 256")
	}
	end, err := unescape(c.Delimiter)
	switch {
	case c.Type == TypeDelimiter && c.Delimiter == "":
		fault("delimiter", "is missing", `give the bytes that end a message, such as "\r\n" or hex:03`)
	case c.Type != TypeDelimiter && c.Type != "" && c.Delimiter != "":
		fault("delimiter", "is used with type delimiter only", "set type: delimiter, or remove it")
	case err != nil:
		fault("delimiter", err.Error(), `write \r \n \t \0 \xHH, \\ for a backslash, or hex: and pairs of digits`)
	case len(end) > maxDelimiter:
		fault("delimiter", fmt.Sprintf("is %d bytes long", len(end)), fmt.Sprintf("give at most %d bytes", maxDelimiter))
	}
	if c.Include && c.Type != TypeDelimiter && c.Type != "" {
		fault("include", "is used with type delimiter only", "set type: delimiter, or remove it")
	}
}

// limit returns the maximum in force.
func (c Config) limit() int {
	switch {
	case c.MaxBytes > 0:
		return int(c.MaxBytes)
	case c.Type == TypeNMEA:
		return DefaultNMEAMax
	}
	return DefaultMax
}

// unescape reads a delimiter as it is written in the configuration.
func unescape(s string) ([]byte, error) {
	if digits, ok := strings.CutPrefix(s, "hex:"); ok {
		b, err := hex.DecodeString(strings.ReplaceAll(digits, " ", ""))
		if err != nil || len(b) == 0 {
			return nil, fmt.Errorf("%q is not hex: and pairs of hexadecimal digits", s)
		}
		return b, nil
	}
	named := map[byte]byte{'r': '\r', 'n': '\n', 't': '\t', '0': 0, '\\': '\\'}
	var out []byte
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			out = append(out, s[i])
			continue
		}
		i++
		if i == len(s) {
			return nil, fmt.Errorf("%q ends in a single backslash", s)
		}
		if b, ok := named[s[i]]; ok {
			out = append(out, b)
			continue
		}
		if s[i] != 'x' || i+2 >= len(s) {
			return nil, fmt.Errorf(`%q has the unknown escape \%c`, s, s[i])
		}
		b, err := hex.DecodeString(s[i+1 : i+3])
		if err != nil {
			return nil, fmt.Errorf(`%q: \x needs two hexadecimal digits`, s)
		}
		out = append(out, b[0])
		i += 2
	}
	return out, nil
}
