package decode

import (
	"bufio"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"
)

// fieldCase returns the input bytes of a field case of ../testdata/cases.jsonl.
func fieldCase(t *testing.T, id string) string {
	t.Helper()
	f, err := os.Open("../testdata/cases.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }() // only read
	for sc := bufio.NewScanner(f); sc.Scan(); {
		var c struct{ ID, Input string }
		if err := json.Unmarshal(sc.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		if c.ID != id {
			continue
		}
		if digits, ok := strings.CutPrefix(c.Input, "hex:"); ok {
			return unhex(digits)
		}
		return strings.NewReplacer(`\\`, `\`, `\r`, "\r", `\n`, "\n").Replace(strings.TrimPrefix(c.Input, "txt:"))
	}
	t.Fatalf("case %s is not in the file", id)
	return ""
}

// lines returns the lines of a field case.
func lines(t *testing.T, id string) []string {
	t.Helper()
	return strings.Split(strings.TrimSuffix(fieldCase(t, id), "\r\n"), "\r\n")
}

func TestFieldCases(t *testing.T) {
	js := Config{Format: FormatJSON}
	nmea := Config{Format: FormatNMEA}
	sdi := Config{Format: FormatSDI12}
	registers := func(f ...Field) Config { return Config{Format: FormatRegisters, Fields: f} }
	for _, tc := range []struct {
		id string
		outcome
	}{
		{"ING-027", outcome{"too few fields", nmea, fieldCase(t, "ING-027"), "", ReasonFields}},
		{"ING-032", outcome{"empty second part", nmea, fieldCase(t, "ING-032"),
			`{"accurate":false,"channel":"A","course":51,"fill":0,"heading":181,"latitude":47.582833,"longitude":-122.345833,"message":1,"mmsi":477553000,"payload":"177KQJ5000G?tO` + "`" + `K>RA1wUbN0TKH","second":15,"speed_knots":0,"status":5,"talker":"AI","turn":0,"type":"VDM"}`, ""}},
		{"ING-033", outcome{"type 1", nmea, lines(t, "ING-033")[1],
			`{"accurate":false,"channel":"B","course":51,"fill":0,"heading":181,"latitude":47.582833,"longitude":-122.345833,"message":1,"mmsi":477553000,"payload":"177KQJ5000G?tO` + "`" + `K>RA1wUbN0TKH","second":15,"speed_knots":0,"status":5,"talker":"AI","turn":0,"type":"VDM"}`, ""}},
		{"ING-049", outcome{"backslash in a text", js, fieldCase(t, "ING-049"), "", ReasonSyntax}},
		{"ING-058", outcome{"value with CRC", sdi, lines(t, "ING-058")[1], `{"address":"0","values":[3.14]}`, ""}},
		{"ING-058", outcome{"values with CRC", sdi, lines(t, "ING-058")[2], `{"address":"0","values":[-0.5,12.3]}`, ""}},
		{"ING-059", outcome{"values by their signs", sdi, strings.TrimPrefix(fieldCase(t, "ING-059"), `\x00\x7f`), `{"address":"1","values":[0.10555,-16.6187,0.24371]}`, ""}},
		{"ING-064", outcome{"float with swapped words", registers(Field{Name: "v", At: 3, Type: "f32", Order: "CDAB", Scale: "1"}), fieldCase(t, "ING-064"), `{"v":230.5}`, ""}},
		{"ING-066", outcome{"eight bytes in three orders", registers(Field{Name: "a", At: 3, Type: "u64", Order: "HGFEDCBA"}, Field{Name: "b", At: 3, Type: "u64", Order: "GHEFCDAB"},
			Field{Name: "c", At: 3, Type: "u64", Order: "BADCFEHG"}), fieldCase(t, "ING-066"), `{"a":81985529216486895,"b":2522410815232536525,"c":14839230665905864995}`, ""}},
		{"ING-068", outcome{"codes for no value", registers(Field{Name: "a", At: 3, Type: "u16", NaN: []string{"0xffff"}}, Field{Name: "b", At: 5, Type: "i16", NaN: []string{"0x8000"}},
			Field{Name: "c", At: 7, Type: "u32", NaN: []string{"0xFFFFFFFF"}}), fieldCase(t, "ING-068"),
			`{"a":null,"b":null,"c":null,"quality":{"a":"not_available","b":"not_available","c":"not_available"}}`, ""}},
		{"ING-068", outcome{"a code of another width is a value", registers(Field{Name: "c", Type: "u32", NaN: []string{"0xffffffff"}}), unhex("0000ffff"), `{"c":65535}`, ""}},
		{"ING-067", outcome{"one register too far shows by the range", registers(Field{Name: "a", At: 0, Type: "f32", Min: "100", Max: "300"}, Field{Name: "b", At: 4, Type: "f32", Min: "100", Max: "300"},
			Field{Name: "c", At: 2, Type: "f32", Min: "100", Max: "300"}), unhex("4366 8000 4348 0000"), `{"a":230.5,"b":200,"c":-2.4136e-41,"quality":{"c":"out_of_range"}}`, ""}},
		{"ING-089", outcome{"NUL behind", js, fieldCase(t, "ING-089"), `{"a":1}`, ""}},
		{"ING-090", outcome{"bare nan, strict", js, fieldCase(t, "ING-090"), "", ReasonNumber}},
		{"ING-090", outcome{"bare nan, lenient", Config{Format: FormatJSON, NaN: NaNNull}, fieldCase(t, "ING-090"), `{"h":40.5,"t":null}`, ""}},
	} {
		t.Run(tc.id+" "+tc.name, func(t *testing.T) { tc.check(t) })
	}
}

// TestJoinedSentences is ING-034 behind the framer: the parts are joined, and the name can be read.
func TestJoinedSentences(t *testing.T) {
	all := lines(t, "ING-034")
	res, err := open(t, Config{Format: FormatNMEA}).Decode([]byte(all[0] + "\r\n" + all[2]))
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{"message": "5", "mmsi": "369190000", "name": `"MT.MITCHELL"`, "callsign": `"WDA9674"`, "destination": `"SEATTLE"`} {
		v, _ := lookup(res.Value, key)
		if got, _ := Encode(v); string(got) != want {
			t.Errorf("ING-034: %s is %s, want %s", key, got, want)
		}
	}
	for name, parts := range map[string]string{"wrong order": all[2] + "\r\n" + all[0], "one part": all[0], "another between": strings.Join(all, "\r\n")} {
		if _, err := open(t, Config{Format: FormatNMEA}).Decode([]byte(parts)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestTelegram is ING-037: time with its zone, and a value with its unit.
func TestTelegram(t *testing.T) {
	o := outcome{"telegram", Config{Format: FormatOBIS}, fieldCase(t, "ING-037"),
		`{"0-0:1.0.0":"2026-01-31T12:00:00+01:00","1-0:1.7.0":{"unit":"kW","value":0.321},"1-0:1.8.1":{"unit":"kWh","value":123.456},"1-3:0.2.8":50,"meter":"ISk5\\2EXAMPLE-1"}`, ""}
	res := o.check(t)
	if want := time.Date(2026, 1, 31, 11, 0, 0, 0, time.UTC); !res.Time.Equal(want) || res.Note != "" {
		t.Errorf("ING-037: time %s, note %q, want %s", res.Time, res.Note, want)
	}
}

// TestRepeatedHour is ING-108: S and W tell the two hours apart that have the same name.
func TestRepeatedHour(t *testing.T) {
	all := lines(t, "ING-108")
	for i, want := range []string{"2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z"} {
		res, err := open(t, Config{Format: FormatOBIS}).Decode([]byte(all[i]))
		if err != nil || res.Time.UTC().Format(time.RFC3339) != want || res.Note != "" {
			t.Errorf("ING-108: %s is %s, note %q, %v, want %s", all[i], res.Time, res.Note, err, want)
		}
	}
}

func TestOBIS(t *testing.T) {
	obis := Config{Format: FormatOBIS}
	for _, o := range []outcome{
		{"gas meter", obis, "0-1:24.2.1(101209112500W)(12785.123*m3)", `{"0-1:24.2.1":["2010-12-09T11:25:00+01:00",{"unit":"m3","value":12785.123}]}`, ""},
		{"list of failures", obis, "1-0:99.97.0(2)(0-0:96.7.19)(101208152415S)(0000000240*s)", `{"1-0:99.97.0":[2,"0-0:96.7.19","2010-12-08T15:24:15+02:00",{"unit":"s","value":240}]}`, ""},
		{"serial number stays a text", obis, "0-0:96.1.1(4530303033303030303031)", `{"0-0:96.1.1":"4530303033303030303031"}`, ""},
		{"short code", obis, "0-0:96.1.1(12E4)", `{"0-0:96.1.1":"12E4"}`, ""},
		{"empty value", obis, "0-0:96.13.0()", `{"0-0:96.13.0":""}`, ""},
		{"same identifier twice", obis, "1.8.0(1*kWh)\r\n1.8.0(2*kWh)\r\n!", `{"1.8.0":[{"unit":"kWh","value":1},{"unit":"kWh","value":2}]}`, ""},
		{"no value", obis, "1.8.0", "", ReasonSyntax},
		{"open bracket", obis, "1.8.0(1", "", ReasonSyntax},
		{"month 13", obis, "0-0:1.0.0(261331120000W)", "", ReasonValue},
		{"nothing", obis, "\r\n!\r\n", "", ReasonEmpty},
	} {
		t.Run(o.name, func(t *testing.T) { o.check(t) })
	}
	res, err := open(t, Config{Format: FormatOBIS, Time: Time{Zone: "Europe/Helsinki"}}).Decode([]byte("0-0:1.0.0(260731120000S)"))
	if err != nil || res.Time.UTC().Format(time.RFC3339) != "2026-07-31T09:00:00Z" {
		t.Errorf("Helsinki: %s, %v", res.Time, err)
	}
}
