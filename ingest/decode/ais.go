package decode

import (
	"strings"
)

// parseAIS reads the sentences of one AIS message: its sentences, its payload, type and MMSI, and the values of position reports,
// base stations and static data (ITU-R M.1371-5, annex 8: types 1 to 5, 18, 24). Other types keep their payload.
func parseAIS(all []sentence) (any, error) {
	var payload strings.Builder
	fill := 0
	for i, s := range all {
		if len(s.fields) != 6 {
			return nil, reject(ReasonFields, "%s has %d, it needs 6", s.kind, len(s.fields))
		}
		if s.kind != all[0].kind || s.fields[0] != all[0].fields[0] || s.fields[2] != all[0].fields[2] || s.fields[1] != string(rune('1'+i)) {
			return nil, reject(ReasonSyntax, "sentence %d is not part %d of the same message", i+1, i+1)
		}
		payload.WriteString(s.fields[4])
		if s.fields[5] != "" {
			fill = int(s.fields[5][0]) - '0'
		}
	}
	if n := all[0].fields[0]; n != string(rune('0'+len(all))) {
		return nil, reject(ReasonFields, "%d of %.10q sentences are there", len(all), n)
	}
	bits, err := unarmour(payload.String(), fill)
	if err != nil {
		return nil, err
	}
	values := map[string]any{
		"talker": all[0].talker, "type": all[0].kind, "channel": all[0].fields[3], "payload": payload.String(), "fill": integer(int64(fill)),
	}
	if len(bits) < 38 {
		return nil, reject(ReasonShort, "%d bits have no room for a type and an MMSI", len(bits))
	}
	kind := bits.unsigned(0, 6)
	values["message"], values["mmsi"] = integer(kind), integer(bits.unsigned(8, 30))
	layout := aisFields[kind]
	if kind == 24 {
		layout = aisStatic[bits.unsigned(38, 2)]
	}
	for _, f := range layout {
		if f.from+f.size <= len(bits) {
			values[f.name] = f.read(bits)
		}
	}
	return values, nil
}

// bitString is one bit a byte, each 0 or 1.
type bitString []byte

// unarmour turns the characters of a payload into bits, without the last fill ones.
func unarmour(s string, fill int) (bitString, error) {
	var bits bitString
	for i := range len(s) {
		c := s[i]
		if c < '0' || c > 'w' || c > 'W' && c < '`' {
			return nil, reject(ReasonValue, "the payload has the character %q", c)
		}
		if c -= '0'; c > 40 {
			c -= 8
		}
		for shift := 5; shift >= 0; shift-- {
			bits = append(bits, c>>shift&1)
		}
	}
	if fill < 0 || fill > 5 || fill > len(bits) {
		return nil, reject(ReasonValue, "%d is no number of fill bits", fill)
	}
	return bits[:len(bits)-fill], nil
}

func (b bitString) unsigned(from, size int) int64 {
	var n int64
	for _, bit := range b[from : from+size] {
		n = n<<1 | int64(bit)
	}
	return n
}

func (b bitString) signed(from, size int) int64 {
	n := b.unsigned(from, size)
	if b[from] == 1 {
		n -= 1 << size
	}
	return n
}

// aisField is a value in the bits of a message.
type aisField struct {
	name       string
	from, size int
	kind       byte    // u unsigned, i signed, s text, b bool
	per        float64 // units in one of the value; 0: one
	none       int64   // what stands for no value; 0: nothing does
}

func (f aisField) read(b bitString) any {
	var n int64
	switch f.kind {
	case 's':
		text := make([]byte, 0, f.size/6)
		for i := f.from; i+6 <= f.from+f.size; i += 6 {
			c := byte(b.unsigned(i, 6))
			if c < 32 {
				c += 64
			}
			text = append(text, c)
		}
		return trimmed(text)
	case 'b':
		return b[f.from] == 1
	case 'i':
		n = b.signed(f.from, f.size)
	default:
		n = b.unsigned(f.from, f.size)
	}
	switch {
	case f.none != 0 && n == f.none:
		return nil
	case f.per == 0:
		return integer(n)
	}
	return decimals(float64(n)/f.per, 6)
}

// What stands for no position.
const (
	noLongitude = 181 * 600000
	noLatitude  = 91 * 600000
)

var aisReport = []aisField{
	{name: "status", from: 38, size: 4, none: 15}, {name: "turn", from: 42, size: 8, kind: 'i', none: -128},
	{name: "speed_knots", from: 50, size: 10, per: 10, none: 1023}, {name: "accurate", from: 60, size: 1, kind: 'b'},
	{name: "longitude", from: 61, size: 28, kind: 'i', per: 600000, none: noLongitude},
	{name: "latitude", from: 89, size: 27, kind: 'i', per: 600000, none: noLatitude},
	{name: "course", from: 116, size: 12, per: 10, none: 3600}, {name: "heading", from: 128, size: 9, none: 511},
	{name: "second", from: 137, size: 6},
}

var aisFields = map[int64][]aisField{
	1: aisReport, 2: aisReport, 3: aisReport,
	4: {
		{name: "year", from: 38, size: 14}, {name: "month", from: 52, size: 4}, {name: "day", from: 56, size: 5},
		{name: "hour", from: 61, size: 5, none: 24}, {name: "minute", from: 66, size: 6, none: 60}, {name: "second", from: 72, size: 6, none: 60},
		{name: "accurate", from: 78, size: 1, kind: 'b'},
		{name: "longitude", from: 79, size: 28, kind: 'i', per: 600000, none: noLongitude},
		{name: "latitude", from: 107, size: 27, kind: 'i', per: 600000, none: noLatitude},
	},
	5: {
		{name: "imo", from: 40, size: 30}, {name: "callsign", from: 70, size: 42, kind: 's'}, {name: "name", from: 112, size: 120, kind: 's'},
		{name: "ship_type", from: 232, size: 8}, {name: "to_bow", from: 240, size: 9}, {name: "to_stern", from: 249, size: 9},
		{name: "to_port", from: 258, size: 6}, {name: "to_starboard", from: 264, size: 6}, {name: "eta_month", from: 274, size: 4},
		{name: "eta_day", from: 278, size: 5}, {name: "eta_hour", from: 283, size: 5, none: 24}, {name: "eta_minute", from: 288, size: 6, none: 60},
		{name: "draught", from: 294, size: 8, per: 10}, {name: "destination", from: 302, size: 120, kind: 's'},
	},
	18: {
		{name: "speed_knots", from: 46, size: 10, per: 10, none: 1023}, {name: "accurate", from: 56, size: 1, kind: 'b'},
		{name: "longitude", from: 57, size: 28, kind: 'i', per: 600000, none: noLongitude},
		{name: "latitude", from: 85, size: 27, kind: 'i', per: 600000, none: noLatitude},
		{name: "course", from: 112, size: 12, per: 10, none: 3600}, {name: "heading", from: 124, size: 9, none: 511},
		{name: "second", from: 133, size: 6},
	},
}

// aisStatic are the values of type 24 by part.
var aisStatic = map[int64][]aisField{
	0: {{name: "name", from: 40, size: 120, kind: 's'}},
	1: {{name: "ship_type", from: 40, size: 8}, {name: "callsign", from: 90, size: 42, kind: 's'}},
}
