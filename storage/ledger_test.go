package storage

import (
	"log/slog"
	"testing"
	"time"
)

// TestLedgerAge is the table of who can say how old a record is. The machine was on in boot "one", then in boot "two", which is now.
func TestLedgerAge(t *testing.T) {
	const hour = time.Hour
	base := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC) // boot two was here, by a right clock
	nobody := time.Duration(-1)
	cases := []struct {
		name      string
		epoch     uint64 // 1: boot one, 2: boot two
		wall      time.Time
		clock     ClockState // of the record
		boot      time.Duration
		zeroOne   time.Time // what is known of boot one
		now       ClockState
		nowWall   time.Time
		want      time.Duration
		otherBody bool // a record of another store
	}{
		{name: "same boot, nobody ever set the clock", epoch: 2, wall: time.Unix(60, 0), clock: ClockUnsynced, boot: hour, now: ClockUnsynced, nowWall: time.Unix(90, 0), want: 9 * hour},
		{name: "same boot, the clock was set by decades between", epoch: 2, wall: time.Unix(60, 0), clock: ClockUnsynced, boot: hour, now: ClockSynced, nowWall: base.Add(10 * hour), want: 9 * hour},
		{name: "same boot, a step back by days", epoch: 2, wall: base.Add(100 * hour), clock: ClockSynced, boot: hour, now: ClockSynced, nowWall: base.Add(10 * hour), want: 9 * hour},
		{name: "boot before, both trusted", epoch: 1, wall: base.Add(-20 * hour), clock: ClockSynced, boot: hour, now: ClockSynced, nowWall: base.Add(10 * hour), want: 30 * hour},
		{name: "boot before, clock not trusted now", epoch: 1, wall: base.Add(-20 * hour), clock: ClockSynced, boot: hour, now: ClockUnsynced, nowWall: base.Add(10 * hour), want: nobody},
		{name: "boot before, never trusted", epoch: 1, wall: base.Add(-20 * hour), clock: ClockUnsynced, boot: hour, now: ClockSynced, nowWall: base.Add(10 * hour), want: nobody},
		{name: "boot before, trusted later in it", epoch: 1, wall: time.Unix(60, 0), clock: ClockUnsynced, boot: hour, zeroOne: base.Add(-21 * hour), now: ClockSynced, nowWall: base.Add(10 * hour), want: 30 * hour},
		{name: "from the future", epoch: 1, wall: base.Add(365 * 24 * hour), clock: ClockSynced, boot: hour, now: ClockSynced, nowWall: base.Add(10 * hour), want: nobody},
		{name: "another store's", epoch: 2, otherBody: true, wall: time.Unix(60, 0), clock: ClockUnsynced, boot: hour, now: ClockSynced, nowWall: base.Add(10 * hour), want: nobody},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			home := t.TempDir()
			l := openLedger(home, "one", slog.New(slog.DiscardHandler))
			if err := l.begin("0123456789", 1); err != nil {
				t.Fatal(err)
			}
			if !c.zeroOne.IsZero() {
				if err := l.settle(c.zeroOne); err != nil {
					t.Fatal(err)
				}
			}
			l = openLedger(home, "two", slog.New(slog.DiscardHandler))
			if err := l.begin("0123456789", 2); err != nil {
				t.Fatal(err)
			}
			r := heldRecord{ID: ID{Store: "0123456789", Epoch: c.epoch}, Stamp: Stamp{Wall: c.wall, Boot: c.boot, Clock: c.clock}}
			if c.otherBody {
				r.ID.Store = "9999999999"
			}
			got, known := l.ageOf(r, moment{now: c.nowWall, boot: 10 * hour, state: c.now})
			if known != (c.want != nobody) || known && got != c.want {
				t.Errorf("age = %v, %v, want %v", got, known, c.want)
			}
		})
	}
}

// TestLedgerForgets keeps a boot as long as a stream holds records of it.
func TestLedgerForgets(t *testing.T) {
	home := t.TempDir()
	next := map[string]Position{"A": 1, "B": 1}
	first := map[string]Position{"A": 1, "B": 1}
	var l *ledger
	boots := func(id string) int {
		l = openLedger(home, id, slog.New(slog.DiscardHandler))
		if err := l.begin("0123456789", uint64(len(l.boots)+1)); err != nil {
			t.Fatal(err)
		}
		n, f := map[string]Position{}, map[string]Position{}
		for s := range next {
			n[s], f[s] = next[s], first[s]
		}
		if err := l.reach(n, f); err != nil {
			t.Fatal(err)
		}
		return len(l.boots)
	}
	for i, want := range []int{1, 2, 3} {
		if got := boots(string(rune('a' + i))); got != want {
			t.Fatalf("%d boots after %d, nothing is removed", got, i+1)
		}
		next["A"], next["B"] = next["A"]+100, next["B"]+100
	}
	first["A"], first["B"] = 201, 150 // a is gone from both, b from A only
	if got := boots("d"); got != 3 {
		t.Errorf("%d boots, want b, c and d: %+v", got, l.boots)
	}
	if got := boots("d"); got != 3 { // a restart in the same boot
		t.Errorf("%d boots after a restart in the same boot: %+v", got, l.boots)
	}
	for range maxBoots + 10 {
		l.boot += "x"
		if err := l.begin("0123456789", l.boots[len(l.boots)-1].Epoch+1); err != nil {
			t.Fatal(err)
		}
	}
	if len(l.boots) != maxBoots {
		t.Errorf("%d boots are kept, want %d at most", len(l.boots), maxBoots)
	}
}

// TestClockFloor starts a clock that has lost its time beside a store that knows better.
func TestClockFloor(t *testing.T) {
	newest := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	f := &fakeClock{wall: time.Unix(60, 0), boot: 10 * time.Second, kernel: ClockUnsynced}
	c := f.clock(t)
	c.raise(newest)
	f.pass(time.Minute)
	if s := c.stamp(time.Time{}); !s.Wall.Equal(newest.Add(time.Minute)) || s.Clock != ClockUnsynced {
		t.Errorf("stamp a minute after the start in 1970 = %v, want a minute after %v, unsynced", s, newest)
	}
	f.pass(time.Minute)
	f.wall = newest.Add(time.Hour) // set by hand
	if s := c.stamp(time.Time{}); !s.Wall.Equal(f.wall) {
		t.Errorf("stamp of a clock above the floor = %v, want what it says", s)
	}
	f.pass(time.Minute)
	f.wall, f.kernel = newest.Add(-time.Hour), ClockSynced // the floor was by a clock that was ahead
	if s := c.stamp(time.Time{}); !s.Wall.Equal(f.wall) || s.Clock != ClockSynced {
		t.Errorf("stamp of a trusted clock below the floor = %v, want it believed", s)
	}
	f.pass(time.Minute)
	f.kernel, f.wall = ClockUnsynced, time.Unix(0, 0) // stepped back by decades, and not trusted any more
	if s := c.stamp(time.Time{}); s.Wall.Before(newest) || s.Clock != ClockUnsynced {
		t.Errorf("stamp after a step back by decades = %v, want no less than %v", s, newest)
	}
}
