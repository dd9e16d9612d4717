package hub

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/holdfast-edge/holdfast/storage"
)

// told is what arrives at the hub, in a short form: "s1.5" is number 5 of source s in epoch 1; "E2:s1.7" the epoch record of epoch 2, which says
// that the newest of s was s1.7, or with s1.7/old that it was another store's; "G10-20:4" a gap record of 4 between the positions 10 and 20, "G10-20:4m3" one that merges 3; "@100" sets
// the position of what follows, each of which is one further; "/new" begins another store; "!" is no record of ours.
func told(t *testing.T, a *Audit, text string) {
	t.Helper()
	pos, store, system := storage.Position(0), storage.StoreID("old"), uint64(0)
	for word := range strings.FieldsSeq(text) {
		var epoch, seq uint64
		var rest string
		var g storage.GapRecord
		pos++
		add := func(source string, epoch, seq uint64, body string) {
			id := storage.ID{Leaf: "g1", Store: store, Source: source, Epoch: epoch, Seq: seq}
			if err := a.Add(Seen{Stream: "S", Pos: pos, ID: id, Body: []byte(body)}); err != nil {
				t.Fatal(err)
			}
		}
		switch {
		case word == "!":
			a.Foreign("g1", "S")
		case word[0] == '/':
			store = storage.StoreID(word[1:])
		case word[0] == '@':
			if _, err := fmt.Sscanf(word, "@%d", &pos); err != nil {
				t.Fatal(err)
			}
			pos--
		case word[0] == 'E':
			n, _ := fmt.Sscanf(word, "E%d:%s", &epoch, &rest)
			var last []string
			for _, w := range strings.Split(rest, ",") {
				if n < 2 {
					break
				}
				var e, s uint64
				number, whose, _ := strings.Cut(w[1:], "/")
				if _, err := fmt.Sscanf(number, "%d.%d", &e, &s); err != nil {
					t.Fatal(err)
				}
				last = append(last, fmt.Sprintf(`"%s":{"epoch":%d,"seq":%d,"store":%q}`, w[:1], e, s, whose))
			}
			add(storage.EpochSource, epoch, 1, fmt.Sprintf(`{"epoch":%d,"previous":%d,"last":{%s}}`, epoch, epoch-1, strings.Join(last, ",")))
		case word[0] == 'G':
			if n, _ := fmt.Sscanf(word, "G%d-%d:%dm%d", &g.First, &g.Last, &g.Count, &g.Merged); n < 3 {
				t.Fatal(word)
			}
			g.Stream, g.Reason = "S", storage.GapDropOldest
			body, err := g.Encode()
			if err != nil {
				t.Fatal(err)
			}
			system++
			add(storage.GapSource, 1, system, string(body))
		default:
			if _, err := fmt.Sscanf(word[1:], "%d.%d", &epoch, &seq); err != nil {
				t.Fatal(word)
			}
			add(word[:1], epoch, seq, "")
		}
	}
}

func TestAudit(t *testing.T) {
	for _, c := range []struct {
		name, text string
		truncated  bool
		want       string // of source s, and of r if it is there
	}{
		{"whole", "E1: s1.1 s1.2 s1.3 E2:s1.3 s2.1", false, "s contiguous"},
		{"two sources", "E1: s1.1 r1.1 r1.2 s1.2", false, "r contiguous, s contiguous"},
		{"one lost", "E1: s1.1 s1.2 s1.4", false, "s missing 1"},
		{"the first lost", "E1: s1.3", false, "s missing 2"},
		{"the end of an epoch lost", "E1: s1.1 E2:s1.4 s2.1", false, "s missing 3"},
		{"a whole epoch lost", "E1: s1.1 E2:s1.1 E3:s2.5 s3.1", false, "s missing 5"},
		{"a source of which nothing came", "E1: s1.1 E2:s1.1,r1.2", false, "r missing 2, s contiguous"},
		{"the end of an epoch unknown", "E1: s1.1 @20 s2.1", false, "s unclear 1"},
		{"the end of an epoch unknown, an epoch later", "E1: s1.1 @20 E3:s2.2 s3.1", false, "s missing 2 unclear 1"},
		{"an epoch without records", "E1: s1.1 E2:s1.1 E3:s1.1 s3.1", false, "s contiguous"},
		{"twice", "E1: s1.1 s1.2 s1.2 s1.1", false, "s double 2"},
		{"twice, of an epoch before", "E1: s1.1 s1.2 E2:s1.2 s2.1 s1.2", false, "s double 1"},
		{"late", "E1: s1.1 s1.5 s1.3 s1.2 s1.4", false, "s out of order late 3"},
		{"late, but not all", "E1: s1.1 s1.5 s1.3", false, "s missing 2 late 1"},
		{"late, twice", "E1: s1.1 s1.3 s1.2 s1.2", false, "s double 1 late 1"},
		{"explained", "E1: s1.1 @10 G3-8:6 s1.8", false, "s explained 6"},
		{"explained by more than was lost", "E1: s1.1 @10 G2-8:7 s1.4", false, "s explained 2"},
		{"explained by less than was lost", "E1: s1.1 @10 G3-8:4 s1.8", false, "s missing 2 explained 4"},
		{"a gap elsewhere explains nothing", "E1: s1.1 @10 s1.8 @20 G15-21:6", false, "s missing 6"},
		{"one gap, two sources", "E1: s1.1 r1.1 @20 G4-9:5 s1.5 r1.4", false, "r explained 2, s explained 3"},
		{"two gaps, two sources", "E1: s1.1 @30 G3-9:4 G20-25:4 @31 s1.6 @40 r1.5", false, "r explained 4, s explained 4"},
		{"a gap record that was lost after it had come", "E1: s1.1 @10 G3-8:6 @30 G3-28:20m6 s1.22", false, "s explained 20"},
		{"and counts once", "E1: s1.1 @10 G3-8:6 @30 G3-28:20m6 s1.23", false, "s missing 1 explained 20"},
		{"an unknown end in a gap", "E1: s1.1 @10 G3-8:5 s2.1", false, "s contiguous"},
		{"the beginning expired at the hub", "@50 s1.30 s1.31 E2:s1.31,r1.9 s2.1", true, "r contiguous expired 9, s contiguous expired 29"},
		{"the first of a new leaf lost, at a hub that keeps a window", "E1: s1.5 E2:s1.5,r1.3 s2.1", true, "r missing 3, s missing 4"},
		{"the first of a new source lost, at a hub that keeps a window", "@50 s1.30 E2:s1.30 s2.1 r2.4", true, "r missing 3, s contiguous expired 29"},
		{"the first of an epoch lost behind one that is there, at a hub that keeps a window", "@50 r1.9 s2.3 r2.4", true, "r missing 3 unclear 1 expired 8, s missing 2"},
		{"lost behind what expired", "@50 s1.30 s1.32", true, "s missing 1 expired 29"},
		{"another store begins anew", "E1: s1.1 s1.2 /new @1000 E1: s1.1 s1.2", false, "s contiguous, s contiguous"},
		{"taken over from another store", "E1: s1.1 s1.2 /new @1000 E2:s1.2/old s2.1 E3:s2.1 s3.1", false, "s contiguous, s contiguous"},
		{"the end of what was taken over is lost", "E1: s1.1 /new @1000 E2:s1.3/old s2.1", false, "s contiguous, s missing 2"},
		{"all that was taken over is lost", "/new @1000 E2:s1.3/old s2.1", false, "s contiguous, s missing 3"},
		{"the store before went on behind the backup", "E1: s1.1 s1.2 s1.3 /new @1000 E2:s1.2/old s2.1", false, "s contiguous, s contiguous"},
		{"what was taken over has left the hub's window", "/new @1000 E2:s1.3/old s2.1", true, "s contiguous, s contiguous expired 3"},
		{"a gap tells of the end of what was taken over", "E1: s1.1 /new @1000 E2:s1.3/old @1020 G3-8:2", false, "s explained 2"},
		{"somebody else's message", "E1: s1.1 !", false, " foreign, s contiguous"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := NewAudit()
			if c.truncated {
				a.Truncated("g1", "S")
			}
			told(t, a, c.text)
			for range 2 { // a second look shows the same
				if got := shown(a); got != c.want {
					t.Errorf("audit of %q = %q, want %q", c.text, got, c.want)
				}
			}
		})
	}
}

