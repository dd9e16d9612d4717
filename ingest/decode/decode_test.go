package decode

import (
	"encoding/hex"
	"errors"
	"strings"
	"testing"
	"time"
)

// open returns a decoder of a configuration.
func open(t testing.TB, cfg Config) *Decoder {
	t.Helper()
	d, err := New(cfg)
	if err != nil {
		t.Fatalf("New(%+v) = %v", cfg, err)
	}
	return d
}

// unhex decodes hexadecimal digits, which may be grouped.
func unhex(digits string) string {
	b, err := hex.DecodeString(strings.ReplaceAll(digits, " ", ""))
	if err != nil {
		panic(err)
	}
	return string(b)
}

// reason returns the reason of an error, checking that it is one of ours and names the format.
func reason(t testing.TB, err error, format string) string {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || e.Reason == "" || e.Format != format || e.Error() == "" {
		t.Fatalf("error %#v, want an *Error of %s with a reason", err, format)
	}
	return e.Reason
}

// outcome is what a message should become.
type outcome struct {
	name string
	cfg  Config
	in   string
	want string // the value as JSON; empty: an error
	why  string // the reason of the error
}

// check decodes a message, and makes sure that the message itself stays as it was.
func (o outcome) check(t *testing.T) Result {
	t.Helper()
	in := []byte(o.in)
	res, err := open(t, o.cfg).Decode(in)
	if string(in) != o.in {
		t.Fatalf("Decode changed its input to %q", in)
	}
	if o.want == "" {
		if got := reason(t, err, o.cfg.Format); got != o.why {
			t.Errorf("Decode(%q) failed with %v, want %s", o.in, err, o.why)
		}
		if res.Value != nil || !res.Time.IsZero() {
			t.Errorf("Decode(%q) returned %+v along with an error", o.in, res)
		}
		return res
	}
	if err != nil {
		t.Fatalf("Decode(%q) = %v, want %s", o.in, err, o.want)
	}
	got, err := Encode(res.Value)
	if err != nil || string(got) != o.want {
		t.Errorf("Decode(%q)\n got %s, %v\nwant %s", o.in, got, err, o.want)
	}
	return res
}

