package decode

import (
	"fmt"
	"testing"
	"time"
)

func TestDeviceTime(t *testing.T) {
	for _, tc := range []struct {
		name string
		cfg  Time
		in   string // the value of "t" in JSON
		want string // in UTC; empty: none
		note string
	}{
		{"rfc3339", Time{}, `"2026-03-01T12:00:00.5+01:00"`, "2026-03-01T11:00:00.5Z", ""},
		{"rfc3339 without a zone", Time{}, `"2026-03-01T12:00:00"`, "", NoteInvalid},
		{"unix", Time{Layout: TimeUnix}, `1767225600`, "2026-01-01T00:00:00Z", ""},
		{"unix with a fraction", Time{Layout: TimeUnix}, `"1767225600.123456789"`, "2026-01-01T00:00:00.123456789Z", ""},
		{"unix before 1970", Time{Layout: TimeUnix}, `-0.5`, "1969-12-31T23:59:59.5Z", ""},
		{"unix-ms", Time{Layout: TimeUnixMS}, `1767225600001`, "2026-01-01T00:00:00.001Z", ""},
		{"unix-us", Time{Layout: TimeUnixUS}, `1767225600000001`, "2026-01-01T00:00:00.000001Z", ""},
		{"unix-ns", Time{Layout: TimeUnixNS}, `1767225600000000001`, "2026-01-01T00:00:00.000000001Z", ""},
		{"unix of no year", Time{Layout: TimeUnix}, `99999999999999`, "", NoteInvalid},
		{"unix that is a text", Time{Layout: TimeUnix}, `"noon"`, "", NoteInvalid},
		{"unix of a bomb", Time{Layout: TimeUnix}, `1e999999999`, "", NoteInvalid},
		{"local winter", Time{Layout: "2006-01-02 15:04:05", Zone: "Europe/Berlin"}, `"2026-01-15 12:00:00"`, "2026-01-15T11:00:00Z", ""},
		{"local summer", Time{Layout: "02.01.06 15:04", Zone: "Europe/Berlin"}, `"15.07.26 12:00"`, "2026-07-15T10:00:00Z", ""},
		{"hour that comes twice", Time{Layout: "2006-01-02 15:04:05", Zone: "Europe/Berlin"}, `"2026-10-25 02:30:00"`, "2026-10-25T00:30:00Z", NoteTwice},
		{"hour that is left out", Time{Layout: "2006-01-02 15:04:05", Zone: "Europe/Berlin"}, `"2026-03-29 02:30:00"`, "2026-03-29T01:30:00Z", NoteNoSuch},
		{"twice, southern, half an hour", Time{Layout: "2006-01-02 15:04:05", Zone: "Australia/Lord_Howe"}, `"2026-04-05 01:45:00"`, "2026-04-04T14:45:00Z", NoteTwice},
		{"hour before the end of summer time", Time{Layout: "2006-01-02 15:04:05", Zone: "Europe/Berlin"}, `"2026-10-25 01:59:59"`, "2026-10-24T23:59:59Z", ""},
		{"UTC", Time{Layout: "20060102150405", Zone: "UTC"}, `"20261025023000"`, "2026-10-25T02:30:00Z", ""},
		{"layout with an offset", Time{Layout: "2006-01-02 15:04:05 -0700"}, `"2026-10-25 02:30:00 +0100"`, "2026-10-25T01:30:00Z", ""},
		{"null", Time{}, `null`, "", NoteMissing},
		{"empty", Time{}, `""`, "", NoteMissing},
		{"an object", Time{}, `{}`, "", NoteInvalid},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.cfg.Field = "a.t"
			d := open(t, Config{Format: FormatJSON, Time: tc.cfg})
			res, err := d.Decode(fmt.Appendf(nil, `{"a":{"t":%s}}`, tc.in))
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			if !res.Time.IsZero() {
				got = res.Time.UTC().Format(time.RFC3339Nano)
			}
			if got != tc.want || res.Note != tc.note {
				t.Errorf("got %s, note %q, want %s, %q", got, res.Note, tc.want, tc.note)
			}
		})
	}
	res, err := open(t, Config{Format: FormatJSON, Time: Time{Field: "t"}}).Decode([]byte(`[1]`))
	if err != nil || res.Note != NoteMissing {
		t.Errorf("no field: %+v, %v", res, err)
	}
	res, err = open(t, Config{Format: FormatJSON, Time: Time{Field: "a.b"}}).Decode([]byte(`{"a.b":"2026-01-01T00:00:00Z"}`))
	if err != nil || res.Time.IsZero() {
		t.Errorf("field with a dot in its name: %+v, %v", res, err)
	}
}
