package storage

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// Bounds of what a record may bring along. A subject is a key in the server's memory, one for each that is in use.
const (
	maxSubject = 1024
	maxHeaders = 8 << 10
	maxMark    = 64
)

// InvalidError says which record of a call can never be stored, and why. It is an ErrInvalid.
type InvalidError struct {
	Index  int    // which record of the call
	Source string // its source
	Seq    uint64 // and sequence
	Reason string // in words
}

// Error names the record and the reason.
func (e *InvalidError) Error() string {
	return fmt.Sprintf("record %d of source %q (number %d of the call): %s", e.Seq, e.Source, e.Index+1, e.Reason)
}

// Is makes errors.Is(err, ErrInvalid) true.
func (e *InvalidError) Is(target error) bool { return target == ErrInvalid }

// Append stores records and returns when all of them are on flash, in the order given. What it promises:
//   - nil: every record is in the journal, on its way into its stream, and survives a power cut in the next instant.
//   - An error: none is acknowledged. Some may be stored nevertheless; a retry with the same Source and Seq is never stored twice, and finds
//     them. Records of one source are stored in the order of their calls, which must come one after the other.
//   - ErrInvalid (an *InvalidError names the record): this call can never succeed. Nothing of it was stored if the record's form is at fault.
//   - ErrFull, ErrUnavailable: retry later with the same records. ErrFailing: nothing will be stored until the process starts anew.
//   - ErrClosed: Close was called. ctx.Err(): the caller gave up; the records may or may not be stored.
//   - A group of calls succeeds or fails call by call: nobody suffers from another's record.
//   - A call that is more than an eighth of its stream is stored in several parts, one after the other.
//
// It needs no server: records wait in the journal until there is one. Only a stream whose next sequence cannot be known without asking (see predict) waits
// for Attach, and all wait while a stream moves (Leap). Concurrent calls share one flush; Config.Commit says how: a group of
// records is written as soon as the one before is on flash and it holds max_records, or nobody is expected who was answered less than max_delay
// ago (a lone caller never waits), or max_delay is over. Data and Header belong to the caller again when Append returns, also early.
func (s *Store) Append(ctx context.Context, recs ...Record) error {
	if len(recs) == 0 {
		return nil
	}
	now := s.now()
	if err := s.awaitStreams(ctx, recs); err != nil {
		return err
	}
	c, err := s.prepare(recs, now)
	if err != nil {
		return err
	}
	for first := 0; first < len(c.items); {
		part := &call{items: c.items[first:], first: first, key: c.key, done: make(chan error, 1)}
		part.items = part.items[:portion(part.items)]
		first += len(part.items)
		if err := s.admit(ctx, part); err != nil {
			return err
		}
		if err := s.committer.submit(ctx, part); err != nil {
			return err
		}
	}
	return nil
}

// portion returns how many of the records go together: all, unless they are more than an eighth of what their stream may hold. A stream would never
// have room for a call that is larger than itself.
func portion(items []item) int {
	const share = 8
	var bytes, records int64
	for i := range items {
		c := items[i].source.stream.configured.Load()
		bytes += int64(items[i].size)
		records++
		if i > 0 && (bytes > c.MaxBytes/share || c.MaxMsgs > 0 && records > max(1, c.MaxMsgs/share)) {
			return i
		}
	}
	return len(items)
}

