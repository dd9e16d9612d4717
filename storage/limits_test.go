package storage

import (
	"errors"
	"testing"
	"time"
)

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
		{name: "budget, forwarded of the other goes first", s: limits{Refuse: true}, b: limits{Keep: time.Hour}, budget: 128 * kib, free: unlimited, putB: 90, provenB: 1089, putS: 80},
		{name: "budget, all refuse", s: limits{Refuse: true}, b: limits{Refuse: true}, budget: 128 * kib, free: unlimited, putB: 60, putS: 80, refused: true},
		{name: "budget used up by a refusing stream, own oldest go", b: limits{Refuse: true}, budget: 128 * kib, free: unlimited, putB: 60, putS: 100, dropS: true},
		{name: "max_bytes of S is kept though the budget has room", s: limits{MaxBytes: 64 * kib}, budget: 1 << 30, free: unlimited, putB: 100, putS: 100, dropS: true},
		{name: "disk short, gives up as much as it takes", free: tightDisk, putS: 100, dropS: true},
		{name: "disk short, refuse", s: limits{Refuse: true}, free: tightDisk, putS: 100, refused: true},
		{name: "disk short, forwarded goes but frees nothing", s: limits{Keep: time.Hour}, free: tightDisk, putS: 100, provenS: 1040, dropS: true},
		{name: "disk full, the journal takes what the publisher holds back", free: fullDisk, putS: 100},
		{name: "disk full, refuse", s: limits{Refuse: true}, free: fullDisk, putS: 100, refused: true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
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
