package ingesttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/ingest"
	"github.com/holdfast-edge/holdfast/storage"
)

// Ledger is a store in a text file, with a line for each record, that is written before Deliver returns: killing the process loses
// nothing that is written, like a power cut loses nothing that is committed. Each opening is an epoch. It is not safe for concurrent use.
type Ledger struct {
	file        *os.File
	epoch, seq  uint64 // of the newest record of earlier epochs
	mine, count uint64 // of this one
	// Slow is how long Deliver takes for each record, half of it before the record is written and half after: a kill may fall
	// between note and record, and between record and acknowledgement.
	Slow time.Duration
}

// Entry is a record of a ledger. Its payload has no blanks.
type Entry struct {
	Epoch, Seq uint64
	Payload    string
}

func ledgerFile(dir string) string { return filepath.Join(dir, "records") }

// OpenLedger opens or makes the ledger of a directory. A last line that a kill has cut off is removed: it was never acknowledged.
func OpenLedger(dir string) (*Ledger, error) {
	entries, err := ReadLedger(dir)
	if err != nil {
		return nil, err
	}
	l := &Ledger{}
	if n := len(entries); n > 0 {
		l.epoch, l.seq = entries[n-1].Epoch, entries[n-1].Seq
	}
	l.mine = l.epoch + 1
	if l.file, err = os.OpenFile(ledgerFile(dir), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(ledgerFile(dir))
	if err != nil {
		return nil, err
	}
	return l, l.file.Truncate(int64(bytes.LastIndexByte(text, '\n') + 1))
}

// Last returns the newest record of earlier epochs.
func (l *Ledger) Last() (epoch, seq uint64) { return l.epoch, l.seq }

// Deliver is an ingest.Deliver.
func (l *Ledger) Deliver(ctx context.Context, batch ...ingest.Reading) error {
	var text bytes.Buffer
	for _, r := range batch {
		l.count++
		if r.Note != nil {
			if _, err := r.Note(storage.ID{Leaf: "leaf", Store: "s", Source: "m", Epoch: l.mine, Seq: l.count}); err != nil {
				return err
			}
		}
		fmt.Fprintf(&text, "%d %d %s\n", l.mine, l.count, r.Data)
	}
	pause(ctx, time.Duration(len(batch))*l.Slow/2)
	_, err := l.file.Write(text.Bytes())
	pause(ctx, time.Duration(len(batch))*l.Slow/2)
	return err
}

func pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// ReadLedger returns the whole records of a ledger, also while a process writes it.
func ReadLedger(dir string) (entries []Entry, err error) {
	text, err := os.ReadFile(ledgerFile(dir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	text = text[:bytes.LastIndexByte(text, '\n')+1]
	for line := range bytes.Lines(text) {
		var e Entry
		if n, err := fmt.Sscanf(string(line), "%d %d %s\n", &e.Epoch, &e.Seq, &e.Payload); n != 3 || err != nil {
			return nil, fmt.Errorf("record %q: %v", line, err)
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// Child is a process that can be killed: the test binary with other arguments.
type Child struct{ cmd *exec.Cmd }

// StartChild starts the test binary with these arguments. The end of the test kills it.
func StartChild(t testing.TB, args ...string) *Child {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, args...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &Child{cmd: cmd}
	t.Cleanup(c.Kill)
	return c
}

// Kill ends the process as kill -9 does, and waits for its end. It may be called again.
func (c *Child) Kill() {
	if c.cmd.ProcessState == nil {
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait() // it says that it was killed
	}
}