// awaitStreams waits until the streams of records can take them.
func (s *Store) awaitStreams(ctx context.Context, recs []Record) error {
	for i := range recs {
		if i > 0 && recs[i].Source == recs[i-1].Source {
			continue
		}
		src := s.source(recs[i].Source)
		if src == nil {
			continue // prepare says so
		}
		select {
		case <-src.stream.ready:
		case <-s.closing:
			return ErrClosed
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	select {
	case <-s.closing:
		return ErrClosed
	default:
		return ctx.Err()
	}
}

// item is one record on its way into the ring.
type item struct {
	source  *source
	seq     uint64
	payload []byte // a message
	body    []byte // of a gap record
	whose   ID     // of a record that is put back: its own ID, which is not made of source and seq
	size    uint64 // what it takes in the stream
	err     error  // why it was not stored
	done    bool   // it is in the ring
}

// prepare checks the records and turns them into messages, with copies of their data: a caller may give up at any time.
func (s *Store) prepare(recs []Record, now time.Time) (*call, error) {
	c := &call{items: make([]item, len(recs))}
	total := 0
	var src *source
	for i := range recs {
		r := &recs[i]
		if i == 0 || r.Source != recs[i-1].Source {
			src = s.source(r.Source)
		}
		reason := s.check(src, r)
		if reason != "" {
			return nil, &InvalidError{Index: i, Source: r.Source, Seq: r.Seq, Reason: reason}
		}
		c.items[i].source = src
		total += messageSize(src, r)
	}
	b := make([]byte, 0, total)
	id := ID{Leaf: s.Leaf(), Store: s.ID(), Epoch: s.Epoch()}
	clocks := s.clock.moment()
	for i := range recs {
		r := &recs[i]
		id.Source, id.Seq = r.Source, r.Seq
		received := r.Time
		if received.IsZero() {
			received = now
		}
		b = c.items[i].fill(b, r, id, clocks.stamp(received))
	}
	c.key = c.items[0].source
	return c, nil
}

// fill makes the message of a record, at the end of b.
func (it *item) fill(b []byte, r *Record, id ID, stamp Stamp) []byte {
	from := len(b)
	b, header := appendMessage(b, it.source, id, stamp, r)
	it.seq, it.payload = r.Seq, b[from:len(b):len(b)]
	subject := len(it.source.subject)
	if r.Tail != "" {
		subject += 1 + len(r.Tail)
	}
	it.size = storedSize(subject, header+len("\r\n")+orderSize, len(r.Data))
	return b
}

// storedSize is what a message takes in a block of nats-server 2.15's file store, which is what its limits count: length, sequence, time, subject length,
// subject, header length, headers, data, checksum.
func storedSize(subject, header, data int) uint64 {
	const fixed, headerLength, checksum = 22, 4, 8
	return uint64(fixed + subject + headerLength + header + data + checksum)
}

// check says what is wrong with a record of a source, if anything is; nil: of none that is configured.
func (s *Store) check(src *source, r *Record) string {
	if src == nil {
		return "its source is not configured"
	}
	limits := src.stream.configured.Load()
	switch {
	case r.Stream != limits.Name:
		return fmt.Sprintf("its source goes into stream %q, not %q", limits.Name, r.Stream)
	case r.Seq == 0:
		return "its sequence is zero"
	case int64(len(r.Data)) > limits.MaxMsgSize:
		return fmt.Sprintf("its %d bytes are above max_msg_size, %d", len(r.Data), limits.MaxMsgSize)
	case len(r.Mark) > maxMark:
		return fmt.Sprintf("its mark is longer than %d bytes", maxMark)
	case len(src.subject)+1+len(r.Tail) > maxSubject:
		return fmt.Sprintf("its subject is longer than %d characters", maxSubject)
	}
	if reason := tailProblem(r.Tail); reason != "" {
		return reason
	}
	headers := 0
	for k, v := range r.Header {
		if reason := headerProblem(k, v); reason != "" {
			return reason
		}
		headers += len(k) + len(v) + len(": \r\n")
	}
	if headers > maxHeaders {
		return fmt.Sprintf("its headers are longer than %d bytes", maxHeaders)
	}
	const ours = 512 // the headers that every record gets, generously
	if size := len(r.Data) + headers + ours; size > maxPayload {
		return fmt.Sprintf("its %d bytes do not fit the server's max_payload, %d", len(r.Data), maxPayload)
	} else if limit := s.ring.GroupLimit(); size+maxSubject > limit {
		return fmt.Sprintf("its %d bytes do not fit into a segment of the journal, %d: raise storage.journal", len(r.Data), limit)
	}
	return ""
}

// tailProblem says why tokens cannot stand behind a subject.
func tailProblem(tail string) string {
	if tail == "" {
		return ""
	}
	start := 0
	for i := 0; i <= len(tail); i++ {
		if i < len(tail) && tail[i] != '.' {
			if c := tail[i]; c <= ' ' || c == 0x7f {
				return fmt.Sprintf("its subject contains the character %q", c)
			}
			continue
		}
		switch tail[start:i] {
		case "":
			return fmt.Sprintf("its subject %q has an empty token", tail)
		case "*", ">":
			return fmt.Sprintf("its subject %q has a wildcard token", tail)
		}
		start = i + 1
	}
	return ""
}

// headerProblem says why a header cannot be stored. The server acts on headers that begin with Nats-, so no record brings its own.
func headerProblem(key, value string) string {
	if key == "" {
		return "it has a header without a name"
	}
	if len(key) >= 5 && strings.EqualFold(key[:5], "Nats-") || strings.EqualFold(key, HeaderTime) || strings.EqualFold(key, "Status") || strings.EqualFold(key, "Description") {
		return fmt.Sprintf("its header %q is not for sources", key)
	}
	for i := 0; i < len(key); i++ {
		if c := key[i]; c <= ' ' || c >= 0x7f || c == ':' {
			return fmt.Sprintf("its header name %q contains %q", key, c)
		}
	}
	if strings.ContainsAny(value, "\r\n") {
		return fmt.Sprintf("its header %q contains a line break", key)
	}
	if strings.TrimSpace(value) != value {
		return fmt.Sprintf("its header %q begins or ends with a blank", key) // lost on the wire
	}
	return ""
}
