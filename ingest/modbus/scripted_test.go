package modbus

import (
	"os"
	"sync"
	"time"
)

// scripted is a port whose other end follows a script.
type scripted struct {
	script   func(n int, sent []byte) [][]byte // what comes after the nth write, in pieces; nil: nothing
	writeErr error
	closeErr error

	mu       sync.Mutex // guards the fields below
	writes   int
	pieces   [][]byte
	deadline time.Time
	closed   bool
	wake     chan struct{} // closed and made anew at each change
}

func newScripted(script func(n int, sent []byte) [][]byte) *scripted {
	return &scripted{script: script, wake: make(chan struct{})}
}

func (p *scripted) change(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	close(p.wake)
	p.wake = make(chan struct{})
}

func (p *scripted) Write(b []byte) (int, error) {
	if p.writeErr != nil {
		return 0, p.writeErr
	}
	p.change(func() {
		p.writes++
		if p.script != nil {
			p.pieces = append(p.pieces, p.script(p.writes, b)...)
		}
	})
	return len(b), nil
}

func (p *scripted) Read(b []byte) (int, error) {
	for {
		p.mu.Lock()
		switch {
		case p.closed:
			p.mu.Unlock()
			return 0, os.ErrClosed
		case len(p.pieces) > 0:
			n := copy(b, p.pieces[0])
			if p.pieces[0] = p.pieces[0][n:]; len(p.pieces[0]) == 0 {
				p.pieces = p.pieces[1:]
			}
			p.mu.Unlock()
			return n, nil
		}
		wake, left := p.wake, time.Until(p.deadline)
		p.mu.Unlock()
		if left <= 0 {
			return 0, os.ErrDeadlineExceeded
		}
		t := time.NewTimer(left)
		select {
		case <-wake:
		case <-t.C:
		}
		t.Stop()
	}
}

func (p *scripted) SetReadDeadline(t time.Time) error {
	p.change(func() { p.deadline = t })
	return nil
}

func (p *scripted) SetWriteDeadline(time.Time) error { return nil }

func (p *scripted) Close() error {
	p.change(func() { p.closed = true })
	return p.closeErr
}
