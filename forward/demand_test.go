package forward

import (
	"context"
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/leaf"
	"github.com/holdfast-edge/holdfast/rig/poll"
)

func TestDemand(t *testing.T) {
	now := time.Unix(0, 0)
	d := &demand{cfg: leaf.OnDemand{Records: 100, Bytes: 1000, Age: time.Minute, Every: time.Hour, Linger: 10 * time.Second}}
	at := func(after time.Duration, records, bytes uint64, want bool) {
		t.Helper()
		now = now.Add(after)
		if got := d.open(now, records, bytes); got != want {
			t.Errorf("open with %d records of %d bytes = %v, want %v", records, bytes, got, want)
		}
	}
	at(0, 0, 0, false)
	at(time.Second, 99, 999, false)
	at(time.Second, 100, 10, true)
	at(time.Second, 2, 1000, true)
	at(56*time.Second, 2, 10, false)
	at(2*time.Second, 2, 10, true)  // waits for a minute
	at(time.Second, 0, 0, false)    // is gone
	at(58*time.Minute, 0, 0, false) // 59 min 1 s without a link
	at(time.Minute, 0, 0, true)
	for _, step := range []struct {
		after time.Duration
		quiet bool
		want  bool
	}{{0, true, false}, {9 * time.Second, true, false}, {time.Second, false, false}, {time.Second, true, false}, {10 * time.Second, true, true}} {
		now = now.Add(step.after)
		if got := d.done(now, step.quiet); got != step.want {
			t.Errorf("done after %v, quiet %v = %v, want %v", step.after, step.quiet, got, step.want)
		}
	}
	at(time.Second, 0, 0, false)
}

// TestThrottle: what several streams send stays at the rate on average.
func TestThrottle(t *testing.T) {
	now := time.Unix(0, 0)
	r := throttle{rate: 1000}
	var sent float64
	until := now
	for range 6000 {
		now = now.Add(followClosely)
		if now.Before(until) {
			r.spend(now, 0)
			continue
		}
		sent += 700
		until = now.Add(r.spend(now, 700))
	}
	if got := sent / 600; got < 900 || got > 1010 {
		t.Errorf("%.0f bytes/s, want 1000", got)
	}
	if (&throttle{}).spend(now, 1e9) != 0 {
		t.Error("without a rate there is a pause")
	}
}

// TestTrafficSurvivesARestart: the counts of a day and a month go on, whatever the kernel's counts begin with.
func TestTrafficSurvivesARestart(t *testing.T) {
	dir := t.TempDir()
	day := time.Date(2026, 11, 29, 23, 0, 0, 0, time.UTC)
	for i := range 3 {
		m, err := openMemory(dir, "store")
		if err != nil {
			t.Fatal(err)
		}
		m.carry(day, leaf.Traffic{Sent: 100, Received: 10})
		m.carry(day.Add(2*time.Hour), leaf.Traffic{Sent: 150, Received: 15})
		got := m.traffic(day.Add(2 * time.Hour))
		n := int64(i + 1)
		want := Traffic{Today: leaf.Traffic{Sent: 50 * n, Received: 5 * n}, Month: leaf.Traffic{Sent: 150 * n, Received: 15 * n}}
		if got != want {
			t.Errorf("run %d: %+v, want %+v", i, got, want)
		}
		if next := m.traffic(day.Add(30 * time.Hour)); next.Month != (leaf.Traffic{}) {
			t.Errorf("another month has %+v", next)
		}
		if err := m.save(true); err != nil {
			t.Fatal(err)
		}
	}
}

// TestIdleLinkCost prints what a link costs in a month in which nothing happens: one that is always up, and one that is opened four times a day
// because of hub.on_demand.every. The kernel counts, headers included.
func TestIdleLinkCost(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes half a minute")
	}
	const month, perMonth = 30 * 24 * time.Hour, 30 * 4
	s := newSite(t, "g1", "g2")
	always := s.start("g1", t.TempDir())
	always.append(10, "S", "M")
	s.demand = &leaf.OnDemand{Every: time.Second, Linger: time.Second}
	metered := s.start("g2", t.TempDir())
	metered.append(10, "S", "M")
	s.await(patient, "FIELD", "g1_M", "g2_M")

	poll.Until(t, patient, func() bool {
		return always.progress("S").State == Live && always.progress("M").State == Live && always.progress("S").Waiting+always.progress("M").Waiting == 0
	}, "nothing waits")
	sum := func(g *gateway) int64 { c := g.leaf.Traffic(); return c.Sent + c.Received }
	before, began, sessions := sum(always), time.Now(), 0
	poll.Until(t, 2*patient, func() bool { return metered.leaf.Link().State == leaf.LinkOff }, "closed")
	first := sum(metered)
	for end := time.Now().Add(15 * time.Second); time.Now().Before(end) || sessions < 2; sessions++ {
		poll.Until(t, 2*patient, func() bool { return metered.leaf.Link().State == leaf.LinkUp }, "opened")
		poll.Until(t, 2*patient, func() bool { return metered.leaf.Link().State == leaf.LinkOff }, "closed again")
	}
	each := (sum(metered) - first) / int64(sessions)
	rate := float64(sum(always)-before) / time.Since(began).Seconds()
	t.Logf("always on: %.0f bytes/s idle with two streams, commands and documents, %.0f MB a month; on demand, four times a day: %d bytes a session, %.1f MB a month (%d sessions)",
		rate, rate*month.Seconds()/1e6, each, float64(each)*perMonth/1e6, sessions)
	if each == 0 || *full && each*perMonth > 5e6 { // a busy machine keeps sessions open longer
		t.Errorf("an idle session costs %d bytes, want at most %d", each, int64(5e6)/perMonth)
	}
}

// TestLinkOnDemand: nothing is sent while little waits; enough opens the link, all goes, and it is closed again.
func TestLinkOnDemand(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes 20 s")
	}
	s := newSite(t)
	s.demand = &leaf.OnDemand{Records: 50, Linger: time.Second}
	g := s.start("g1", t.TempDir())
	g.append(10, "S", "M")
	poll.Wait(context.Background(), 4*time.Second, func() bool { return false })
	if st := s.wire.Stats(); st.Accepted != 0 {
		t.Fatalf("%d connections although little waits", st.Accepted)
	}
	if p := g.progress("S"); p.State != Down || p.Cause != demandCause || p.Waiting != 11 {
		t.Errorf("progress %+v, want down, on demand, and 11 waiting", p)
	}
	for range 2 {
		before := s.wire.Stats()
		g.append(60, "S", "M")
		s.await(patient, "FIELD", "g1_M")
		poll.Until(t, patient, func() bool { return g.leaf.Link().State == leaf.LinkOff }, "closed again")
		after := s.wire.Stats()
		t.Logf("a session with 120 records: %d bytes up, %d down", after.Up-before.Up, after.Down-before.Down)
	}
}
