package decode

import (
	"regexp"
	"strings"
	"time"
)

// obisParser reads the data of meters: a P1 telegram, or any lines of an identifier and values in brackets (IEC 62056-21, 6.4). Each
// identifier becomes a key, with {"value": number, "unit": text}, the number or text alone when there is no unit, and a list when
// there are several. A time of a P1 telegram says by S or W whether it is summer or winter time.
type obisParser struct{ zone *time.Location }

var (
	obisLine = regexp.MustCompile(`^([0-9A-Za-z][0-9A-Za-z.:*&-]*)((?:\([^()]*\))+)$`)
	obisTime = regexp.MustCompile(`^[0-9]{12}[SW]$`)
)

// obisClock is the identifier of the time of a P1 telegram.
const obisClock = "0-0:1.0.0"

func (p obisParser) parse(data []byte) (Result, error) {
	var res Result
	values, seen := map[string]any{}, map[string][]any{}
	for n, s := range strings.FieldsFunc(string(data), func(r rune) bool { return r == '\r' || r == '\n' }) {
		switch {
		case s[0] == '/' && n == 0:
			values["meter"] = strings.ToValidUTF8(s[1:], "\ufffd")
			continue
		case s[0] == '!':
			continue
		}
		id, texts, err := p.split(s)
		if err != nil {
			return res, err
		}
		value, at, note, err := p.values(texts)
		if err != nil {
			return res, err
		}
		if id == obisClock {
			res.Time, res.Note = at, note
		}
		seen[id] = append(seen[id], value)
		if values[id] = value; len(seen[id]) > 1 {
			values[id] = seen[id]
		}
	}
	if len(values) == 0 {
		return res, reject(ReasonEmpty, "no line with a value")
	}
	if _, ok := values[obisClock]; !ok {
		res.Note = NoteMissing
	}
	res.Value = values
	return res, nil
}

// split cuts a line into its identifier and what is in the brackets.
func (p obisParser) split(s string) (id string, texts []string, err error) {
	m := obisLine.FindStringSubmatch(s)
	if m == nil {
		return "", nil, reject(ReasonSyntax, "the line %.60q is no identifier with values in brackets", s)
	}
	return m[1], strings.Split(m[2][1:len(m[2])-1], ")("), nil
}

// values reads what is in the brackets of one line. at is the last time among it.
func (p obisParser) values(texts []string) (value any, at time.Time, note string, err error) {
	list := make([]any, len(texts))
	for i, s := range texts {
		if !obisTime.MatchString(s) {
			list[i] = measure(s)
			continue
		}
		if at, note, err = p.time(s); err != nil {
			return nil, at, "", err
		}
		list[i] = at.Format(time.RFC3339)
	}
	if len(list) == 1 {
		return list[0], at, note, nil
	}
	return list, at, note, nil
}

// measure reads a value with or without a unit.
func measure(s string) any {
	s = strings.ToValidUTF8(s, "\ufffd")
	text, unit, ok := strings.Cut(s, "*")
	if !ok {
		// Digits of an equipment identifier are a text, which has no point: a number could not hold its zeros.
		if n, ok := number(s); ok && !strings.ContainsAny(s, "eE") && (strings.Contains(s, ".") || len(s) <= 8) {
			return n
		}
		return s
	}
	return map[string]any{"value": typed(text), "unit": unit}
}

// time reads YYMMDDhhmmssX, where X is S in summer time.
func (p obisParser) time(s string) (time.Time, string, error) {
	t, err := time.Parse("060102150405", s[:12])
	if err != nil {
		return t, "", reject(ReasonValue, "%q is no time", s)
	}
	standard := offsetAt(p.zone, t.Year(), time.January)
	if o := offsetAt(p.zone, t.Year(), time.July); o < standard {
		standard = o
	}
	if s[12] == 'S' {
		standard += 3600
	}
	at := t.Add(-time.Duration(standard) * time.Second)
	zoned := at.In(p.zone)
	if _, o := zoned.Zone(); o != standard {
		return at.In(time.FixedZone("", standard)), NoteNoSuch, nil // the letter contradicts the calendar; the letter counts
	}
	return zoned, "", nil
}

func offsetAt(zone *time.Location, year int, month time.Month) int {
	_, o := time.Date(year, month, 1, 12, 0, 0, 0, zone).Zone()
	return o
}
