// Package wire is a TCP proxy on the loopback that fails in the ways a radio link does: cut, silent, slow, flapping.
package wire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-edge/holdfast/rig/port"
)

// MaxConns bounds the connections held at once; further ones are reset.
const MaxConns = 1024

// Wire forwards connections made to Addr to its target. Safe for concurrent use.
type Wire struct {
	addr   string
	up     counter // towards the target
	down   counter // towards the client
	lost   atomic.Int64
	taken  atomic.Int64
	silent atomic.Bool
	delay  atomic.Int64 // nanoseconds one way
	rate   atomic.Int64 // bytes per second and direction, 0 = unlimited

	wg sync.WaitGroup // accept loop and connections

	mu     sync.Mutex // guards the fields below
	target string
	ln     net.Listener // nil while cut
	held   *held        // the port while cut; nil if it could not be kept
	conns  map[*conn]struct{}
	closed bool
}

type counter struct{ atomic.Int64 }

// Stats counts what a Wire has carried.
type Stats struct {
	Up       int64 // bytes written to the target
	Down     int64 // bytes written to clients
	Lost     int64 // bytes swallowed in either direction
	Accepted int64 // connections taken, ever
	Conns    int   // connections open now, half-dead ones included
}

// New opens a wire to target, "host:port", on a free port of the loopback. The caller closes it.
func New(target string) (*Wire, error) {
	ln, err := port.Listen()
	if err != nil {
		return nil, fmt.Errorf("open wire to %s: %w", target, err)
	}
	w := &Wire{addr: ln.Addr().String(), target: target, ln: ln, conns: make(map[*conn]struct{})}
	w.wg.Add(1)
	go w.accept(ln)
	return w, nil
}

// Addr returns the address that clients dial, "127.0.0.1:port". It stays the same through Cut and Restore.
func (w *Wire) Addr() string { return w.addr }

// Retarget sends connections made from now on to another address.
func (w *Wire) Retarget(target string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.target = target
}

// Cut resets all connections (RST) and refuses new ones until Restore.
func (w *Wire) Cut() {
	w.mu.Lock()
	if w.ln != nil {
		_ = w.ln.Close() // nothing to lose on a listener
		w.ln = nil
		if !w.closed {
			w.held, _ = hold(w.addr) // taken already: Restore tells
		}
	}
	if w.closed && w.held != nil {
		w.held.release()
		w.held = nil
	}
	w.mu.Unlock()
	w.Reset()
}

// Restore takes connections again after Cut. It is an error when the port was taken meanwhile.
func (w *Wire) Restore() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || w.ln != nil {
		return nil
	}
	ln, err := w.listen()
	if err != nil {
		return fmt.Errorf("restore wire: %w", err)
	}
	w.ln = ln
	w.wg.Add(1)
	go w.accept(ln)
	return nil
}

func (w *Wire) listen() (net.Listener, error) {
	if h := w.held; h != nil {
		w.held = nil
		return h.listen()
	}
	return net.Listen("tcp", w.addr)
}

// Reset resets all connections (RST) and takes new ones as before.
func (w *Wire) Reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.conns {
		c.abort()
	}
}

// Swallow makes the wire silent, or ends that. While silent it accepts connections and bytes, delivers nothing, and tells neither
// side that the other has closed. A connection that lost bytes stays silent afterwards, like one whose router forgot it: its ends
// must find out by themselves, or by Reset. One that lost nothing goes on.
func (w *Wire) Swallow(on bool) { w.silent.Store(on) }

// Delay sets how long bytes travel, one way. Establishing a connection is not delayed.
func (w *Wire) Delay(d time.Duration) { w.delay.Store(int64(d)) }

// Throttle limits each direction of each connection to so many bytes per second; 0 lifts the limit.
func (w *Wire) Throttle(bytesPerSecond int64) { w.rate.Store(bytesPerSecond) }

// Flap cuts the wire for down, restores it for up, and so on until ctx ends; then it leaves the wire restored.
func (w *Wire) Flap(ctx context.Context, up, down time.Duration) error {
	for {
		w.Cut()
		wait(ctx.Done(), down)
		if err := w.Restore(); err != nil {
			return err
		}
		if wait(ctx.Done(), up); ctx.Err() != nil {
			return nil
		}
	}
}

// Stats returns the counts so far.
func (w *Wire) Stats() Stats {
	w.mu.Lock()
	defer w.mu.Unlock()
	return Stats{Up: w.up.Load(), Down: w.down.Load(), Lost: w.lost.Load(), Accepted: w.taken.Load(), Conns: len(w.conns)}
}

// Close resets everything and returns when all goroutines of the wire have ended.
func (w *Wire) Close() error {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.Cut()
	w.wg.Wait()
	return nil
}

func (w *Wire) accept(ln net.Listener) {
	defer w.wg.Done()
	for {
		client, err := ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			wait(nil, 10*time.Millisecond) // out of descriptors, or the client went away before we took it
			continue
		}
		w.taken.Add(1)
		w.add(ln, client.(*net.TCPConn))
	}
}

// add starts a connection unless the listener it came through has been cut meanwhile.
func (w *Wire) add(ln net.Listener, client *net.TCPConn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ln != ln || len(w.conns) >= MaxConns {
		reset(client)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	c := &conn{wire: w, client: client, target: w.target, ctx: ctx, cancel: cancel}
	w.conns[c] = struct{}{}
	w.wg.Add(1)
	go func() {
		defer w.wg.Done()
		c.run()
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.conns, c)
	}()
}

// wait returns after d, or earlier when done is closed.
func wait(done <-chan struct{}, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-done:
	}
}
