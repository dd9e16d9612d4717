// Package storage keeps captured records in file-backed JetStream streams so that an acknowledged record is on flash.
package storage

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Names on the wire; docs/WIRE.md is their contract.
const (
	// HeaderID carries a record's ID. It is the header JetStream deduplicates by.
	HeaderID = "Nats-Msg-Id"
	// HeaderTime carries when the record was received and how far that time can be trusted: see Stamp.
	HeaderTime = "Holdfast-Time"

	// HeaderPutBack marks a record that was set aside and has been put back behind others, and says why it was set aside: see Repair.
	HeaderPutBack = "Holdfast-Put-Back"

	// EpochSource is the source token of epoch records.
	EpochSource = "_epoch"
	// GapSource is the source token of gap records.
	GapSource = "_gap"
	// ClockSource is the source token of clock records.
	ClockSource = "_clock"
)

// Own reports whether a source token is one of the store's own records rather than that of a captured one.
func Own(source string) bool {
	return source == EpochSource || source == GapSource || source == ClockSource
}

// DataSubject returns the subject of records of one source, or of a whole stream with source ">".
func DataSubject(leaf, stream, source string) string {
	return "data." + leaf + "." + stream + "." + source
}

// LeapSubject returns the subject of the placeholders that raise a stream's sequence. No consumer of the uplink sees it.
func LeapSubject(stream string) string { return "hf.leap." + stream }

// Position is a sequence number of a leaf's stream. Zero stands before the first record.
type Position uint64

// StoreID tells one store from every other: 40 random bits made when a store is created or restored, in lower-case hex.
type StoreID string

// ID names one record for ever: no two records of a fleet share one.
type ID struct {
	Leaf   string
	Store  StoreID
	Source string
	Epoch  uint64 // raised on every start
	Seq    uint64 // per source within its epoch, from 1
}

// String returns the wire form, <leaf>.<store>.<source>.<epoch>.<seq>.
func (id ID) String() string { return string(id.append(make([]byte, 0, 96))) }

// append adds the wire form to b.
func (id ID) append(b []byte) []byte {
	b = append(append(b, id.Leaf...), '.')
	b = append(append(b, id.Store...), '.')
	b = append(append(b, id.Source...), '.')
	b = append(strconv.AppendUint(b, id.Epoch, 10), '.')
	return strconv.AppendUint(b, id.Seq, 10)
}

// ParseID reads the wire form of an ID.
func ParseID(s string) (ID, error) {
	p := strings.Split(s, ".")
	if len(p) != 5 || p[0] == "" || p[1] == "" || p[2] == "" {
		return ID{}, fmt.Errorf("record ID %q: want <leaf>.<store>.<source>.<epoch>.<seq>", s)
	}
	epoch, err := strconv.ParseUint(p[3], 10, 64)
	if err != nil {
		return ID{}, fmt.Errorf("record ID %q: epoch: %w", s, err)
	}
	seq, err := strconv.ParseUint(p[4], 10, 64)
	if err != nil {
		return ID{}, fmt.Errorf("record ID %q: seq: %w", s, err)
	}
	return ID{Leaf: p[0], Store: StoreID(p[1]), Source: p[2], Epoch: epoch, Seq: seq}, nil
}

// Record is one captured message on its way into a stream. The store keeps Data and Header only until Append returns.
type Record struct {
	Stream string            // stream it belongs to
	Source string            // configured source it came from
	Seq    uint64            // per source within the store's epoch, from 1 without holes; a retry uses the same
	Tail   string            // subject tokens behind the source, already mapped; empty for none
	Time   time.Time         // when it was received, from time.Now so that its monotonic part is kept; zero: now
	Header map[string]string // further headers, nil for none; must not name HeaderID or HeaderTime
	Data   []byte
	Mark   []byte // what the source wants back after a power cut, see Store.Marks; at most 64 bytes, not part of what is stored and sent
}

// ClockState says how far the wall clock can be trusted.
type ClockState uint8

// The states of the wall clock.
const (
	ClockUnknown  ClockState = iota // the kernel did not say
	ClockUnsynced                   // not set by a time source since boot
	ClockSynced                     // disciplined by a time source
)

// String returns the word used on the wire.
func (c ClockState) String() string {
	switch c {
	case ClockUnsynced:
		return "unsynced"
	case ClockSynced:
		return "synced"
	}
	return "unknown"
}

// Stamp is what HeaderTime says: wall time, time since the machine's boot, and the state of the clock.
type Stamp struct {
	Wall  time.Time
	Boot  time.Duration
	Clock ClockState
}

// String returns the wire form: RFC 3339 UTC with nine digits, seconds since boot with nine digits, and the clock's state, separated by blanks.
func (s Stamp) String() string { return string(s.append(make([]byte, 0, 64))) }

// append adds the wire form to b. By hand, as every record gets one: what the time package does for any layout takes several times as long.
func (s Stamp) append(b []byte) []byte {
	wall := s.Wall.UTC()
	if year, month, day := wall.Date(); year >= 0 && year <= 9999 {
		hour, minute, second := wall.Clock()
		b = append(appendDigits(b, year, 4), '-')
		b = append(appendDigits(b, int(month), 2), '-')
		b = append(appendDigits(b, day, 2), 'T')
		b = append(appendDigits(b, hour, 2), ':')
		b = append(appendDigits(b, minute, 2), ':')
		b = append(appendDigits(b, second, 2), '.')
		b = append(appendDigits(b, wall.Nanosecond(), 9), 'Z')
	} else {
		b = wall.AppendFormat(b, "2006-01-02T15:04:05.000000000Z")
	}
	b = append(b, ' ')
	b = strconv.AppendInt(b, int64(s.Boot/time.Second), 10)
	b = append(b, '.')
	b = append(appendDigits(b, int(s.Boot%time.Second), 9), ' ')
	return append(b, s.Clock.String()...)
}

// appendDigits adds a number that is not negative, with zeros in front.
func appendDigits(b []byte, n, width int) []byte {
	b = append(b, "000000000"[:width]...)
	for i := len(b) - 1; n > 0; i-- {
		b[i] = byte('0' + n%10)
		n /= 10
	}
	return b
}

// ParseStamp reads the wire form of a Stamp.
func ParseStamp(s string) (Stamp, error) {
	f := strings.Fields(s)
	if len(f) != 3 {
		return Stamp{}, fmt.Errorf("time header %q: want wall time, seconds since boot, clock state", s)
	}
	wall, err := time.Parse(time.RFC3339Nano, f[0])
	if err != nil {
		return Stamp{}, fmt.Errorf("time header %q: %w", s, err)
	}
	boot, err := time.ParseDuration(f[1] + "s")
	if err != nil {
		return Stamp{}, fmt.Errorf("time header %q: %w", s, err)
	}
	st := Stamp{Wall: wall, Boot: boot}
	switch f[2] {
	case "synced":
		st.Clock = ClockSynced
	case "unsynced":
		st.Clock = ClockUnsynced
	}
	return st, nil
}

// Errors of Append that a caller branches on.
var (
	// ErrFull means that the stream or the disk has no room and its policy is to refuse: retry later with the same records.
	ErrFull = errors.New("store is full")
	// ErrInvalid means that a record can never be stored as it is: do not retry.
	ErrInvalid = errors.New("record is invalid")
	// ErrClosed means that the store is closed or closing.
	ErrClosed = errors.New("store is closed")
)
