package storage

import (
	"strings"
	"testing"
	"time"
)

func TestGapRecordRoundTrip(t *testing.T) {
	at := time.Date(2026, 11, 30, 10, 0, 0, 123, time.FixedZone("CET", 3600))
	cases := []struct {
		name string
		gap  GapRecord
		want string
	}{
		{"all", GapRecord{Stream: "SENSORS", First: 1801, Last: 2400, Count: 598, Merged: 3, Reason: GapDropOldest, From: at, To: at.Add(time.Second)},
			`{"stream":"SENSORS","first":1801,"last":2400,"count":598,"merged":3,"reason":"drop-oldest","from":"2026-11-30T09:00:00.000000123Z","to":"2026-11-30T09:00:01.000000123Z"}`},
		{"times unknown", GapRecord{Stream: "S", First: 1 << 52, Last: 1 << 52, Count: 1, Reason: GapDamage},
			`{"stream":"S","first":4503599627370496,"last":4503599627370496,"count":1,"reason":"damage"}`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			body, err := c.gap.Encode()
			if err != nil || string(body) != c.want {
				t.Fatalf("Encode = %s, %v\nwant %s", body, err, c.want)
			}
			got, err := ParseGap(body)
			if err != nil || !got.From.Equal(c.gap.From) || !got.To.Equal(c.gap.To) {
				t.Fatalf("ParseGap = %+v, %v", got, err)
			}
			got.From, got.To = c.gap.From, c.gap.To
			if got != c.gap {
				t.Errorf("ParseGap = %+v, want %+v", got, c.gap)
			}
		})
	}
}

func TestGapRecordRefuses(t *testing.T) {
	for body, want := range map[string]string{
		`{"first":1,"last":2,"count":1,"reason":"damage"}`:                         "no stream",
		`{"stream":"S","first":1,"last":2,"count":1}`:                              "no reason",
		`{"stream":"S","first":3,"last":2,"reason":"damage"}`:                      "range 3 to 2",
		`{"stream":"S","last":2,"reason":"damage"}`:                                "range 0 to 2",
		`{"stream":"S","first":1,"last":2,"count":3,"reason":"damage"}`:            "3 records in the range",
		`{"stream":"S","first":1,"last":2,"count":1,"merged":2,"reason":"damage"}`: "2 merged of 1",
		`{"stream":"S","first":-1,"last":2,"reason":"damage"}`:                     "gap record:",
		`nonsense`: "gap record:",
	} {
		if g, err := ParseGap([]byte(body)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseGap(%s) = %+v, %v, want an error with %q", body, g, err, want)
		}
	}
	if _, err := (GapRecord{}).Encode(); err == nil {
		t.Error("Encode of an empty gap record succeeded")
	}
	if _, err := ParseGap([]byte(`{"stream":"S","first":1,"last":2,"count":1,"reason":"new","more":{}}`)); err != nil {
		t.Errorf("ParseGap with an unknown key and reason: %v, want accepted", err)
	}
}

func TestGapRecordMerge(t *testing.T) {
	at := time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC)
	a := GapRecord{Stream: "S", First: 101, Last: 200, Count: 99, Reason: GapDropOldest, From: at, To: at.Add(time.Minute)}
	b := GapRecord{Stream: "S", First: 1, Last: 100, Count: 100, Merged: 40, Reason: GapDropOldest, From: at.Add(-time.Hour)}
	want := GapRecord{Stream: "S", First: 1, Last: 200, Count: 199, Merged: 40, Reason: GapDropOldest, From: at.Add(-time.Hour), To: at.Add(time.Minute)}
	if got := a.merge(b); got != want {
		t.Errorf("a.merge(b) = %+v, want %+v", got, want)
	}
	if got := b.merge(a); got != want {
		t.Errorf("b.merge(a) = %+v, want %+v", got, want)
	}
}

func FuzzParseGap(f *testing.F) {
	f.Add([]byte(`{"stream":"S","first":1,"last":2,"count":1,"reason":"damage","from":"2026-11-30T09:00:00Z"}`))
	f.Add([]byte(`{"stream":"S","first":1,"last":18446744073709551615,"count":18446744073709551615,"reason":"x"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		g, err := ParseGap(body)
		if err != nil {
			return
		}
		again, err := g.Encode()
		if err != nil {
			return // a time that RFC 3339 cannot write
		}
		if h, err := ParseGap(again); err != nil || h.Count != g.Count || h.First != g.First || h.Last != g.Last {
			t.Errorf("%+v came back as %+v, %v", g, h, err)
		}
	})
}
