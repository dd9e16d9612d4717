package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"sync"
	"time"
)

const (
	// counterInterval is how often counters are written while records come in: seldom without need, as each checkpoint writes them, too. What comes after is
	// counted again from the streams and the journal at a start.
	counterInterval = 2 * time.Minute
	// rejectInterval is how often they are written if records were rejected, which no stream remembers: a kill loses as much of that count.
	rejectInterval = time.Second
)

// SourceCounters are a source's totals since the store was made, over all starts. Every record that a source brought is in one of the two.
type SourceCounters struct {
	Name     string
	Stored   uint64 // on flash
	Rejected uint64 // refused for good; a kill may lose up to a second of this count
}

// StreamCounters are a stream's totals since the store was made, over all starts. At every moment Stored = Forwarded + Waiting + sum of Dropped.
// Only captured records count: epoch records, gap records and placeholders are in none of them.
type StreamCounters struct {
	Stored    uint64               // put into the stream, each record once, however often it was moved
	Forwarded uint64               // below the proven position, or removed after having been
	Waiting   uint64               // in the stream and above the proven position
	Dropped   map[GapReason]uint64 // what gap records of the stream tell of
	Off       int64                // Stored minus all of the others: 0, or the account is wrong
}

// counters keeps the totals, and for each stream a census of what it holds.
//
// They are written to their file without a flush, before the syncfs of a group, and only say what earlier groups made durable; everything behind
// the position that they name is counted again from the stream at a start. For that to be exact, nothing is purged that the file does not cover.
type counters struct {
	file  *stateFile
	now   func() time.Time
	extra func() (newest time.Time, wear wearState) // what others keep in the file; nil: nothing. Immutable once in use

	mu      sync.Mutex // guards the fields below
	state   counterState
	dirty   bool // changed since it was written
	rejects bool // rejected counts changed since it was written
	written time.Time
	writes  uint64               // so that a sync only vouches for what was written before it
	latest  map[string]waterline // by stream, what the newest file says
	covered map[string]waterline // by stream, what the file says that is surely on flash
	saveMu  sync.Mutex           // one save at a time; before mu
}

// counterState is the content of the file.
type counterState struct {
	Version int                     `json:"version"` // counterVersion; files of before have none
	Streams map[string]*streamCount `json:"streams"`
	Sources map[string]*sourceCount `json:"sources"`
	Newest  time.Time               `json:"newest,omitzero"` // about the last time that a record was stamped with, see clock.raise
	Wear    wearState               `json:"wear,omitzero"`
}

const counterVersion = 1

type sourceCount struct {
	Stored   uint64 `json:"stored"`
	Rejected uint64 `json:"rejected,omitempty"`
}

type streamCount struct {
	Position Position             `json:"position"` // everything up to it is counted
	Stored   uint64               `json:"stored"`
	Dropped  map[GapReason]uint64 `json:"dropped,omitempty"`
	Gone     uint64               `json:"gone,omitempty"`  // removed, or about to be, after the hub was proven to have them
	Floor    Position             `json:"floor,omitempty"` // everything below was forwarded or given up, and is or will be removed
	Last     map[string]recordNo  `json:"last,omitempty"`  // source to its newest record
	Held     census               `json:"held"`
}

// waterline is how much of a stream counters account for.
type waterline struct{ position, floor Position }

// recordNo is the place of a record within its source.
type recordNo struct {
	Epoch uint64 `json:"epoch"`
	Seq   uint64 `json:"seq"`
}

func (n recordNo) after(o recordNo) bool {
	return n.Epoch > o.Epoch || (n.Epoch == o.Epoch && n.Seq > o.Seq)
}

// entry is a record that a commit made durable.
type entry struct {
	Stream   string
	Position Position
	Source   string
	Epoch    uint64
	Seq      uint64
	Body     []byte // needed for gap records only
	Again    bool   // it was put back: a gap record has counted it as dropped, so it counts as stored once more
}

