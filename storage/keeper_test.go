package storage

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"
)

const kib = 1 << 10

func TestKeeperDropsOldestAfterAGapRecord(t *testing.T) {
	r := newKeeperRig(t, map[string]limits{"S": {MaxMsgs: 100}})
	first := r.now
	for i := range 150 {
		r.now = first.Add(time.Duration(i) * time.Second)
		r.mustPut("S", "a", 1, 20)
	}
	held, gaps := r.contents("S")
	if len(gaps) == 0 || len(held) > 100 {
		t.Fatalf("the stream holds %d records and %d gap records", len(held), len(gaps))
	}
	if g := gaps[0]; g.First != 1001 || !g.From.Equal(first) || !g.To.Equal(first.Add(time.Duration(g.Last-g.First)*time.Second)) || g.Count != uint64(g.Last-g.First)+1 {
		t.Errorf("first gap record %+v, want it to begin at 1001 (1000 is the epoch record) and %v", g, first)
	}
	r.check()
}

func TestKeeperTakesForwardedFirst(t *testing.T) {
	r := newKeeperRig(t, map[string]limits{"S": {MaxMsgs: 100, Keep: 24 * time.Hour}})
	r.mustPut("S", "a", 80, 20)
	r.proven["S"] = 1060
	r.mustPut("S", "a", 60, 20) // the 60 that are proven make room, young as they are
	held, gaps := r.contents("S")
	if len(gaps) != 0 || held[len(held)-1].ID.Seq != 140 || held[0].Position > 1061 {
		t.Errorf("%d records from %d and %d gap records, want no gap and everything from 1061 on", len(held), held[0].Position, len(gaps))
	}
	r.check()
	r.mustPut("S", "a", 30, 20)
	if _, gaps = r.contents("S"); len(gaps) == 0 {
		t.Error("no gap record although only unsent records were left to give up")
	}
	r.check()
}

func TestKeeperRefuses(t *testing.T) {
	r := newKeeperRig(t, map[string]limits{"S": {MaxMsgs: 50, Refuse: true}})
	err := r.put("S", "a", 60, 20)
	if !errors.Is(err, ErrFull) {
		t.Fatalf("put into a full stream: %v, want ErrFull", err)
	}
	if !errors.Is(r.k.full("S"), ErrFull) {
		t.Errorf("full = %v", r.k.full("S"))
	}
	if held, gaps := r.contents("S"); len(held) != 49 || len(gaps) != 0 {
		t.Errorf("the stream holds %d records and %d gap records, want 49 (and the epoch record) and none", len(held), len(gaps))
	}
	r.proven["S"] = 1020
	r.mustPut("S", "a", 20, 20)
	if r.k.full("S") != nil {
		t.Errorf("full = %v after the hub had confirmed some", r.k.full("S"))
	}
	if err := r.put("S", "a", 10, 20); !errors.Is(err, ErrFull) {
		t.Errorf("put into the stream that is full again: %v, want ErrFull", err)
	}
	r.check()
}

func TestKeeperAge(t *testing.T) {
	cases := []struct {
		name  string
		keep  time.Duration
		clock ClockState
		left  int // of 400 records, 300 of them proven, one a minute
	}{
		{"old ones go", 2 * time.Hour, ClockSynced, 120},
		{"nothing is old", 24 * time.Hour, ClockSynced, 400},
		{"clock not trusted", 2 * time.Hour, ClockUnsynced, 400},
		{"clock unknown", 2 * time.Hour, ClockUnknown, 400},
		{"not above what is proven", time.Minute, ClockSynced, 100},
		{"nothing kept for its own sake, whatever the clock", 0, ClockUnsynced, 100},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := newKeeperRig(t, map[string]limits{"S": {Keep: c.keep}})
			for range 400 {
				r.mustPut("S", "a", 1, 20)
				r.now = r.now.Add(time.Minute)
			}
			r.clock = c.clock
			r.proven["S"] = 1300
			for range 3 {
				if err := r.k.round(testContext(t), true); err != nil {
					t.Fatal(err)
				}
			}
			held, gaps := r.contents("S")
			if len(held) != c.left || len(gaps) != 0 {
				t.Errorf("%d records left, want %d", len(held), c.left)
			}
			r.check()
		})
	}
}

