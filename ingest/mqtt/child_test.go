package mqtt

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/ingest"
	"github.com/holdfast-edge/holdfast/ingest/ingesttest"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == "child" {
		if err := childMain(os.Args[2], os.Args[3]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

func nopLog() *slog.Logger { return slog.New(slog.DiscardHandler) }

// childMain is a small daemon with a source whose store is a ledger.
func childMain(dir, url string) error {
	ledger, err := ingesttest.OpenLedger(dir)
	if err != nil {
		return err
	}
	ledger.Slow = 400 * time.Microsecond
	log, err := os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	s, err := New(Options{Name: "m", Leaf: "leaf", Config: config(url), StateDir: filepath.Join(dir, "state"),
		Last: ledger.Last, Log: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		return err
	}
	s.timing = quick
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { // until the process is killed
		for ctx.Err() == nil {
			if s.State().Kind == ingest.Running {
				_ = os.WriteFile(filepath.Join(dir, "running"), nil, 0o600)
			}
			_, _ = fmt.Fprintf(log, "redelivered=%d\n", s.Stats().Redelivered) // only for the test to show
			pause(ctx, 5*time.Millisecond)
		}
	}()
	return s.Run(ctx, ledger.Deliver)
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// child is a process that can be killed.
type child struct {
	*ingesttest.Child
	t   *testing.T
	dir string
}

func startChild(t *testing.T, dir, url string) *child {
	t.Helper()
	return &child{Child: ingesttest.StartChild(t, "child", dir, url), t: t, dir: dir}
}

func (c *child) payloads() []string {
	c.t.Helper()
	entries, err := ingesttest.ReadLedger(c.dir)
	if err != nil {
		c.t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Payload)
	}
	return out
}

// redelivered reads the last count of each process from the log.
func redelivered(text []byte) (counts []int) {
	last := 0
	for line := range strings.Lines(string(text)) {
		var n int
		if _, err := fmt.Sscanf(line, "redelivered=%d", &n); err != nil {
			continue
		}
		if n < last {
			counts = append(counts, last)
		}
		last = n
	}
	return append(counts, last)
}
