package hub

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/holdfast-edge/holdfast/storage"
)

// maxHoles is how many holes of one source are kept apart. Beyond, the oldest are added up: what is in one of them and comes all the same is
// then taken for double.
const maxHoles = 4096

// Audit accounts for the records of leaves as they stand at the hub, by their IDs and by what epoch and gap records say (docs/WIRE.md, "Audit").
// Its memory depends on how many sources, holes and gaps there are, not on the number of records. For one goroutine.
type Audit struct {
	streams map[streamKey]*auditStream
}

type streamKey struct{ leaf, stream string }

// Seen is one record as it stands at the hub.
type Seen struct {
	Stream string           // of the leaf
	Pos    storage.Position // in the leaf's stream
	ID     storage.ID
	Body   []byte // of epoch and gap records; else not looked at
}

// auditStream is one stream of a leaf.
type auditStream struct {
	truncated bool // the hub keeps a window: what is missing at the beginning is not lost on the way
	sources   map[sourceKey]*auditSource
	epochs    map[storage.StoreID]uint64        // newest epoch whose record has come
	began     map[storage.StoreID]uint64        // epoch of the first record of all
	system    map[sourceKey]map[uint64]struct{} // numbers of epoch and gap records, by epoch<<32|seq
	gaps      []auditGap
	foreign   uint64
}

type sourceKey struct {
	store  storage.StoreID
	source string
}

type auditGap struct {
	at storage.Position // of the gap record itself
	storage.GapRecord
}

// hole are records that have not come, between two positions of the leaf's stream.
type hole struct {
	epoch, first, last uint64 // numbers of the source; of a sum: 0, and first to last as many
	after, before      storage.Position
}

func (h hole) size() uint64 { return h.last - h.first + 1 }

// auditSource is one source of one store.
type auditSource struct {
	records, double, late, expired uint64
	epoch, seq                     uint64 // newest
	at                             storage.Position
	ends                           map[uint64]uint64 // highest number by epoch
	holes                          []hole
	sums                           []hole // at most one: holes beyond maxHoles
	unclear                        []hole // epochs whose end is not known; size is meaningless

	missing   uint64 // by explain
	explained map[storage.GapReason]uint64
}

// NewAudit begins an audit.
func NewAudit() *Audit { return &Audit{streams: map[streamKey]*auditStream{}} }

func (a *Audit) stream(leaf, stream string) *auditStream {
	key := streamKey{leaf, stream}
	s := a.streams[key]
	if s == nil {
		s = &auditStream{sources: map[sourceKey]*auditSource{}, epochs: map[storage.StoreID]uint64{}, began: map[storage.StoreID]uint64{}, system: map[sourceKey]map[uint64]struct{}{}}
		a.streams[key] = s
	}
	return s
}

// Truncated notes that the hub does not keep all of a leaf's stream, before its first record is added.
func (a *Audit) Truncated(leaf, stream string) { a.stream(leaf, stream).truncated = true }

// Foreign notes a message on a leaf's subjects that is no record of ours.
func (a *Audit) Foreign(leaf, stream string) { a.stream(leaf, stream).foreign++ }

// Add takes the next record, in the order of the hub stream. An error means that an epoch or gap record cannot be read.
func (a *Audit) Add(r Seen) error {
	s := a.stream(r.ID.Leaf, r.Stream)
	if _, there := s.began[r.ID.Store]; !there {
		s.began[r.ID.Store] = r.ID.Epoch
	}
	key := sourceKey{r.ID.Store, r.ID.Source}
	if r.ID.Source != storage.EpochSource && r.ID.Source != storage.GapSource {
		s.source(key).add(r, s)
		return nil
	}
	if s.system[key] == nil {
		s.system[key] = map[uint64]struct{}{}
	}
	number := r.ID.Epoch<<32 | r.ID.Seq&0xffffffff
	src := s.source(key)
	if _, again := s.system[key][number]; again {
		src.double++
		return nil
	}
	s.system[key][number] = struct{}{}
	src.records++
	if r.ID.Source == storage.EpochSource {
		return s.addEpoch(r)
	}
	g, err := storage.ParseGap(r.Body)
	if err != nil {
		return fmt.Errorf("record %v: %w", r.ID, err)
	}
	s.addGap(auditGap{at: r.Pos, GapRecord: g})
	return nil
}

func (s *auditStream) source(key sourceKey) *auditSource {
	src := s.sources[key]
	if src == nil {
		src = &auditSource{ends: map[uint64]uint64{}}
		s.sources[key] = src
	}
	return src
}