func TestDecode(t *testing.T) {
	js := Config{Format: FormatJSON}
	lenient := Config{Format: FormatJSON, NaN: NaNNull}
	csv := Config{Format: FormatCSV, Columns: []string{"t", "-", "name"}}
	kv := Config{Format: FormatKeyValue}
	cbor := Config{Format: FormatCBOR}
	for _, o := range []outcome{
		{"json keeps digits", js, `{"t":21.50,"n":12345678901234567890,"e":1E5}`, `{"e":1E5,"n":12345678901234567890,"t":21.50}`, ""},
		{"json BOM and NULs", js, "\xef\xbb\xbf {\"a\":1}\r\n\x00\x00", `{"a":1}`, ""},
		{"json last of equal keys", js, `{"a":1,"a":2}`, `{"a":2}`, ""},
		{"json no escapes of HTML", js, `["<&>"]`, `["<&>"]`, ""},
		{"json scalar", js, "-0.10", "-0.10", ""},
		{"json nothing", js, "\x00 \n", "", ReasonEmpty},
		{"json cut", js, `{"a":`, "", ReasonSyntax},
		{"json two values", js, `{"a":1}{"a":2}`, "", ReasonSyntax},
		{"json not at all", js, "temp=21.5", "", ReasonSyntax},
		{"json nan by policy", js, `{"a":NaN}`, "", ReasonNumber},
		{"json all words for no number", lenient, `[nan, NaN, -nan, +inf, -Infinity, 1]`, `[null,null,null,null,null,1]`, ""},
		{"json words inside texts stay", lenient, `{"nan":"a \"nan inf","b":inf}`, `{"b":null,"nan":"a \"nan inf"}`, ""},
		{"json nan and a fault", lenient, `{"a":nan,}`, "", ReasonSyntax},
		{"csv", csv, "+021.50,x,\"a, b\"\r\n", `{"name":"a, b","t":21.50}`, ""},
		{"csv empty is null", csv, ",,", `{"name":null,"t":null}`, ""},
		{"csv list", Config{Format: FormatCSV, Separator: ";"}, " 1 ; b;.5", `[1," b",0.5]`, ""},
		{"csv TAB", Config{Format: FormatCSV, Separator: `\t`}, "1\t2", `[1,2]`, ""},
		{"csv too few", csv, "1,2", "", ReasonFields},
		{"csv too many", csv, "1,2,3,4", "", ReasonFields},
		{"csv quote", csv, "1,2,\"a", "", ReasonSyntax},
		{"csv two lines", csv, "1,2,3\n4,5,6", "", ReasonSyntax},
		{"csv nothing", csv, "\r\n", "", ReasonEmpty},
		{"key-value", kv, "temp=21.50 hum=+40,ok=yes;e=\r\n", `{"e":null,"hum":40,"ok":"yes","temp":21.50}`, ""},
		{"key-value quotes", kv, `a="x y=z \"q\"" b=1`, `{"a":"x y=z \"q\"","b":1}`, ""},
		{"key-value with other separators", Config{Format: FormatKeyValue, Separator: "|", Assign: ":"}, "a b: 1 |c:d e", `{"a b":1,"c":"d e"}`, ""},
		{"key-value of a Victron block", Config{Format: FormatKeyValue, Separator: `\r\n`, Assign: `\t`}, "\r\nV\t26499\r\nSOC\t958", `{"SOC":958,"V":26499}`, ""},
		{"key-value word alone", kv, "a=1 b c=2", "", ReasonSyntax},
		{"key-value no key", kv, "=1", "", ReasonSyntax},
		{"key-value open quote", kv, `a="b`, "", ReasonSyntax},
		{"key-value behind the quote", kv, `a="b"c`, "", ReasonSyntax},
		{"key-value nothing", kv, " \r\n", "", ReasonEmpty},
		{"cbor", cbor, unhex("a3 61 74 f9 4d60 01 1a 000f4240 63 6e6567 38 63"), `{"1":1000000,"neg":-100,"t":21.5}`, ""},
		{"cbor bytes, time, big, nested", cbor, unhex("84 43 010203 c1 1a 514b67b0 c2 49 010000000000000000 82 f5 f6"), `["AQID","2013-03-21T20:04:00Z",18446744073709551616,[true,null]]`, ""},
		{"cbor 64-bit", cbor, unhex("82 1b ffffffffffffffff 3b 7fffffffffffffff"), `[18446744073709551615,-9223372036854775808]`, ""},
		{"cbor unknown tag", cbor, unhex("d8 7b 05"), `5`, ""},
		{"cbor nan by policy", cbor, unhex("81 f9 7e00"), "", ReasonNumber},
		{"cbor nan as null", Config{Format: FormatCBOR, NaN: NaNNull}, unhex("81 f9 7e00"), `[null]`, ""},
		{"cbor cut", cbor, unhex("a1 61"), "", ReasonSyntax},
		{"cbor more behind", cbor, unhex("01 02"), "", ReasonSyntax},
		{"cbor odd key", cbor, unhex("a1 f5 01"), "", ReasonValue},
		{"cbor keys that are one", cbor, unhex("a2 01 01 61 31 02"), "", ReasonValue},
		{"cbor nothing", cbor, "", "", ReasonEmpty},
		{"cbor nested for ever", cbor, strings.Repeat("\x81", 100) + "\x01", "", ReasonSyntax},
		{"cbor announces gigabytes", cbor, unhex("9b 00000000ffffffff 01"), "", ReasonSyntax},
		{"sdi12", Config{Format: FormatSDI12}, "0-0.5+12.3Iw_", `{"address":"0","values":[-0.5,12.3]}`, ""},
		{"sdi12 no values", Config{Format: FormatSDI12}, "013CAMPBELL", "", ReasonSyntax},
	} {
		t.Run(o.name, func(t *testing.T) { o.check(t) })
	}
}

