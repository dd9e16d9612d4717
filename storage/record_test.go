package storage

import (
	"testing"
	"time"
)

func TestStampWireForm(t *testing.T) {
	cases := []struct {
		name string
		in   Stamp
		want string
	}{
		{"whole", Stamp{Wall: time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC), Boot: 90 * time.Second, Clock: ClockSynced}, "2026-11-30T10:00:00.000000000Z 90.000000000 synced"},
		{"fractions", Stamp{Wall: time.Date(1970, 1, 1, 0, 0, 7, 1, time.UTC), Boot: 1234567891, Clock: ClockUnsynced}, "1970-01-01T00:00:07.000000001Z 1.234567891 unsynced"},
		{"small", Stamp{Wall: time.Date(2026, 1, 1, 0, 0, 0, 120, time.FixedZone("", 3600)), Boot: 5}, "2025-12-31T23:00:00.000000120Z 0.000000005 unknown"},
		{"all digits", Stamp{Wall: time.Date(9999, 12, 31, 23, 59, 59, 999999999, time.UTC), Boot: 1<<63 - 1}, "9999-12-31T23:59:59.999999999Z 9223372036.854775807 unknown"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if got := c.in.String(); got != c.want {
				t.Fatalf("String = %q, want %q", got, c.want)
			}
			back, err := ParseStamp(c.want)
			if err != nil || !back.Wall.Equal(c.in.Wall) || back.Boot != c.in.Boot || back.Clock != c.in.Clock {
				t.Errorf("ParseStamp(%q) = %+v, %v", c.want, back, err)
			}
		})
	}
}

func TestIDWireForm(t *testing.T) {
	id := ID{Leaf: "pump-07", Store: "00ff00ff00", Source: "gps", Epoch: 12, Seq: 18446744073709551615}
	const want = "pump-07.00ff00ff00.gps.12.18446744073709551615"
	if got := id.String(); got != want {
		t.Fatalf("String = %q, want %q", got, want)
	}
	if back, err := ParseID(want); err != nil || back != id {
		t.Errorf("ParseID = %+v, %v", back, err)
	}
	for _, bad := range []string{"", "a.b.c.1", "a.b.c.1.2.3", ".b.c.1.2", "a.b.c.x.2", "a.b.c.1.-2"} {
		if got, err := ParseID(bad); err == nil {
			t.Errorf("ParseID(%q) = %+v, want an error", bad, got)
		}
	}
}
