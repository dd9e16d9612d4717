package decode

import (
	"encoding/hex"
	"fmt"
	"math/big"
	"strings"
	"unicode/utf8"
)

// Field is one value at a fixed place of a message.
type Field struct {
	Name   string   `yaml:"name" doc:"name of the value"`
	At     int      `yaml:"at" doc:"place of its first byte in the message, from 0; a register has two bytes"`
	Type   string   `yaml:"type" enum:"u8,i8,u16,i16,u32,i32,u64,i64,f32,f64,bcd,string,bits,epoch" doc:"what its bytes are: numbers of 8 to 64 bits, digits of four bits, a text, single bits, or seconds since 1970 in 32 bits"`
	Order  string   `yaml:"order" doc:"which byte comes when, A is the highest: ABCD when empty, CDAB with the words swapped, DCBA lowest first"`
	Length int      `yaml:"length" doc:"bcd, string, bits: how many bytes"`
	Mask   string   `yaml:"mask" doc:"u8 to u64: the bits that count, in hexadecimal, such as 0x00f0; they are shifted down"`
	Scale  string   `yaml:"scale" doc:"factor of a number, such as 0.1"`
	Offset string   `yaml:"offset" doc:"what is added to a number after scale"`
	Unit   string   `yaml:"unit" doc:"unit of the value, given along with it"`
	NaN    []string `yaml:"nan" doc:"what stands for no value, in hexadecimal with all digits, such as 0x8000"`
	Min    string   `yaml:"min" doc:"a number below is marked as out of range"`
	Max    string   `yaml:"max" doc:"a number above is marked as out of range"`
}

// qualityName is the key under which the quality of fields is told.
const qualityName = "quality"

// sizes are the bytes of types that have one size.
var sizes = map[string]int{"u8": 1, "i8": 1, "u16": 2, "i16": 2, "u32": 4, "i32": 4, "u64": 8, "i64": 8, "f32": 4, "f64": 8, "epoch": 4}

const (
	maxFieldAt     = 64 << 10
	maxFieldLength = 1 << 10
)

// check reports what cannot work.
func (f Field) check(fault func(key, problem, remedy string)) {
	switch {
	case f.Name == "":
		fault("name", "is missing", "give the value a name")
	case f.Name == qualityName:
		fault("name", "is the name under which the quality is told", "use another name")
	case !utf8.ValidString(f.Name):
		fault("name", "is no text", "use letters and digits")
	}
	if f.At < 0 || f.At > maxFieldAt {
		fault("at", fmt.Sprintf("%d is out of range", f.At), fmt.Sprintf("give 0 to %d", maxFieldAt))
	}
	size, fixed := sizes[f.Type]
	numeric := fixed && f.Type != "epoch" || f.Type == "bcd"
	switch {
	case !fixed && f.Type != "bcd" && f.Type != "string" && f.Type != "bits":
		fault("type", fmt.Sprintf("%q is unknown", f.Type), "use u8, i8, u16, i16, u32, i32, u64, i64, f32, f64, bcd, string, bits or epoch")
		return
	case fixed && f.Length != 0:
		fault("length", "is not used with type "+f.Type, "remove it")
	case !fixed && (f.Length < 1 || f.Length > maxFieldLength):
		fault("length", fmt.Sprintf("%d is out of range", f.Length), fmt.Sprintf("give 1 to %d bytes", maxFieldLength))
		return
	case !fixed:
		size = f.Length
	}
	if _, err := order(f.Order, size, fixed); err != nil {
		fault("order", err.Error(), "name each byte once, such as ABCD, CDAB, BADC or DCBA for four")
	}
	if f.Mask != "" && f.Type[0] != 'u' {
		fault("mask", "is not used with type "+f.Type, "use u8, u16, u32 or u64")
	} else if _, err := hexValue(f.Mask, size); f.Mask != "" && err != nil {
		fault("mask", err.Error(), fmt.Sprintf("write 0x and %d digits", 2*size))
	}
	for i, s := range f.NaN {
		if _, err := hexValue(s, size); err != nil {
			fault(fmt.Sprintf("nan[%d]", i), err.Error(), fmt.Sprintf("write 0x and %d digits", 2*size))
		}
	}
	for _, n := range []struct{ key, text string }{{"scale", f.Scale}, {"offset", f.Offset}, {"min", f.Min}, {"max", f.Max}} {
		if n.text == "" {
			continue
		}
		if _, ok := rational(n.text); !ok {
			fault(n.key, fmt.Sprintf("%q is no number", n.text), "write a number such as 0.1")
		} else if !numeric {
			fault(n.key, "is not used with type "+f.Type, "remove it")
		}
	}
}

