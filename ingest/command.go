package ingest

import (
	"context"
	"time"
)

// Command is an order to a device: bytes to send on a line, a register to write, a message to publish.
type Command struct {
	ID       string            // unique for ever; the outcome carries it
	Source   string            // configured name of the source that executes it
	Tail     string            // subject tokens behind the source, such as the device on a bus; empty for none
	Data     []byte            // what is ordered; each kind of source says in which form
	Header   map[string]string // further headers of the command; nil for none
	NotAfter time.Time         // wall time after which it must not be begun; zero: no such time
	Timeout  time.Duration     // how long the execution may take; 0: DefaultCommandTimeout
}

// Bounds of Command.Timeout.
const (
	DefaultCommandTimeout = 10 * time.Second
	MaxCommandTimeout     = 10 * time.Minute
)

// States of an Outcome.
const (
	OutcomeDone    = "done"    // the device has it, and confirmed it where its protocol has a way to
	OutcomeFailed  = "failed"  // it is certain that it was not done
	OutcomeRefused = "refused" // nothing was tried: the command cannot be executed as it is
	OutcomeExpired = "expired" // nothing was tried: its time was over
	OutcomeUnknown = "unknown" // it may have been done or not, such as after a crash in between
)

// Outcome says what became of a command.
type Outcome struct {
	State string // one of the Outcome constants
	Reply []byte // what the device answered, byte for byte; nil for nothing
	Cause string // why it is not done, for people; empty when done
}

// Commander is a source that executes commands. Command is called for one command of a source at a time and never twice for one
// command. It needs a Run: without one, and while the device is absent, it fails, at the latest when ctx ends, which bounds it by the
// command's Timeout. NotAfter has been looked at before. Data belongs to the caller again when it returns.
type Commander interface {
	Source
	Command(ctx context.Context, c Command) Outcome
}

// Refuse returns the outcome of a command that cannot be executed as it is.
func Refuse(cause string) Outcome { return Outcome{State: OutcomeRefused, Cause: cause} }
