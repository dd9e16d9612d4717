package storage

import (
	"errors"
	"math/rand/v2"
	"os"
	"testing"
	"time"
)

// TestCountersAddUp does random things to two streams, with kills and power cuts in between, and checks all counters against an account of its own.
func TestCountersAddUp(t *testing.T) {
	seeds := uint64(6)
	if testing.Short() {
		seeds = 3
	}
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(seed, 7))
		r := newKeeperRig(t, map[string]limits{
			"S": {MaxMsgs: 60, Keep: time.Duration(rng.IntN(3)) * time.Hour, KeepAll: time.Duration(rng.IntN(3)) * 2 * time.Hour, Priority: rng.IntN(2)},
			"R": {MaxBytes: 16 * kib, Refuse: true, Keep: time.Hour, KeepAll: time.Duration(rng.IntN(2)) * 3 * time.Hour, Priority: rng.IntN(2)},
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
			for _, s := range r.k.streams {
				if off := r.c.totals(s.name, 0).Off; off != 0 || r.k.unbalanced(s.name) {
					t.Fatalf("seed %d: the account of %s is called wrong, by %d", seed, s.name, off)
				}
			}
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