// add takes an ordinary record.
func (src *auditSource) add(r Seen, s *auditStream) {
	src.records++
	epoch, seq := r.ID.Epoch, r.ID.Seq
	switch {
	case epoch == src.epoch && seq == src.seq+1:
	case epoch > src.epoch || epoch == src.epoch && seq > src.seq:
		if epoch > src.epoch && s.epochs[r.ID.Store] < epoch && (src.epoch > 0 || epoch > 1) {
			src.unknown(s, hole{after: src.at, before: r.Pos}) // the record that says how the epoch before ended has not come
		}
		src.miss(s, r.ID.Store, epoch, seq-1, r.Pos)
	case src.fill(epoch, seq):
		src.late++
		return
	case seq > src.ends[epoch]: // of an epoch whose end was not known
		src.late++
		src.ends[epoch] = seq
		return
	default:
		src.double++
		return
	}
	src.epoch, src.seq, src.at = epoch, seq, r.Pos
	src.ends[epoch] = seq
}

// miss notes that the numbers above the highest of an epoch, up to last, have not come. Where the hub keeps a window they may have fallen out of it, but not
// when the record that the epoch began with is still there, or one of an epoch before: all others of the epoch came behind it.
func (src *auditSource) miss(s *auditStream, store storage.StoreID, epoch, last uint64, before storage.Position) {
	first := src.ends[epoch] + 1
	if last < first {
		return
	}
	h := hole{epoch: epoch, first: first, last: last, after: src.at, before: before}
	if began, there := s.began[store]; s.truncated && src.at == 0 && s.epochs[store] != epoch && (!there || began >= epoch) {
		src.expired += h.size()
	} else {
		src.holes = append(src.holes, h)
	}
	src.ends[epoch] = last
	if len(src.holes) > maxHoles {
		oldest := src.holes[0]
		src.holes = src.holes[1:]
		if len(src.sums) == 0 {
			src.sums = []hole{{first: 1, after: oldest.after}}
		}
		src.sums[0].last += oldest.size()
		src.sums[0].before = oldest.before
	}
}

func (src *auditSource) unknown(s *auditStream, h hole) {
	if s.truncated && h.after == 0 {
		return
	}
	if len(src.unclear) < maxHoles {
		src.unclear = append(src.unclear, h)
	}
}

// fill takes a number out of the hole that it is in, and says whether there is one.
func (src *auditSource) fill(epoch, seq uint64) bool {
	for i, h := range src.holes {
		if h.epoch != epoch || seq < h.first || seq > h.last {
			continue
		}
		left, right := h, h
		left.last, right.first = seq-1, seq+1
		with := src.holes[:i:i]
		if left.last >= left.first {
			with = append(with, left)
		}
		if right.last >= right.first {
			with = append(with, right)
		}
		src.holes = append(with, src.holes[i+1:]...)
		return true
	}
	return false
}

// addEpoch takes what an epoch record says of the epochs before.
func (s *auditStream) addEpoch(r Seen) error {
	var e struct {
		Epoch    uint64 `json:"epoch"`
		Previous uint64 `json:"previous"`
		Last     map[string]struct {
			Epoch uint64          `json:"epoch"`
			Seq   uint64          `json:"seq"`
			Store storage.StoreID `json:"store"` // whose that record was, if another store took it over
		} `json:"last"`
	}
	if err := json.Unmarshal(r.Body, &e); err != nil {
		return fmt.Errorf("record %v: epoch record: %w", r.ID, err)
	}
	for name, last := range e.Last {
		store := cmp.Or(last.Store, r.ID.Store)
		src := s.source(sourceKey{store, name})
		// Epochs between the newest that has come and the one that is named now may have had records of which nothing is known.
		if last.Epoch > src.epoch && s.epochs[store] < last.Epoch && (src.epoch > 0 || last.Epoch > 1) {
			src.unknown(s, hole{after: src.at, before: r.Pos})
		}
		src.miss(s, store, last.Epoch, last.Seq, r.Pos)
		if last.Epoch > src.epoch || last.Epoch == src.epoch && last.Seq > src.seq {
			src.epoch, src.seq, src.at = last.Epoch, last.Seq, r.Pos
		}
	}
	s.epochs[r.ID.Store] = max(s.epochs[r.ID.Store], e.Epoch)
	return nil
}

// addGap takes a gap record. One that has come and lies itself, by its position, in the range of a later one was among what was lost then: the
// later one's count has told of it again. Ranges alone say nothing, they may enclose each other.
func (s *auditStream) addGap(g auditGap) {
	s.gaps = slices.DeleteFunc(s.gaps, func(old auditGap) bool {
		return g.Merged >= old.Count && old.at >= g.First && old.at <= g.Last
	})
	s.gaps = append(s.gaps, g)
}

// Lost returns how many records the gap records of a leaf's stream tell of.
func (a *Audit) Lost(leaf, stream string) uint64 {
	var n uint64
	if s := a.streams[streamKey{leaf, stream}]; s != nil {
		for _, g := range s.gaps {
			n += g.Count
		}
	}
	return n
}

