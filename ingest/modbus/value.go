package modbus

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Qualities of a field.
const (
	Good         = "good"
	NotAvailable = "not_available" // the device says that it has no value: a configured nan, or not a number
	OutOfRange   = "out_of_range"  // below min or above max; the value is there
	Invalid      = "invalid"       // the bytes are none of the type
	Refused      = "refused"       // the device answered with an exception
	Silent       = "silent"        // the device did not answer
	Garbled      = "garbled"       // bytes came, and no reply
	Offline      = "offline"       // line or connection was not open
)

// value is what a poll found out about a field.
type value struct {
	quality string
	detail  string // why the quality is not good; may be empty
	text    string // the value as JSON; empty: null
	number  *big.Rat
	float   float64 // in the place of number where that would be too long
	raw     []byte  // as on the wire; nil: nothing came
}

// numeric returns the number as a float, NaN if there is none.
func (v value) numeric() float64 {
	if v.number != nil {
		f, _ := v.number.Float64()
		return f
	}
	return v.float
}

func bad(quality, detail string, raw []byte) value {
	return value{quality: quality, detail: detail, raw: raw, float: math.NaN()}
}

// number is the value of a number given exactly, with so many digits behind the point at most.
func number(r *big.Rat, digits int) value {
	text := r.FloatString(max(digits, 0))
	if strings.Contains(text, ".") {
		text = strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
	}
	if text == "-0" {
		text = "0"
	}
	return value{quality: Good, text: text, number: r}
}

func float(v float64, size int) value {
	return value{quality: Good, text: string(strconv.AppendFloat(nil, v, 'g', -1, size)), float: v}
}

// decode reads the field from its registers, or from the byte with its coil. exponent is the power of ten of scale_from.
func (p *point) decode(data []byte, exponent int) value {
	v := p.read(data, exponent)
	v.raw = data
	if n := v.numeric(); v.quality == Good && (p.Min != nil && n < *p.Min || p.Max != nil && n > *p.Max) {
		v.quality = OutOfRange
	}
	return v
}

func (p *point) read(data []byte, exponent int) value {
	if p.coil() {
		return value{quality: Good, text: strconv.FormatBool(data[0]&1 != 0), float: float64(data[0] & 1)}
	}
	if p.Type == "string" {
		return p.readText(data)
	}
	bits := p.raw(data)
	for _, nan := range p.nan {
		if bits == nan {
			return bad(NotAvailable, "", data)
		}
	}
	if p.mask != 0 {
		low := p.mask & -p.mask
		bits = (bits & p.mask) / low
	}
	switch p.Type {
	case "bool":
		on := bits>>*p.Bit&1 != 0
		return value{quality: Good, text: strconv.FormatBool(on), float: float64(bits >> *p.Bit & 1)}
	case "bits":
		return value{quality: Good, text: p.listBits(bits), float: math.NaN()}
	case "epoch":
		if bits > 253402300799 { // the end of year 9999
			return bad(Invalid, "no time", data)
		}
		return value{quality: Good, text: strconv.Quote(time.Unix(int64(bits), 0).UTC().Format(time.RFC3339)), float: math.NaN()}
	case "f32":
		return p.linear(float64(math.Float32frombits(uint32(bits))), 32, exponent)
	case "f64":
		return p.linear(math.Float64frombits(bits), 64, exponent)
	case "bcd":
		n, ok := fromBCD(bits)
		if !ok {
			return bad(Invalid, "no decimal digits", data)
		}
		return p.whole(new(big.Int).SetUint64(n), exponent)
	case "i16", "i32", "i64":
		if p.mask == 0 {
			shift := 64 - p.width()
			return p.whole(big.NewInt(int64(bits<<shift)>>shift), exponent)
		}
	}
	return p.whole(new(big.Int).SetUint64(bits), exponent)
}

// whole scales a whole number, exactly.
func (p *point) whole(n *big.Int, exponent int) value {
	r := new(big.Rat).SetInt(n)
	if p.exact {
		return number(r, 0)
	}
	return p.scaled(r, 0, exponent)
}

