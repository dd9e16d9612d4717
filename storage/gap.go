package storage

import (
	"encoding/json"
	"fmt"
	"time"
)

// GapReason says why records are missing.
type GapReason string

// The reasons that a gap record gives.
const (
	// GapDropOldest: the stream was full, and its policy is to give up the oldest records that the hub was not known to have.
	GapDropOldest GapReason = "drop-oldest"
	// GapExpired: the records became older than max_age with expire_unsent, or than the ttl of their source, before the hub was known to have them.
	GapExpired GapReason = "expired"
	// GapNotKept: the hub lost what it once had (restored, recreated), and the leaf does not have it any more.
	GapNotKept GapReason = "not-kept"
	// GapDamage: the medium gave the records back damaged, or not at all.
	GapDamage GapReason = "damage"
	// GapRefused: the local server would not take the records although the store had accepted them.
	GapRefused GapReason = "refused"
)

// givesUp reports whether records with this reason were removed by the keeper, oldest first, so that nothing below them is left.
func (r GapReason) givesUp() bool { return r == GapDropOldest || r == GapExpired }

// GapRecord says which records of a stream will not come, and why. It is the body, in JSON, of an ordinary record of the stream with the source
// GapSource, and is on flash before the records are removed. docs/WIRE.md, "Gap records", is its contract:
//
//	{"stream":"SENSORS","first":1801,"last":2400,"count":598,"reason":"drop-oldest","from":"2026-11-30T10:00:00Z","to":"2026-11-30T10:09:59Z"}
//
// first and last are sequence numbers of the leaf's stream. count is the number of captured records lost between them: epoch records, gap records,
// placeholders and sequence numbers that never held a record do not count. Some of the lost may be at the hub all the same, if they got there and
// the confirmation did not come back, so the count is the most that can be missing. When a gap record is itself among what is given up, the new
// record covers it: first reaches back to the old one's, count includes its count, which merged repeats. If the old one arrived all the same, its count is
// taken off again: it did when its own position lies within a newer one's range, while ranges that enclose each other say nothing. from and to are the earliest and latest wall time of the ends, as their headers say it;
// absent if unknown.
type GapRecord struct {
	Stream string    `json:"stream"`
	First  Position  `json:"first"`
	Last   Position  `json:"last"`
	Count  uint64    `json:"count"`
	Merged uint64    `json:"merged,omitempty"`
	Reason GapReason `json:"reason"`
	From   time.Time `json:"from,omitzero"`
	To     time.Time `json:"to,omitzero"`
}

// Encode returns the body of the gap record, or an error that says what cannot be.
func (g GapRecord) Encode() ([]byte, error) {
	if err := g.check(); err != nil {
		return nil, err
	}
	g.From, g.To = g.From.UTC(), g.To.UTC()
	return json.Marshal(g)
}

// ParseGap reads the body of a gap record. Keys it does not know are left out: a newer leaf may say more.
func ParseGap(body []byte) (GapRecord, error) {
	var g GapRecord
	if err := json.Unmarshal(body, &g); err != nil {
		return GapRecord{}, fmt.Errorf("gap record: %w", err)
	}
	if err := g.check(); err != nil {
		return GapRecord{}, err
	}
	return g, nil
}

func (g GapRecord) check() error {
	switch {
	case g.Stream == "":
		return fmt.Errorf("gap record: no stream")
	case g.Reason == "":
		return fmt.Errorf("gap record of %s: no reason", g.Stream)
	case g.First == 0 || g.Last < g.First:
		return fmt.Errorf("gap record of %s: range %d to %d", g.Stream, g.First, g.Last)
	case g.Count > uint64(g.Last-g.First)+1:
		return fmt.Errorf("gap record of %s: %d records in the range %d to %d", g.Stream, g.Count, g.First, g.Last)
	case g.Merged > g.Count:
		return fmt.Errorf("gap record of %s: %d merged of %d", g.Stream, g.Merged, g.Count)
	}
	return nil
}

// merge returns a gap record that stands for both.
func (g GapRecord) merge(o GapRecord) GapRecord {
	g.First, g.Last = min(g.First, o.First), max(g.Last, o.Last)
	g.Count += o.Count
	g.Merged += o.Merged
	if g.From.IsZero() || (!o.From.IsZero() && o.From.Before(g.From)) {
		g.From = o.From
	}
	if o.To.After(g.To) {
		g.To = o.To
	}
	return g
}
