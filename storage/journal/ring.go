package journal

import (
	"errors"
	"fmt"
	"math"
	"sync"
)

// Ring is an open journal. Its methods are safe for concurrent use.
//
// In which order things reach the medium, so that a cut at any instant leaves every needed entry:
//
//  1. A checkpoint is only given when what lies below is durable elsewhere. It goes into the mark file and into the header of every group from then on,
//     neither with a flush of its own: a cut may take it back, and then entries are replayed that nobody needs.
//  2. A segment is written over only when a checkpoint above all of its entries is on flash: with a group that was synced since, as a rule, or else by a
//     sync of the mark file, the one flush that a checkpoint ever costs.
//  3. A group is acknowledged when its fdatasync has returned, and only then is the next one written.
type Ring struct {
	geometry
	volume  volume
	reserve int
	files   []file
	key     []byte  // of Options
	sealer  *sealer // nil: entries are not encrypted

	writing sync.Mutex // held while a group is written; taken before mu
	buf     []byte     // of the group being written
	scratch []byte     // of Open

	mu         sync.Mutex // guards the fields below
	run        uint64
	current    uint64     // number of the segment that is being written
	tail       Position   // where the next group goes: in current, or right behind it
	end        Position   // exact end of the newest group
	checkpoint Position   // everything below is not needed
	durable    Position   // a checkpoint that is on flash
	ends       []Position // by slot: where the groups of a segment that was left end
	marks      marks
	failure    error // what the ring ended with; never cleared
	closed     bool
}

// GroupLimit returns how large the entries of a group may be together: the sum of their EntrySize.
func (r *Ring) GroupLimit() int { return int(r.size) - block - groupHeader }

// Append writes a group and returns when it is on flash. The position is behind the group: Checkpoint takes it when the group is not needed any more.
//
//   - ErrRingFull, ErrTooLarge: nothing was written, and the ring is as it was.
//   - ErrFailed: the group and nothing before it may be lost; every later call gets this error, too.
//   - ErrClosed: Close was called.
//
// It blocks for one flush, and for those of others that call it at the same time. The payloads belong to the caller again when it returns.
func (r *Ring) Append(group []Entry) (Position, error) { return r.append(group, r.reserve) }

// AppendReserve is Append for what has to be noted before anything else can be freed: it may use the segments of Options.Reserve.
func (r *Ring) AppendReserve(group []Entry) (Position, error) { return r.append(group, 0) }

func (r *Ring) append(group []Entry, spare int) (Position, error) {
	if len(group) == 0 {
		return 0, errors.New("append to journal: no entries")
	}
	length, most := groupHeader, 0
	for i := range group {
		if group[i].Kind == 0 {
			return 0, fmt.Errorf("append to journal: entry %d has no kind", i)
		}
		length += entryHeader + len(group[i].Payload) + r.sealer.overhead()
		if most += EntrySize(len(group[i].Payload)); most > math.MaxInt32 {
			break
		}
	}
	if most > r.GroupLimit() {
		return 0, fmt.Errorf("append to journal: %w: %d bytes, want at most %d", ErrTooLarge, most, r.GroupLimit())
	}
	r.writing.Lock()
	defer r.writing.Unlock()
	h, number, err := r.place(length, spare)
	if err != nil {
		return 0, fmt.Errorf("append to journal: %w", err)
	}
	h.entries = len(group)
	f := r.files[r.slot(number)]
	err = write(f, r.encode(h, group), int64(h.position-r.at(number, 0)))
	if err == nil {
		err = f.datasync()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		return 0, fmt.Errorf("append to journal: %w", r.failLocked(fmt.Errorf("%s: %w", r.file(number), err)))
	}
	r.end, r.tail = h.position+Position(h.length), roundUp(h.position+Position(h.length))
	r.durable = max(r.durable, h.checkpoint)
	return r.tail, nil
}

// place decides where a group of a length goes, and makes that place free. The caller holds writing.
func (r *Ring) place(length, spare int) (header, uint64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.usableLocked(); err != nil {
		return header{}, 0, err
	}
	if r.tail+Position(roundUp(length)) > r.at(r.current+1, 0) {
		if err := r.nextLocked(spare); err != nil {
			return header{}, 0, err
		}
	}
	h := header{position: r.tail, previous: r.end, checkpoint: r.checkpoint, length: length, run: r.run}
	return h, r.current, nil
}

// nextLocked goes on to the next segment. Needs mu.
func (r *Ring) nextLocked(spare int) error {
	next := r.current + 1
	needed := r.number(r.checkpoint) // the oldest segment
	if r.checkpoint >= r.tail {
		needed = next
	}
	if used := int(next - needed + 1); used > r.count-spare {
		return fmt.Errorf("%w: %d of %d segments hold entries that are not in their streams yet", ErrRingFull, used-1, r.count)
	}
	if needed == next {
		r.checkpoint = r.start(next)
	}
	if next >= uint64(r.count) && r.number(r.durable) <= next-uint64(r.count) {
		if err := r.saveLocked(true); err != nil {
			return r.failLocked(err)
		}
	}
	r.ends[r.slot(r.current)] = r.tail
	r.current, r.tail = next, r.start(next)
	return nil
}

