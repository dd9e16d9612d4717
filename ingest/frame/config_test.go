package frame

import (
	"bytes"
	"slices"
	"testing"
)

func TestConfigValidate(t *testing.T) {
	for _, tc := range []struct {
		name string
		cfg  Config
		keys []string // of the faults
	}{
		{"line", Config{Type: TypeLine}, nil},
		{"delimiter", Config{Type: TypeDelimiter, Delimiter: "hex:0d0a", Include: true, MaxBytes: MaxMax}, nil},
		{"nmea", Config{Type: TypeNMEA, MaxBytes: 82}, nil},
		{"empty", Config{}, []string{"type"}},
		{"no delimiter", Config{Type: TypeDelimiter}, []string{"delimiter"}},
		{"bad delimiter", Config{Type: TypeDelimiter, Delimiter: `\q`}, []string{"delimiter"}},
		{"long delimiter", Config{Type: TypeDelimiter, Delimiter: string(make([]byte, 65))}, []string{"delimiter"}},
		{"delimiter of a line", Config{Type: TypeLine, Delimiter: ";", Include: true}, []string{"delimiter", "include"}},
		{"negative maximum", Config{Type: TypeLine, MaxBytes: -1}, []string{"max_bytes"}},
		{"huge maximum", Config{Type: TypeLine, MaxBytes: MaxMax + 1}, []string{"max_bytes"}},
		{"short sentences", Config{Type: TypeNMEA, MaxBytes: 81}, []string{"max_bytes"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var keys []string
			tc.cfg.Validate(func(key, problem, remedy string) {
				if problem == "" || remedy == "" {
					t.Errorf("fault of %s: problem %q, remedy %q, want both", key, problem, remedy)
				}
				keys = append(keys, key)
			})
			if !slices.Equal(keys, tc.keys) {
				t.Errorf("faults of %q, want %q", keys, tc.keys)
			}
			if f, err := New(tc.cfg); (err == nil) != (tc.keys == nil) || (f == nil) != (err != nil) {
				t.Errorf("New() = %v, %v", f, err)
			}
		})
	}
	if _, err := New(Config{Type: "slip"}); err == nil {
		t.Error("New() of an unknown type = nil error")
	}
}

func TestConfigDefaults(t *testing.T) {
	var c Config
	c.SetDefaults()
	if !c.TrimNUL || c.Checksum != ChecksumRequired || c.limit() != DefaultMax {
		t.Errorf("SetDefaults() = %+v", c)
	}
	c.Type = TypeNMEA
	if c.limit() != DefaultNMEAMax {
		t.Errorf("limit of nmea = %d, want %d", c.limit(), DefaultNMEAMax)
	}
}

func TestUnescape(t *testing.T) {
	for _, tc := range []struct {
		in   string
		want []byte // nil: an error
	}{
		{`\r\n`, []byte("\r\n")},
		{"\r\n", []byte("\r\n")},
		{`a\t\0\\\x7fb`, []byte("a\t\x00\\\x7fb")},
		{"hex:0d0a", []byte("\r\n")},
		{"hex:0D 0A 03", []byte("\r\n\x03")},
		{"ü", []byte("ü")},
		{`\`, nil}, {`\q`, nil}, {`\x`, nil}, {`\x1`, nil}, {`\x1g`, nil}, {"hex:", nil}, {"hex:0", nil}, {"hex:zz", nil},
	} {
		got, err := unescape(tc.in)
		if (err != nil) != (tc.want == nil) || !bytes.Equal(got, tc.want) {
			t.Errorf("unescape(%q) = %q, %v, want %q", tc.in, got, err, tc.want)
		}
	}
}
