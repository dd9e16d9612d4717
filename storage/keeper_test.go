package storage

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
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
	r := newKeeperRig(t, map[string]limits{"S": {MaxMsgs: 100, KeepForwarded: 24 * time.Hour}})
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
			r := newKeeperRig(t, map[string]limits{"S": {KeepForwarded: c.keep}})
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
	r := newKeeperRig(t, map[string]limits{"S": {KeepForwarded: time.Hour}})
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

// TestLimitsTogether is the table of which limits were tried with which others. Streams S and B get records of 1000 bytes: B first, then S.
func TestLimitsTogether(t *testing.T) {
	const unlimited, tightDisk, fullDisk = 1 << 40, 900 * kib, 100 * kib
	cases := []struct {
		name       string
		s, b       limits
		budget     int64
		free       int64 // of a reserve of 1 MiB
		putB, putS int
		provenB    Position
		provenS    Position // before the second half of S
		refused    bool
		dropS      bool // gap records in S
		dropB      bool
	}{
		{name: "room everywhere", s: limits{MaxBytes: 1024 * kib}, b: limits{MaxBytes: 1024 * kib}, budget: 4096 * kib, free: unlimited, putB: 100, putS: 100},
		{name: "max_bytes, drop", s: limits{MaxBytes: 64 * kib}, free: unlimited, putB: 10, putS: 100, dropS: true},
		{name: "max_bytes, refuse", s: limits{MaxBytes: 64 * kib, Refuse: true}, free: unlimited, putS: 100, refused: true},
		{name: "max_bytes, forwarded goes", s: limits{MaxBytes: 80 * kib, Refuse: true}, free: unlimited, putS: 100, provenS: 1040},
		{name: "max_bytes reached before max_msgs", s: limits{MaxBytes: 64 * kib, MaxMsgs: 10000}, free: unlimited, putS: 100, dropS: true},
		{name: "max_msgs reached before max_bytes", s: limits{MaxBytes: 1024 * kib, MaxMsgs: 40}, free: unlimited, putS: 100, dropS: true},
		{name: "budget before max_bytes, the largest pays", s: limits{MaxBytes: 1024 * kib}, b: limits{MaxBytes: 1024 * kib}, budget: 256 * kib, free: unlimited, putB: 150, putS: 80, dropB: true},
		{name: "budget, refusing stream takes from a dropping one", s: limits{Refuse: true}, budget: 128 * kib, free: unlimited, putB: 90, putS: 40, dropB: true},
		{name: "budget, forwarded of the other goes first", s: limits{Refuse: true}, b: limits{KeepForwarded: time.Hour}, budget: 128 * kib, free: unlimited, putB: 90, provenB: 1089, putS: 80},
		{name: "budget, all refuse", s: limits{Refuse: true}, b: limits{Refuse: true}, budget: 128 * kib, free: unlimited, putB: 60, putS: 80, refused: true},
		{name: "budget used up by a refusing stream, own oldest go", b: limits{Refuse: true}, budget: 128 * kib, free: unlimited, putB: 60, putS: 100, dropS: true},
		{name: "max_bytes of S is kept though the budget has room", s: limits{MaxBytes: 64 * kib}, budget: 1 << 30, free: unlimited, putB: 100, putS: 100, dropS: true},
		{name: "disk short, gives up as much as it takes", free: tightDisk, putS: 100, dropS: true},
		{name: "disk short, refuse", s: limits{Refuse: true}, free: tightDisk, putS: 100, refused: true},
		{name: "disk short, forwarded goes but frees nothing", s: limits{KeepForwarded: time.Hour}, free: tightDisk, putS: 100, provenS: 1040, dropS: true},
		{name: "disk full, drop policy does not help", free: fullDisk, putS: 100, refused: true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := newKeeperRig(t, map[string]limits{"S": c.s, "B": c.b})
			r.k.budget, r.k.reserve = c.budget, 1<<20
			r.mustPut("B", "b", c.putB, 1000)
			r.proven["B"] = c.provenB
			r.mustPut("S", "a", c.putS/2, 1000)
			r.proven["S"] = c.provenS
			r.free = c.free
			err := r.put("S", "a", c.putS-c.putS/2, 1000)
			if c.refused != errors.Is(err, ErrFull) || (!c.refused && err != nil) {
				t.Errorf("put: %v, want refused %v", err, c.refused)
			}
			_, gapsS := r.contents("S")
			_, gapsB := r.contents("B")
			if c.dropS != (len(gapsS) > 0) || c.dropB != (len(gapsB) > 0) {
				t.Errorf("gap records: %d in S, %d in B, want S %v, B %v", len(gapsS), len(gapsB), c.dropS, c.dropB)
			}
			r.check()
			for name, l := range r.limits {
				v, err := r.k.byName[name].held.view(testContext(t))
				if err != nil || (l.MaxBytes > 0 && int64(v.Bytes) > l.MaxBytes) || (l.MaxMsgs > 0 && int64(v.Messages) > l.MaxMsgs) {
					t.Errorf("%s: %+v, %v is above its limits %+v", name, v, err, l)
				}
			}
		})
	}
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