// TestKeeperAgeOfUntrustedRecords lets records captured before the clock was set be as old as the next that was captured after.
func TestKeeperAgeOfUntrustedRecords(t *testing.T) {
	r := newKeeperRig(t, map[string]limits{"S": {Keep: time.Hour}})
	right := r.now
	r.now, r.clock = time.Unix(1000, 0), ClockUnsynced // would be very old if it were believed
	r.mustPut("S", "a", 100, 20)
	r.proven["S"] = 1100
	r.now, r.clock = right, ClockSynced
	for range 3 {
		if err := r.k.round(testContext(t), true); err != nil {
			t.Fatal(err)
		}
	}
	if held, _ := r.contents("S"); len(held) != 100 {
		t.Fatalf("%d of 100 records left: the wrong date was believed", len(held))
	}
	r.mustPut("S", "a", 5, 20)
	r.proven["S"] = 1105
	r.now = right.Add(2 * time.Hour)
	r.mustPut("S", "a", 5, 20)
	for range 3 {
		if err := r.k.round(testContext(t), true); err != nil {
			t.Fatal(err)
		}
	}
	if held, _ := r.contents("S"); len(held) != 5 {
		t.Errorf("%d records left, want the 5 new ones", len(held))
	}
	r.check()
}

// TestKeeperWaitsForACheckpoint removes what is old behind a checkpoint, at no flush of its own, and without one when none comes.
func TestKeeperWaitsForACheckpoint(t *testing.T) {
	r := newKeeperRig(t, map[string]limits{"S": {}})
	asked, coming := 0, true
	r.k.ask = func() bool { asked++; return coming }
	first := func() Position { return r.k.seen(r.k.byName["S"]).First }
	round := func(aged bool) {
		t.Helper()
		if err := r.k.round(testContext(t), aged); err != nil {
			t.Fatal(err)
		}
	}
	checkpoint := func() {
		t.Helper()
		if err := r.c.writeNew(); err != nil {
			t.Fatal(err)
		}
		if err := r.c.synced(r.c.mark()); err != nil {
			t.Fatal(err)
		}
	}
	r.mustPut("S", "a", 10, 20)
	if err := r.k.refresh(testContext(t)); err != nil {
		t.Fatal(err)
	}
	begin := first()
	r.proven["S"] = begin + 4
	writes := r.c.writes
	round(true)
	if asked != 1 || r.c.writes != writes || first() != begin {
		t.Fatalf("asked %d times, wrote %d times, the first record is %d: want 1, 0 and %d", asked, r.c.writes-writes, first(), begin)
	}
	round(false)
	if first() != begin {
		t.Fatal("removed before the checkpoint")
	}
	checkpoint()
	writes = r.c.writes
	round(false)
	if r.c.writes != writes || first() != begin+5 {
		t.Fatalf("behind the checkpoint: wrote %d times, the first record is %d, want 0 and %d", r.c.writes-writes, first(), begin+5)
	}
	r.check()

	r.proven["S"] = begin + 6
	round(true)
	round(true) // no checkpoint in between
	if first() != begin+7 {
		t.Fatalf("a checkpoint did not come, the first record is %d, want %d", first(), begin+7)
	}
	coming = false
	r.proven["S"] = begin + 8
	round(true)
	if first() != begin+9 {
		t.Fatalf("no checkpoint is coming, the first record is %d, want %d", first(), begin+9)
	}
	r.check()
}

// TestHeadroomUnderPressure has callers wait for room more than once a second, and then not any more.
func TestHeadroomUnderPressure(t *testing.T) {
	s := &keptStream{limits: limits{MaxBytes: 64 << 20, MaxMsgs: 20}}
	at := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	for i, step := range []struct {
		after time.Duration
		want  int64 // bytes
	}{{0, 1 << 20}, {pressInterval / 2, 2 << 20}, {pressInterval / 2, 4 << 20}, {pressInterval, 4 << 20}, {pressInterval / 2, 8 << 20}, {pressInterval / 2, 8 << 20},
		{pressLasts + 1, 1 << 20}, {pressInterval / 2, 2 << 20}} {
		at = at.Add(step.after)
		s.press(at)
		if got := s.headroom(at); got != (usage{5, step.want}) {
			t.Errorf("step %d: headroom %+v, want 5 records and %d bytes", i, got, step.want)
		}
	}
	if got := s.headroom(at.Add(pressLasts + 1)); got.bytes != 1<<20 {
		t.Errorf("headroom %+v when nobody has waited for long", got)
	}
}