// encode puts a group into r.buf, whole blocks.
func (r *Ring) encode(h header, group []Entry) []byte {
	size := roundUp(h.length)
	if cap(r.buf) < size {
		r.buf = make([]byte, size)
	}
	b := r.buf[:size]
	r.encodeHeader(b, h)
	at := groupHeader
	for i := range group {
		at += r.encodeEntry(b[at:], h.position+Position(at), h.run, &group[i], r.sealer)
	}
	clear(b[at:])
	return b
}

// write is WriteAt that takes a short write for an error.
func write(f file, b []byte, off int64) error {
	n, err := f.WriteAt(b, off)
	if err == nil && n < len(b) {
		err = fmt.Errorf("%d of %d bytes written", n, len(b))
	}
	return err
}

// Checkpoint says that the groups below a position, one that Append or Replay has returned, are not needed any more: whatever became of them is on
// flash. It frees the segments that hold nothing else and asks for no flush. A position below the checkpoint changes nothing.
func (r *Ring) Checkpoint(p Position) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.usableLocked(); err != nil {
		return fmt.Errorf("checkpoint of journal: %w", err)
	}
	if p > r.tail {
		return fmt.Errorf("checkpoint of journal: position %d is above its end, %d", p, r.tail)
	}
	if p <= r.checkpoint {
		return nil
	}
	r.checkpoint = r.normalLocked(p)
	if err := r.saveLocked(false); err != nil {
		return fmt.Errorf("checkpoint of journal: %w", r.failLocked(err))
	}
	return nil
}

// normalLocked moves a position at the end of a segment that was left to the beginning of the next. Needs mu.
func (r *Ring) normalLocked(p Position) Position {
	if n := r.number(p); n < r.current && p >= r.ends[r.slot(n)] {
		return r.start(n + 1)
	}
	return p
}

// Replay reads the log from a position on, zero for the checkpoint, up to its end at the time of the call, and gives visit its groups, in order, each
// with the position behind it. Groups come as they were appended, but for one that was torn or damaged, of which the valid entries come. An error of
// visit ends it. Payloads are visit's until it returns. Append goes on meanwhile; Checkpoint must not go beyond what visit has seen.
func (r *Ring) Replay(from Position, visit func(end Position, group []Entry) error) error {
	r.mu.Lock()
	err := r.usableLocked()
	from = max(from, r.checkpoint)
	last, tail := r.current, r.tail
	r.mu.Unlock()
	if err != nil {
		return fmt.Errorf("replay journal: %w", err)
	}
	c := cursor{end: from, sealer: r.sealer}
	var buf []byte
	for number := r.number(from); number <= last; number++ {
		first, end := max(r.at(number, block), from), min(r.at(number+1, 0), tail)
		if first >= end {
			continue
		}
		off := r.offset(first)
		if buf == nil {
			buf = make([]byte, min(r.size, int64(tail-max(r.at(r.number(from), block), from))))
		}
		part := buf[:end-first]
		readAll(r.files[r.slot(number)], part, off)
		if err := r.walk(&c, part, number, off, visit); err != nil {
			return err
		}
	}
	return nil
}

// State says how full the ring is.
func (r *Ring) State() State {
	r.mu.Lock()
	defer r.mu.Unlock()
	used := 1
	if first := r.number(r.checkpoint); first <= r.current {
		used = int(r.current-first) + 1
	}
	return State{Tail: r.tail, Checkpoint: r.checkpoint, Used: used, Segments: r.count, Segment: r.size}
}

// Close waits for an Append that is under way, puts the checkpoint on flash and closes the files. Later calls do nothing.
func (r *Ring) Close() error {
	r.writing.Lock()
	defer r.writing.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	r.closed = true
	var err error
	if r.failure == nil {
		err = r.saveLocked(true)
	}
	if err = errors.Join(err, r.closeFiles()); err != nil {
		return fmt.Errorf("close journal: %w", err)
	}
	return nil
}

func (r *Ring) closeFiles() error {
	var errs []error
	for _, f := range append(r.files, r.marks.file) {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

func (r *Ring) usableLocked() error {
	if r.closed {
		return ErrClosed
	}
	return r.failure
}

// failLocked ends the ring's life. Needs mu.
func (r *Ring) failLocked(cause error) error {
	if r.failure == nil {
		r.failure = fmt.Errorf("%w: %w", ErrFailed, cause)
	}
	return r.failure
}
