package decode

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"strings"
	"time"
)

// parseNMEA reads an NMEA 0183 sentence, or the sentences of one AIS message, with CR LF between. Sentences of a kind it does not know
// become their fields as texts. An empty field is null. A number keeps its digits.
func parseNMEA(data []byte) (Result, error) {
	text := strings.TrimRight(string(data), "\r\n\x00 ")
	if text == "" {
		return Result{}, reject(ReasonEmpty, "no sentence")
	}
	var all []sentence
	for _, s := range strings.FieldsFunc(text, func(r rune) bool { return r == '\r' || r == '\n' }) {
		one, err := readSentence(s)
		if err != nil {
			return Result{}, err
		}
		all = append(all, one)
	}
	first := all[0]
	if first.lead == '!' && (first.kind == "VDM" || first.kind == "VDO") {
		value, err := parseAIS(all)
		return Result{Value: value}, err
	}
	if len(all) > 1 {
		return Result{}, reject(ReasonSyntax, "%d sentences that belong to no one message", len(all))
	}
	layout, known := sentences[first.kind]
	if !known || first.lead != '$' {
		fields := make([]any, len(first.fields))
		for i, f := range first.fields {
			fields[i] = f
		}
		return Result{Value: map[string]any{"talker": first.talker, "type": first.kind, "fields": fields}}, nil
	}
	return layout.read(first)
}

// sentence is an NMEA 0183 sentence in its parts.
type sentence struct {
	lead         byte
	talker, kind string
	fields       []string
}

