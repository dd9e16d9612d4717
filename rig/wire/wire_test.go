package wire

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/rig/leak"
	"github.com/holdfast-edge/holdfast/rig/poll"
)

// echo serves a TCP echo until the test ends and counts the connections that it knows of.
func echo(t *testing.T) (addr string, open func() int) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	conns := make(map[net.Conn]bool)
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns[c] = true
			mu.Unlock()
			wg.Add(1)
			go func() {
				defer wg.Done()
				_, _ = io.Copy(c, c)
				_ = c.Close()
				mu.Lock()
				delete(conns, c)
				mu.Unlock()
			}()
		}
	}()
	t.Cleanup(func() {
		_ = ln.Close()
		mu.Lock()
		for c := range conns {
			_ = c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return ln.Addr().String(), func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(conns)
	}
}

func open(t *testing.T) (*Wire, func() int) {
	t.Helper()
	leak.Check(t)
	addr, served := echo(t)
	w, err := New(addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	return w, served
}

func dial(t *testing.T, w *Wire) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", w.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// ask sends text and returns what comes back within the time, and the error of the last read.
func ask(c net.Conn, text string, within time.Duration) (string, error) {
	if _, err := c.Write([]byte(text)); err != nil {
		return "", err
	}
	_ = c.SetReadDeadline(time.Now().Add(within))
	buf := make([]byte, len(text))
	n, err := io.ReadFull(c, buf)
	return string(buf[:n]), err
}

func TestForwardAndClose(t *testing.T) {
	w, served := open(t)
	c := dial(t, w)
	if got, err := ask(c, "hello", 10*time.Second); got != "hello" || err != nil {
		t.Fatalf("echo = %q, %v", got, err)
	}
	var s Stats
	counted := func() bool { s = w.Stats(); return s.Up == 5 && s.Down == 5 && s.Conns == 1 && s.Accepted == 1 } // after they were written
	if !poll.Wait(t.Context(), 10*time.Second, counted) {
		t.Errorf("Stats() = %+v", s)
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("read after half-close = %v, want EOF", err)
	}
	poll.Until(t, 10*time.Second, func() bool { return w.Stats().Conns == 0 && served() == 0 }, "connection still open")
}

func TestCutResetsAndRefuses(t *testing.T) {
	w, served := open(t)
	c := dial(t, w)
	if _, err := ask(c, "x", 10*time.Second); err != nil {
		t.Fatal(err)
	}
	w.Cut()
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("read after Cut = %v, want a reset", err)
	}
	if d, err := net.Dial("tcp", w.Addr()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dial after Cut = %v, %v, want refused", d, err)
	}
	poll.Until(t, 10*time.Second, func() bool { return served() == 0 }, "target was not reset")
	if err := w.Restore(); err != nil {
		t.Fatal(err)
	}
	if got, err := ask(dial(t, w), "again", 10*time.Second); got != "again" {
		t.Errorf("echo after Restore = %q, %v", got, err)
	}
}

func TestSwallowIsSilent(t *testing.T) {
	w, served := open(t)
	old, idle := dial(t, w), dial(t, w)
	for _, c := range []net.Conn{old, idle} {
		if _, err := ask(c, "x", 10*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	w.Swallow(true)
	var timeout net.Error
	if got, err := ask(old, "lost", 200*time.Millisecond); got != "" || !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("silent echo = %q, %v, want a time-out", got, err)
	}
	young := dial(t, w)
	if got, err := ask(young, "lost", 200*time.Millisecond); got != "" || !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("silent echo on a new connection = %q, %v, want a time-out", got, err)
	}
	_ = old.Close()
	if poll.Wait(context.Background(), 200*time.Millisecond, func() bool { return served() != 2 }) {
		t.Errorf("the target learned that its client closed: %d connections left, want 2", served())
	}
	if s := w.Stats(); s.Lost != 8 {
		t.Errorf("Lost = %d, want 8", s.Lost)
	}
	w.Swallow(false)
	if got, err := ask(idle, "kept", 10*time.Second); got != "kept" {
		t.Errorf("connection that lost nothing: echo = %q, %v", got, err)
	}
	if got, err := ask(dial(t, w), "new", 10*time.Second); got != "new" {
		t.Errorf("new connection: echo = %q, %v", got, err)
	}
	w.Reset()
	poll.Until(t, 10*time.Second, func() bool { return served() == 0 && w.Stats().Conns == 0 }, "half-dead connection outlived Reset")
}

func TestDelay(t *testing.T) {
	w, _ := open(t)
	w.Delay(100 * time.Millisecond)
	c := dial(t, w)
	begun := time.Now()
	if got, err := ask(c, "slow", 10*time.Second); got != "slow" {
		t.Fatalf("echo = %q, %v", got, err)
	}
	if took := time.Since(begun); took < 200*time.Millisecond {
		t.Errorf("round trip took %v, want at least 200ms", took)
	}
}

func TestThrottle(t *testing.T) {
	w, _ := open(t)
	w.Throttle(20_000)
	c := dial(t, w)
	begun := time.Now()
	if _, err := ask(c, string(make([]byte, 10_000)), 20*time.Second); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begun); took < 400*time.Millisecond {
		t.Errorf("10 kB at 20 kB/s took %v, want about 0.5s or more", took)
	}
}

func TestFlap(t *testing.T) {
	w, _ := open(t)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Flap(ctx, 20*time.Millisecond, 20*time.Millisecond) }()
	refused, served := 0, 0
	poll.Until(t, 20*time.Second, func() bool {
		c, err := net.Dial("tcp", w.Addr())
		if err != nil {
			refused++
		} else {
			served++
			_ = c.Close()
		}
		return refused > 1 && served > 1
	}, "flapping wire was not seen both up and down")
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if got, err := ask(dial(t, w), "up", 10*time.Second); got != "up" {
		t.Errorf("echo after Flap = %q, %v", got, err)
	}
}
