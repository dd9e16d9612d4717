package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/rig/leak"
	"github.com/holdfast-edge/holdfast/rig/poll"
)

// TestSlowReadersFitTheMemory gives the daemon the heap of a service with MemoryMax=256M, and takes all connections that there are for programs that
// subscribe to everything and read nothing, while others send large messages: what waits for all of them together fits, and what is appended is stored.
func TestSlowReadersFitTheMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: presses on the machine for some seconds, not done with -short")
	}
	leak.Check(t)
	const memoryMax = 256 << 20
	a := startApplicationWithin(t, fmt.Sprint(memoryMax/100*80))
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	load := &appender{source: "calc"}
	wg.Go(func() { load.run(ctx, t, a.nc) })
	senders := make([]*nats.Conn, 2)
	for i := range senders {
		nc, err := nats.Connect(a.url, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		senders[i] = nc
	}
	readers := 0
	for {
		nc, err := nats.Connect(a.url, nats.NoReconnect(), nats.SetCustomDialer(deaf{}))
		if err != nil {
			break
		}
		defer nc.Close()
		if _, err := nc.Subscribe(">", func(*nats.Msg) {}); err != nil {
			break
		}
		readers++
	}
	payload := make([]byte, 256<<10)
	for begun := time.Now(); time.Since(begun) < 6*time.Second; {
		for _, nc := range senders {
			_ = nc.Publish("noise", payload) // it is closed, then, and connects again
		}
	}
	before := load.stored.Load()
	poll.Until(t, topicPatience, func() bool { return load.stored.Load() > before+20 }, "appending to go on")
	peak := peakBytes(t, a.daemon.cmd.Process.Pid)
	t.Logf("%d readers, %d records appended meanwhile; the daemon took %d MB at most", readers, load.stored.Load(), peak>>20)
	if peak > memoryMax {
		t.Errorf("the daemon took %d MB, want %d at most", peak>>20, memoryMax>>20)
	}
	if strings.Contains(a.daemon.logged(), "panic") {
		t.Error("the daemon panicked")
	}
}

// TestUncommittedBatchesAreBounded begins more atomic batches than may be under way, on disk and in memory, fills them and commits none: neither the memory
// nor the disk that they take grows beyond what is said, and what is appended is stored.
func TestUncommittedBatchesAreBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: presses on the machine for some seconds, not done with -short")
	}
	leak.Check(t)
	const memoryMax, onDisk = 256 << 20, 128 << 20
	a := startApplicationWithin(t, fmt.Sprint(memoryMax/100*80))
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	load := &appender{source: "calc"}
	wg.Go(func() { load.run(ctx, t, a.nc) })
	payload := make([]byte, 900<<10)
	for _, storage := range []jetstream.StorageType{jetstream.FileStorage, jetstream.MemoryStorage} {
		name := "BATCH-" + storage.String()
		if _, err := a.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{name}, Storage: storage, AllowAtomicPublish: true}); err != nil {
			t.Fatal(err)
		}
		nc, err := nats.Connect(a.url, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		for seq := 1; seq <= 80; seq++ {
			for batch := range 10 {
				m := nats.NewMsg(name)
				m.Data = payload
				m.Header.Set("Nats-Batch-Id", fmt.Sprint("b", batch))
				m.Header.Set("Nats-Batch-Sequence", fmt.Sprint(seq))
				_ = nc.PublishMsg(m) // it is closed, then, and connects again
			}
		}
		if took := folder(t, filepath.Join(a.daemon.data, "jetstream", "APP")); took > onDisk {
			t.Errorf("%s: uncommitted batches take %d MB on disk, want %d at most", storage, took>>20, onDisk>>20)
		}
		before := load.stored.Load()
		poll.Until(t, topicPatience, func() bool { return load.stored.Load() > before+20 }, "appending to go on")
		peak := peakBytes(t, a.daemon.cmd.Process.Pid)
		t.Logf("%s: %d records appended meanwhile; the daemon took %d MB at most", storage, load.stored.Load(), peak>>20)
		if peak > memoryMax {
			t.Errorf("%s: the daemon took %d MB, want %d at most", storage, peak>>20, memoryMax>>20)
		}
	}
}

// folder returns the bytes of all files below dir.
func folder(t *testing.T, dir string) (sum int64) {
	t.Helper()
	err := filepath.Walk(dir, func(_ string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().IsRegular() {
			sum += info.Size()
		}
		return nil // what is removed meanwhile takes nothing
	})
	if err != nil {
		t.Fatal(err)
	}
	return sum
}