// scaled multiplies and adds in decimals, so that 3 times 0.1 is 0.3. digits is how many digits r has behind the point.
func (p *point) scaled(r *big.Rat, digits, exponent int) value {
	r = r.Mul(r, p.scale)
	ten := new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(max(exponent, -exponent))), nil))
	if exponent < 0 {
		ten.Inv(ten)
	}
	r.Mul(r, ten).Add(r, p.offset)
	return number(r, max(digits+decimals(p.Scale)-exponent, decimals(p.Offset)))
}

// linear scales a float: as the decimal number that it is written as, as long as that is short.
func (p *point) linear(v float64, size, exponent int) value {
	switch {
	case math.IsNaN(v):
		return bad(NotAvailable, "not a number", nil)
	case math.IsInf(v, 0):
		return bad(Invalid, "infinite", nil)
	case p.exact:
		return float(v, size)
	}
	if !plainSize(v) || !plainSize(p.Scale) || !plainSize(p.Offset) {
		v = v*p.Scale*math.Pow10(exponent) + p.Offset
		if math.IsInf(v, 0) {
			return bad(Invalid, "too large after scaling", nil)
		}
		return float(v, 64)
	}
	text := strconv.FormatFloat(v, 'f', -1, size)
	_, behind, _ := strings.Cut(text, ".")
	return p.scaled(decimal(v, size), len(behind), exponent)
}

// decimals counts the digits behind the point.
func decimals(v float64) int {
	_, behind, _ := strings.Cut(strconv.FormatFloat(v, 'f', -1, 64), ".")
	return len(behind)
}

// readText reads a text up to its first NUL, without the blanks and 0xff that fill it up.
func (p *point) readText(data []byte) value {
	text := make([]byte, len(data))
	for i := range text {
		text[i] = data[i&^1+p.order[i%2]]
	}
	before, _, _ := strings.Cut(string(text), "\x00")
	for len(before) > 0 && (before[len(before)-1] == ' ' || before[len(before)-1] == 0xff) {
		before = before[:len(before)-1]
	}
	if !utf8.ValidString(before) {
		return bad(Invalid, "no text in UTF-8", data)
	}
	quoted, err := json.Marshal(before)
	if err != nil {
		return bad(Invalid, err.Error(), data)
	}
	return value{quality: Good, text: string(quoted), float: math.NaN()}
}

// listBits writes the bits that are set as a list: of numbers, or of labels where there are some.
func (p *point) listBits(bits uint64) string {
	var list []string
	for i := range 64 {
		if bits>>i&1 == 0 {
			continue
		}
		entry := strconv.Itoa(i)
		if i < len(p.Labels) && p.Labels[i] != "" {
			entry = jsonText(p.Labels[i])
		} else if len(p.Labels) > 0 {
			entry = jsonText(entry)
		}
		list = append(list, entry)
	}
	return "[" + strings.Join(list, ",") + "]"
}

// jsonText writes a text as JSON.
func jsonText(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		return `""` // no text fails to marshal
	}
	return string(b)
}

// fromBCD reads four decimal digits from each 16 bits.
func fromBCD(bits uint64) (uint64, bool) {
	n := uint64(0)
	for i := 60; i >= 0; i -= 4 {
		digit := bits >> i & 0xf
		if digit > 9 {
			return 0, false
		}
		n = 10*n + digit
	}
	return n, true
}

// power reads the power of ten that another field's value is.
func power(v value) (exponent int, problem string) {
	if v.quality != Good {
		return 0, "scale_from is " + v.quality
	}
	if v.number == nil || !v.number.IsInt() || v.number.Num().CmpAbs(big.NewInt(20)) > 0 {
		return 0, fmt.Sprintf("scale_from is %s, which is no power of ten", v.text)
	}
	return int(v.number.Num().Int64()), ""
}

// append writes the value as a JSON object. always: with raw bytes though the quality is good.
func (v value) append(b []byte, unit string, always bool) []byte {
	b = append(b, `{"value":`...)
	if v.text == "" {
		b = append(b, "null"...)
	}
	b = append(b, v.text...)
	if unit != "" {
		b = append(append(b, `,"unit":`...), jsonText(unit)...)
	}
	b = append(append(append(b, `,"quality":"`...), v.quality...), '"')
	if v.detail != "" {
		b = append(append(b, `,"detail":`...), jsonText(v.detail)...)
	}
	if v.raw != nil && (always || v.quality != Good) {
		b = append(append(append(b, `,"raw":"`...), hex.EncodeToString(v.raw)...), '"')
	}
	return append(b, '}')
}