// readSentence takes a sentence apart, and checks its checksum when it has one.
func readSentence(s string) (sentence, error) {
	if end := strings.LastIndexByte(s, '\\'); strings.HasPrefix(s, `\`) && end > 0 {
		s = s[end+1:] // a TAG block
	}
	if len(s) < 2 || s[0] != '$' && s[0] != '!' {
		return sentence{}, reject(ReasonSyntax, "%.60q does not begin like a sentence", s)
	}
	body := s[1:]
	if i := strings.LastIndexByte(body, '*'); i >= 0 {
		sum, err := hex.DecodeString(body[i+1:])
		if err != nil || len(sum) != 1 {
			return sentence{}, reject(ReasonChecksum, "%.10q is no checksum", body[i+1:])
		}
		var got byte
		for _, c := range []byte(body[:i]) {
			got ^= c
		}
		if got != sum[0] {
			return sentence{}, reject(ReasonChecksum, "the sentence says %02X, its bytes give %02X", sum[0], got)
		}
		body = body[:i]
	}
	fields := strings.Split(strings.ToValidUTF8(body, "\ufffd"), ",")
	address := fields[0]
	out := sentence{lead: s[0], kind: address, fields: fields[1:]}
	switch {
	case strings.HasPrefix(address, "P"):
		out.talker, out.kind = "P", address[1:]
	case len(address) >= 5:
		out.talker, out.kind = address[:len(address)-3], address[len(address)-3:]
	}
	if out.kind == "" || strings.ContainsFunc(address, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return sentence{}, reject(ReasonSyntax, "%.60q has no address", s)
	}
	return out, nil
}

// layout says what the fields of a kind of sentence are: a name and a letter for each value, in order. The letters: t time of day,
// d date ddmmyy, a status A or V, n number, s text, l latitude or longitude with its hemisphere in the next field, m number with E
// or W in the next field, u number with its unit in the next field, which is left out, g the satellites of GSV, p those of GSA.
// needed is the number of fields of the oldest version; what is behind them may be missing.
type layout struct {
	needed int
	values []string
}

var sentences = map[string]layout{
	"RMC": {11, []string{"t time", "a valid", "l latitude", "l longitude", "n speed_knots", "n course", "d date", "m variation", "s mode", "s nav_status"}},
	"GGA": {14, []string{"t time", "l latitude", "l longitude", "n quality", "n satellites", "n hdop", "u altitude", "u geoid_separation", "n dgps_age", "s dgps_station"}},
	"GLL": {4, []string{"l latitude", "l longitude", "t time", "a valid", "s mode"}},
	"GNS": {12, []string{"t time", "l latitude", "l longitude", "s mode", "n satellites", "n hdop", "n altitude", "n geoid_separation", "n dgps_age", "s dgps_station", "s nav_status"}},
	"GSA": {17, []string{"s mode", "n fix", "p satellites", "n pdop", "n hdop", "n vdop", "n system"}},
	"GSV": {3, []string{"n messages", "n message", "n in_view", "g satellites"}},
	"VTG": {8, []string{"u course_true", "u course_magnetic", "u speed_knots", "u speed_kmh", "s mode"}},
	"ZDA": {6, []string{"t time", "n day", "n month", "n year", "n zone_hours", "n zone_minutes"}},
	"HDT": {2, []string{"u heading_true"}},
	"HDM": {2, []string{"u heading_magnetic"}},
	"DPT": {2, []string{"n depth", "n offset", "n range"}},
	"MWV": {5, []string{"n angle", "s reference", "n speed", "s unit", "a valid"}},
}

// read makes the values of a sentence.
func (l layout) read(s sentence) (Result, error) {
	if len(s.fields) < l.needed {
		return Result{}, reject(ReasonFields, "%s has %d, it needs %d", s.kind, len(s.fields), l.needed)
	}
	values := map[string]any{"talker": s.talker, "type": s.kind}
	rest := s.fields
	for _, v := range l.values {
		if len(rest) == 0 {
			break
		}
		name := v[2:]
		value, used, err := field(v[0], rest)
		if err != nil {
			return Result{}, reject(ReasonValue, "%s of %s: %v", name, s.kind, err)
		}
		values[name], rest = value, rest[used:]
	}
	res := Result{Value: values}
	switch s.kind {
	case "RMC":
		res.Time, res.Note = moment(values["date"], values["time"])
	case "ZDA":
		date := fmt.Sprintf("%04v-%02v-%02v", values["year"], values["month"], values["day"])
		res.Time, res.Note = moment(date, values["time"])
	}
	return res, nil
}

// moment puts a date and a time of day together, in UTC.
func moment(date, clock any) (time.Time, string) {
	if date == nil || clock == nil {
		return time.Time{}, NoteMissing
	}
	t, err := time.Parse("2006-01-02T15:04:05", fmt.Sprintf("%vT%v", date, clock))
	if err != nil {
		return time.Time{}, NoteInvalid
	}
	return t, ""
}

// field reads a value from the first fields, and says how many it used.
func field(kind byte, f []string) (value any, used int, err error) {
	switch kind {
	case 't', 'd', 'a', 'n', 's':
		value, err = single(kind, f[0])
		return value, 1, err
	case 'l', 'm':
		if len(f) < 2 {
			return nil, 0, fmt.Errorf("its direction is missing")
		}
		value, err = directed(kind, f[0], f[1])
		return value, 2, err
	case 'u':
		value, err = single('n', f[0])
		return value, min(2, len(f)), err
	case 'p':
		var list []any
		n := min(12, len(f))
		for _, s := range f[:n] {
			if s != "" {
				list = append(list, s)
			}
		}
		return list, n, nil
	}
	return satellites(f)
}

func single(kind byte, s string) (any, error) {
	if s == "" {
		return nil, nil
	}
	switch kind {
	case 'n':
		n, ok := number(s)
		if !ok {
			return nil, fmt.Errorf("%q is no number", s)
		}
		return n, nil
	case 'a':
		if s != "A" && s != "V" {
			return nil, fmt.Errorf("%q is neither A nor V", s)
		}
		return s == "A", nil
	case 't':
		whole, fraction, point := strings.Cut(s, ".")
		if len(whole) != 6 || !digitsOnly(whole) || point && fraction != "" && !digitsOnly(fraction) || whole[:2] > "23" || whole[2:4] > "59" || whole[4:] > "60" {
			return nil, fmt.Errorf("%q is no time of day", s)
		}
		text := whole[:2] + ":" + whole[2:4] + ":" + whole[4:]
		if fraction != "" {
			text += "." + fraction
		}
		return text, nil
	case 'd':
		t, err := time.Parse("020106", s)
		if err != nil || len(s) != 6 {
			return nil, fmt.Errorf("%q is no date", s)
		}
		if year := t.Year(); year >= 2069 { // the library's 69 to 99; a GPS has none before 1980
			t = t.AddDate(-100, 0, 0)
		}
		return t.Format("2006-01-02"), nil
	}
	return s, nil
}

// directed reads a number that the letter behind it gives a direction: degrees and minutes, or degrees of variation.
func directed(kind byte, s, to string) (any, error) {
	if s == "" {
		return nil, nil
	}
	n, ok := number(s)
	if !ok || strings.ContainsAny(s, "+-eE") {
		return nil, fmt.Errorf("%q is no number", s)
	}
	negative := to == "S" || to == "W"
	if !negative && to != "N" && to != "E" {
		return nil, fmt.Errorf("%q is no direction", to)
	}
	f, err := n.Float64()
	if err != nil {
		return nil, err
	}
	if kind == 'm' {
		if negative {
			n = "-" + n
		}
		return n, nil
	}
	degrees := float64(int(f) / 100)
	minutes := f - 100*degrees
	limit := 180.0
	if to == "N" || to == "S" {
		limit = 90
	}
	if degrees += minutes / 60; minutes >= 60 || degrees > limit || f >= 1e5 {
		return nil, fmt.Errorf("%q is no position", s)
	}
	if negative {
		degrees = -degrees
	}
	return decimals(degrees, 8), nil
}

// satellites reads groups of four fields, and a signal number that newer receivers put behind them.
func satellites(f []string) (any, int, error) {
	list := []any{}
	for len(f)-4*len(list) >= 4 && len(list) < 4 {
		group := f[4*len(list):]
		sat := map[string]any{"id": group[0]}
		for i, name := range []string{"elevation", "azimuth", "snr"} {
			v, err := single('n', group[i+1])
			if err != nil {
				return nil, 0, err
			}
			sat[name] = v
		}
		list = append(list, sat)
	}
	return list, len(f), nil
}

// trimmed cuts the filling of a text of six-bit characters.
func trimmed(b []byte) string {
	if i := bytes.IndexByte(b, '@'); i >= 0 {
		b = b[:i]
	}
	return strings.TrimRight(string(b), " ")
}
