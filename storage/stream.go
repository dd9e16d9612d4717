package storage

import (
	"sync"
	"sync/atomic"
	"time"
)

// source is one configured input, or a writer of our own records (epoch, gap, clock).
type source struct {
	name    string
	stream  *stream
	subject string // of its records without a tail

	// Under committer.gate.
	stored  stored
	current uint64 // sequence of the newest record put into a group, to notice a caller that does not keep order

	// Of company, under committer.mu.
	away           bool
	until          time.Time
	earlier, later *source

	mu   sync.Mutex // guards the fields below
	last lastRecord // newest of earlier epochs; known when the stream is ready
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
	again      *source                      // writer of records that are put back
	ready      chan struct{}                // closed when next is known

	// Under committer.gate, but for Open and Attach before it is ready.
	next        Position // sequence that the next record gets
	incarnation uint64   // immutable once ready
	unsure      bool     // a Leap failed half-way: nobody knows where the stream stands until the next has succeeded

	// Of Open and Attach.
	first    Position // lowest sequence that the ring has, or next: everything below must be in the stream
	known    bool     // everything below is counted
	began    Position // sequence of the first record of this run
	recalled bool     // the stream was asked, and stands where it was predicted to
	unread   span     // where records may lie of which the ring does not tell any more
	raiseBy  Position // how many sequences above what is found may have been given out

	// The publisher's, under publisher.turn.
	last   Position // newest sequence that the server has acknowledged
	passed Position // newest sequence that unpublished does not count any more
	run    []pending
	sent   sent
	stuck  bool // it takes nothing: passed over until the next catchUp

	unpublished struct{ records, bytes atomic.Int64 } // in the ring and not in the stream

	former atomic.Pointer[Former] // nil: nothing of a former name waits

	verifyMu sync.Mutex       // guards verified
	verified map[int]verified // blocks that were read without a fault, by number

	mu  sync.Mutex // guards the field below
	err error      // why it takes nothing at the moment; nil when it does
}

// reached notes how far the server has acknowledged.
func (st *stream) reached(last Position) { st.last = last }

// wait notes that more records, or fewer, are in the ring and not in the stream.
func (st *stream) wait(records, bytes int64) {
	st.unpublished.records.Add(records)
	st.unpublished.bytes.Add(bytes)
}

// waiting returns what is in the ring and not in the stream.
func (st *stream) waiting() usage {
	return usage{st.unpublished.records.Load(), st.unpublished.bytes.Load()}
}

func newStream(s *Store, c StreamConfig) *stream {
	st := &stream{store: s, verified: map[int]verified{}, ready: make(chan struct{})}
	st.configured.Store(&c)
	st.epoch = newSource(EpochSource, st)
	st.gap = newSource(GapSource, st)
	st.clock = newSource(ClockSource, st)
	st.again = newSource(putBackMark, st)
	return st
}

func newSource(name string, st *stream) *source {
	return &source{name: name, stream: st, subject: DataSubject(st.store.Leaf(), st.name(), name)}
}

func (st *stream) name() string { return st.configured.Load().Name }

// config returns the limits as they are now.
func (st *stream) config() StreamConfig { return *st.configured.Load() }

// setErr notes why a stream takes nothing, or that it does again, and logs the change.
func (st *stream) setErr(err error) {
	st.mu.Lock()
	before := st.err
	st.err = err
	st.mu.Unlock()
	switch {
	case err != nil && before == nil:
		st.store.log.Warn("stream takes nothing: its records wait in the journal", "stream", st.name(), "err", err)
	case err == nil && before != nil:
		st.store.log.Info("stream takes records again", "stream", st.name())
	}
}
