package modbus

import (
	"encoding/binary"
	"fmt"
	"math/big"
	"math/bits"
	"strconv"
	"strings"

	"github.com/holdfast-edge/holdfast/ingest/decode"
)

// typeLens are the registers of types that have a length of their own.
var typeLens = map[string]int{"u16": 1, "i16": 1, "u32": 2, "i32": 2, "u64": 4, "i64": 4, "f32": 2, "f64": 4, "bool": 1, "bits": 1, "bcd": 1, "epoch": 2}

// point is a field made ready for reading.
type point struct {
	Field
	address int // on the wire
	count   int // registers or coils
	read    decode.Reader
	scale   *big.Rat
	offset  *big.Rat
	from    int // field with the power of ten; -1: none
}

// coil tells whether the field is a bit of the device's and not in a register.
func (p *point) coil() bool { return p.Table == TableCoil || p.Table == TableDiscrete }

// width is the number's width in bits.
func (p *point) width() int { return 16 * p.count }

// newPoint makes a field of a device ready. problem and key say what cannot work; key is one of the field's.
func newPoint(f Field, d Device) (p *point, key, problem, remedy string) {
	p = &point{Field: f, address: f.Address - d.AddressBase, count: typeLens[f.Type], from: -1}
	if key, problem, remedy = p.measure(); problem != "" {
		return nil, key, problem, remedy
	}
	if p.address < 0 || p.address+p.count > 1<<16 {
		return nil, "address", fmt.Sprintf("%d is out of range", f.Address), fmt.Sprintf("give %d to %d", d.AddressBase, 1<<16-p.count+d.AddressBase)
	}
	if !p.coil() {
		if p.read.Order, problem = byteOrder(f.Order, d.Order, p.count, f.Type == "string"); problem != "" {
			return nil, "order", problem, "give each letter once, as in ABCD, CDAB, or ABCDEFGH for 64 bits"
		}
	}
	if f.Mask != "" {
		if p.read.Mask, problem = parsePattern(f.Mask, p.width()); problem != "" || p.read.Mask == 0 {
			return nil, "mask", fmt.Sprintf("%q is no mask of %d bits", f.Mask, p.width()), "write it like 0x0ff0, with at least one bit"
		}
	}
	for _, text := range f.NaN {
		v, problem := parseRaw(text, f.Type, p.width())
		if problem != "" {
			return nil, "nan", fmt.Sprintf("%q %s", text, problem), fmt.Sprintf("write 0x and %d hexadecimal digits, or a number of the type", p.width()/4)
		}
		p.read.NaN = append(p.read.NaN, binary.BigEndian.AppendUint64(nil, v)[8-p.width()/8:])
	}
	p.scale, p.offset = decimal(f.Scale, 64), decimal(f.Offset, 64)
	p.read.Type, p.read.Labels, p.read.Places = p.Type, f.Labels, max(decimals(f.Scale), decimals(f.Offset))
	if f.Bit != nil {
		p.read.Bit = *f.Bit
	}
	if f.Scale != 1 {
		p.read.Scale = p.scale
	}
	if f.Offset != 0 {
		p.read.Offset = p.offset
	}
	for _, n := range []struct {
		from *float64
		to   **big.Rat
	}{{f.Min, &p.read.Min}, {f.Max, &p.read.Max}} {
		if n.from != nil {
			*n.to = decimal(*n.from, 64)
		}
	}
	return p, "", "", ""
}

// measure finds out how long the field is.
func (p *point) measure() (key, problem, remedy string) {
	if p.coil() {
		p.Type, p.count = "bool", 1
		if p.Len != 0 {
			return "len", "a coil has no length", "remove it"
		}
		if p.Bit != nil {
			return "bit", "a coil is one bit", "remove it"
		}
		return "", "", ""
	}
	if p.Len != 0 {
		switch p.Type {
		case "string":
			if p.Len > maxRegisters {
				return "len", fmt.Sprintf("%d registers are more than one request can read", p.Len), fmt.Sprintf("give up to %d", maxRegisters)
			}
		case "bcd", "bits", "epoch":
			if p.Len != 1 && p.Len != 2 && p.Len != 4 {
				return "len", fmt.Sprintf("%d registers are no number", p.Len), "give 1, 2 or 4"
			}
		default:
			return "len", "a " + p.Type + " has a length of its own", "remove it"
		}
		p.count = p.Len
	}
	if p.count <= 0 {
		return "len", "is missing", "give the registers of the string"
	}
	if p.Type == "bool" && (p.Bit == nil || *p.Bit < 0 || *p.Bit > 15) {
		return "bit", "a bool in a register needs the number of its bit", "give 0, the lowest, to 15"
	}
	if p.Type != "bool" && p.Bit != nil {
		return "bit", "is for type bool", "set type: bool, or use mask"
	}
	return "", "", ""
}

