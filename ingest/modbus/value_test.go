package modbus

import (
	"encoding/hex"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestDecodeTypes(t *testing.T) {
	bit := func(n int) *int { return &n }
	scaled := func(kind string, scale, offset float64) Field {
		return newField("x", 0, func(f *Field) { f.Type, f.Scale, f.Offset = kind, scale, offset })
	}
	long := func(kind string, n int) Field {
		return newField("x", 0, func(f *Field) { f.Type, f.Len = kind, n })
	}
	masked := func(kind, mask string) Field {
		return newField("x", 0, func(f *Field) { f.Type, f.Mask = kind, mask })
	}
	for _, tt := range []struct {
		name  string
		field Field
		data  string
		want  string // JSON; empty: none
		qual  string // empty: good
	}{
		{"u16", ofType("u16", ""), "ffff", "65535", ""},
		{"u16 BA", ofType("u16", "BA"), "0102", "513", ""},
		{"i16", ofType("i16", ""), "ffff", "-1", ""},
		{"i16 lowest", ofType("i16", ""), "8000", "-32768", ""},
		{"u32 ABCD", ofType("u32", "ABCD"), "01020304", "16909060", ""},
		{"u32 CDAB", ofType("u32", "CDAB"), "03040102", "16909060", ""},
		{"u32 BADC", ofType("u32", "BADC"), "02010403", "16909060", ""},
		{"u32 DCBA", ofType("u32", "DCBA"), "04030201", "16909060", ""},
		{"i32", ofType("i32", ""), "fffffffe", "-2", ""},
		{"i32 CDAB", ofType("i32", "CDAB"), "fffeffff", "-2", ""},
		{"u64", ofType("u64", ""), "ffffffffffffffff", "18446744073709551615", ""},
		{"u64 GHEFCDAB", ofType("u64", "GHEFCDAB"), "cdef89ab45670123", "81985529216486895", ""},
		{"u64 BADCFEHG", ofType("u64", "BADCFEHG"), "23016745ab89efcd", "81985529216486895", ""},
		{"u64 HGFEDCBA", ofType("u64", "HGFEDCBA"), "efcdab8967452301", "81985529216486895", ""},
		{"u64 CDABGHEF", ofType("u64", "CDABGHEF"), "45670123cdef89ab", "81985529216486895", ""},
		{"i64", ofType("i64", ""), "ffffffffffffff85", "-123", ""},
		{"f32 ABCD", ofType("f32", "ABCD"), "43668000", "230.5", ""},
		{"f32 CDAB", ofType("f32", "CDAB"), "80004366", "230.5", ""},
		{"f32 BADC", ofType("f32", "BADC"), "66430080", "230.5", ""},
		{"f32 DCBA", ofType("f32", "DCBA"), "00806643", "230.5", ""},
		{"f32 in few digits", ofType("f32", ""), "3dcccccd", "0.1", ""},
		{"f32 not a number", ofType("f32", ""), "7fc00000", "", NotAvailable},
		{"f32 infinite", ofType("f32", ""), "7f800000", "", Invalid},
		{"f64", ofType("f64", ""), "406cd00000000000", "230.5", ""},
		{"f64 HGFEDCBA", ofType("f64", "HGFEDCBA"), "000000000 0d06c40", "230.5", ""},
		{"f64 large", ofType("f64", ""), "7e37e43c8800759c", "1e+300", ""},
		{"scale is exact", scaled("u16", 0.1, 0), "0003", "0.3", ""},
		{"scale and offset", scaled("i16", 0.01, -40), "0fff", "0.95", ""},
		{"scale of a negative", scaled("i16", 0.1, 0), "ffff", "-0.1", ""},
		{"scale to a whole number", scaled("u16", 0.1, 0), "000a", "1", ""},
		{"large scale", scaled("u16", 1000, 0), "0007", "7000", ""},
		{"scale beyond a float's digits", scaled("u64", 0.001, 0), "7fffffffffffffff", "9223372036854775.807", ""},
		{"f32 scaled", scaled("f32", 0.1, 0), "3dcccccd", "0.01", ""},
		{"f64 scaled beyond decimals", scaled("f64", 2, 0), "7e37e43c8800759c", "2e+300", ""},
		{"f64 scaled beyond all", scaled("f64", 1e10, 0), "7fefffffffffffff", "", Invalid},
		{"bcd", ofType("bcd", ""), "1234", "1234", ""},
		{"bcd of 2 registers", long("bcd", 2), "12345678", "12345678", ""},
		{"bcd of 4 registers", long("bcd", 4), "1234567890123456", "1234567890123456", ""},
		{"bcd scaled", scaled("bcd", 0.1, 0), "0995", "99.5", ""},
		{"bcd with a letter", ofType("bcd", ""), "12a4", "", Invalid},
		{"string", long("string", 4), "486f6c6466617374", `"Holdfast"`, ""},
		{"string BA", newField("x", 0, func(f *Field) { f.Type, f.Len, f.Order = "string", 4, "BA" }), "6f48646c61667473", `"Holdfast"`, ""},
		{"string with NUL", long("string", 4), "414200434445ffff", `"AB"`, ""},
		{"string with blanks", long("string", 4), "4142432020202020", `"ABC"`, ""},
		{"string of ones", long("string", 2), "ffffffff", `""`, ""},
		{"string with quotes", long("string", 2), "22 5c 0a 41", `"\"\\\nA"`, ""},
		{"string in UTF-8", long("string", 2), "c3a4c3b6", `"äö"`, ""},
		{"string in Latin-1", long("string", 2), "e4f64142", "", Invalid},
		{"bits", ofType("bits", ""), "8005", "[0,2,15]", ""},
		{"no bits", ofType("bits", ""), "0000", "[]", ""},
		{"bits with labels", newField("x", 0, func(f *Field) { f.Type, f.Labels = "bits", []string{"pump", "", "alarm"} }), "000d", `["pump","alarm","3"]`, ""},
		{"bool", newField("x", 0, func(f *Field) { f.Type, f.Bit = "bool", bit(15) }), "8000", "true", ""},
		{"bool off", newField("x", 0, func(f *Field) { f.Type, f.Bit = "bool", bit(14) }), "8000", "false", ""},
		{"mask", masked("u16", "0x0ff0"), "1234", "35", ""},
		{"mask of one bit", masked("u16", "0x8000"), "8000", "1", ""},
		{"mask of a signed", masked("i16", "0xff00"), "ff00", "255", ""},
		{"epoch", ofType("epoch", ""), "65920080", `"2024-01-01T00:00:00Z"`, ""},
		{"epoch of 4 registers", long("epoch", 4), "0000000065920080", `"2024-01-01T00:00:00Z"`, ""},
		{"no epoch", long("epoch", 4), "ffffffffffffffff", "", Invalid},
		{"coil", newField("x", 0, func(f *Field) { f.Table = TableCoil }), "01", "true", ""},
		{"discrete off", newField("x", 0, func(f *Field) { f.Table = TableDiscrete }), "00", "false", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.qual == "" {
				tt.qual = Good
			}
			data := unhex(t, tt.data)
			v := decoded(t, tt.field, data)
			if v.text != tt.want || v.quality != tt.qual {
				t.Errorf("%s as %s = %s, %s (%s), want %s, %s", tt.data, tt.field.Type, v.text, v.quality, v.detail, tt.want, tt.qual)
			}
			if hex.EncodeToString(v.raw) != hex.EncodeToString(data) {
				t.Errorf("raw = % x, want %s", v.raw, tt.data)
			}
		})
	}
}

