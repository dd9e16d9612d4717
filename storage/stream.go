package storage

import (
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

// source is one configured input, or a writer of our own records (epoch, gap, clock).
type source struct {
	name    string
	stream  *stream
	subject string // of its records without a tail
	moving  bool   // not a source, but records that are stored again by a move: they are counted by a recount

	// The publisher's, under committer.gate.
	stored  stored
	current uint64 // sequence of the newest record put into a group, to notice a caller that does not keep order

	// Of company, under committer.mu.
	away           bool
	until          time.Time
	earlier, later *source

	mu   sync.Mutex // guards the fields below
	last recordNo   // newest of earlier epochs; written by Attach
}

// stored tells which of a source's records of this epoch are in its stream, so that a retry is not stored twice.
//
// A source's records are stored in the order of their Seq, but a Seq may be left out for good: when its record is invalid. A retry of a Seq
// that was passed over is not known as stored, and it is too late to store it.
type stored struct {
	high  uint64
	holes []hole
}

// hole is a range of sequences, both inclusive, that were passed over.
type hole struct{ first, last uint64 }

// maxHoles bounds what is remembered. A caller retries what it sent last, not what it sent a thousand refusals ago.
const maxHoles = 1024

// add notes that seq was stored. It must be above all before.
func (s *stored) add(seq uint64) {
	if seq <= s.high {
		return
	}
	if seq > s.high+1 {
		if len(s.holes) == maxHoles {
			s.holes = append(s.holes[:0], s.holes[1:]...)
		}
		s.holes = append(s.holes, hole{s.high + 1, seq - 1})
	}
	s.high = seq
}

// has reports whether seq is stored, and whether it was passed over and can not be stored any more.
func (s *stored) has(seq uint64) (yes, passed bool) {
	if seq > s.high {
		return false, false
	}
	for i := len(s.holes) - 1; i >= 0 && s.holes[i].last >= seq; i-- {
		if s.holes[i].first <= seq {
			return false, true
		}
	}
	return true, false
}

// stream is one captured stream. Only the store writes to it.
type stream struct {
	store      *Store
	configured atomic.Pointer[StreamConfig] // its name never changes
	epoch      *source                      // writer of epoch records
	gap        *source                      // writer of gap records
	clock      *source                      // writer of clock records

	// The publisher's, under committer.gate.
	last  Position // newest sequence that the server has acknowledged
	doubt []*item  // published, outcome unknown: must be looked up before anything else is published
	run   []*item  // of the group being published

	published atomic.Uint64 // last, for others to read
	committed atomic.Uint64 // newest sequence on flash
	covered   Position      // of Store.commit
	early     writeback     // of Store.commit

	verifyMu sync.Mutex       // guards verified
	verified map[int]verified // blocks that were read without a fault, by number

	mu    sync.Mutex // guards the fields below
	err   error      // why records are refused at the moment; nil when they are taken
	fresh []entry    // stored and not counted yet, in the order of their positions
}

// reached notes how far the server has acknowledged.
func (st *stream) reached(last Position) {
	st.last = last
	st.published.Store(uint64(last))
}

func newStream(s *Store, c StreamConfig) *stream {
	st := &stream{store: s, verified: map[int]verified{}, early: writeback{dir: filepath.Join(s.streamsDir(), c.Name, "msgs")}}
	st.configured.Store(&c)
	st.epoch = newSource(EpochSource, st)
	st.gap = newSource(GapSource, st)
	st.clock = newSource(ClockSource, st)
	return st
}

func newSource(name string, st *stream) *source {
	return &source{name: name, stream: st, subject: DataSubject(st.store.Leaf(), st.name(), name)}
}

func (st *stream) name() string { return st.configured.Load().Name }

// config returns the limits as they are now.
func (st *stream) config() StreamConfig { return *st.configured.Load() }

// setErr notes why records are refused, or that they are taken again, and logs the change.
func (st *stream) setErr(err error) {
	st.mu.Lock()
	before := st.err
	st.err = err
	st.mu.Unlock()
	switch {
	case err != nil && before == nil:
		st.store.log.Warn("stream refuses records", "stream", st.name(), "err", err)
	case err == nil && before != nil:
		st.store.log.Info("stream takes records again", "stream", st.name())
	}
}
