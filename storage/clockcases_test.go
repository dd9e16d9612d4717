package storage

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/rig/wallclock"
)

// TestClockSteps builds this test with a clock that can be stepped and runs TestUnderSteppedClock in it.
func TestClockSteps(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: builds the tests with another clock, not done with -short")
	}
	binary := filepath.Join(t.TempDir(), "storage.test")
	if err := wallclock.Build(binary, ".", true, 0); err != nil {
		t.Fatal(err)
	}
	file := wallclock.File(filepath.Join(t.TempDir(), "clock"))
	if err := file.Set(0, "unsynced", "boot"); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "-test.run", "^TestUnderSteppedClock$", "-test.v")
	cmd.Env = append(os.Environ(), wallclock.Variable+"="+string(file))
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Fatal(err)
	}
}

const day = 24 * time.Hour

// clockBed is a bed whose clock is stepped. Its stream A takes records of a1, its stream B of b1.
type clockBed struct {
	*bed
	next   map[string]uint64 // number of the next record by source, in this epoch
	want   map[string][]string
	shift  time.Duration
	state  string
	boot   int
	proven map[string]Position
}

func newClockBed(t *testing.T, a StreamConfig) *clockBed {
	c := &clockBed{bed: newBed(t), state: "unsynced", proven: map[string]Position{}, want: map[string][]string{}}
	a.Name = "A"
	c.options.Streams[0] = a
	return c
}

// set steps the clock.
func (c *clockBed) set(shift time.Duration, state string) {
	c.t.Helper()
	c.shift, c.state = shift, state
	if err := wallclock.File(os.Getenv(wallclock.Variable)).Set(shift, state, fmt.Sprintf("boot-%d", c.boot)); err != nil {
		c.t.Fatal(err)
	}
	if c.s != nil {
		c.s.clock.mu.Lock()
		c.s.clock.looked = time.Time{} // rather than waiting until it looks again
		c.s.clock.mu.Unlock()
	}
}

// begin starts the store, in a new boot of the machine or the same.
func (c *clockBed) begin(newBoot bool, shift time.Duration, state string) {
	c.t.Helper()
	if newBoot {
		c.boot++
	}
	c.set(shift, state)
	c.next = map[string]uint64{}
	c.open()
	c.serve()
	srv := c.server()
	srv.Forwarded = func(stream string) (Position, bool) { p := c.proven[stream]; return p, p > 0 }
	if err := c.s.Attach(c.ctx(), srv); err != nil {
		c.t.Fatal(err)
	}
}

// put captures n records of a source.
func (c *clockBed) put(source string, n int) {
	c.t.Helper()
	first := c.next[source] + 1
	c.next[source] += uint64(n)
	var recs []Record
	for i := first; i <= c.next[source]; i++ {
		r := c.record(source, i)
		r.Data = fmt.Appendf(nil, "%s %d.%d", source, c.s.Epoch(), i)
		c.want[r.Stream] = append(c.want[r.Stream], string(r.Data))
		r.Time = time.Now()
		recs = append(recs, r)
	}
	for len(recs) > 0 {
		m := min(len(recs), 1000)
		if err := c.s.Append(c.ctx(), recs[:m]...); err != nil {
			c.t.Fatal(err)
		}
		recs = recs[m:]
	}
}

// rounds lets the keeper work a few times.
func (c *clockBed) rounds() {
	c.t.Helper()
	for range 3 {
		release, err := c.s.keeper.hold(c.ctx())
		if err != nil {
			c.t.Fatal(err)
		}
		err = c.s.keeper.round(c.ctx(), true)
		release()
		if err != nil {
			c.t.Fatal(err)
		}
	}
}

// all checks that every record ever captured into a stream is there, in order.
func (c *clockBed) all(when, stream string) {
	c.t.Helper()
	c.rounds()
	got := c.captured(stream)
	if len(got) != len(c.want[stream]) {
		c.t.Fatalf("%s: stream %s holds %d records, want all %d", when, stream, len(got), len(c.want[stream]))
	}
	for i, k := range got {
		if k.Data != c.want[stream][i] {
			c.t.Fatalf("%s: record %d of stream %s is %q, want %q", when, i, stream, k.Data, c.want[stream][i])
		}
	}
	for _, st := range c.s.Streams() {
		if st.Off != 0 || st.Unbalanced || st.Name == stream && st.Waiting+st.Forwarded != uint64(len(got)) {
			c.t.Errorf("%s: the account is wrong: %+v", when, st)
		}
	}
}