// TestOrderOfDevice makes sure that the order of a device, given for 32 bits, is the same for all widths.
func TestOrderOfDevice(t *testing.T) {
	for _, tt := range []struct{ device, of16, of64 string }{
		{"ABCD", "AB", "ABCDEFGH"}, {"CDAB", "AB", "GHEFCDAB"}, {"BADC", "BA", "BADCFEHG"}, {"DCBA", "BA", "HGFEDCBA"},
	} {
		for own, registers := range map[string]int{tt.of16: 1, tt.device: 2, tt.of64: 4} {
			want, problem := byteOrder(own, "ABCD", registers, false)
			got, _ := byteOrder("", tt.device, registers, false)
			if problem != "" || !slices.Equal(got, want) {
				t.Errorf("order %s in %d registers: %v, want %v as %s", tt.device, registers, got, want, own)
			}
		}
	}
	if got, _ := byteOrder("", "DCBA", 4, true); !slices.Equal(got, []int{0, 1, 2, 3, 4, 5, 6, 7}) {
		t.Errorf("order of a text in a device DCBA = %v, want it unswapped", got)
	}
}

// TestRange marks values outside of min and max, and keeps them.
func TestRange(t *testing.T) {
	least, most := -10.0, 50.5
	f := newField("x", 0, func(f *Field) { f.Type, f.Scale, f.Min, f.Max = "i16", 0.1, &least, &most })
	for data, want := range map[string]string{"ff9c": Good, "ff9b": OutOfRange, "01f9": Good, "01fa": OutOfRange} {
		if v := decoded(t, f, unhex(t, data)); v.quality != want || v.text == "" {
			t.Errorf("%s = %s, %s, want %s", data, v.text, v.quality, want)
		}
	}
}

