package modbus

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"
)

// Errors of an exchange. A device's refusal is an *Exception.
var (
	// ErrNoReply means that nothing came that could be a reply. A device that was to write may have written all the same.
	ErrNoReply = errors.New("no reply")
	// ErrGarbled means that bytes came of which no reply could be made. A device that was to write may have written all the same.
	ErrGarbled = errors.New("garbled reply")
	// ErrOffline means that the line or connection is not open.
	ErrOffline = errors.New("bus is offline")
)

// lost is the error of a line or connection that has to be opened again.
type lost struct {
	err  error
	sent bool // the request may have reached the device
}

func (l *lost) Error() string { return l.err.Error() }
func (l *lost) Unwrap() error { return l.err }

// port is an open line or connection.
type port interface {
	io.ReadWriteCloser
	SetReadDeadline(t time.Time) error
	SetWriteDeadline(t time.Time) error
}

// wire exchanges requests and replies over a port. One goroutine uses it.
type wire interface {
	// exchange sends a request and waits for its reply, whose data unit is valid until the next exchange. Its errors are
	// *Exception, ErrNoReply, ErrGarbled, and *lost.
	exchange(q request) (pdu []byte, err error)
	// certain tells whether a reply to q could be told from anything else.
	certain(q request) bool
	// tagged tells whether replies name their request, so that a late one cannot be taken for another.
	tagged() bool
}

const (
	deadReads  = 20                     // this many empty reads ...
	deadWithin = 100 * time.Millisecond // ... within this time mean a dead port
	writeLimit = 2 * time.Second        // how long a port may take to accept a request
)

// reader reads a port until a deadline, and finds out that it is dead.
type reader struct {
	port port
	buf  [512]byte

	empty int
	since time.Time
}

// read returns bytes, or none when the deadline has passed. Errors are *lost.
func (r *reader) read(deadline time.Time) ([]byte, error) {
	for {
		if err := r.port.SetReadDeadline(deadline); err != nil {
			return nil, &lost{err: plain(err), sent: true}
		}
		n, err := r.port.Read(r.buf[:])
		switch {
		case n > 0:
			r.empty = 0
			return r.buf[:n], nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil, nil
		case errors.Is(err, io.EOF):
			return nil, &lost{err: errors.New("the other end hung up"), sent: true}
		case err != nil:
			return nil, &lost{err: plain(err), sent: true}
		}
		if r.dead(time.Now()) {
			return nil, &lost{err: errors.New("it reads as empty without waiting"), sent: true}
		}
	}
}

// dead counts reads that returned nothing, and says whether they come so fast that the port is dead.
func (r *reader) dead(now time.Time) bool {
	if r.empty == 0 {
		r.since = now
	}
	if r.empty++; r.empty <= deadReads {
		return false
	}
	r.empty = 0
	return now.Sub(r.since) <= deadWithin
}

// send writes a frame. Errors are *lost.
func (r *reader) send(frame []byte) error {
	if err := r.port.SetWriteDeadline(time.Now().Add(writeLimit)); err != nil {
		return &lost{err: plain(err)}
	}
	n, err := r.port.Write(frame)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return &lost{err: fmt.Errorf("it did not take a request within %s", writeLimit), sent: n > 0}
	}
	if err != nil {
		return &lost{err: plain(err), sent: n > 0}
	}
	return nil
}

// plain drops the path from an error that is told with a path of its own.
func plain(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}
