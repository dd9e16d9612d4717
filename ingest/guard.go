package ingest

import (
	"fmt"
	"runtime/debug"
)

// Panic is a panic of a source as an error.
type Panic struct {
	Value any    // what was passed to panic
	Stack []byte // where, as text
}

// Error says what the panic said, without the stack.
func (p *Panic) Error() string { return fmt.Sprintf("panic: %v", p.Value) }

// Guard calls f and returns its error, or a *Panic if it panics. Every goroutine that a source starts runs under it, so that no
// source ends the process; the Runner guards Run itself.
func Guard(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &Panic{Value: v, Stack: debug.Stack()}
		}
	}()
	return f()
}
