package decode

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"math"
	"math/big"
	"math/bits"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// What the quality of a value may be.
const (
	QualityGood    = "good"
	QualityNone    = "not_available" // the device says that it has no value, or it is not a number
	QualityRange   = "out_of_range"  // below the least or above the greatest that makes sense; the value is there
	QualityInvalid = "invalid"       // the bytes are none of the type
)

// lastSecond is the end of year 9999, beyond which a time has no text.
const lastSecond = 253402300799

// Reader reads one value from its bytes: what fields of messages and registers of devices have in common. It is not changed by use.
type Reader struct {
	Type   string   // u8 to u64, i8 to i64, f32, f64, bcd, string, bits, epoch or bool
	Order  []int    // for each byte, the highest or first one first, its place
	NaN    [][]byte // bytes, in order, that stand for no value
	Mask   uint64   // the bits of a number that count, shifted down; 0: all
	Bit    int      // of a bool, 0 being the lowest
	Labels []string // names of bits, from the lowest on; nil: their numbers

	Scale, Offset, Min, Max *big.Rat // nil: none
	Places                  int      // the most digits behind the point that Scale and Offset have
}

// Value is what a Reader makes of bytes.
type Value struct {
	Value   any      // json.Number, string, bool, a list of those, or nil
	Quality string   // one of the Quality constants
	Detail  string   // more about it, for people; may be empty
	Exact   *big.Rat // the number without rounding; nil for other values and for very large or small ones
}

// Float returns the number of a value, NaN if it has none.
func (v Value) Float() float64 {
	if v.Exact != nil {
		f, _ := v.Exact.Float64()
		return f
	}
	if n, ok := v.Value.(json.Number); ok {
		if f, err := n.Float64(); err == nil {
			return f
		}
	}
	return math.NaN()
}

func good(value any) Value                 { return Value{Value: value, Quality: QualityGood} }
func lacking(quality, detail string) Value { return Value{Quality: quality, Detail: detail} }
func (r *Reader) plain() bool              { return r.Scale == nil && r.Offset == nil }
func (r *Reader) bounded() bool            { return r.Min != nil || r.Max != nil }
func whole(n *big.Int) *big.Rat            { return new(big.Rat).SetInt(n) }
func (r *Reader) signed() bool             { return r.Type[0] == 'i' && r.Mask == 0 }
func tenTo(exponent int) *big.Rat {
	ten := whole(new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(max(exponent, -exponent))), nil))
	if exponent < 0 {
		ten.Inv(ten)
	}
	return ten
}

// Read reads the value from data, which Order is about. A number is multiplied by ten to the exponent, too.
func (r *Reader) Read(data []byte, exponent int) Value {
	b := make([]byte, len(r.Order))
	for i, at := range r.Order {
		b[i] = data[at]
	}
	for _, nan := range r.NaN {
		if string(nan) == string(b) {
			return lacking(QualityNone, "")
		}
	}
	switch r.Type {
	case "string":
		return text(b)
	case "bcd":
		digits := hex.EncodeToString(b)
		if !digitsOnly(digits) {
			return lacking(QualityInvalid, "no decimal digits")
		}
		n, _ := new(big.Int).SetString(digits, 10)
		return r.scaled(whole(n), 0, exponent)
	case "bits":
		return good(r.set(b))
	}
	u := bigEndian(b)
	if r.Mask != 0 {
		u = u & r.Mask >> bits.TrailingZeros64(r.Mask)
	}
	switch r.Type {
	case "bool":
		return good(u>>r.Bit&1 == 1)
	case "epoch":
		if u > lastSecond {
			return lacking(QualityInvalid, "no time")
		}
		return good(time.Unix(int64(u), 0).UTC().Format(time.RFC3339))
	case "f32":
		return r.real(float64(math.Float32frombits(uint32(u))), 32, exponent)
	case "f64":
		return r.real(math.Float64frombits(u), 64, exponent)
	}
	n := new(big.Int).SetUint64(u)
	if r.signed() {
		shift := 64 - 8*len(b)
		n.SetInt64(int64(u<<shift) >> shift)
	}
	return r.scaled(whole(n), 0, exponent)
}