func TestKeeperKeepsTheNewestRecord(t *testing.T) {
	r := newKeeperRig(t, map[string]limits{"S": {}})
	r.mustPut("S", "a", 10, 20)
	r.proven["S"] = 1010
	if err := r.k.round(testContext(t), true); err != nil {
		t.Fatal(err)
	}
	if held, _ := r.contents("S"); len(held) != 1 || held[0].Position != 1010 {
		t.Errorf("left %+v, want the record at 1010", held)
	}
	if epoch, seq := r.c.last("S", "a"); epoch != 1 || seq != 10 {
		t.Errorf("last = %d, %d", epoch, seq)
	}
	r.check()
}

// TestKeeperMergesGapRecords gives up so much that gap records are given up too.
func TestKeeperMergesGapRecords(t *testing.T) {
	r := newKeeperRig(t, map[string]limits{"S": {MaxMsgs: 64}})
	r.mustPut("S", "a", 100, 20)
	damage := GapRecord{Stream: "S", First: 5, Last: 9, Count: 3, Reason: GapDamage} // tells of something else
	if err := r.k.appendGap(testContext(t), damage); err != nil {
		t.Fatal(err)
	}
	r.dropped["S"] += 3
	r.stored["S"] += 3
	r.c.state.Streams["S"].Stored += 3
	r.mustPut("S", "a", 400, 20)
	held, gaps := r.contents("S")
	var dropped, damaged uint64
	for i, g := range gaps {
		enclosed := false
		for _, o := range gaps[i+1:] {
			enclosed = enclosed || (o.Reason == g.Reason && o.First <= g.First && g.Last <= o.Last)
		}
		switch {
		case enclosed:
		case g.Reason == GapDropOldest:
			dropped += g.Count
		default:
			damaged += g.Count
		}
	}
	if got := uint64(len(held)) + dropped; got != 500 {
		t.Errorf("%d records held and %d told of make %d, want 500; gap records %+v", len(held), dropped, got, gaps)
	}
	if damaged != 3 {
		t.Errorf("the gap records tell of %d damaged records, want 3; gap records %+v", damaged, gaps)
	}
	if len(gaps) > 16 {
		t.Errorf("%d gap records in a stream of 64 records", len(gaps))
	}
	r.check()
}

// TestAdmitDoesNotTouchStreamsWhileThereIsRoom counts the keeper's calls.
func TestAdmitDoesNotTouchStreamsWhileThereIsRoom(t *testing.T) {
	r := newKeeperRig(t, map[string]limits{"S": {MaxMsgs: 1000, MaxBytes: 1024 * kib}})
	r.calls = 0
	r.mustPut("S", "a", 500, 20)
	if r.calls != 0 {
		t.Errorf("500 admissions with room made %d calls to the stream", r.calls)
	}
	release, err := r.k.hold(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	r.mustPut("S", "a", 100, 20) // nor do they wait for whoever changes streams
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := r.k.admit(ctx, need{"S", 5000, 0}); !errors.Is(err, context.Canceled) {
		t.Errorf("admit without room while the keeper is held: %v, want it to wait for its context", err)
	}
	release()
}

func TestAdmitUnknownStream(t *testing.T) {
	r := newKeeperRig(t, map[string]limits{"S": {MaxMsgs: 10}})
	if err := r.k.admit(testContext(t), need{"X", 1, 1}); !errors.Is(err, ErrInvalid) {
		t.Errorf("admit into an unknown stream: %v, want ErrInvalid", err)
	}
	if err := r.k.admit(testContext(t), need{"S", 11, 1}); !errors.Is(err, ErrFull) {
		t.Errorf("admit more than the stream may ever hold: %v, want ErrFull", err)
	}
}

// TestKeeperRunsAhead lets the keeper work on its own: forwarded records go before the stream is full, unsent ones do not.
func TestKeeperRunsAhead(t *testing.T) {
	r := newKeeperRig(t, map[string]limits{"S": {MaxMsgs: 640, Keep: time.Hour}})
	plain := r.k.streams[0].held.(*watchedStream).heldStream
	r.k.streams[0].held = plain // the account is not for two goroutines
	proven := Position(1200)
	r.k.forwarded = func(string) (Position, bool) { return proven, true }
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.k.run(ctx)
	}()
	r.mustPut("S", "a", 635, 20) // one epoch record, and less than the headroom is left
	deadline := testContext(t)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		v, err := plain.view(deadline)
		if err != nil {
			t.Fatal(err)
		}
		if v.Messages < 632 {
			break
		}
		select {
		case <-tick.C:
		case <-deadline.Done():
			t.Fatalf("the stream still holds %d records", v.Messages)
		}
	}
	cancel()
	<-ended
	if held, gaps := r.contents("S"); len(gaps) != 0 || held[0].Position > proven+1 {
		t.Errorf("the stream begins at %d with %d gap records, nothing unsent should have gone", held[0].Position, len(gaps))
	}
}