// TestEncodeIsDecodeBackwards writes values and reads them.
func TestEncodeIsDecodeBackwards(t *testing.T) {
	for _, order := range []string{"ABCD", "CDAB", "BADC", "DCBA"} {
		d := newDevice("d", 1, time.Second)
		d.Order = order
		for _, tt := range []struct {
			kind, text string
			scale      float64
		}{
			{"u16", "65535", 1}, {"i16", "-32768", 1}, {"i16", "-12.5", 0.1}, {"u32", "4294967295", 1}, {"i32", "-70000", 1},
			{"u64", "18446744073709551615", 1}, {"i64", "-9223372036854775808", 1}, {"f32", "230.5", 1}, {"f64", "-1.25e-7", 1},
			{"bcd", "1234", 1}, {"bcd", "12.3", 0.1},
		} {
			p, _, problem, _ := newPoint(newField("x", 0, func(f *Field) { f.Type, f.Scale = tt.kind, tt.scale }), d)
			if problem != "" {
				t.Fatal(problem)
			}
			words, err := p.encode(tt.text)
			if err != nil {
				t.Errorf("encode(%s) as %s: %v", tt.text, tt.kind, err)
				continue
			}
			var data []byte
			for _, w := range words {
				data = append(data, byte(w>>8), byte(w))
			}
			if v := p.decode(data, 0); strings.ReplaceAll(v.text, "e-07", "e-7") != tt.text {
				t.Errorf("%s as %s %s = % x, which is %s", tt.text, tt.kind, order, data, v.text)
			}
		}
	}
}

func TestEncodeRefuses(t *testing.T) {
	most := 100.0
	for _, tt := range []struct {
		name  string
		field Field
		text  string
		want  string
	}{
		{"no number", ofType("u16", ""), "on", "no number"},
		{"too large", ofType("u16", ""), "65536", "does not fit"},
		{"negative", ofType("u16", ""), "-1", "does not fit"},
		{"below i16", ofType("i16", ""), "-32769", "does not fit"},
		{"above i64", ofType("i64", ""), "9223372036854775808", "does not fit"},
		{"between two values", newField("x", 0, func(f *Field) { f.Scale = 0.1 }), "1.25", "between two values"},
		{"out of range", newField("x", 0, func(f *Field) { f.Max = &most }), "101", "range"},
		{"bcd too long", ofType("bcd", ""), "12345", "does not fit"},
		{"f32 too large", ofType("f32", ""), "1e39", "too large"},
		{"text too long", newField("x", 0, func(f *Field) { f.Type, f.Len = "string", 1 }), "abc", "3 bytes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, _, problem, _ := newPoint(tt.field, newDevice("d", 1, time.Second))
			if problem != "" {
				t.Fatal(problem)
			}
			if words, err := p.encode(tt.text); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("encode(%s) = %v, %v, want an error with %q", tt.text, words, err, tt.want)
			}
		})
	}
}