// text reads a text up to its first NUL, without the blanks and 0xff that fill it up.
func text(b []byte) Value {
	before, _, _ := strings.Cut(string(b), "\x00")
	for len(before) > 0 && (before[len(before)-1] == ' ' || before[len(before)-1] == 0xff) {
		before = before[:len(before)-1]
	}
	if !utf8.ValidString(before) {
		return lacking(QualityInvalid, "no text in UTF-8")
	}
	return good(before)
}

// set lists the bits that are set, the lowest of the last byte being 0: by number, or by label where there are some.
func (r *Reader) set(b []byte) []any {
	list := []any{}
	for i := range 8 * len(b) {
		if b[len(b)-1-i/8]>>(i%8)&1 == 0 {
			continue
		}
		switch {
		case i < len(r.Labels) && r.Labels[i] != "":
			list = append(list, r.Labels[i])
		case len(r.Labels) > 0:
			list = append(list, strconv.Itoa(i))
		default:
			list = append(list, integer(int64(i)))
		}
	}
	return list
}

// real reads a binary number with a point: as the decimal number that it is written as, as long as that is short.
func (r *Reader) real(f float64, size, exponent int) Value {
	switch {
	case math.IsNaN(f):
		return lacking(QualityNone, "not a number")
	case math.IsInf(f, 0):
		return lacking(QualityInvalid, "infinite")
	}
	written := string(float(f, size).(json.Number))
	if !strings.Contains(written, "e") && !r.extreme() {
		exact, _ := new(big.Rat).SetString(written)
		return r.scaled(exact, places(written), exponent)
	}
	if r.Scale != nil {
		s, _ := r.Scale.Float64()
		f *= s
	}
	f *= math.Pow10(exponent)
	if r.Offset != nil {
		o, _ := r.Offset.Float64()
		f += o
	}
	if !r.plain() || exponent != 0 {
		size = 64
	}
	n := float(f, size)
	if n == nil {
		return lacking(QualityInvalid, "too large after scaling")
	}
	return r.judge(good(n))
}

// extreme says that scale or offset would make exact numbers too long.
func (r *Reader) extreme() bool {
	const most = 64 // bits of a number that is written in about twenty digits
	for _, x := range []*big.Rat{r.Scale, r.Offset} {
		if x != nil && (x.Num().BitLen() > most || x.Denom().BitLen() > most) {
			return true
		}
	}
	return false
}

// scaled multiplies and adds in decimals, so that 3 times 0.1 is 0.3. digits is how many digits x has behind the point.
func (r *Reader) scaled(x *big.Rat, digits, exponent int) Value {
	if r.Scale != nil {
		x.Mul(x, r.Scale)
	}
	if exponent != 0 {
		x.Mul(x, tenTo(exponent))
	}
	if r.Offset != nil {
		x.Add(x, r.Offset)
	}
	v := good(json.Number(trimZeros(x.FloatString(digits + r.Places + max(-exponent, 0)))))
	v.Exact = x
	return r.judge(v)
}

// judge holds a number against the range that makes sense.
func (r *Reader) judge(v Value) Value {
	if !r.bounded() {
		return v
	}
	x := v.Exact
	if x == nil {
		x = new(big.Rat)
		if x.SetFloat64(v.Float()) == nil {
			return v
		}
	}
	if r.Min != nil && x.Cmp(r.Min) < 0 || r.Max != nil && x.Cmp(r.Max) > 0 {
		v.Quality = QualityRange
	}
	return v
}

func trimZeros(s string) string {
	if strings.Contains(s, ".") {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	if s == "-0" {
		return "0"
	}
	return s
}

// bigEndian reads up to eight bytes, the highest first.
func bigEndian(b []byte) uint64 {
	var all [8]byte
	copy(all[8-len(b):], b)
	return binary.BigEndian.Uint64(all[:])
}