// order returns, for each byte from the highest on, where it is in the message. The order of a text or digits may be that of
// a group of bytes, which is repeated.
func order(s string, size int, fixed bool) ([]int, error) {
	group := len(s)
	if s == "" {
		group = 1
	}
	if fixed && s != "" && group != size || group > size || size%group != 0 {
		return nil, fmt.Errorf("%q does not fit %d bytes", s, size)
	}
	at := make([]int, size)
	for i := range at {
		at[i] = i
		if s == "" {
			continue
		}
		k := strings.IndexByte(s, byte('A'+i%group))
		if k < 0 || group > 26 {
			return nil, fmt.Errorf("%q is no order of bytes", s)
		}
		at[i] = i - i%group + k
	}
	return at, nil
}

// hexValue reads 0x and all digits of a value of so many bytes.
func hexValue(s string, size int) ([]byte, error) {
	digits, ok := strings.CutPrefix(strings.ToLower(s), "0x")
	b, err := hex.DecodeString(digits)
	if !ok || err != nil {
		return nil, fmt.Errorf("%q is no hexadecimal number", s)
	}
	if len(b) != size {
		return nil, fmt.Errorf("%q has %d bytes, the value has %d", s, len(b), size)
	}
	return b, nil
}

// rational reads a number of ordinary size.
func rational(s string) (*big.Rat, bool) {
	n, ok := number(s)
	if !ok || len(n) > 400 {
		return nil, false
	}
	if i := strings.IndexAny(string(n), "eE"); i >= 0 && len(n)-i > 5 {
		return nil, false
	}
	return new(big.Rat).SetString(n.String())
}

// registers reads messages that have fields at fixed places.
type registers []register

// register is a field, ready for use.
type register struct {
	Field
	read Reader
}

func newRegisters(fields []Field) (registers, error) {
	var all registers
	for _, f := range fields {
		size, fixed := sizes[f.Type]
		if !fixed {
			size = f.Length
		}
		r := register{Field: f, read: Reader{Type: f.Type, Places: max(places(f.Scale), places(f.Offset))}}
		var err error
		if r.read.Order, err = order(f.Order, size, fixed); err != nil {
			return nil, err
		}
		if f.Mask != "" {
			b, err := hexValue(f.Mask, size)
			if err != nil {
				return nil, err
			}
			r.read.Mask = bigEndian(b)
		}
		for _, s := range f.NaN {
			b, err := hexValue(s, size)
			if err != nil {
				return nil, err
			}
			r.read.NaN = append(r.read.NaN, b)
		}
		for _, n := range []struct {
			text string
			to   **big.Rat
		}{{f.Scale, &r.read.Scale}, {f.Offset, &r.read.Offset}, {f.Min, &r.read.Min}, {f.Max, &r.read.Max}} {
			if n.text != "" {
				*n.to, _ = rational(n.text)
			}
		}
		all = append(all, r)
	}
	return all, nil
}

// places returns how many digits a number has behind the point.
func places(s string) int {
	mantissa, exponent, _ := strings.Cut(strings.ToLower(s), "e")
	_, fraction, _ := strings.Cut(mantissa, ".")
	n := len(fraction)
	if exponent != "" {
		var e int
		_, _ = fmt.Sscanf(exponent, "%d", &e) // checked before
		n -= e
	}
	return max(n, 0)
}

func (all registers) parse(data []byte) (any, error) {
	values, quality := map[string]any{}, map[string]any{}
	for _, r := range all {
		if end := r.At + len(r.read.Order); end > len(data) {
			return nil, reject(ReasonShort, "%s ends at byte %d, the message has %d", r.Name, end, len(data))
		}
		v := r.read.Read(data[r.At:], 0)
		if v.Quality == QualityInvalid {
			return nil, reject(ReasonValue, "%s: %s", r.Name, v.Detail)
		}
		if v.Quality != QualityGood {
			quality[r.Name] = v.Quality
		}
		value := v.Value
		if r.Unit != "" {
			value = map[string]any{"value": value, "unit": r.Unit}
		}
		values[r.Name] = value
	}
	if len(quality) > 0 {
		values[qualityName] = quality
	}
	return values, nil
}