func TestNumeric(t *testing.T) {
	if v := decoded(t, ofType("bits", ""), []byte{0, 1}); !math.IsNaN(v.numeric()) {
		t.Errorf("bits count as the number %v", v.numeric())
	}
	if v := decoded(t, ofType("u16", ""), []byte{0, 7}); v.numeric() != 7 {
		t.Errorf("7 counts as %v", v.numeric())
	}
}

// FuzzDecode reads anything as any type: what comes out is JSON, and a number that was read is written back as it was.
func FuzzDecode(f *testing.F) {
	kinds := []string{"u16", "i16", "u32", "i32", "u64", "i64", "f32", "f64", "bcd", "string", "bits", "epoch"}
	f.Add([]byte{0x43, 0x66, 0x80, 0x00}, uint8(6), uint8(1), 0.1, -40.0, int8(-2))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, uint8(4), uint8(0), 1.0, 0.0, int8(0))
	f.Add([]byte("a\x00b\xff"), uint8(9), uint8(0), 1.0, 0.0, int8(0))
	f.Fuzz(func(t *testing.T, data []byte, kind, order uint8, scale, offset float64, exponent int8) {
		if math.IsNaN(scale+offset) || math.IsInf(scale+offset, 0) || scale == 0 {
			t.Skip("no configuration has it")
		}
		d := newDevice("d", 1, time.Second)
		d.Order = []string{"ABCD", "CDAB", "BADC", "DCBA"}[order%4]
		field := newField("x", 0, func(f *Field) { f.Type, f.Scale, f.Offset = kinds[int(kind)%len(kinds)], scale, offset })
		if field.Type == "string" {
			field.Len = 1 + int(order)%20
		}
		p, _, problem, _ := newPoint(field, d)
		if problem != "" {
			t.Fatal(problem)
		}
		data = append(data, make([]byte, 2*p.count)...)[:2*p.count]
		v := p.decode(data, int(exponent)%21)
		if text := v.append(nil, "V", true); !json.Valid(text) {
			t.Fatalf("% x as %s = %s, which is no JSON", data, field.Type, text)
		}
		if exponent%21 != 0 || v.quality != Good || p.settable() != "" || field.Type == "string" || field.Type[0] == 'f' {
			return
		}
		words, err := p.encode(v.text)
		if err != nil {
			t.Fatalf("% x as %s = %s, which cannot be written: %v", data, field.Type, v.text, err)
		}
		for i, w := range words {
			if w != uint16(data[2*i])<<8|uint16(data[2*i+1]) {
				t.Fatalf("% x as %s = %s, which is written as %04x", data, field.Type, v.text, words)
			}
		}
	})
}

func BenchmarkDecode(b *testing.B) {
	for _, bench := range []struct {
		name  string
		field Field
	}{{"u16", ofType("u16", "")}, {"f32", ofType("f32", "CDAB")}, {"i16-scaled", newField("x", 0, func(f *Field) { f.Type, f.Scale = "i16", 0.1 })}} {
		b.Run("type="+bench.name, func(b *testing.B) {
			p, _, problem, _ := newPoint(bench.field, newDevice("d", 1, time.Second))
			if problem != "" {
				b.Fatal(problem)
			}
			data := []byte{0x43, 0x66, 0x80, 0x00}[:2*p.count]
			b.ReportAllocs()
			for b.Loop() {
				if v := p.decode(data, 0); v.quality != Good {
					b.Fatal(v.detail)
				}
			}
		})
	}
}