// clockRecords returns the clock records of stream A.
func (c *clockBed) clockRecords() (n int, newest string) {
	for _, k := range c.read("A") {
		if k.Source == ClockSource {
			n, newest = n+1, k.Data
		}
	}
	return n, newest
}

func (c *clockBed) again(newBoot bool, shift time.Duration, state string) {
	c.t.Helper()
	c.stop()
	c.begin(newBoot, shift, state)
}

// TestUnderSteppedClock has the cases of a gateway's clock. It runs in a binary that TestClockSteps builds.
func TestUnderSteppedClock(t *testing.T) {
	if os.Getenv(wallclock.Variable) == "" {
		t.Skip("runs within TestClockSteps")
	}
	const age = 7 * day
	to1970 := -time.Since(time.Unix(60, 0)).Round(time.Second)
	t.Run("A/forward half a year while running", func(t *testing.T) {
		for _, state := range []string{"synced", "unsynced"} {
			c := newClockBed(t, StreamConfig{MaxAge: age, KeepForwarded: age})
			c.begin(true, 0, state)
			c.put("a1", 500)
			c.proven["A"] = c.last("A") - 250
			c.set(180*day, state)
			c.all("after the step", "A")
			c.again(false, 180*day, state)
			c.put("a1", 5)
			c.all("after a restart of the process", "A")
			c.proven["A"] = 0 // a boot later the date is all there is: what the hub has may go by it
			c.again(true, 180*day, state)
			c.all("after a restart of the machine", "A")
			c.crash()
		}
	})
	t.Run("A2/a short age and a long step", func(t *testing.T) {
		c := newClockBed(t, StreamConfig{MaxAge: 10 * time.Minute, ExpireUnsent: true})
		c.begin(true, 0, "synced")
		c.put("a1", 200)
		c.set(180*day, "synced")
		c.all("after the step", "A")
		c.set(-180*day, "synced")
		c.all("after a step back", "A")
	})
	t.Run("B/start in 1970, then the clock is set", func(t *testing.T) {
		c := newClockBed(t, StreamConfig{MaxAge: age, ExpireUnsent: true})
		c.begin(true, to1970, "unsynced")
		began := time.Now().Add(-to1970)
		c.put("a1", 1000)
		if stamp := c.stampOf(0); stamp.Wall.Year() != 1970 || stamp.Clock != ClockUnsynced {
			t.Errorf("stamp %v, want 1970 and unsynced", stamp)
		}
		c.set(0, "synced")
		c.all("after the clock was set", "A")
		poll(t, "the clock record is there", func() bool { n, _ := c.clockRecords(); return n == 1 })
		c.checkTrueTime(began)
		c.again(false, 0, "synced")
		c.all("after a restart of the process", "A")
		c.again(true, 0, "synced")
		c.all("after a restart of the machine", "A")
		c.checkTrueTime(began)
		c.again(true, to1970, "unsynced")
		c.put("a1", 1)
		if stamp := c.stampOf(1000); stamp.Wall.Before(began) || stamp.Clock != ClockUnsynced {
			t.Errorf("stamp %v in 1970 once more, want no less than %v, unsynced", stamp, began)
		}
		c.all("at the end", "A")
	})
	t.Run("B2/start at the time of the last stop", func(t *testing.T) {
		c := newClockBed(t, StreamConfig{MaxAge: age, ExpireUnsent: true})
		c.begin(true, -30*day, "unsynced")
		c.put("a1", 500)
		c.again(true, 0, "synced")
		c.all("in the next boot, with the right time", "A")
		c.put("a1", 5)
		c.all("with records that have a time", "A")
	})
	t.Run("C/a date in the future first", func(t *testing.T) {
		c := newClockBed(t, StreamConfig{KeepForwarded: age})
		c.begin(true, 365*day, "synced")
		c.put("a1", 300)
		poll(t, "the clock record is there", func() bool { n, _ := c.clockRecords(); return n == 1 })
		c.set(0, "synced")
		c.put("a1", 300)
		c.all("after the step back by a year", "A")
		poll(t, "a second clock record tells", func() bool { n, _ := c.clockRecords(); return n == 2 })
		c.again(true, 0, "synced")
		c.put("a1", 10)
		c.all("after a restart", "A")
		c.again(true, 8*day, "synced") // what was captured in the future is known to be old, and does not keep the rest
		c.proven["A"] = c.last("A")
		c.rounds()
		if left := len(c.captured("A")); left > 1 {
			t.Errorf("%d records are left of what is forwarded and older than keep_forwarded", left)
		}
	})
	t.Run("D/ttl", func(t *testing.T) {
		c := newClockBed(t, StreamConfig{})
		c.options.TTL = map[string]time.Duration{"a1": 2 * time.Second, "a2": 2 * time.Second, "a3": 2 * time.Second}
		c.begin(true, 0, "synced")
		c.put("a1", 50)
		c.set(180*day, "synced")
		c.all("not by the step forward", "A")
		poll(t, "they expire when they are old", func() bool { c.rounds(); return len(c.captured("A")) == 0 })
		c.want["A"] = nil
		c.put("a1", 50)
		c.set(-day, "synced")
		poll(t, "the next ones too, though the clock was stepped back", func() bool { c.rounds(); return len(c.captured("A")) == 0 })
		if st := c.s.Streams()[0]; st.Dropped[GapExpired] != 100 || st.Off != 0 {
			t.Errorf("Streams: %+v, want 100 expired", st)
		}
	})
	t.Run("E/many records and a start in the past", func(t *testing.T) {
		c := newClockBed(t, StreamConfig{MaxAge: age, ExpireUnsent: true})
		c.begin(true, 0, "synced")
		c.put("a1", 10_000)
		c.again(true, -30*day, "unsynced")
		c.put("a1", 1000)
		c.all("in the past", "A")
		c.again(true, 0, "synced")
		c.put("a1", 1000)
		c.all("in the right time", "A")
	})
	t.Run("F/an age set after the clock", func(t *testing.T) {
		c := newClockBed(t, StreamConfig{})
		c.begin(true, -30*day, "unsynced")
		c.put("a1", 500)
		c.set(0, "synced")
		poll(t, "the clock record is there", func() bool { n, _ := c.clockRecords(); return n == 1 })
		c.options.Streams[0].MaxAge, c.options.Streams[0].ExpireUnsent = age, true
		c.again(false, 0, "synced")
		c.all("in the same boot", "A")
		c.again(true, 0, "synced")
		c.all("in the next", "A")
	})
	for _, step := range []time.Duration{3 * time.Second, 3 * day, 30 * 365 * day} {
		for _, sign := range []time.Duration{1, -1} {
			t.Run(fmt.Sprintf("step by %v", sign*step), func(t *testing.T) {
				c := newClockBed(t, StreamConfig{MaxAge: time.Hour, KeepForwarded: time.Hour})
				for i, state := range []string{"unsynced", "synced"} {
					c.begin(true, 0, state)
					c.put("a1", 20)
					c.put("b1", 20)
					c.set(sign*step, state) // while it runs
					c.put("a1", 20)
					c.all("stepped while running", "A")
					c.again(i == 0, 0, state) // back, between two starts
					c.put("a1", 20)
					c.again(i == 1, sign*step, state)
					c.put("b1", 20)
					c.all("stepped between starts", "A")
					c.all("stepped between starts", "B")
					c.stop()
				}
			})
		}
	}
}

// stampOf returns the stamp of the n-th captured record of stream A.
func (c *clockBed) stampOf(n int) Stamp {
	c.t.Helper()
	stamp, err := ParseStamp(c.captured("A")[n].Header.Get(HeaderTime))
	if err != nil {
		c.t.Fatal(err)
	}
	return stamp
}

// checkTrueTime checks that the store knows when the first record was captured.
func (c *clockBed) checkTrueTime(want time.Time) {
	c.t.Helper()
	st, err := c.js.Stream(c.ctx(), "A")
	if err != nil {
		c.t.Fatal(err)
	}
	h := heldStream{js: c.js, stream: st, name: "A"}
	first := c.captured("A")[0].Position
	r, err := h.next(context.Background(), first)
	if err != nil {
		c.t.Fatal(err)
	}
	if got, known := c.s.ledger.timeOf(r); !known || got.Sub(want).Abs() > 15*time.Second {
		c.t.Errorf("the first record was captured at %v, %v, want about %v", got, known, want)
	}
}
