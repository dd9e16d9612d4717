package ingest

import (
	"strings"
	"time"
)

// Reject is bytes that a source received and did not deliver, and why.
type Reject struct {
	Source string    // which received them
	Reason string    // as in Counts
	Detail string    // more about it, for people; empty for nothing
	Data   []byte    // the first of them, as they were received
	Size   int       // how many there were
	Time   time.Time // when
}

// Rejecter is a source that shows what it rejects. OnReject is called by the Runner before Run; f is as Keeper.Put.
type Rejecter interface {
	Source
	OnReject(f func(Reject))
}

// Keeper is a source whose records are what the other sources of its Runner reject.
type Keeper interface {
	Source
	// Put returns at once, is safe for concurrent use, and copies what it keeps.
	Put(r Reject)
}

// HeaderText makes a text fit for a header: printable ASCII, and not long.
func HeaderText(s string) string {
	const most = 200
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s)
	if len(s) > most {
		s = s[:most]
	}
	return strings.TrimSpace(s)
}