// openCounters reads the counters. If both copies are damaged err says so, and the counters can be used all the same: they begin with what the
// streams hold. What was read may be in the page cache only, so nothing counts as covered until the first save.
func openCounters(path string, now func() time.Time) (c *counters, damaged []string, err error) {
	c = &counters{file: newStateFile(path), now: now, latest: map[string]waterline{}, covered: map[string]waterline{}}
	damaged, err = c.file.load(&c.state)
	if err != nil {
		c.state = counterState{}
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	if c.state.Streams == nil {
		c.state.Streams = map[string]*streamCount{}
	}
	if c.state.Sources == nil {
		c.state.Sources = map[string]*sourceCount{}
	}
	maps.DeleteFunc(c.state.Streams, func(_ string, s *streamCount) bool { return s == nil })
	maps.DeleteFunc(c.state.Sources, func(_ string, s *sourceCount) bool { return s == nil })
	if c.state.Version == 0 {
		for _, s := range c.state.Streams {
			s.Gone = uint64(max(0, s.off())) // was not written then
		}
	}
	c.state.Version = counterVersion
	return c, damaged, err
}

// stream returns a stream's counts, made if need be. Needs mu.
func (c *counters) stream(name string) *streamCount {
	s := c.state.Streams[name]
	if s == nil {
		s = &streamCount{}
		c.state.Streams[name] = s
	}
	if s.Last == nil {
		s.Last = map[string]recordNo{}
	}
	if s.Dropped == nil {
		s.Dropped = map[GapReason]uint64{}
	}
	return s
}

// source returns a source's counts, made if need be. Needs mu.
func (c *counters) source(name string) *sourceCount {
	s := c.state.Sources[name]
	if s == nil {
		s = &sourceCount{}
		c.state.Sources[name] = s
	}
	return s
}

// committed counts records that are on flash, in the order of their positions within each stream. The error says that a gap record could not be
// read; everything else is counted.
func (c *counters) committed(entries ...entry) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var first error
	for i := range entries {
		if err := c.count(&entries[i]); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// count counts one record. Needs mu.
func (c *counters) count(e *entry) error {
	s := c.stream(e.Stream)
	if e.Position <= s.Position {
		return nil // counted
	}
	c.dirty = true
	s.Position = e.Position
	switch e.Source {
	case "": // a placeholder
		return nil
	case EpochSource, ClockSource:
		s.Held.add(e.Position, true)
		return nil
	case GapSource:
		s.Held.add(e.Position, true)
		no := recordNo{e.Epoch, e.Seq}
		if !no.after(s.Last[GapSource]) {
			return nil // moved by a leap
		}
		s.Last[GapSource] = no
		g, err := ParseGap(e.Body)
		if err != nil {
			return fmt.Errorf("count record %d of stream %s: %w", e.Position, e.Stream, err)
		}
		n := g.Count - g.Merged
		switch {
		case g.Reason.givesUp():
			s.sent(g.First)
			s.Floor = max(s.Floor, g.Last+1)
		case g.Reason == GapNotKept: // they went as forwarded; what never was a record may be among them
			n = min(n, s.Gone)
			s.Gone -= n
		default:
			s.Held.cut(g.First, g.Last) // so that a start does not find them missing once more
		}
		s.Dropped[g.Reason] += n
		return nil
	}
	s.Held.add(e.Position, false)
	if no := (recordNo{e.Epoch, e.Seq}); no.after(s.Last[e.Source]) || e.Again { // otherwise moved by a leap
		if no.after(s.Last[e.Source]) {
			s.Last[e.Source] = no
		}
		s.Stored++
		c.source(e.Source).Stored++
	}
	return nil
}

// sent raises the floor over records that were forwarded.
func (s *streamCount) sent(below Position) {
	if below > s.Floor {
		captured, _ := s.Held.count(s.Floor, below-1)
		s.Gone += captured
		s.Floor = below
	}
}

// off returns by how much the account of a stream is wrong. Each term is counted at an event of its own: Stored at the commit, Gone when the floor is
// raised, Dropped at the commit of a gap record; the rest is the census.
func (s *streamCount) off() int64 {
	held, _ := s.Held.count(s.Floor, s.Position)
	sum := s.Gone + held
	for _, n := range s.Dropped {
		sum += n
	}
	return int64(s.Stored) - int64(sum)
}

// pass tells that a stream has no record of ours that is not counted up to a position.
func (c *counters) pass(stream string, to Position) {
	_ = c.committed(entry{Stream: stream, Position: to}) // only a gap record can be refused
}

// lost counts what was acknowledged at the positions from first to last and is gone with the journal, as far as it is not counted. Whose records they were
// nobody knows. Missing will find that the stream does not hold them.
func (c *counters) lost(stream string, first, last Position) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stream(stream)
	for at := max(first, s.Position+1); at <= last; at++ {
		s.Held.add(at, false)
		s.Stored++
		s.Position = at
		c.dirty = true
	}
}

// reject counts records that were refused for good.
func (c *counters) reject(source string, n uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.source(source).Rejected += n
	c.dirty, c.rejects = true, true
}

// purged tells that a stream holds nothing below its floor any more.
func (c *counters) purged(stream string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stream(stream)
	s.Held.trim(s.Floor)
	c.dirty = true
}

// moved tells that the positions from first to last were given up because their records were stored again above: nothing was lost or forwarded.
// It must be on flash before the mark of the leap is removed (see save), and be told again before recover if the leap is done again.
func (c *counters) moved(stream string, first, last Position) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stream(stream).Held.cut(first, last)
	c.dirty = true
}

