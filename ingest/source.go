// Package ingest carries readings from devices into the store: sources own their devices, the Runner gives every reading its ID and stores it.
package ingest

import (
	"context"
	"time"

	"github.com/holdfast-edge/holdfast/storage"
)

// Reading is one message a source has received, on its way to the store.
type Reading struct {
	Time   time.Time         // when it was received, from time.Now so that its monotonic part is kept; zero: when it is delivered
	Tail   string            // subject tokens behind the source, already mapped; empty for none
	Data   []byte            // the message byte for byte
	Header map[string]string // further headers; nil for none

	// Note, when not nil, is called with the reading's ID before it is stored. What it returns, 64 bytes at most, is on flash with the
	// reading, and storage.Store.Marks gives it back after a crash as long as what Note wrote to the store's file system may not be on
	// flash itself. An error of Note is returned by Deliver and nothing of the batch is stored. An ID that was noted but not stored may be
	// noted again, for the same or for another reading: the later note counts.
	Note func(storage.ID) (mark []byte, err error)
}

// Deliver hands readings of one source to the store, in order.
//
//   - nil means that every reading of the batch is on flash, or was refused as invalid and counted: acknowledge the device
//     now, and not before.
//   - It blocks while the store is full or failing, until ctx ends.
//   - An error (storage.ErrClosed, the error of ctx, or an error of Note) acknowledges nothing and leaves open what is
//     stored. Deliver the same readings again, first and in the same order: those with unchanged Time, Tail and Data keep
//     their IDs, so none is stored twice.
//   - Data and Header belong to the caller again when it returns.
//
// It is safe for concurrent use; concurrent batches are stored one after the other in no certain order.
type Deliver func(ctx context.Context, batch ...Reading) error

// Source owns one device and delivers what the device sends.
type Source interface {
	// Name is the configured name, one subject token; it never changes.
	Name() string
	// Run reads the device until ctx ends, through every loss of the device. It returns soon after ctx ended, with no
	// goroutine left; an earlier return means that the source needs a restart, which the Runner does. Readings that were
	// received and not yet acknowledged by Deliver must survive a return of Run: either the device sends them again or the
	// next Run delivers them.
	Run(ctx context.Context, deliver Deliver) error
}

// Stater is implemented by sources that can say how they are.
type Stater interface {
	// State is safe for concurrent use and never blocks on the device.
	State() State
}

// Counter is implemented by sources that refuse input on their own, before Deliver.
type Counter interface {
	// Counts is safe for concurrent use. The numbers never go back while the source lives.
	Counts() Counts
}

// Counts says what a source has done since it was made.
type Counts struct {
	Received      uint64            // readings delivered and readings rejected by the source
	Rejected      map[string]uint64 // readings rejected by the source, by reason; nil for none
	RejectedBytes map[string]uint64 // the bytes of these readings, by reason; nil for none
}

// Kind is what a source is doing.
type Kind uint8

// The kinds of state a source can be in.
const (
	Unknown  Kind = iota // the source did not say
	Starting             // opening its device for the first time
	Running              // device open, data expected or arriving
	Waiting              // device absent or not answering
	Denied               // device there, access not allowed
	Busy                 // device there, held by another process
	Silent               // device open and without data for longer than configured
	Blocked              // the store takes nothing at present
	Refused              // the device or broker refuses what is configured
)

// String returns the kind in one lower-case word.
func (k Kind) String() string {
	words := [...]string{"unknown", "starting", "running", "waiting", "denied", "busy", "silent", "blocked", "refused"}
	if int(k) < len(words) {
		return words[k]
	}
	return words[Unknown]
}

// State says how a source is, for people.
type State struct {
	Kind   Kind
	Cause  string    // what happened, on what; empty when running
	Remedy string    // what to do about it; empty when nothing
	Since  time.Time // when this kind began
}
