package frame

import (
	"bytes"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
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
		{"huge maximum of meters", Config{Type: TypeSML, MaxBytes: MaxMax}, []string{"max_bytes"}},
		{"maximum of a fixed protocol", Config{Type: TypePMS, MaxBytes: 100}, []string{"max_bytes"}},
		{"unknown type", Config{Type: "morse"}, []string{"type"}},
		{"unknown words", Config{Type: TypeSTXETX, Parity: "mark", BCC: "sum", Checksum: "no"}, []string{"parity", "checksum", "bcc"}},
		{"stx-etx", Config{Type: TypeSTXETX, BCC: BCCXOR, DLE: true, Parity: ParityOdd, Gap: time.Second}, nil},
		{"fixed by sync", Config{Type: TypeFixed, Length: 8, Sync: "hex:aa55"}, nil},
		{"fixed by gap", Config{Type: TypeFixed, Length: 8, Gap: 50 * time.Millisecond}, nil},
		{"fixed by neither", Config{Type: TypeFixed, Length: 8}, []string{"sync"}},
		{"fixed without length", Config{Type: TypeFixed, Sync: "x"}, []string{"length"}},
		{"fixed, shorter than its sync", Config{Type: TypeFixed, Length: 1, Sync: "xx"}, []string{"length"}},
		{"fixed of negative length", Config{Type: TypeFixed, Length: -1, Sync: ""}, []string{"length", "sync"}},
		{"bad sync", Config{Type: TypeFixed, Length: 8, Sync: "hex:0"}, []string{"sync"}},
		{"length", Config{Type: TypeLength, LengthType: LengthU16LE, Offset: 2, Sync: "hex:aa55", Trailer: 2, IncludesHeader: true, Include: true}, nil},
		{"length without its type", Config{Type: TypeLength}, []string{"length_type"}},
		{"length inside sync", Config{Type: TypeLength, LengthType: LengthU8, Sync: "xx", Offset: 1}, []string{"offset"}},
		{"length far behind", Config{Type: TypeLength, LengthType: LengthU8, Offset: 256, Trailer: -1}, []string{"offset", "trailer"}},
		{"gap", Config{Type: TypeGap, Gap: 20 * time.Millisecond}, nil},
		{"gap without one", Config{Type: TypeGap}, []string{"gap"}},
		{"gap too short", Config{Type: TypeGap, Gap: time.Microsecond}, []string{"gap"}},
		{"gap of a line", Config{Type: TypeLine, Gap: time.Second}, []string{"gap"}},
		{"time-out of sentences", Config{Type: TypeNMEA, Timeout: time.Second}, []string{"timeout"}},
		{"negative time-out", Config{Type: TypeAIS, Timeout: -1}, []string{"timeout"}},
		{"parity of binary data", Config{Type: TypeSLIP, Parity: ParityEven}, []string{"parity"}},
		{"keys of other types", Config{Type: TypeCOBS, BCC: BCCXOR, DLE: true, Sync: "x", Length: 1, LengthType: LengthU8, Offset: 1, IncludesHeader: true, Trailer: 1},
			[]string{"bcc", "dle", "sync", "length", "length_type", "offset", "includes_header", "trailer"}},
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
	if _, err := New(Config{Type: "morse"}); err == nil {
		t.Error("New() of an unknown type = nil error")
	}
}

func TestConfigDefaults(t *testing.T) {
	c := Config{Type: TypeLine}
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
		got, err := Unescape(tc.in)
		if (err != nil) != (tc.want == nil) || !bytes.Equal(got, tc.want) {
			t.Errorf("Unescape(%q) = %q, %v, want %q", tc.in, got, err, tc.want)
		}
	}
}

// TestEveryTypeWorks makes sure that no type is missing in a list.
func TestEveryTypeWorks(t *testing.T) {
	field, _ := reflect.TypeFor[Config]().FieldByName("Type")
	for _, name := range strings.Split(field.Tag.Get("enum"), ",") {
		cfg := Config{Type: name}
		cfg.SetDefaults()
		switch name {
		case TypeDelimiter:
			cfg.Delimiter = ";"
		case TypeFixed:
			cfg.Length, cfg.Sync = 4, "x"
		case TypeLength:
			cfg.LengthType = LengthU8
		case TypeGap:
			cfg.Gap = time.Second
		}
		f, err := New(cfg)
		if err != nil {
			t.Errorf("New(%s) = %v", name, err)
			continue
		}
		if frames := f.Push([]byte("some text\r\n"), epoch); len(frames)+len(f.Reset("end")) == 0 {
			t.Errorf("%s makes nothing of text, not even noise", name)
		}
	}
	if n := strings.Count(field.Tag.Get("enum"), ",") + 1; n != len(kinds) {
		t.Errorf("%d types in the list of the key, %d known", n, len(kinds))
	}
}

func TestPause(t *testing.T) {
	for _, tc := range []struct {
		cfg  Config
		want time.Duration
	}{
		{Config{Type: TypeLine}, 0}, {Config{Type: TypeMBus, Gap: time.Second}, time.Second}, {Config{Type: TypeAIS}, DefaultTimeout},
		{Config{Type: TypeAIS, Timeout: time.Minute}, time.Minute},
	} {
		if got := tc.cfg.Pause(); got != tc.want {
			t.Errorf("Pause() of %s = %s, want %s", tc.cfg.Type, got, tc.want)
		}
	}
}
