package storage

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// TestKeeperExpires is the table of what age may remove. A record a minute for 400 minutes, 200 of them proven; then a round of the keeper.
func TestKeeperExpires(t *testing.T) {
	const always = 1000 * time.Hour
	cases := []struct {
		name    string
		config  StreamConfig
		ttl     time.Duration
		clock   ClockState
		left    int
		expired uint64
	}{
		{"max_age takes what the hub has", StreamConfig{KeepForwarded: always, MaxAge: 5 * time.Hour}, 0, ClockSynced, 300, 0},
		{"max_age below all leaves what is unsent", StreamConfig{KeepForwarded: always, MaxAge: time.Minute}, 0, ClockSynced, 200, 0},
		{"keep_forwarded below max_age", StreamConfig{KeepForwarded: 5 * time.Hour, MaxAge: always}, 0, ClockSynced, 300, 0},
		{"expire_unsent", StreamConfig{KeepForwarded: always, MaxAge: time.Hour, ExpireUnsent: true}, 0, ClockSynced, 60, 140},
		{"expire_unsent, clock not trusted", StreamConfig{KeepForwarded: always, MaxAge: time.Hour, ExpireUnsent: true}, 0, ClockUnsynced, 400, 0},
		{"ttl", StreamConfig{KeepForwarded: always}, 2 * time.Hour, ClockSynced, 120, 80},
		{"ttl, clock not trusted", StreamConfig{KeepForwarded: always}, 2 * time.Hour, ClockUnknown, 400, 0},
		{"ttl above all", StreamConfig{KeepForwarded: always}, 10 * time.Hour, ClockSynced, 400, 0},
		{"ttl of everything", StreamConfig{KeepForwarded: always}, time.Second, ClockSynced, 0, 200},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			owner := &Store{}
			st := newStream(&Store{options: Options{Leaf: "leaf"}}, c.config)
			st.store = owner
			owner.sources = map[string]*source{"a": {stream: st}}
			r := newKeeperRig(t, map[string]limits{"S": st.limits(map[string]time.Duration{"a": c.ttl})})
			began := r.now
			for range 400 {
				r.mustPut("S", "a", 1, 20)
				r.now = r.now.Add(time.Minute)
			}
			r.clock = c.clock
			r.proven["S"] = 1200
			for range 3 {
				if err := r.k.round(testContext(t), true); err != nil {
					t.Fatal(err)
				}
			}
			held, gaps := r.contents("S")
			var expired uint64
			for _, g := range gaps {
				if g.Reason != GapExpired || g.Count > g.Merged && g.From.Before(began) {
					t.Errorf("gap record %+v, want reason expired and times after %v", g, began)
				}
				expired += g.Count - g.Merged
			}
			if len(held) != c.left || expired != c.expired {
				t.Errorf("%d records left and %d expired, want %d and %d", len(held), expired, c.left, c.expired)
			}
			r.check()
			r.mustPut("S", "a", 5, 20)
			r.check()
		})
	}
}

// TestBudgetByPriority lets three streams share a budget: what matters least pays, and what matters more never pays for what matters less.
func TestBudgetByPriority(t *testing.T) {
	r := newKeeperRig(t, map[string]limits{"LOW": {Priority: 1}, "MID": {Priority: 5}, "TOP": {Priority: 9}})
	r.k.budget = 256 * kib
	dropped := func(stream string) uint64 { return r.dropped[stream] }
	r.mustPut("MID", "m", 100, 1000)
	r.mustPut("LOW", "l", 60, 1000)
	r.mustPut("TOP", "t", 90, 1000)
	if dropped("LOW") == 0 || dropped("MID") != 0 {
		t.Errorf("dropped: low %d, mid %d, want the small stream with the low priority to pay, not the larger one", dropped("LOW"), dropped("MID"))
	}
	before := dropped("LOW")
	r.mustPut("LOW", "l", 30, 1000)
	if dropped("LOW") == before || dropped("MID") != 0 || dropped("TOP") != 0 {
		t.Errorf("dropped: low %d, mid %d, top %d, want low to pay for itself", dropped("LOW")-before, dropped("MID"), dropped("TOP"))
	}
	r.mustPut("TOP", "t", 120, 1000) // more than low and mid have together
	if dropped("MID") == 0 {
		t.Error("mid did not pay for top")
	}
	err := r.put("LOW", "l", 200, 1000)
	if held, _ := r.contents("TOP"); errors.Is(err, ErrFull) && len(held) < 120 {
		t.Errorf("top gave up records for low, %d are left", len(held))
	}
	for _, name := range []string{"LOW", "MID", "TOP"} {
		if _, gaps := r.contents(name); (len(gaps) > 0) != (dropped(name) > 0) {
			t.Errorf("%s: %d gap records, %d dropped", name, len(gaps), dropped(name))
		}
	}
	r.check()
}

