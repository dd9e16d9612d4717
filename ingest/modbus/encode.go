package modbus

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/big"
	"strconv"
)

// settable says why a field cannot be written by name; empty: it can.
func (p *point) settable() string {
	switch {
	case p.Table == TableInput || p.Table == TableDiscrete:
		return "table " + p.Table + " cannot be written"
	case p.Type == "bool" && !p.coil() || p.read.Mask != 0:
		return "a part of a register cannot be written alone"
	case p.Type == "bits" || p.Type == "epoch":
		return "a field of type " + p.Type + " cannot be written"
	case p.ScaleFrom != "":
		return "a field with scale_from cannot be written"
	}
	return ""
}

// encode makes registers of a value given as text: decode backwards.
func (p *point) encode(text string) ([]uint16, error) {
	if p.Type == "string" {
		return p.encodeText(text)
	}
	n, ok := new(big.Rat).SetString(text)
	if !ok {
		return nil, fmt.Errorf("%q is no number", text)
	}
	if f, _ := n.Float64(); p.Min != nil && f < *p.Min || p.Max != nil && f > *p.Max {
		return nil, fmt.Errorf("%s is out of the field's range", text)
	}
	n.Sub(n, p.offset).Quo(n, p.scale)
	switch p.Type {
	case "f32":
		f, _ := n.Float32()
		if math.IsInf(float64(f), 0) {
			return nil, fmt.Errorf("%s is too large for 32 bits", text)
		}
		return words(p.place(uint64(math.Float32bits(f)))), nil
	case "f64":
		f, _ := n.Float64()
		if math.IsInf(f, 0) {
			return nil, fmt.Errorf("%s is too large", text)
		}
		return words(p.place(math.Float64bits(f))), nil
	}
	if !n.IsInt() {
		return nil, fmt.Errorf("%s is between two values of the register", text)
	}
	bits, ok := p.fit(n.Num())
	if !ok {
		return nil, fmt.Errorf("%s does not fit into the register", text)
	}
	return words(p.place(bits)), nil
}

// fit puts a whole number into the bits of the type.
func (p *point) fit(n *big.Int) (bits uint64, ok bool) {
	switch p.Type {
	case "bcd":
		if n.Sign() < 0 || !n.IsUint64() {
			return 0, false
		}
		rest := n.Uint64()
		for i := 0; i < p.width(); i += 4 {
			bits |= rest % 10 << i
			rest /= 10
		}
		return bits, rest == 0
	case "i16", "i32", "i64":
		shift := 64 - p.width()
		v := n.Int64()
		return uint64(v) << shift >> shift, n.IsInt64() && v<<shift>>shift == v
	}
	return n.Uint64(), n.Sign() >= 0 && n.BitLen() <= p.width()
}

func (p *point) encodeText(text string) ([]uint16, error) {
	data := make([]byte, 2*p.count)
	if len(text) > len(data) {
		return nil, fmt.Errorf("the text has %d bytes, and the field %d", len(text), len(data))
	}
	for i := range text {
		data[p.read.Order[i]] = text[i]
	}
	return words(data), nil
}

// words makes registers of bytes as they stand on the wire.
func words(data []byte) []uint16 {
	out := make([]uint16, len(data)/2)
	for i := range out {
		out[i] = binary.BigEndian.Uint16(data[2*i:])
	}
	return out
}

func parseBool(text string) (bool, error) {
	on, err := strconv.ParseBool(text)
	if err != nil {
		return false, fmt.Errorf("%q is not true or false", text)
	}
	return on, nil
}
