package serial

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/ingest"
)

func TestLine(t *testing.T) {
	p := newPlug(t)
	l, err := OpenLine(p.config())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	if _, err := OpenLine(p.config()); err == nil {
		t.Fatal("the line was opened twice")
	} else if kind, cause, remedy := Explain(err); kind != ingest.Busy || !strings.Contains(cause, "is used by") || remedy == "" {
		t.Errorf("Explain() = %v, %q, %q, want busy", kind, cause, remedy)
	}
	if err := errors.Join(l.SetWriteDeadline(time.Now().Add(patience)), l.SetReadDeadline(time.Now().Add(patience))); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 16)
	if _, err := l.Write([]byte("ask")); err != nil {
		t.Fatal(err)
	}
	if n, err := p.master.Read(buf); err != nil || string(buf[:n]) != "ask" {
		t.Errorf("device read %q, %v, want ask", buf[:n], err)
	}
	p.send("tell")
	if n, err := l.Read(buf); err != nil || string(buf[:n]) != "tell" {
		t.Errorf("Read() = %q, %v, want tell", buf[:n], err)
	}
	if err := l.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if n, err := l.Read(buf); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Read() = %d, %v, want the deadline", n, err)
	}
	if err := l.Gone(); err != nil {
		t.Errorf("Gone() = %v", err)
	}
	p.out()
	if err := l.Gone(); err == nil {
		t.Error("Gone() = nil without the device")
	}
	_ = l.Close() // an error is usual by now
	if _, err := l.Write([]byte("x")); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Write() after Close = %v, want closed", err)
	}
}

func TestExplainAbsent(t *testing.T) {
	c := newPlug(t).config()
	c.Port = filepath.Join(t.TempDir(), "none")
	_, err := OpenLine(c)
	if kind, cause, _ := Explain(err); kind != ingest.Waiting || !strings.Contains(cause, "is not there") {
		t.Errorf("Explain(%v) = %v, %q, want waiting", err, kind, cause)
	}
}