// byteOrder returns the places of a number's bytes, highest first. A field's own order has a letter for each byte; the device's, for
// 32 bits, says whether words and the bytes in them are swapped.
func byteOrder(own, device string, registers int, text bool) (order []int, problem string) {
	if text { // the words of a text are in order; their bytes are swapped only where the field says so
		two := []int{0, 1}
		if own != "" {
			if two, problem = letterOrder(own, 2); problem != "" {
				return nil, problem
			}
		}
		for i := range 2 * registers {
			order = append(order, i&^1+two[i%2])
		}
		return order, ""
	}
	n := 2 * registers
	order = make([]int, n)
	if own == "" {
		swapWords, swapBytes := device == "CDAB" || device == "DCBA", device == "BADC" || device == "DCBA"
		for i := range order {
			at := i
			if swapWords {
				at = n - 2 - i + 2*(i%2)
			}
			if swapBytes {
				at ^= 1
			}
			order[i] = at
		}
		return order, ""
	}
	return letterOrder(own, n)
}

// letterOrder reads an order that has a letter for each of n bytes.
func letterOrder(own string, n int) (order []int, problem string) {
	order = make([]int, n)
	if len(own) != n {
		return nil, fmt.Sprintf("%q has not %d letters, one for each byte", own, n)
	}
	seen := map[int]bool{}
	for at, letter := range own {
		i := int(letter - 'A')
		if i < 0 || i >= n || seen[i] {
			return nil, fmt.Sprintf("%q is no order of the letters A to %c", own, 'A'+n-1)
		}
		seen[i], order[i] = true, at
	}
	return order, ""
}

// parsePattern reads bits as 0x and hexadecimal digits.
func parsePattern(text string, width int) (uint64, string) {
	digits, ok := strings.CutPrefix(text, "0x")
	v, err := strconv.ParseUint(digits, 16, 64)
	if !ok || err != nil || bits.Len64(v) > width {
		return 0, fmt.Sprintf("is no pattern of %d bits", width)
	}
	return v, ""
}

// parseRaw reads a value that a device sends, as a pattern of just the width or as a number of the type. A pattern of another width
// is refused: 0xffff in 32 bits is a reading, and 0xffffffff in 16 cannot come.
func parseRaw(text, kind string, width int) (uint64, string) {
	if width > 64 {
		return 0, "cannot be: the type is no number"
	}
	if strings.HasPrefix(text, "0x") {
		if len(text) != 2+width/4 {
			return 0, fmt.Sprintf("has not the %d bits of the type", width)
		}
		return parsePattern(text, width)
	}
	switch kind {
	case "i16", "i32", "i64":
		v, err := strconv.ParseInt(text, 10, width)
		if err != nil {
			return 0, fmt.Sprintf("is no number of %d bits with sign", width)
		}
		return uint64(v) << (64 - width) >> (64 - width), ""
	case "u16", "u32", "u64", "bits", "epoch":
		v, err := strconv.ParseUint(text, 10, width)
		if err != nil {
			return 0, fmt.Sprintf("is no number of %d bits without sign", width)
		}
		return v, ""
	}
	return 0, "is no pattern in hexadecimal digits"
}

// place puts the bits of a number where they are on the wire.
func (p *point) place(v uint64) []byte {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], v)
	data := make([]byte, len(p.read.Order))
	for i, at := range p.read.Order {
		data[at] = b[8-len(data)+i]
	}
	return data
}

// decimal returns a float as the decimal number that it is written as.
func decimal(v float64, size int) *big.Rat {
	r, ok := new(big.Rat).SetString(strconv.FormatFloat(v, 'f', -1, size))
	if !ok {
		return new(big.Rat)
	}
	return r
}

// decimals counts the digits behind the point.
func decimals(v float64) int {
	_, behind, _ := strings.Cut(strconv.FormatFloat(v, 'f', -1, 64), ".")
	return len(behind)
}
