// Package bench measures what a commit of the store costs against the least that the same disk asks for the same bytes, with the link down and up, and
// writes the account as Markdown.
//
// Raw is an append of the records' bytes to one file and a fdatasync. Both run in turns, round by round on one file system, so that a noisy machine is noisy
// for both; the ratios are medians over the rounds. Flushes and bytes are counted by the block device below the file system. It needs root, for a loop device.
package bench

import (
	"errors"
	"flag"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/rig/disk"
	"github.com/holdfast-edge/holdfast/rig/hub"
)

var (
	report   = flag.String("report", "", `file to write the account to, "-" for standard output; empty: a short run that only shows that it works`)
	where    = flag.String("dir", "", "directory on the disk to measure, where an image of 2 GiB is made; empty: the tests' temporary one")
	card     = flag.Bool("card", false, "measure on the model of an SD card (5 ms a flush, 0.5 ms a write) instead of the disk")
	rounds   = flag.Int("rounds", 7, "rounds of raw and store in turns")
	segment  = flag.Duration("segment", 500*time.Millisecond, "how long each of them runs in a round")
	trickle  = flag.Duration("trickle", 15*time.Second, "how long a trickle of records runs per turn with the link up, and with the link down")
	even     = flag.Duration("even", time.Minute, "how long records come at each even pace; shorter turns say less, 0 leaves the comparison of the forms out")
	lasting  = flag.Duration("sustained", 20*time.Second, "how long records come at full speed for the rate that lasts")
	turns    = flag.Bool("turns", false, "the forms come one after the other at each even pace instead of at the same time")
	check    = flag.Bool("check", false, "fail when a goal is missed")
	daemon   = flag.String("daemon", "", "the daemon's binary, to measure its memory at rest; empty leaves that out")
	binaries = flag.String("binaries", "", "binaries whose sizes to write, separated by commas")
)

func TestMain(m *testing.M) {
	if code, ran := disk.Main(os.Args); ran {
		os.Exit(code)
	}
	if code, ran := hub.Main(os.Args); ran {
		os.Exit(code)
	}
	os.Exit(m.Run())
}

// plan is what to measure.
type plan struct {
	card    bool
	size    int64 // of the disk
	rounds  int
	segment time.Duration
	trickle time.Duration

	even, sustained time.Duration
	paces           []pace
	turns           bool
	check           bool

	daemon   string
	binaries []string
	log      *slog.Logger
}

// TestReport is the benchmark when -report says where to write, else a run too short to mean anything.
func TestReport(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED, NOT TESTED: -short runs without root")
	}
	if err := disk.Available(); err != nil {
		t.Skipf("SKIPPED, NOT TESTED: %v", err)
	}
	p := plan{card: *card, size: 2 << 30, rounds: *rounds, segment: *segment, trickle: *trickle, even: *even, sustained: *lasting, paces: paces(), turns: *turns,
		check: *check, daemon: *daemon, log: slog.New(slog.NewTextHandler(os.Stderr,
			&slog.HandlerOptions{Level: slog.LevelWarn}))}
	if *binaries != "" {
		p.binaries = strings.Split(*binaries, ",")
	}
	out := io.Writer(os.Stdout)
	switch *report {
	case "-":
	case "":
		p.size, p.rounds, p.segment, p.trickle = 256<<20, 1, 50*time.Millisecond, 500*time.Millisecond
		p.even, p.sustained, p.paces, p.check = 500*time.Millisecond, 100*time.Millisecond, paces()[2:3], false
		out = io.Discard
	default:
		f, err := os.Create(*report)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(closer(t, f))
		out = f
	}
	h := startHub(t)
	b := &bench{plan: p, hub: h, out: out, disks: func(card bool, size int64) (*disk.Mount, error) { return medium(t, card, size) }}
	var err error
	if b.mount, err = b.disks(p.card, p.size); err != nil {
		t.Fatal(err)
	}
	if err := b.head(); err != nil {
		t.Fatal(err)
	}
	if err := b.commits(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := b.comparisons(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := b.footprint(t.Context(), t.TempDir()); err != nil {
		t.Fatal(err)
	}
	if err := b.verdicts(); err != nil {
		t.Error(err)
	}
}

// medium returns a file system to measure on.
func medium(t *testing.T, card bool, size int64) (*disk.Mount, error) {
	t.Helper()
	dir := t.TempDir()
	if *where != "" {
		var err error
		if dir, err = os.MkdirTemp(*where, "holdfast-bench-"); err != nil {
			return nil, err
		}
		t.Cleanup(func() {
			if err := os.RemoveAll(dir); err != nil {
				t.Error(err)
			}
		})
	}
	if card {
		d, err := disk.New(disk.Options{Dir: dir, Size: min(size, 1<<30), Tuning: disk.Tuning{FlushLatency: 5 * time.Millisecond, WriteLatency: 500 * time.Microsecond}})
		if err != nil {
			return nil, err
		}
		t.Cleanup(closer(t, d))
		return d.Mount(), nil
	}
	image := filepath.Join(dir, "image")
	if err := disk.Create(image, size); err != nil {
		return nil, err
	}
	m, err := disk.Open(image, filepath.Join(dir, "mnt"))
	if err != nil {
		return nil, err
	}
	t.Cleanup(closer(t, m))
	return m, nil
}

// closer returns a cleanup.
func closer(t *testing.T, c io.Closer) func() {
	return func() {
		if err := c.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
			t.Error(err)
		}
	}
}
