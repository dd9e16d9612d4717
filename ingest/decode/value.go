package decode

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Encode writes a value of a Result as JSON, on one line, with the keys of objects in order and numbers as they were read.
func Encode(value any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(value); err != nil {
		return nil, fmt.Errorf("encode decoded value: %w", err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// number reads a decimal number as devices write it: with a plus, zeros in front, or no digit before or behind the point. All other
// digits stay as they are.
func number(s string) (json.Number, bool) {
	sign := ""
	switch {
	case strings.HasPrefix(s, "-"):
		sign, s = "-", s[1:]
	case strings.HasPrefix(s, "+"):
		s = s[1:]
	}
	mantissa, exponent := s, ""
	if i := strings.IndexAny(s, "eE"); i >= 0 {
		mantissa, exponent = s[:i], s[i:]
		if !digitsOnly(strings.TrimLeft(exponent[1:], "+-")) || len(exponent) > 1 && strings.ContainsAny(exponent[2:], "+-") {
			return "", false
		}
	}
	whole, fraction, point := strings.Cut(mantissa, ".")
	if whole == "" && fraction == "" || whole != "" && !digitsOnly(whole) || fraction != "" && !digitsOnly(fraction) {
		return "", false
	}
	if whole = strings.TrimLeft(whole, "0"); whole == "" {
		whole = "0"
	}
	if point && fraction != "" {
		whole += "." + fraction
	}
	return json.Number(sign + whole + exponent), true
}

func digitsOnly(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}

// typed returns a number for a text that is one, null for an empty one, else the text.
func typed(s string) any {
	if s == "" {
		return nil
	}
	if n, ok := number(s); ok {
		return n
	}
	return s
}

// float returns a number, or nil for one that is none.
func float(f float64, bits int) any {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return nil
	}
	text := 'f'
	if a := math.Abs(f); a != 0 && (a < 1e-6 || a >= 1e21) {
		text = 'e'
	}
	return json.Number(strconv.FormatFloat(f, byte(text), -1, bits))
}

// decimals returns a number rounded to n digits behind the point, without zeros at the end.
func decimals(f float64, n int) json.Number {
	s := strconv.FormatFloat(f, 'f', n, 64)
	if strings.Contains(s, ".") {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	if s == "-0" {
		s = "0"
	}
	return json.Number(s)
}

func integer(n int64) json.Number { return json.Number(strconv.FormatInt(n, 10)) }

// lookup finds a value by its path, names with dots between. A name with dots in it is found as well.
func lookup(value any, path string) (any, bool) {
	m, ok := value.(map[string]any)
	if !ok {
		return nil, false
	}
	if v, ok := m[path]; ok {
		return v, true
	}
	for i := range len(path) {
		if path[i] == '.' {
			if inner, ok := m[path[:i]]; ok {
				if v, ok := lookup(inner, path[i+1:]); ok {
					return v, true
				}
			}
		}
	}
	return nil, false
}
