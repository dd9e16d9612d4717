package decode

import (
	"bytes"
	"encoding/csv"
	"errors"
	"io"
	"strings"
)

// skipColumn is the name of a column that is left out.
const skipColumn = "-"

// csvParser reads one line of comma-separated values (RFC 4180): numbers as such, empty ones as null, all else as text.
type csvParser struct {
	separator string
	columns   []string
}

func (c csvParser) parse(data []byte) (any, error) {
	b := bytes.TrimRight(bytes.TrimPrefix(data, bom), "\x00")
	r := csv.NewReader(bytes.NewReader(b))
	if s := []rune(unescape(c.separator)); len(s) == 1 {
		r.Comma = s[0]
	}
	r.FieldsPerRecord = -1
	row, err := r.Read()
	if errors.Is(err, io.EOF) {
		return nil, reject(ReasonEmpty, "%d bytes without a value", len(data))
	}
	if err != nil {
		return nil, reject(ReasonSyntax, "%v", err)
	}
	if _, err := r.Read(); !errors.Is(err, io.EOF) {
		return nil, reject(ReasonSyntax, "more than one line")
	}
	if len(c.columns) == 0 {
		list := make([]any, len(row))
		for i, s := range row {
			list[i] = cell(s)
		}
		return list, nil
	}
	if len(row) != len(c.columns) {
		return nil, reject(ReasonFields, "%d columns, %d have names", len(row), len(c.columns))
	}
	values := map[string]any{}
	for i, s := range row {
		if c.columns[i] != skipColumn {
			values[c.columns[i]] = cell(s)
		}
	}
	return values, nil
}

// cell reads a value, with blanks around a number left out.
func cell(s string) any {
	if v := typed(strings.TrimSpace(s)); v == nil || isNumber(v) {
		return v
	}
	return strings.ToValidUTF8(s, "\ufffd")
}
