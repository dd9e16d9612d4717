package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sys/unix"
)

// pace is records that come evenly: group of them every interval, in one commit.
type pace struct {
	group    int
	interval time.Duration
}

func paces() []pace {
	return []pace{{1, time.Second}, {1, 100 * time.Millisecond}, {10, 100 * time.Millisecond}, {100, 100 * time.Millisecond}}
}

// zeroed overwrites a file that was written with zeros before, and syncs it: the floor of a medium, since no metadata changes.
type zeroed struct {
	file *os.File
	data []byte
	off  int64
}

const zeroedSize = 16 << 20

func newZeroed(dir string) (*zeroed, error) {
	f, err := os.Create(filepath.Join(dir, "zeroed"))
	if err == nil {
		_, err = f.Write(make([]byte, zeroedSize))
	}
	if err == nil {
		err = f.Sync()
	}
	return &zeroed{file: f, data: make([]byte, 1<<20)}, err
}

func (z *zeroed) commit(_ context.Context, _, group int) error {
	const around = 150 // what a log has to keep beside the payload: subject, ID, time, checksum
	n := int64(group * (recordSize + around))
	if z.off+n > zeroedSize {
		z.off = 0
	}
	if _, err := z.file.WriteAt(z.data[:n], z.off); err != nil {
		return err
	}
	z.off += n
	return unix.Fdatasync(int(z.file.Fd()))
}

// direct publishes into a stream of the same server as the store's, and makes that durable by syncfs, or not at all.
type direct struct {
	js   jetstream.JetStream
	root *os.File // of the file system; nil: no sync
	data []byte
}

const directSubject = "bench.direct"

func newDirect(ctx context.Context, js jetstream.JetStream, root *os.File) (*direct, error) {
	_, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: "DIRECT", Subjects: []string{directSubject}, MaxBytes: 32 << 20, Storage: jetstream.FileStorage})
	return &direct{js: js, root: root, data: make([]byte, recordSize)}, err
}

func (d *direct) commit(ctx context.Context, _, group int) error {
	acks := make([]jetstream.PubAckFuture, group)
	for i := range acks {
		var err error
		if acks[i], err = d.js.PublishMsgAsync(&nats.Msg{Subject: directSubject, Data: d.data}); err != nil {
			return err
		}
	}
	for _, a := range acks {
		select {
		case <-a.Ok():
		case err := <-a.Err():
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if d.root == nil {
		return nil
	}
	return unix.Syncfs(int(d.root.Fd()))
}

// costs measures what records cost the device that come at an even pace, with the link up: through the store, beside the floor of the medium, a stream that
// is synced after each commit, and a stream that is not synced, which loses what came since in a power cut.
func (b *bench) costs(ctx context.Context, g *gateway, s *store) error {
	root, err := os.Open(b.mount.Dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // nothing was written through it
	floor, err := newZeroed(b.mount.Dir)
	if err != nil {
		return err
	}
	synced, err := newDirect(ctx, g.js, root)
	if err != nil {
		return err
	}
	forms := []struct {
		name string
		writer
	}{{"store", s}, {"zero-filled log", floor}, {"stream and syncfs", synced}, {"stream, not synced", &direct{js: g.js, data: synced.data}}}
	if err := errors.Join(b.print("\n### Cost at an even pace, %v each, link up\n", b.plan.trickle),
		b.print("| records/s, in one commit | form | flushes per commit | device bytes per record | p50 | p99 |"), b.print("|---|---|---|---|---|---|")); err != nil {
		return err
	}
	for _, p := range paces() {
		for _, f := range forms {
			c, times, err := b.even(ctx, f.writer, p, g)
			if err != nil {
				return fmt.Errorf("%s: %w", f.name, err)
			}
			slices.Sort(times)
			if err := b.print("| %.0f, %d | %s | %.2f | %.0f | %v | %v |", float64(p.group)/p.interval.Seconds(), p.group, f.name, c.flushes()*float64(p.group), c.bytes(),
				times[len(times)/2].Round(10*time.Microsecond), times[len(times)*99/100].Round(10*time.Microsecond)); err != nil {
				return err
			}
		}
	}
	return errors.Join(floor.file.Close(), os.Remove(floor.file.Name()))
}

// even commits at a pace. What the page cache has in the end is written out and counted, too.
func (b *bench) even(ctx context.Context, w writer, p pace, g *gateway) (c cost, times []time.Duration, err error) {
	if err := errors.Join(g.drained(ctx), settle(b.mount.Dir)); err != nil {
		return c, nil, err
	}
	before, err := b.mount.Stats()
	if err != nil {
		return c, nil, err
	}
	tick := time.NewTicker(p.interval)
	defer tick.Stop()
	begun := time.Now()
	for len(times) == 0 || time.Since(begun) < b.plan.trickle {
		at := time.Now()
		if err := w.commit(ctx, 0, p.group); err != nil {
			return c, nil, err
		}
		times = append(times, time.Since(at))
		c.records += p.group
		select {
		case <-tick.C:
		case <-ctx.Done():
			return c, nil, ctx.Err()
		}
	}
	c.took = time.Since(begun)
	if err := errors.Join(g.drained(ctx), settle(b.mount.Dir)); err != nil {
		return c, nil, err
	}
	after, err := b.mount.Stats()
	c.device = minus(after, before)
	return c, times, err
}