// stuckStream does not come back from a purge until it is let go.
type stuckStream struct {
	held
	purging chan struct{}
	let     chan struct{}
}

func (s *stuckStream) purge(ctx context.Context, below Position) error {
	close(s.purging)
	<-s.let
	return s.held.purge(ctx, below)
}

// TestKeeperPassDoesNotBlockCapture holds a round of the keeper in the middle of a purge, and captures: into the stream that is being purged, and
// into another, as long as they have room.
func TestKeeperPassDoesNotBlockCapture(t *testing.T) {
	r := newKeeperRig(t, map[string]limits{"S": {MaxMsgs: 1000}, "B": {MaxMsgs: 1000}})
	r.mustPut("S", "a", 100, 20)
	r.proven["S"] = 1100
	stuck := &stuckStream{held: r.k.byName["S"].held, purging: make(chan struct{}), let: make(chan struct{})}
	r.k.byName["S"].held = stuck
	done := make(chan error, 1)
	go func() {
		release, err := r.k.hold(testContext(t))
		if err == nil {
			err = r.k.round(testContext(t), true)
			release()
		}
		done <- err
	}()
	<-stuck.purging
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	for range 300 {
		for _, n := range []need{{"S", 1, 100}, {"B", 1, 100}} {
			if err := r.k.admit(ctx, n); err != nil {
				t.Fatalf("admit into %s while the keeper purges: %v", n.Stream, err)
			}
			r.k.done(false, n)
		}
	}
	close(stuck.let)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestWrongAccountIsAnAlarm falsifies an account and looks whether anybody notices.
func TestWrongAccountIsAnAlarm(t *testing.T) {
	for _, c := range []struct {
		name  string
		wrong func(s *streamCount)
	}{
		{"more stored than there is", func(s *streamCount) { s.Stored += 3 }},
		{"dropped twice", func(s *streamCount) { s.Dropped[GapDropOldest]++ }},
		{"a record in the census that the stream does not have", func(s *streamCount) { s.Held.runs[0].first--; s.Stored++ }},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newKeeperRig(t, map[string]limits{"S": {MaxMsgs: 100, Keep: time.Hour}})
			var log bytes.Buffer
			r.k.log = slog.New(slog.NewTextHandler(&log, nil))
			r.mustPut("S", "a", 50, 20)
			rounds := func(n int) {
				t.Helper()
				for range n {
					if err := r.k.round(testContext(t), true); err != nil {
						t.Fatal(err)
					}
				}
			}
			rounds(3)
			if r.k.unbalanced("S") || log.Len() > 0 {
				t.Fatalf("an account that is right is called wrong: %s", log.String())
			}
			c.wrong(r.c.state.Streams["S"])
			rounds(1)
			if r.k.unbalanced("S") {
				t.Error("called wrong at first sight")
			}
			rounds(3)
			if !r.k.unbalanced("S") || strings.Count(log.String(), "does not balance") != 1 {
				t.Errorf("unbalanced = %v, log %q, want an alarm that is told once", r.k.unbalanced("S"), log.String())
			}
		})
	}
}
