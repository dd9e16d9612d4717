package serial

import (
	"time"

	"github.com/holdfast-edge/holdfast/ingest"
)

// Line is an open port for a protocol that asks and waits for answers, such as Modbus. One goroutine uses it; Close may be called by
// any.
type Line struct{ port *tty }

// OpenLine opens and sets a port for this process alone, as a Source does, without the source's Silence and Buffer. It does not
// wait for the device. Explain says what an error means.
func OpenLine(cfg Config) (*Line, error) {
	dev, err := open(cfg)
	if err != nil {
		return nil, err
	}
	return &Line{port: dev.(*tty)}, nil
}

// Read waits for bytes until the deadline, then fails with os.ErrDeadlineExceeded. A device that hung up reads as io.EOF or an
// error.
func (l *Line) Read(p []byte) (int, error) { return l.port.Read(p) }

// Write puts bytes into the port's output queue and waits only while that is full, until the deadline.
func (l *Line) Write(p []byte) (int, error) { return l.port.Write(p) }

// SetReadDeadline ends a Read at t; the zero time means never.
func (l *Line) SetReadDeadline(t time.Time) error { return l.port.SetReadDeadline(t) }

// SetWriteDeadline ends a Write at t; the zero time means never.
func (l *Line) SetWriteDeadline(t time.Time) error { return l.port.SetWriteDeadline(t) }

// Gone says why the configured port is no longer the device that is open; nil: it still is.
func (l *Line) Gone() error { return l.port.Gone() }

// Close gives the port back and ends a Read or Write that waits. An error is usual when the device was pulled out, and changes
// nothing.
func (l *Line) Close() error { return l.port.Close() }

// Explain says what an error of OpenLine means: the state that a source of this port is in, its cause and its remedy.
func Explain(err error) (kind ingest.Kind, cause, remedy string) {
	f := asFault(err)
	return f.kind, f.cause, f.remedy
}