// shown is a result in short.
func shown(a *Audit) string {
	var all []string
	for _, r := range a.Result() {
		if strings.HasPrefix(r.Source, "_") {
			continue
		}
		s := r.Source + " " + string(r.Verdict)
		for _, n := range []struct {
			word  string
			count uint64
		}{{"missing", r.Missing}, {"double", r.Double}, {"unclear", r.Unclear}, {"explained", r.Explained[storage.GapDropOldest]}, {"late", r.Late}, {"expired", r.Expired}} {
			if n.count > 0 && n.word != string(r.Verdict) {
				s += fmt.Sprintf(" %s %d", n.word, n.count)
			} else if n.count > 0 {
				s += fmt.Sprintf(" %d", n.count)
			}
		}
		all = append(all, s)
	}
	return strings.Join(all, ", ")
}

// TestAuditWithManyHoles: beyond a limit holes are added up, and nothing is forgotten.
func TestAuditWithManyHoles(t *testing.T) {
	a := NewAudit()
	const n = 3 * maxHoles
	for i := range n {
		id := storage.ID{Leaf: "g1", Store: "x", Source: "s", Epoch: 1, Seq: uint64(2 * (i + 1))}
		if err := a.Add(Seen{Stream: "S", Pos: storage.Position(10 * (i + 1)), ID: id}); err != nil {
			t.Fatal(err)
		}
	}
	src := a.streams[streamKey{"g1", "S"}].sources[sourceKey{"x", "s"}]
	if len(src.holes) != maxHoles || a.Result()[0].Missing != n {
		t.Errorf("%d holes are kept, %d missing; want %d, %d", len(src.holes), a.Result()[0].Missing, maxHoles, n)
	}
}

// TestAuditInBoundedMemory: the memory of an audit does not grow with the records.
func TestAuditInBoundedMemory(t *testing.T) {
	const perRound, leaves = 100_000, 200
	a := NewAudit()
	seqs := map[int]uint64{}
	round := func() uint64 {
		for i := range perRound {
			l := i % leaves
			seqs[l]++
			if seqs[l]%997 == 0 {
				continue // a hole now and then would add up in memory; one that fills does not
			}
			id, err := storage.ParseID(fmt.Sprintf("g%d.0123456789.s.1.%d", l, seqs[l]))
			if err != nil {
				t.Fatal(err)
			}
			if err := a.Add(Seen{Stream: "S", Pos: storage.Position(seqs[l]), ID: id}); err != nil {
				t.Fatal(err)
			}
		}
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	first := round()
	var last uint64
	for range 5 {
		last = round()
	}
	if last > first+2<<20 {
		t.Errorf("the heap grew from %d to %d bytes over %d records", first, last, 5*perRound)
	}
	if got := len(a.Result()); got != leaves {
		t.Errorf("%d accounts, want %d", got, leaves)
	}
	t.Logf("heap %d KiB after %d records, %d KiB after %d", first>>10, perRound, last>>10, 6*perRound)
}
