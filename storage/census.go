package storage

import (
	"encoding/json"
	"fmt"
	"slices"
	"sort"
)

// census knows which positions of a stream hold records, without asking the stream: runs of positions without holes, in order. Captured records
// and records of our own (epoch, gap) are told apart, because only captured ones count as stored, waiting, forwarded or dropped. Placeholders and
// positions that a leap passed over are in no run. A stream has few runs: one for each epoch, gap record and leap that it still holds.
type census struct{ runs []span }

// span is one run, both ends inclusive.
type span struct {
	first, last Position
	own         bool // records of our own
}

// MarshalJSON writes a run as [first, last], with a third element 1 if its records are our own.
func (s span) MarshalJSON() ([]byte, error) {
	if s.own {
		return fmt.Appendf(nil, "[%d,%d,1]", s.first, s.last), nil
	}
	return fmt.Appendf(nil, "[%d,%d]", s.first, s.last), nil
}

// UnmarshalJSON reads what MarshalJSON writes.
func (s *span) UnmarshalJSON(b []byte) error {
	var v []uint64
	if err := json.Unmarshal(b, &v); err != nil {
		return err
	}
	if len(v) < 2 || len(v) > 3 || v[0] == 0 || v[1] < v[0] {
		return fmt.Errorf("run %s: want [first, last]", b)
	}
	*s = span{first: Position(v[0]), last: Position(v[1]), own: len(v) == 3 && v[2] == 1}
	return nil
}

// MarshalJSON writes the runs as an array.
func (c census) MarshalJSON() ([]byte, error) {
	if c.runs == nil {
		return []byte("[]"), nil
	}
	return json.Marshal(c.runs)
}

// UnmarshalJSON reads what MarshalJSON writes, and refuses runs that are not in order.
func (c *census) UnmarshalJSON(b []byte) error {
	if err := json.Unmarshal(b, &c.runs); err != nil {
		return err
	}
	for i := 1; i < len(c.runs); i++ {
		if c.runs[i].first <= c.runs[i-1].last {
			return fmt.Errorf("runs are not in order at %d", c.runs[i].first)
		}
	}
	return nil
}

// add notes a record at a position above all others.
func (c *census) add(at Position, own bool) {
	if n := len(c.runs); n > 0 && c.runs[n-1].last+1 == at && c.runs[n-1].own == own {
		c.runs[n-1].last = at
		return
	}
	c.runs = append(c.runs, span{at, at, own})
}

// trim forgets what is below first.
func (c *census) trim(first Position) {
	n := 0
	for n < len(c.runs) && c.runs[n].last < first {
		n++
	}
	c.runs = slices.Delete(c.runs, 0, n)
	if len(c.runs) > 0 {
		c.runs[0].first = max(c.runs[0].first, first)
	}
}

// cut forgets the positions from first to last.
func (c *census) cut(first, last Position) {
	var kept []span
	for _, r := range c.runs {
		if r.last < first || r.first > last {
			kept = append(kept, r)
			continue
		}
		if r.first < first {
			kept = append(kept, span{r.first, first - 1, r.own})
		}
		if r.last > last {
			kept = append(kept, span{last + 1, r.last, r.own})
		}
	}
	c.runs = kept
}

// within returns the runs between first and last, cut to that range.
func (c *census) within(first, last Position) []span {
	var in []span
	from := sort.Search(len(c.runs), func(i int) bool { return c.runs[i].last >= first })
	for _, r := range c.runs[from:] {
		if r.first > last {
			break
		}
		in = append(in, span{max(r.first, first), min(r.last, last), r.own})
	}
	return in
}

// count returns how many captured records, and how many of our own, are between first and last.
func (c *census) count(first, last Position) (captured, own uint64) {
	if first > last {
		return 0, 0
	}
	for _, r := range c.within(first, last) {
		if r.own {
			own += uint64(r.last-r.first) + 1
		} else {
			captured += uint64(r.last-r.first) + 1
		}
	}
	return captured, own
}

// nth returns the position of the nth record, counting both kinds from the first one at or above first; the last one's if there are fewer,
// zero if there are none.
func (c *census) nth(first Position, n uint64) Position {
	var at Position
	for _, r := range c.within(first, ^Position(0)) {
		if size := uint64(r.last-r.first) + 1; n > size {
			n -= size
			at = r.last
			continue
		}
		return r.first + Position(n) - 1
	}
	return at
}
