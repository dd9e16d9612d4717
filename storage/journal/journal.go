// Package journal keeps groups of entries on flash for one flush each, in a ring of preallocated segments, until their reader has no more need of them.
//
// The log is endless and addressed by Position; segment number n of it lies in file n modulo the number of files. A group is one contiguous run of
// whole blocks, written by one call and made durable by one fdatasync before the next is begun. That the files never grow and that a group never
// touches a block of an earlier one is what makes both cheap and safe: no metadata changes, and a torn write harms nothing that was acknowledged.
//
// What tells valid bytes from others, in this order:
//   - a group's header carries the ring's ID and its own Position, so that what an earlier lap has left in a segment is never taken for this lap's;
//   - it carries the run, a counter raised on flash by each Open, which never goes down along the log, so that what a torn group of an earlier run
//     has left behind the place where this run went on is not taken either;
//   - it carries the exact end of what its writer had found before it: a reader that found less knows that bytes went bad since, and which;
//   - an entry's checksum covers its position and run, and so proves that it belongs where it lies.
//
// At most one group is not known to be durable at any time, the last. So the end of the log is the first bad entry with no whole group behind it: a torn
// write. A bad entry with a group behind it was durable once: that is damage, which is reported by file and range, and the groups behind it are used.
package journal

import (
	"errors"
	"fmt"
)

// Defaults and bounds of a ring.
const (
	DefaultSegmentBytes = 4 << 20
	DefaultSegments     = 16

	minSegmentBytes = 4 * block
	MaxSegmentBytes = 64 << 20 // a segment is read as a whole at a start
	minSegments     = 2
	maxSegments     = 4096
)

// Errors that a caller branches on.
var (
	// ErrRingFull means that the next segment still holds entries above the checkpoint. Nothing was written: try again after a Checkpoint.
	ErrRingFull = errors.New("journal is full")
	// ErrTooLarge means that a group does not fit into a segment, see GroupLimit: split it.
	ErrTooLarge = errors.New("group does not fit into a journal segment")
	// ErrFailed means that a write or a sync of the ring reported an error. What it was about may be on flash or not, and a later sync proves nothing
	// about it, so the ring takes nothing more until it is opened anew.
	ErrFailed = errors.New("journal has failed")
	// ErrClosed means that the ring is closed.
	ErrClosed = errors.New("journal is closed")
	// ErrFormat means that the ring was made by a newer version of this program.
	ErrFormat = errors.New("journal has a newer format")
)

// Position is a byte offset in the endless log. Entries of one ring have growing positions.
type Position uint64

// Kind says what an entry is. The ring only asks that it is not zero.
type Kind uint8

// Entry is one record on its way into a stream.
type Entry struct {
	Kind        Kind   // not zero
	Incarnation uint64 // of the stream that it goes into
	Sequence    uint64 // that it is going to have there
	Payload     []byte // opaque; may be empty
}

// Options are what Open needs.
type Options struct {
	Dir          string // an existing directory that holds nothing else
	SegmentBytes int64  // a multiple of 4096, 16 KiB to 64 MiB; zero: DefaultSegmentBytes
	Segments     int    // 2 to 4096; zero: DefaultSegments
	Reserve      int    // segments that only AppendReserve may enter; below Segments-1
	Key          []byte // from which the key of the entries' payloads is made; nil: they are not encrypted
}

func (o *Options) complete() error {
	if o.SegmentBytes == 0 {
		o.SegmentBytes = DefaultSegmentBytes
	}
	if o.Segments == 0 {
		o.Segments = DefaultSegments
	}
	switch {
	case o.SegmentBytes < minSegmentBytes || o.SegmentBytes > MaxSegmentBytes || o.SegmentBytes%block != 0:
		return fmt.Errorf("journal segments of %d bytes: want a multiple of %d between %d and %d", o.SegmentBytes, block, minSegmentBytes, MaxSegmentBytes)
	case o.Segments < minSegments || o.Segments > maxSegments:
		return fmt.Errorf("journal of %d segments: want %d to %d", o.Segments, minSegments, maxSegments)
	case o.Reserve < 0 || o.Reserve >= o.Segments-1:
		return fmt.Errorf("journal reserve of %d of %d segments: want less than all but one", o.Reserve, o.Segments)
	}
	return nil
}

// Recovery says what Open found.
type Recovery struct {
	Created  bool     // there was no ring, or an empty one of another size, and a new one was made
	Resized  bool     // Created in place of one of another size
	Entries  int      // to be replayed
	From, To Position // of the log that is to be replayed; equal if nothing is
	Torn     bool     // the log ends in a write that was cut off; no Append of it ever returned nil
	Damage   []Damage // what was durable once and cannot be read any more
	Resize   bool     // Options ask for another size than the ring has, and it still holds entries: it keeps its size until it is opened empty
}

// Damage is a range of the log, within one segment, that was durable once and cannot be read any more.
type Damage struct {
	File     string // name of the segment's file, or of the file that holds the marks
	From, To Position
	Reason   string
}

// String says what is lost, for people.
func (d Damage) String() string {
	if d.From == d.To {
		return fmt.Sprintf("%s: %s", d.File, d.Reason)
	}
	return fmt.Sprintf("%s: bytes %d to %d of the log: %s", d.File, d.From, d.To, d.Reason)
}

// State says how full a ring is.
type State struct {
	Tail       Position // where the next group goes, if it fits into its segment
	Checkpoint Position // everything below is no longer needed
	Used       int      // segments that hold needed entries or are being written
	Segments   int      // of all
	Segment    int64    // bytes of one
}

// Frees returns how many segments a checkpoint would free.
func (s State) Frees(p Position) int {
	return int(uint64(p)/uint64(s.Segment) - uint64(s.Checkpoint)/uint64(s.Segment))
}