// touch makes the next writeIfDue write what others keep in the file.
func (c *counters) touch() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dirty = true
}

// kept returns what others keep in the file, as it was read.
func (c *counters) kept() (newest time.Time, wear wearState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state.Newest, c.state.Wear
}

// position returns the position up to which a stream is counted.
func (c *counters) position(stream string) Position {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stream(stream).Position
}

// last returns a source's newest counted record in a stream, zeros if there was none.
func (c *counters) last(stream, source string) (epoch, seq uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	no := c.stream(stream).Last[source]
	return no.Epoch, no.Seq
}

// held returns how many captured records, and how many of our own, a stream has between two positions.
func (c *counters) held(stream string, first, last Position) (captured, own uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stream(stream).Held.count(first, last)
}

// runs returns the runs of records that a stream has between two positions.
func (c *counters) runs(stream string, first, last Position) []span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stream(stream).Held.within(first, last)
}

// nth returns the position of a stream's nth record from first on; see census.
func (c *counters) nth(stream string, first Position, n uint64) Position {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stream(stream).Held.nth(first, n)
}

// floor returns the position below which everything was forwarded or given up.
func (c *counters) floor(stream string) Position {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stream(stream).Floor
}

// stored returns how many records were stored since the store was made.
func (c *counters) stored() (n uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.state.Sources {
		n += s.Stored
	}
	return n
}

// totals returns a stream's counters as of the commit before, given how far the hub is proven to have it.
func (c *counters) totals(stream string, proven Position) StreamCounters {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stream(stream)
	t := StreamCounters{Stored: s.Stored, Dropped: maps.Clone(s.Dropped), Off: s.off()}
	above := max(proven+1, s.Floor)
	t.Waiting, _ = s.Held.count(above, s.Position)
	t.Forwarded, _ = s.Held.count(s.Floor, min(above-1, s.Position))
	t.Forwarded += s.Gone
	return t
}

// sources returns the counters of all sources that ever brought a record, by name.
func (c *counters) sources() []SourceCounters {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []SourceCounters
	for _, name := range slices.Sorted(maps.Keys(c.state.Sources)) {
		s := c.state.Sources[name]
		all = append(all, SourceCounters{Name: name, Stored: s.Stored, Rejected: s.Rejected})
	}
	return all
}