// TestAdmitTogether lets many capture into a small stream at once.
func TestAdmitTogether(t *testing.T) {
	r := newKeeperRig(t, map[string]limits{"S": {MaxMsgs: 200}})
	for _, s := range r.k.streams {
		s.held = s.held.(*watchedStream).heldStream
	}
	var mu sync.Mutex // the rig's commits come one by one
	gap := r.k.appendGap
	r.k.appendGap = func(ctx context.Context, g GapRecord) error {
		mu.Lock()
		defer mu.Unlock()
		return gap(ctx, g)
	}
	var wg sync.WaitGroup
	const callers, each = 8, 100
	for range callers {
		wg.Go(func() {
			n := need{"S", 1, 200}
			for range each {
				if err := r.k.admit(testContext(t), n); err != nil {
					t.Errorf("admit: %v", err)
					return
				}
				mu.Lock()
				err := r.store("S", "a", []byte("x"))
				mu.Unlock()
				r.k.done(err == nil, n)
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	held, _ := r.contents("S")
	c := r.c.totals("S", 0)
	if c.Stored != callers*each || c.Waiting != uint64(len(held)) || c.Forwarded != 0 || len(held) > 200 || len(held) < 150 {
		t.Errorf("%d records held; counters %+v", len(held), c)
	}
	if in := r.k.streams[0].inFlight; in != (usage{}) {
		t.Errorf("in flight at the end: %+v", in)
	}
}

// TestGapRecordNotStored keeps everything when the gap record cannot be stored.
func TestGapRecordNotStored(t *testing.T) {
	r := newKeeperRig(t, map[string]limits{"S": {MaxMsgs: 20}})
	r.mustPut("S", "a", 19, 20)
	broken := errors.New("broken")
	good := r.k.appendGap
	r.k.appendGap = func(context.Context, GapRecord) error { return broken }
	if err := r.put("S", "a", 1, 20); !errors.Is(err, broken) {
		t.Errorf("put = %v, want the error of the gap record", err)
	}
	if held, _ := r.contents("S"); len(held) != 19 {
		t.Errorf("%d of 19 records are left", len(held))
	}
	r.k.appendGap = good
	r.mustPut("S", "a", 1, 20)
	r.check()
}

// TestConfirmedWhileDropping has the hub confirm records after the keeper has looked for such, and before it gives up the oldest of the others, among which is an
// older gap record: what was confirmed counts as forwarded.
func TestConfirmedWhileDropping(t *testing.T) {
	r := newKeeperRig(t, map[string]limits{"S": {MaxMsgs: 60}})
	for range 100 {
		r.mustPut("S", "a", 1, 20)
	}
	_, gaps := r.contents("S")
	floor := r.c.floor("S")
	if len(gaps) == 0 || floor <= 1001 {
		t.Fatalf("nothing was dropped: %v, floor %d", gaps, floor)
	}
	r.proven["S"] = floor + 5
	release, err := r.k.hold(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	err = r.k.dropOldest(testContext(t), r.k.byName["S"], usage{records: 50})
	release()
	if err != nil {
		t.Fatal(err)
	}
	if got := r.c.totals("S", r.proven["S"]); got.Off != 0 || got.Forwarded != 6 {
		t.Errorf("counted %+v, want 6 forwarded", got)
	}
	r.check()
}
