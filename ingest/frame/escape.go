package frame

import (
	"encoding/hex"
	"fmt"
	"strings"
)

// Unescape reads bytes as they are written in the configuration: text with \r \n \t \0 \xHH and \\, or hex: and digits. The error says what is
// wrong.
func Unescape(s string) ([]byte, error) {
	if digits, ok := strings.CutPrefix(s, "hex:"); ok {
		b, err := hex.DecodeString(strings.ReplaceAll(digits, " ", ""))
		if err != nil || len(b) == 0 {
			return nil, fmt.Errorf("%q is not hex: and pairs of hexadecimal digits", s)
		}
		return b, nil
	}
	named := map[byte]byte{'r': '\r', 'n': '\n', 't': '\t', '0': 0, '\\': '\\'}
	var out []byte
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			out = append(out, s[i])
			continue
		}
		i++
		if i == len(s) {
			return nil, fmt.Errorf("%q ends in a single backslash", s)
		}
		if b, ok := named[s[i]]; ok {
			out = append(out, b)
			continue
		}
		if s[i] != 'x' || i+2 >= len(s) {
			return nil, fmt.Errorf(`%q has the unknown escape \%c`, s, s[i])
		}
		b, err := hex.DecodeString(s[i+1 : i+3])
		if err != nil {
			return nil, fmt.Errorf(`%q: \x needs two hexadecimal digits`, s)
		}
		out = append(out, b[0])
		i += 2
	}
	return out, nil
}