func TestNMEA(t *testing.T) {
	nmea := Config{Format: FormatNMEA}
	at := func(s string) time.Time {
		m, err := time.Parse(time.RFC3339Nano, s)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	for _, tc := range []struct {
		outcome
		time time.Time
		note string
	}{
		{outcome{"RMC", nmea, "$GPRMC,123519.50,A,4807.038,N,01131.000,E,022.4,084.4,230326,003.1,W*48", `{"course":84.4,"date":"2026-03-23","latitude":48.1173,"longitude":11.51666667,"speed_knots":22.4,"talker":"GP","time":"12:35:19.50","type":"RMC","valid":true,"variation":-3.1}`, ""}, at("2026-03-23T12:35:19.5Z"), ""},
		{outcome{"RMC without a fix", nmea, "$GNRMC,,V,,,,,,,,,,N", `{"course":null,"date":null,"latitude":null,"longitude":null,"mode":"N","speed_knots":null,"talker":"GN","time":null,"type":"RMC","valid":false,"variation":null}`, ""}, time.Time{}, NoteMissing},
		{outcome{"RMC of 1994", nmea, "$GPRMC,123519,A,4807.038,N,01131.000,E,022.4,084.4,230394,003.1,W*6A", `{"course":84.4,"date":"1994-03-23","latitude":48.1173,"longitude":11.51666667,"speed_knots":22.4,"talker":"GP","time":"12:35:19","type":"RMC","valid":true,"variation":-3.1}`, ""}, at("1994-03-23T12:35:19Z"), ""},
		{outcome{"GGA", nmea, "$GPGGA,123519,4807.038,N,01131.000,E,1,08,0.9,545.4,M,46.9,M,,*47", `{"altitude":545.4,"dgps_age":null,"dgps_station":null,"geoid_separation":46.9,"hdop":0.9,"latitude":48.1173,"longitude":11.51666667,"quality":1,"satellites":8,"talker":"GP","time":"12:35:19","type":"GGA"}`, ""}, time.Time{}, ""},
		{outcome{"GSA", nmea, "$GPGSA,A,3,07,09,08,04,,,,,,,,,1.7,0.8,1.4", `{"fix":3,"hdop":0.8,"mode":"A","pdop":1.7,"satellites":["07","09","08","04"],"talker":"GP","type":"GSA","vdop":1.4}`, ""}, time.Time{}, ""},
		{outcome{"GSV", nmea, "$GPGSV,2,2,06,01,40,083,46,02,17,308,", `{"in_view":6,"message":2,"messages":2,"satellites":[{"azimuth":83,"elevation":40,"id":"01","snr":46},{"azimuth":308,"elevation":17,"id":"02","snr":null}],"talker":"GP","type":"GSV"}`, ""}, time.Time{}, ""},
		{outcome{"VTG", nmea, "$GPVTG,054.7,T,034.4,M,005.5,N,010.2,K", `{"course_magnetic":34.4,"course_true":54.7,"speed_kmh":10.2,"speed_knots":5.5,"talker":"GP","type":"VTG"}`, ""}, time.Time{}, ""},
		{outcome{"GLL southwest", nmea, "$GPGLL,4916.45,S,12311.12,W,225444,A", `{"latitude":-49.27416667,"longitude":-123.18533333,"talker":"GP","time":"22:54:44","type":"GLL","valid":true}`, ""}, time.Time{}, ""},
		{outcome{"ZDA", nmea, "$GPZDA,201530.00,04,07,2026,00,00", `{"day":4,"month":7,"talker":"GP","time":"20:15:30.00","type":"ZDA","year":2026,"zone_hours":0,"zone_minutes":0}`, ""}, at("2026-07-04T20:15:30Z"), ""},
		{outcome{"unknown kind", nmea, "$PGRME,15.0,M,45.0,M,25.0,M*1C", `{"fields":["15.0","M","45.0","M","25.0","M"],"talker":"P","type":"GRME"}`, ""}, time.Time{}, ""},
		{outcome{"wrong checksum", nmea, "$GPGLL,4916.45,N,12311.12,W,225444,A*00", "", ReasonChecksum}, time.Time{}, ""},
		{outcome{"no number", nmea, "$GPVTG,x,T,034.4,M,005.5,N,010.2,K", "", ReasonValue}, time.Time{}, ""},
		{outcome{"latitude above the pole", nmea, "$GPGLL,9100.00,N,12311.12,W,225444,A", "", ReasonValue}, time.Time{}, ""},
		{outcome{"sixty minutes", nmea, "$GPGLL,4860.00,N,12311.12,W,225444,A", "", ReasonValue}, time.Time{}, ""},
		{outcome{"hour 24", nmea, "$GPGLL,4810.00,N,12311.12,W,245444,A", "", ReasonValue}, time.Time{}, ""},
		{outcome{"two sentences", nmea, "$GPHDT,1.0,T\r\n$GPHDT,2.0,T", "", ReasonSyntax}, time.Time{}, ""},
		{outcome{"nothing", nmea, "\r\n", "", ReasonEmpty}, time.Time{}, ""},
		{outcome{"no sentence", nmea, "hello", "", ReasonSyntax}, time.Time{}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			res := tc.check(t)
			if !res.Time.Equal(tc.time) || res.Note != tc.note {
				t.Errorf("time %s, note %q, want %s, %q", res.Time, res.Note, tc.time, tc.note)
			}
		})
	}
}

