package storage

import (
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"testing"
)

// TestCensusAgainstSet does random operations on a census and on a plain map.
func TestCensusAgainstSet(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var c census
		set := map[Position]bool{} // position to own
		next := Position(1)
		for range 60 {
			switch rng.IntN(10) {
			case 0: // a leap
				next += Position(rng.IntN(50))
			case 1:
				first := next - min(next-1, Position(rng.IntN(40)))
				c.trim(first)
				for p := range set {
					if p < first {
						delete(set, p)
					}
				}
			case 2:
				first := Position(1 + rng.IntN(int(next)))
				last := first + Position(rng.IntN(10))
				c.cut(first, last)
				for p := first; p <= last; p++ {
					delete(set, p)
				}
			default:
				own := rng.IntN(8) == 0
				for range rng.IntN(12) {
					c.add(next, own)
					set[next] = own
					next++
				}
			}
			first := Position(1 + rng.IntN(int(next)))
			last := first + Position(rng.IntN(60))
			checkCensus(t, seed, &c, set, first, last, uint64(1+rng.IntN(20)))
		}
		raw, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		var back census
		if err := json.Unmarshal(raw, &back); err != nil || (len(c.runs) > 0 && !reflect.DeepEqual(back.runs, c.runs)) {
			t.Fatalf("seed %d: %s came back as %+v, %v", seed, raw, back, err)
		}
	}
}

func checkCensus(t *testing.T, seed uint64, c *census, set map[Position]bool, first, last Position, n uint64) {
	t.Helper()
	var captured, own uint64
	for p := first; p <= last; p++ {
		if o, there := set[p]; there && o {
			own++
		} else if there {
			captured++
		}
	}
	if gc, gown := c.count(first, last); gc != captured || gown != own {
		t.Fatalf("seed %d: count(%d, %d) = %d, %d, want %d, %d; runs %v", seed, first, last, gc, gown, captured, own, c.runs)
	}
	var nth Position
	left := n
	for p := first; p < first+5000 && left > 0; p++ {
		if _, there := set[p]; there {
			nth = p
			left--
		}
	}
	if got := c.nth(first, n); got != nth {
		t.Fatalf("seed %d: nth(%d, %d) = %d, want %d; runs %v", seed, first, n, got, nth, c.runs)
	}
}

func TestCensusRefusesDamage(t *testing.T) {
	for _, raw := range []string{`[[5,4]]`, `[[0,4]]`, `[[1,5],[5,6]]`, `[[7,8],[1,2]]`, `[[1]]`, `[[-1,3]]`, `{}`} {
		var c census
		if err := json.Unmarshal([]byte(raw), &c); err == nil {
			t.Errorf("%s was taken as %v", raw, c.runs)
		}
	}
}
