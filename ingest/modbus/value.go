package modbus

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"strconv"

	"github.com/holdfast-edge/holdfast/ingest/decode"
)

// Qualities of a field.
const (
	Good         = decode.QualityGood
	NotAvailable = decode.QualityNone    // the device says that it has no value: a configured nan, or not a number
	OutOfRange   = decode.QualityRange   // below min or above max; the value is there
	Invalid      = decode.QualityInvalid // the bytes are none of the type
	Refused      = "refused"             // the device answered with an exception
	Silent       = "silent"              // the device did not answer
	Garbled      = "garbled"             // bytes came, and no reply
	Offline      = "offline"             // line or connection was not open
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

// decode reads the field from its registers, or from the byte with its coil. exponent is the power of ten of scale_from.
func (p *point) decode(data []byte, exponent int) value {
	if p.coil() {
		return value{quality: Good, text: strconv.FormatBool(data[0]&1 != 0), float: float64(data[0] & 1), raw: data}
	}
	v := p.read.Read(data, exponent)
	out := value{quality: v.Quality, detail: v.Detail, number: v.Exact, float: v.Float(), raw: data}
	switch x := v.Value.(type) {
	case nil:
	case json.Number:
		out.text = string(x)
	case bool:
		out.text, out.float = strconv.FormatBool(x), 0
		if x {
			out.float = 1
		}
	default:
		text, err := decode.Encode(x)
		if err != nil {
			return bad(Invalid, err.Error(), data)
		}
		out.text = string(text)
	}
	return out
}

// jsonText writes a text as JSON.
func jsonText(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		return `""` // no text fails to marshal
	}
	return string(b)
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
