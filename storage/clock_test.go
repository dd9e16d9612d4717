package storage

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// fakeClock drives a clock: wall may be stepped, boot and the monotonic part only advance.
type fakeClock struct {
	wall   time.Time
	boot   time.Duration
	kernel ClockState
}

func (f *fakeClock) clock(t *testing.T) *clock {
	return &clock{
		now:       func() time.Time { return f.wall },
		sinceBoot: func() time.Duration { return f.boot },
		kernel:    func() ClockState { return f.kernel },
		mark:      filepath.Join(t.TempDir(), "synchronized"),
	}
}

func (f *fakeClock) pass(d time.Duration) { f.wall, f.boot = f.wall.Add(d), f.boot+d }

func TestClockState(t *testing.T) {
	right := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	cases := []struct {
		name string
		do   func(f *fakeClock, c *clock)
		want ClockState
	}{
		{"kernel says synced", func(f *fakeClock, c *clock) { f.kernel = ClockSynced }, ClockSynced},
		{"kernel says unsynced", func(f *fakeClock, c *clock) { f.kernel = ClockUnsynced }, ClockUnsynced},
		{"kernel says nothing", func(f *fakeClock, c *clock) {}, ClockUnknown},
		{"1970 though synced", func(f *fakeClock, c *clock) { f.kernel, f.wall = ClockSynced, time.Unix(90, 0) }, ClockUnsynced},
		{"just before the floor", func(f *fakeClock, c *clock) { f.kernel, f.wall = ClockSynced, clockFloor.Add(-1) }, ClockUnsynced},
		{"at the floor", func(f *fakeClock, c *clock) { f.kernel, f.wall = ClockSynced, clockFloor }, ClockSynced},
		{"timesyncd's mark", func(f *fakeClock, c *clock) {
			f.kernel = ClockUnsynced
			mark(t, c.mark, f.wall.Add(-time.Hour))
		}, ClockSynced},
		{"a mark from the future", func(f *fakeClock, c *clock) {
			f.kernel = ClockUnsynced
			mark(t, c.mark, f.wall.Add(time.Hour))
		}, ClockUnsynced},
		{"kernel forgot after a day offline", func(f *fakeClock, c *clock) {
			f.kernel = ClockSynced
			c.state()
			f.kernel = ClockUnsynced
			f.pass(24 * time.Hour)
		}, ClockSynced},
		{"stepped after the kernel forgot", func(f *fakeClock, c *clock) {
			f.kernel = ClockSynced
			c.state()
			f.kernel = ClockUnsynced
			f.pass(time.Hour)
			f.wall = f.wall.Add(2 * time.Hour)
		}, ClockUnsynced},
		{"stepped back, then forth", func(f *fakeClock, c *clock) {
			f.kernel = ClockSynced
			c.state()
			f.kernel = ClockUnsynced
			f.wall = f.wall.Add(-time.Hour)
			c.state()
			f.wall = f.wall.Add(time.Hour)
		}, ClockUnsynced},
		{"to 1970 and back", func(f *fakeClock, c *clock) {
			f.kernel = ClockSynced
			c.state()
			f.kernel = ClockUnsynced
			f.wall = time.Unix(0, 0)
			c.state()
			f.wall = right
		}, ClockUnsynced},
	}
	for _, k := range cases {
		t.Run(k.name, func(t *testing.T) {
			f := &fakeClock{wall: right, boot: 48 * time.Hour}
			c := f.clock(t)
			k.do(f, c)
			if got := c.state(); got != k.want {
				t.Errorf("state = %v, want %v", got, k.want)
			}
		})
	}
}

func mark(t *testing.T, path string, when time.Time) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, when, when); err != nil {
		t.Fatal(err)
	}
}

// TestStampKeepsMonotonic uses real times, whose monotonic parts cannot be made up, and steps the wall clock under the record.
func TestStampKeepsMonotonic(t *testing.T) {
	received := time.Now()
	later := received.Add(3 * time.Second) // keeps the monotonic part
	f := &fakeClock{wall: later, boot: 100 * time.Second, kernel: ClockSynced}
	s := f.clock(t).stamp(received)
	if s.Boot != 97*time.Second || !s.Wall.Equal(received.Round(0)) || s.Clock != ClockSynced {
		t.Errorf("stamp 3 s later = %+v, want boot 97s, wall %v, synced", s, received)
	}
	if s := f.clock(t).stamp(time.Time{}); s.Boot != 100*time.Second || !s.Wall.Equal(later.Round(0)) {
		t.Errorf("stamp of the zero time = %+v, want now", s)
	}
	if s := f.clock(t).stamp(received.Add(-time.Hour)); s.Boot != 0 {
		t.Errorf("stamp of a time before boot = %+v, want boot 0", s)
	}
}

func TestStampWithoutMonotonic(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	cases := []struct {
		name  string
		t     time.Time
		boot  time.Duration
		state ClockState
	}{
		{"a little earlier", now.Add(-4 * time.Second), 96 * time.Second, ClockSynced},
		{"before boot", now.Add(-time.Hour), 100 * time.Second, ClockUnsynced},
		{"in the future", now.Add(time.Hour), 100 * time.Second, ClockUnsynced},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			f := &fakeClock{wall: now, boot: 100 * time.Second, kernel: ClockSynced}
			s := f.clock(t).stamp(c.t)
			if s.Boot != c.boot || s.Clock != c.state || !s.Wall.Equal(c.t) {
				t.Errorf("stamp = %+v, want boot %v, %v, wall %v", s, c.boot, c.state, c.t)
			}
		})
	}
}

// TestStampSurvivesTheWire makes sure that what stamp gives is what a reader of the header gets.
func TestStampSurvivesTheWire(t *testing.T) {
	want := newClock().stamp(time.Now())
	got, err := ParseStamp(want.String())
	if err != nil || !got.Wall.Equal(want.Wall) || got.Boot != want.Boot || got.Clock != want.Clock {
		t.Errorf("ParseStamp(%q) = %+v, %v, want %+v", want, got, err, want)
	}
}
