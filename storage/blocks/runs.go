package blocks

import "sort"

// Run is a range of sequences without holes, both ends inclusive.
type Run struct {
	First uint64 `json:"first"`
	Last  uint64 `json:"last"`
}

// Runs is a set of sequences: runs in order that do not touch.
type Runs []Run

// add puts in a sequence, which may be anything; in order costs least.
func (r *Runs) add(seq uint64) {
	n := len(*r)
	switch {
	case n > 0 && (*r)[n-1].Last+1 == seq:
		(*r)[n-1].Last = seq
	case n == 0 || (*r)[n-1].Last < seq:
		*r = append(*r, Run{seq, seq})
	case !r.Has(seq):
		i := sort.Search(n, func(i int) bool { return (*r)[i].First > seq })
		*r = append(*r, Run{})
		copy((*r)[i+1:], (*r)[i:])
		(*r)[i] = Run{seq, seq}
		r.join(i)
		r.join(i - 1)
	}
}

// join makes one of run i and the next if they touch.
func (r *Runs) join(i int) {
	if s := *r; i >= 0 && i+1 < len(s) && s[i].Last+1 == s[i+1].First {
		s[i].Last = s[i+1].Last
		*r = append(s[:i+1], s[i+2:]...)
	}
}

// Has reports whether a sequence is in the set.
func (r Runs) Has(seq uint64) bool {
	i := sort.Search(len(r), func(i int) bool { return r[i].Last >= seq })
	return i < len(r) && r[i].First <= seq
}

// Count returns how many sequences are in the set.
func (r Runs) Count() uint64 {
	var n uint64
	for _, run := range r {
		n += run.Last - run.First + 1
	}
	return n
}

// Without returns what is in r and not in o.
func (r Runs) Without(o Runs) Runs {
	var out Runs
	for _, run := range r {
		i := sort.Search(len(o), func(i int) bool { return o[i].Last >= run.First })
		from := run.First
		for ; i < len(o) && o[i].First <= run.Last; i++ {
			if o[i].First > from {
				out = append(out, Run{from, o[i].First - 1})
			}
			from = o[i].Last + 1
		}
		if from <= run.Last {
			out = append(out, Run{from, run.Last})
		}
	}
	return out
}
