package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-edge/holdfast/rig/hub"
	"github.com/holdfast-edge/holdfast/rig/poll"
)

// restTime is how long the daemon idles, attached to the hub, before its memory is read.
const restTime = 10 * time.Second

// idleConfig is a daemon with one source that waits for its device.
const idleConfig = `leaf: {name: %s, data: %s}
hub: {urls: [%s]}
storage: {budget: 64MiB, reserve_free: 1MiB, allow_volatile: true}
streams:
  - {name: %s, max_bytes: 32MiB}
sources:
  - {name: gps, into: %[4]s, serial: {port: /dev/serial/by-id/none, baud: 9600}, frame: line}
`

// footprint measures the daemon at rest and prints the sizes of binaries.
func (b *bench) footprint(ctx context.Context, dir string) error {
	if b.plan.daemon == "" && len(b.plan.binaries) == 0 {
		return nil
	}
	if err := errors.Join(b.print("\n### Footprint\n"), b.print("| what | MB |"), b.print("|---|---|")); err != nil {
		return err
	}
	if b.plan.daemon != "" {
		rss, err := b.idle(ctx, dir)
		if err != nil {
			return fmt.Errorf("daemon at rest: %w", err)
		}
		if err := b.print("| memory of the daemon at rest, attached to the hub | %.1f |", float64(rss)/1e6); err != nil {
			return err
		}
	}
	for _, path := range b.plan.binaries {
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		if err := b.print("| %s | %.1f |", filepath.Base(path), float64(info.Size())/1e6); err != nil {
			return err
		}
	}
	return nil
}

// idle runs the daemon until it has attached and rested, and returns its resident memory in bytes.
func (b *bench) idle(ctx context.Context, dir string) (rss int64, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return 0, err
	}
	urls, err := hub.WithUser(b.hub.LeafURLs(), idleName, password)
	if err != nil {
		return 0, err
	}
	for i := range urls {
		urls[i] = strconv.Quote(urls[i])
	}
	config := filepath.Join(dir, "holdfast.yaml")
	text := fmt.Sprintf(idleConfig, idleName, filepath.Join(dir, "data"), strings.Join(urls, ", "), streamName)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return 0, err
	}
	var log strings.Builder
	cmd := exec.CommandContext(ctx, b.plan.daemon, "run", "--config", config)
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	defer func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		if werr := <-ended; err != nil || werr != nil {
			err = errors.Join(err, werr, errors.New(log.String()))
		}
	}()
	if err := b.attached(ctx); err != nil {
		return 0, err
	}
	rest := time.NewTimer(restTime)
	defer rest.Stop()
	select {
	case <-rest.C:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	return residentBytes(cmd.Process.Pid)
}

// attached waits until the hub holds a record of the idle daemon: its epoch record.
func (b *bench) attached(ctx context.Context) error {
	js, err := b.hub.JetStream()
	if err != nil {
		return err
	}
	stream, err := js.Stream(ctx, streamName)
	if err != nil {
		return err
	}
	there := func() bool {
		_, err := stream.GetLastMsgForSubject(ctx, "data."+idleName+".>")
		return err == nil
	}
	if !poll.Wait(ctx, patience, there) {
		return fmt.Errorf("no record of it at the hub after %v", patience)
	}
	return nil
}

// residentBytes reads VmRSS: see proc_pid_status(5).
func residentBytes(pid int) (int64, error) {
	f, err := os.Open("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }() // read only
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), "VmRSS:"); ok {
			kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kb << 10, err
		}
	}
	return 0, errors.New("the process has no VmRSS")
}
