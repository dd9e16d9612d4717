package decode

import (
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestConfigValidate(t *testing.T) {
	field := func(f Field) Config {
		if f.Name == "" {
			f.Name = "x"
		}
		return Config{Format: FormatRegisters, Fields: []Field{f}}
	}
	for _, tc := range []struct {
		name string
		cfg  Config
		keys []string // of the faults
	}{
		{"json", Config{Format: FormatJSON, NaN: NaNNull, Time: Time{Field: "ts", Layout: TimeUnixMS}}, nil},
		{"csv", Config{Format: FormatCSV, Columns: []string{"a", "-", "-", "b"}, Separator: `\t`}, nil},
		{"key-value", Config{Format: FormatKeyValue, Separator: "|", Assign: ":"}, nil},
		{"nothing", Config{}, []string{"format"}},
		{"unknown", Config{Format: "xml"}, []string{"format"}},
		{"unknown policy", Config{Format: FormatJSON, NaN: "zero"}, []string{"nan"}},
		{"keys of other formats", Config{Format: FormatJSON, Columns: []string{"a"}, Separator: ";", Assign: "=", Fields: []Field{{}}}, []string{"columns", "separator", "assign", "fields"}},
		{"csv separator", Config{Format: FormatCSV, Separator: `\r\n`}, []string{"separator"}},
		{"csv columns", Config{Format: FormatCSV, Columns: []string{"a", "", "a"}}, []string{"columns[1]", "columns[2]"}},
		{"key-value that cannot be told apart", Config{Format: FormatKeyValue, Assign: ","}, []string{"separator"}},
		{"time zone missing", Config{Format: FormatJSON, Time: Time{Field: "t", Layout: "2006-01-02 15:04"}}, []string{"time.zone"}},
		{"time zone unknown", Config{Format: FormatJSON, Time: Time{Field: "t", Layout: "2006-01-02 15:04", Zone: "Mars/Base"}}, []string{"time.zone"}},
		{"time zone of the gateway", Config{Format: FormatJSON, Time: Time{Field: "t", Layout: "2006-01-02 15:04", Zone: "Local"}}, []string{"time.zone"}},
		{"time layout that is a time", Config{Format: FormatJSON, Time: Time{Field: "t", Layout: "YYYY-MM-DD", Zone: "UTC"}}, []string{"time.layout"}},
		{"time layout with letters", Config{Format: FormatJSON, Time: Time{Field: "t", Layout: "2006-01-02 15:04 MST", Zone: "UTC"}}, []string{"time.layout"}},
		{"time without a field", Config{Format: FormatJSON, Time: Time{Layout: TimeUnix, Zone: "UTC"}}, []string{"time.layout", "time.zone"}},
		{"zone of a meter", Config{Format: FormatOBIS, Time: Time{Zone: "Europe/Helsinki"}}, nil},
		{"registers without fields", Config{Format: FormatRegisters}, []string{"fields"}},
		{"field", field(Field{Type: "u16", Order: "BA", Mask: "0x00ff", Scale: "0.1", Offset: "-1", Unit: "V", NaN: []string{"0xffff"}, Min: "0", Max: "1e3"}), nil},
		{"field without a type", field(Field{}), []string{"fields[0].type"}},
		{"field named quality", field(Field{Name: "quality", Type: "u8"}), []string{"fields[0].name"}},
		{"field too far", field(Field{At: -1, Type: "u8"}), []string{"fields[0].at"}},
		{"field with a length", field(Field{Type: "u8", Length: 1}), []string{"fields[0].length"}},
		{"text without a length", field(Field{Type: "string"}), []string{"fields[0].length"}},
		{"order of another size", field(Field{Type: "u32", Order: "AB"}), []string{"fields[0].order"}},
		{"order with a byte twice", field(Field{Type: "u32", Order: "ABBA"}), []string{"fields[0].order"}},
		{"mask of a signed number", field(Field{Type: "i16", Mask: "0x00ff"}), []string{"fields[0].mask"}},
		{"mask too short", field(Field{Type: "u16", Mask: "0xff"}), []string{"fields[0].mask"}},
		{"code of another width", field(Field{Type: "u16", NaN: []string{"0xffff", "0xffffffff", "65535"}}), []string{"fields[0].nan[1]", "fields[0].nan[2]"}},
		{"scale of a text", field(Field{Type: "string", Length: 4, Scale: "2"}), []string{"fields[0].scale"}},
		{"scale that is no number", field(Field{Type: "u8", Scale: "tenth", Max: "1e99999"}), []string{"fields[0].scale", "fields[0].max"}},
		{"the same name twice", Config{Format: FormatRegisters, Fields: []Field{{Name: "a", Type: "u8"}, {Name: "a", Type: "u8"}}}, []string{"fields[1].name"}},
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
			if d, err := New(tc.cfg); (err == nil) != (tc.keys == nil) || (d == nil) != (err != nil) {
				t.Errorf("New() = %v, %v", d, err)
			}
		})
	}
}

// TestEveryFormatWorks makes sure that no format is missing in a list.
func TestEveryFormatWorks(t *testing.T) {
	f, _ := reflect.TypeFor[Config]().FieldByName("Format")
	for _, name := range strings.Split(f.Tag.Get("enum"), ",") {
		cfg := Config{Format: name}
		cfg.SetDefaults()
		if name == FormatRegisters {
			cfg.Fields = []Field{{Name: "x", Type: "u32"}}
		}
		if _, err := open(t, cfg).Decode(nil); err == nil {
			t.Errorf("%s makes something of nothing", name)
		}
	}
}
