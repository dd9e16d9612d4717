package decode

import (
	"encoding/json"
	"fmt"
	"math/big"
	"strings"
	"time"
)

// Words for how a time is written, beside a layout.
const (
	TimeRFC3339 = "rfc3339"
	TimeUnix    = "unix" // seconds since 1970, with or without a fraction
	TimeUnixMS  = "unix-ms"
	TimeUnixUS  = "unix-us"
	TimeUnixNS  = "unix-ns"
)

// DefaultZone is the zone of P1 telegrams, whose letter for summer and winter says the rest.
const DefaultZone = "Europe/Amsterdam"

// Notes of a Result about its time.
const (
	NoteMissing   = "no device time"             // the field is not there, or empty
	NoteInvalid   = "device time not valid"      // it cannot be read
	NoteTwice     = "device time is ambiguous"   // in the hour that comes twice when summer time ends; the first is taken
	NoteNoSuch    = "device time does not exist" // in the hour that is left out when summer time begins
	unixEarliest  = -62135596800                 // seconds, year 1
	unixLatest    = 253402300799                 // seconds, year 9999
	layoutExample = "2006-01-02 15:04:05"
)

// Time says where a message has the time of measurement, and how it is written.
type Time struct {
	Field  string `yaml:"field" doc:"name of the value with the time, with dots for one inside another; empty: the message's own for nmea and obis, else none"`
	Layout string `yaml:"layout" doc:"how it is written: rfc3339, unix, unix-ms, unix-us, unix-ns, or as the time 2006-01-02 15:04:05 would be; rfc3339 when empty"`
	Zone   string `yaml:"zone" doc:"time zone of a time that does not say it, such as UTC or Europe/Berlin; obis: Europe/Amsterdam when empty"`
}

func (c Time) validate(format string, fault func(key, problem, remedy string)) {
	if c.Field == "" && c.Layout != "" {
		fault("layout", "is set without field", "name the field that has the time")
	}
	if c.Field == "" && c.Zone != "" && format != FormatOBIS {
		fault("zone", "is set without field", "name the field that has the time")
	}
	if _, err := newClock(c); err != nil {
		key, remedy := "zone", "give UTC or a name of the tz database, such as Europe/Berlin"
		if strings.HasPrefix(err.Error(), "layout") {
			key, remedy = "layout", "write rfc3339, unix, unix-ms, unix-us, unix-ns, or 2006-01-02 15:04:05 in the way of the device"
		}
		fault(key, err.Error(), remedy)
	}
	if c.Field != "" && c.Zone == "" && c.needsZone() {
		fault("zone", "is missing: times of this layout do not say their zone", "give the zone of the device's clock, such as UTC or Europe/Berlin")
	}
}

// needsZone says whether a time of the layout leaves its zone open.
func (c Time) needsZone() bool {
	switch c.Layout {
	case "", TimeRFC3339, TimeUnix, TimeUnixMS, TimeUnixUS, TimeUnixNS:
		return false
	}
	return !strings.Contains(c.Layout, "-07") && !strings.Contains(c.Layout, "Z07")
}

// clock finds the time of measurement in decoded messages.
type clock struct {
	cfg  Time
	zone *time.Location
}

func newClock(c Time) (*clock, error) {
	name := c.Zone
	if name == "" {
		name = DefaultZone
	}
	if name == "Local" {
		return nil, fmt.Errorf("zone Local would change with the gateway")
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		return nil, fmt.Errorf("zone %q is not known here: write it as in Europe/Berlin, and see that the system has its zones (Debian: package tzdata)", name)
	}
	if c.needsZone() {
		if strings.Contains(c.Layout, "MST") {
			return nil, fmt.Errorf("layout has a zone by its letters, which several zones share")
		}
		probe := time.Date(2022, 11, 23, 21, 38, 49, 0, time.UTC)
		back, err := time.Parse(c.Layout, probe.Format(c.Layout))
		if err != nil || back.YearDay() != probe.YearDay() || back.Year() != probe.Year() {
			return nil, fmt.Errorf("layout %q does not have year, month and day in the way of %s", c.Layout, layoutExample)
		}
	}
	return &clock{c, zone}, nil
}

// set puts the time of measurement into a Result.
func (c *clock) set(r *Result) error {
	if c.cfg.Field == "" {
		return nil
	}
	r.Time, r.Note = time.Time{}, ""
	v, ok := lookup(r.Value, c.cfg.Field)
	if !ok || v == nil || v == "" {
		r.Note = NoteMissing
		return nil
	}
	text := ""
	switch v := v.(type) {
	case string:
		text = v
	case json.Number:
		text = v.String()
	}
	r.Time, r.Note = c.read(text)
	return nil
}

// read reads a time.
func (c *clock) read(text string) (time.Time, string) {
	text = strings.TrimSpace(text)
	units := map[string]int64{TimeUnix: 1, TimeUnixMS: 1e3, TimeUnixUS: 1e6, TimeUnixNS: 1e9}
	if per := units[c.cfg.Layout]; per > 0 {
		return unix(text, per)
	}
	layout := c.cfg.Layout
	if layout == "" || layout == TimeRFC3339 {
		layout = time.RFC3339Nano
	}
	t, err := time.Parse(layout, text)
	if err != nil {
		return time.Time{}, NoteInvalid
	}
	if !c.cfg.needsZone() {
		return t, ""
	}
	return wall(t, c.zone)
}

// unix reads a number of units since 1970, of which a second has per.
func unix(text string, per int64) (time.Time, string) {
	n, ok := number(text)
	if !ok || len(n) > 40 || strings.ContainsAny(n.String(), "eE") {
		return time.Time{}, NoteInvalid
	}
	r, ok := new(big.Rat).SetString(n.String())
	if !ok {
		return time.Time{}, NoteInvalid
	}
	r.Mul(r, big.NewRat(1e9, per))
	ns := new(big.Int).Div(r.Num(), r.Denom())
	sec, frac := new(big.Int).DivMod(ns, big.NewInt(1e9), new(big.Int))
	if !sec.IsInt64() || sec.Int64() < unixEarliest || sec.Int64() > unixLatest {
		return time.Time{}, NoteInvalid
	}
	return time.Unix(sec.Int64(), frac.Int64()).UTC(), ""
}

// wall returns the moment at which clocks in zone showed what t shows in UTC.
func wall(t time.Time, zone *time.Location) (time.Time, string) {
	_, before := t.Add(-26 * time.Hour).In(zone).Zone()
	_, behind := t.Add(26 * time.Hour).In(zone).Zone()
	var found []time.Time
	for _, offset := range []int{before, behind} {
		at := t.Add(-time.Duration(offset) * time.Second).In(zone)
		if _, o := at.Zone(); o == offset && (len(found) == 0 || !found[0].Equal(at)) {
			found = append(found, at)
		}
	}
	switch {
	case len(found) == 0:
		return t.Add(-time.Duration(before) * time.Second).In(zone), NoteNoSuch
	case len(found) == 1:
		return found[0], ""
	case found[1].Before(found[0]):
		return found[1], NoteTwice
	}
	return found[0], NoteTwice
}
