package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/cmd/holdfast/status"
	"github.com/holdfast-edge/holdfast/leaf"
	"github.com/holdfast-edge/holdfast/rig/poll"
	"github.com/holdfast-edge/holdfast/rig/port"
)

// TestStreamsThatCannotBeBroughtUp starts a daemon whose server cannot make its stream. It captures into the journal, is ready, feeds the watchdog and says
// why records wait; when the cause is gone they are in the stream, without a restart.
func TestStreamsThatCannotBeBroughtUp(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: waits for the streams as long as a start does, not done with -short")
	}
	t.Parallel()
	dir := t.TempDir()
	ports, err := port.Pick(1)
	if err != nil {
		t.Fatal(err)
	}
	d := &inside{t: t, config: filepath.Join(dir, "holdfast.yaml"), data: filepath.Join(dir, "data"), nats: fmt.Sprintf("127.0.0.1:%d", ports[0])}
	d.write("streams: [{name: S, max_bytes: 64MiB}]\nsources:\n  - {name: calc, into: S, append: {}}\n")
	streams := filepath.Join(d.data, "jetstream", "CAPTURE", "streams")
	if err := os.MkdirAll(streams, 0o700); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("chattr", "+i", streams).CombinedOutput(); err != nil {
		t.Skipf("SKIPPED: a folder that cannot be written to needs root and chattr: %v: %s", err, out)
	}
	free := func() { closing(t, exec.Command("chattr", "-i", streams).Run()) }
	t.Cleanup(free)

	socket, conn := notifySocket(t)
	p := startDaemon(t, "", d.config, d.data, "NOTIFY_SOCKET="+socket, "WATCHDOG_USEC=1500000")
	awaitNotice(t, conn, "READY=1", 40*time.Second)
	awaitNotice(t, conn, "WATCHDOG=1", 20*time.Second)
	p.until(20*time.Second, "the cause is told", func(r status.Report) bool {
		return strings.Contains(r.Streams[0].Waits, "cannot be brought up") && r.Verdict.Safe && len(r.Verdict.Findings) > 0 && running(r)
	})
	nc := d.dial()
	for n := range 20 {
		reply, err := nc.Request(leaf.AppendSubject("calc"), []byte(fmt.Sprint(n)), 20*time.Second)
		if err != nil || !strings.Contains(string(reply.Data), `"stored":true`) {
			t.Fatalf("append %d: %v, %v", n, reply, err)
		}
	}
	if _, err := askPlan(t.Context(), d.data, "/reload", nil, nil); err == nil || !strings.Contains(err.Error(), "cannot be brought up") {
		t.Errorf("reload: %v, want the reason why not yet", err)
	}
	awaitNotice(t, conn, "WATCHDOG=1", 20*time.Second)
	free()
	p.until(40*time.Second, "all is in the stream", func(r status.Report) bool {
		return r.Streams[0].Waits == "" && r.Streams[0].Stored == 20 && r.Streams[0].Records >= 20 // and an epoch record
	})
	if n := strings.Count(p.logged(), "msg=ready"); n != 1 {
		t.Errorf("ready %d times", n)
	}
	poll.Until(t, reloadPatience, func() bool {
		_, err := askPlan(t.Context(), d.data, "/reload", nil, nil)
		return err == nil
	}, "a reload")
	p.stop()
}