func TestRegisters(t *testing.T) {
	fields := func(f ...Field) Config { return Config{Format: FormatRegisters, Fields: f} }
	one := func(f Field) Config { f.Name = "x"; return fields(f) }
	for _, o := range []outcome{
		{"f32 ABCD", one(Field{Type: "f32", Order: "ABCD"}), unhex("43668000"), `{"x":230.5}`, ""},
		{"f32 CDAB", one(Field{Type: "f32", Order: "CDAB"}), unhex("80004366"), `{"x":230.5}`, ""},
		{"f32 BADC", one(Field{Type: "f32", Order: "BADC"}), unhex("66430080"), `{"x":230.5}`, ""},
		{"f32 DCBA", one(Field{Type: "f32", Order: "DCBA"}), unhex("00806643"), `{"x":230.5}`, ""},
		{"f32 NaN", one(Field{Type: "f32"}), unhex("7fc00000"), `{"quality":{"x":"not_available"},"x":null}`, ""},
		{"f32 scale without rounding", one(Field{Type: "f32", Scale: "0.1"}), unhex("3dcccccd"), `{"x":0.01}`, ""},
		{"f64", one(Field{Type: "f64"}), unhex("3ff3c0ca428c59fb"), `{"x":1.2345678901234567}`, ""},
		{"f64 tiny, scaled", one(Field{Type: "f64", Scale: "10"}), unhex("0000000000000001"), `{"x":5e-323}`, ""},
		{"i16 scaled", one(Field{Type: "i16", Scale: "0.1", Offset: "-40", Unit: "°C"}), unhex("ff9c"), `{"x":{"unit":"°C","value":-50}}`, ""},
		{"u16 scale", one(Field{Type: "u16", Scale: "0.001"}), unhex("04d2"), `{"x":1.234}`, ""},
		{"i8, i32, i64", fields(Field{Name: "a", Type: "i8"}, Field{Name: "b", Type: "i32", At: 1}, Field{Name: "c", Type: "i64", At: 5}), unhex("ff fffffffe 8000000000000000"), `{"a":-1,"b":-2,"c":-9223372036854775808}`, ""},
		{"u64 all", one(Field{Type: "u64"}), unhex("ffffffffffffffff"), `{"x":18446744073709551615}`, ""},
		{"mask", one(Field{Type: "u16", Mask: "0x0ff0"}), unhex("1234"), `{"x":35}`, ""},
		{"bcd", one(Field{Type: "bcd", Length: 4, Order: "DCBA", Scale: "0.01"}), unhex("78563412"), `{"x":123456.78}`, ""},
		{"bcd with a letter", one(Field{Type: "bcd", Length: 1}), unhex("1a"), "", ReasonValue},
		{"string", one(Field{Type: "string", Length: 6}), "abc\x00\x00\x00", `{"x":"abc"}`, ""},
		{"string of swapped bytes", one(Field{Type: "string", Length: 4, Order: "BA"}), "badc", `{"x":"abcd"}`, ""},
		{"string that is none", one(Field{Type: "string", Length: 2}), "\xff\xfe", "", ReasonValue},
		{"bits", one(Field{Type: "bits", Length: 1}), unhex("05"), `{"x":[0,2]}`, ""},
		{"epoch", one(Field{Type: "epoch"}), unhex("69000000"), `{"x":"2025-10-27T23:28:00Z"}`, ""},
		{"range", one(Field{Type: "u8", Max: "100", Min: "1"}), unhex("65"), `{"quality":{"x":"out_of_range"},"x":101}`, ""},
		{"at the edge of the range", one(Field{Type: "u8", Scale: "0.1", Max: "10.1"}), unhex("65"), `{"x":10.1}`, ""},
		{"too short", one(Field{Type: "u32", At: 1}), unhex("00000000"), "", ReasonShort},
		{"a particle sensor", fields(Field{Name: "pm25", At: 12, Type: "u16", Unit: "µg/m³"}), unhex("424d001c0007000c000f0007000c000f04b00154003c000800030001970002d7"), `{"pm25":{"unit":"µg/m³","value":12}}`, ""},
	} {
		t.Run(o.name, func(t *testing.T) { o.check(t) })
	}
}