// TestCountersAddUp does random things to two streams, with kills and power cuts in between, and checks all counters against an account of its own.
func TestCountersAddUp(t *testing.T) {
	seeds := uint64(12)
	if testing.Short() {
		seeds = 3
	}
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(seed, 7))
		r := newKeeperRig(t, map[string]limits{
			"S": {MaxMsgs: 60, KeepForwarded: time.Duration(rng.IntN(3)) * time.Hour},
			"R": {MaxBytes: 16 * kib, Refuse: true, KeepForwarded: time.Hour},
		})
		if rng.IntN(2) == 0 {
			r.k.budget = 24 * kib
		}
		for range 120 {
			name := []string{"S", "R"}[rng.IntN(2)]
			switch rng.IntN(12) {
			case 0, 1, 2: // the hub confirms some
				if last := r.c.position(name); last > r.proven[name] {
					r.proven[name] = max(r.proven[name], 999) + Position(rng.IntN(int(last-max(r.proven[name], 999))+1))
				}
			case 3:
				if err := r.k.round(testContext(t), true); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
			case 4: // a leap
				if _, err := r.srv.js.Publish(testContext(t), LeapSubject(name), nil); err != nil {
					t.Fatal(err)
				}
			case 5:
				r.now = r.now.Add(time.Duration(rng.IntN(120)) * time.Minute)
			case 6:
				if rng.IntN(3) == 0 { // killed; the page cache stays
					r.start()
				}
			case 7:
				if rng.IntN(3) == 0 {
					r.cut(rng)
					r.start()
				}
			default:
				err := r.put(name, []string{"a", "b"}[rng.IntN(2)]+name, 1+rng.IntN(20), rng.IntN(300))
				if err != nil && !errors.Is(err, ErrFull) {
					t.Fatalf("seed %d: %v", seed, err)
				}
				r.now = r.now.Add(time.Duration(rng.IntN(8)) * time.Second)
			}
			r.check()
			var stored uint64
			for _, c := range r.c.sources() {
				stored += c.Stored
			}
			if want := r.stored["S"] + r.stored["R"]; stored != want {
				t.Fatalf("seed %d: the sources stored %d, want %d", seed, stored, want)
			}
		}
		if r.dropped["S"] == 0 || r.forwarded["S"] == 0 || r.forwarded["R"] == 0 {
			t.Logf("seed %d: dropped %v, forwarded %v", seed, r.dropped, r.forwarded)
		}
		r.srv.stop()
	}
}

// cut leaves of the counters what a power cut may leave: a copy that no sync covered is there, or empty.
func (r *keeperRig) cut(rng *rand.Rand) {
	f := r.c.file
	if f.pending && rng.IntN(2) == 0 {
		if err := os.Truncate(f.copyPath(1-f.safe), 0); err != nil {
			r.t.Fatal(err)
		}
	}
}
