package decode

import (
	"encoding/base64"
	"encoding/json"
	"math/big"
	"strconv"
	"time"

	"github.com/fxamacker/cbor/v2"
)

// cborNesting is how deep arrays and maps may stand in each other.
const cborNesting = 64

// cborParser reads one CBOR item (RFC 8949). Byte strings become base64, times RFC 3339, and other tags are left out.
type cborParser struct {
	mode cbor.DecMode
	null bool // numbers that are none are null
}

func newCBOR(null bool) (cborParser, error) {
	mode, err := cbor.DecOptions{
		MaxNestedLevels: cborNesting,
		BigIntDec:       cbor.BigIntDecodePointer,
	}.DecMode()
	return cborParser{mode, null}, err
}

func (c cborParser) parse(data []byte) (any, error) {
	if len(data) == 0 {
		return nil, reject(ReasonEmpty, "no bytes")
	}
	var item any
	if err := c.mode.Unmarshal(data, &item); err != nil {
		return nil, reject(ReasonSyntax, "%v", err)
	}
	return c.convert(item)
}

// convert makes a value of what the library returns.
func (c cborParser) convert(item any) (any, error) {
	switch v := item.(type) {
	case nil, bool, string:
		return v, nil
	case uint64:
		return json.Number(strconv.FormatUint(v, 10)), nil
	case int64:
		return integer(v), nil
	case *big.Int:
		return json.Number(v.String()), nil
	case float64:
		n := float(v, 64)
		if n == nil && !c.null {
			return nil, reject(ReasonNumber, "it has %v in it; set nan: null to take it as null", v)
		}
		return n, nil
	case []byte:
		return base64.StdEncoding.EncodeToString(v), nil
	case time.Time:
		return v.UTC().Format(time.RFC3339Nano), nil
	case cbor.SimpleValue:
		return integer(int64(v)), nil
	case cbor.Tag:
		return c.convert(v.Content)
	case []any:
		return c.list(v)
	case map[any]any:
		return c.object(v)
	}
	return nil, reject(ReasonValue, "a %T is no value", item)
}

func (c cborParser) list(items []any) (any, error) {
	out := make([]any, len(items))
	for i, item := range items {
		v, err := c.convert(item)
		if err != nil {
			return nil, err
		}
		out[i] = v
	}
	return out, nil
}

func (c cborParser) object(items map[any]any) (any, error) {
	out := make(map[string]any, len(items))
	for k, item := range items {
		key, err := c.convert(k)
		if err != nil {
			return nil, err
		}
		var name string
		switch key := key.(type) {
		case string:
			name = key
		case json.Number:
			name = key.String()
		default:
			return nil, reject(ReasonValue, "a key that is neither text nor number")
		}
		if _, twice := out[name]; twice {
			return nil, reject(ReasonValue, "the key %q is there twice", name)
		}
		if out[name], err = c.convert(item); err != nil {
			return nil, err
		}
	}
	return out, nil
}
