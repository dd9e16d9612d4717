package decode

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"unicode/utf8"
)

// keyValue reads pairs. A value in double quotes may have separators in it, and is a text. Of equal keys the last counts.
type keyValue struct {
	separator string // empty: any of blank, TAB, comma, semicolon, CR and LF
	assign    string
}

func newKeyValue(separator, assign string) (keyValue, error) {
	k := keyValue{unescape(separator), unescape(assign)}
	if k.assign == "" {
		k.assign = "="
	}
	if strings.Contains(k.assign, `"`) || strings.Contains(k.separator, `"`) || k.separator == k.assign || k.separator == "" && strings.ContainsAny(k.assign, separators) {
		return k, errors.New("pairs and their parts cannot be told apart")
	}
	return k, nil
}

// separators are what separates pairs when nothing else is said.
const separators = " \t,;\r\n"

func (k keyValue) parse(data []byte) (any, error) {
	s := string(bytes.TrimRight(bytes.TrimPrefix(data, bom), "\x00"))
	values := map[string]any{}
	for s = k.next(s); s != ""; s = k.next(s) {
		key, rest, ok := strings.Cut(s, k.assign)
		if end := k.end(s); !ok || end < len(key) {
			return nil, reject(ReasonSyntax, "%.60q has no %q", s[:end], k.assign)
		}
		key = strings.Trim(key, " ")
		if key == "" {
			return nil, reject(ReasonSyntax, "%.60q has no key", s)
		}
		if !utf8.ValidString(key) {
			return nil, reject(ReasonValue, "the key %.60q is no text", key)
		}
		if strings.HasPrefix(rest, `"`) {
			text, behind, err := quoted(rest)
			if err != nil {
				return nil, err
			}
			if behind != "" && k.end(behind) != 0 {
				return nil, reject(ReasonSyntax, "%.60q behind the value of %q", behind, key)
			}
			values[key], s = text, behind
			continue
		}
		end := k.end(rest)
		text := rest[:end]
		if k.separator != "" {
			text = strings.TrimSpace(text)
		}
		values[key], s = typed(strings.ToValidUTF8(text, "\ufffd")), rest[end:]
	}
	if len(values) == 0 {
		return nil, reject(ReasonEmpty, "%d bytes without a pair", len(data))
	}
	return values, nil
}

// next skips separators.
func (k keyValue) next(s string) string {
	if k.separator == "" {
		return strings.TrimLeft(s, separators)
	}
	for strings.HasPrefix(s, k.separator) {
		s = s[len(k.separator):]
	}
	return s
}

// end returns where the pair ends with which s begins.
func (k keyValue) end(s string) int {
	i := strings.Index(s, k.separator)
	if k.separator == "" {
		i = strings.IndexAny(s, separators)
	}
	if i < 0 {
		return len(s)
	}
	return i
}

// quoted reads a text in double quotes, with the escapes of JSON.
func quoted(s string) (text, behind string, err error) {
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '"':
			if err := json.Unmarshal([]byte(s[:i+1]), &text); err != nil {
				return "", "", reject(ReasonSyntax, "%.60q: %v", s[:i+1], err)
			}
			return text, s[i+1:], nil
		}
	}
	return "", "", reject(ReasonSyntax, "%.60q has no closing quote", s)
}

func isNumber(v any) bool {
	_, ok := v.(json.Number)
	return ok
}