// Audited is the account of one source of one store.
type Audited struct {
	Leaf    string          `json:"leaf"`
	Stream  string          `json:"stream"`
	Store   storage.StoreID `json:"store,omitempty"`
	Source  string          `json:"source,omitempty"`
	Verdict Verdict         `json:"verdict"`
	Records uint64          `json:"records"` // that came, double ones included
	Missing uint64          `json:"missing"` // not explained by a gap record
	// Explained are missing records by the reason of the gap record that tells of them.
	Explained map[storage.GapReason]uint64 `json:"explained,omitempty"`
	Double    uint64                       `json:"double"`
	Late      uint64                       `json:"late"`    // came behind later ones
	Expired   uint64                       `json:"expired"` // at the beginning, where the hub keeps no more
	Unclear   uint64                       `json:"unclear"` // epochs of which nobody says how they ended
	Foreign   uint64                       `json:"foreign"` // messages on the leaf's subjects that are no records
}

// Verdict is the account in a word: the first of these that applies, from the worst.
type Verdict string

// The verdicts. The first two mean that promises are kept.
const (
	Contiguous   Verdict = "contiguous"   // every record is there
	AllExplained Verdict = "explained"    // what is missing was told of
	NotClear     Verdict = "unclear"      // the end of an epoch is not known, and no gap record lies there
	OutOfOrder   Verdict = "out of order" // records came behind later ones
	HasDouble    Verdict = "double"       // records came twice
	HasMissing   Verdict = "missing"      // records did not come, and nobody says why
	IsForeign    Verdict = "foreign"      // somebody else publishes on the leaf's subjects
)

// Good says that promises are kept.
func (v Verdict) Good() bool { return v == Contiguous || v == AllExplained }

// Result returns the account of each source, sorted by leaf, stream, source and store. More may be added afterwards.
func (a *Audit) Result() []Audited {
	var all []Audited
	for key, s := range a.streams {
		s.explain()
		for sk, src := range s.sources {
			all = append(all, s.result(key, sk, src))
		}
		if s.foreign > 0 {
			all = append(all, Audited{Leaf: key.leaf, Stream: key.stream, Verdict: IsForeign, Foreign: s.foreign})
		}
	}
	slices.SortFunc(all, func(x, y Audited) int {
		return cmp.Or(cmp.Compare(x.Leaf, y.Leaf), cmp.Compare(x.Stream, y.Stream), cmp.Compare(x.Source, y.Source), cmp.Compare(x.Store, y.Store))
	})
	return all
}

func (s *auditStream) result(key streamKey, sk sourceKey, src *auditSource) Audited {
	r := Audited{
		Leaf: key.leaf, Stream: key.stream, Store: sk.store, Source: sk.source, Records: src.records, Double: src.double, Late: src.late, Expired: src.expired,
		Missing: src.missing, Explained: src.explained,
	}
	for _, h := range src.unclear {
		if !s.gapIn(h) {
			r.Unclear++
		}
	}
	switch {
	case r.Missing > 0:
		r.Verdict = HasMissing
	case r.Double > 0:
		r.Verdict = HasDouble
	case r.Late > 0:
		r.Verdict = OutOfOrder
	case r.Unclear > 0:
		r.Verdict = NotClear
	case len(r.Explained) > 0:
		r.Verdict = AllExplained
	default:
		r.Verdict = Contiguous
	}
	return r
}

// explain charges all holes to the gap records that lie where they are, those that end first to the gaps that end first.
func (s *auditStream) explain() {
	type owned struct {
		hole
		by *auditSource
	}
	var holes []owned
	for _, src := range s.sources {
		src.missing, src.explained = 0, map[storage.GapReason]uint64{}
		for _, h := range slices.Concat(src.sums, src.holes) {
			holes = append(holes, owned{h, src})
		}
	}
	slices.SortFunc(holes, func(x, y owned) int { return cmp.Or(cmp.Compare(x.before, y.before), cmp.Compare(x.after, y.after)) })
	slices.SortFunc(s.gaps, func(x, y auditGap) int { return cmp.Compare(x.Last, y.Last) })
	left := make([]uint64, len(s.gaps))
	for i, g := range s.gaps {
		left[i] = g.Count
	}
	for _, h := range holes {
		n := h.size()
		// Gaps that end before the hole begins cannot explain it.
		from, _ := slices.BinarySearchFunc(s.gaps, h.after+1, func(g auditGap, p storage.Position) int { return cmp.Compare(g.Last, p) })
		for i := from; i < len(s.gaps) && n > 0; i++ {
			take := min(n, left[i])
			if take == 0 || s.gaps[i].First >= h.before {
				continue
			}
			n, left[i] = n-take, left[i]-take
			h.by.explained[s.gaps[i].Reason] += take
		}
		h.by.missing += n
	}
}

func (s *auditStream) gapIn(h hole) bool {
	return slices.ContainsFunc(s.gaps, func(g auditGap) bool { return overlap(h, g) })
}

// overlap says whether some of the positions in which a hole's records were are in a gap's range.
func overlap(h hole, g auditGap) bool { return g.First < h.before && g.Last > h.after }
