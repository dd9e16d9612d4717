package decode

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
)

var bom = []byte("\xef\xbb\xbf")

// parseJSON reads one JSON value. A byte order mark in front, and NULs behind, as programs in C send them, are no part of it. Of equal
// keys the last counts. With null, the bare words nan, inf and their like are null.
func parseJSON(data []byte, null bool) (any, error) {
	b := bytes.TrimRight(bytes.TrimPrefix(data, bom), "\x00 \t\r\n")
	if len(bytes.TrimLeft(b, " \t\r\n")) == 0 {
		return nil, reject(ReasonEmpty, "%d bytes of nothing", len(data))
	}
	value, err := unmarshal(b)
	if err == nil {
		return value, nil
	}
	bare, found := nullWords(b)
	if !found {
		return nil, reject(ReasonSyntax, "%v", err)
	}
	value, again := unmarshal(bare)
	switch {
	case again != nil:
		return nil, reject(ReasonSyntax, "%v", err)
	case !null:
		return nil, reject(ReasonNumber, "it has nan or infinity in it, which JSON does not know; set nan: null to take them as null")
	}
	return value, nil
}

func unmarshal(b []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var value any
	if err := d.Decode(&value); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more behind the value")
	}
	return value, nil
}

// nullWords puts null in the place of bare words that stand for numbers which are none.
func nullWords(b []byte) ([]byte, bool) {
	out := make([]byte, 0, len(b))
	found, quoted := false, false
	for i := 0; i < len(b); {
		switch c := b[i]; {
		case quoted && c == '\\' && i+1 < len(b):
			out = append(out, c, b[i+1])
			i += 2
			continue
		case c == '"':
			quoted = !quoted
		case !quoted && (c == '-' || c == '+' || isLetter(c)):
			n := 1
			for i+n < len(b) && isLetter(b[i+n]) {
				n++
			}
			switch word := string(bytes.ToLower(bytes.TrimLeft(b[i:i+n], "+-"))); word {
			case "nan", "inf", "infinity":
				out = append(out, "null"...)
				found = true
			default:
				out = append(out, b[i:i+n]...)
			}
			i += n
			continue
		}
		out = append(out, b[i])
		i++
	}
	return out, found
}

func isLetter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }
