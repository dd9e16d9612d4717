package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/cmd/holdfast/status"
	"github.com/holdfast-edge/holdfast/rig/device"
	"github.com/holdfast-edge/holdfast/rig/port"
)

// TestForeignDaemon runs a daemon built for another processor, which scripts/test-arch names with its emulator: it captures, is killed, and has everything
// when it is started again; then it stops as it should.
func TestForeignDaemon(t *testing.T) {
	command := strings.Fields(os.Getenv("HOLDFAST_FOREIGN"))
	if len(command) == 0 {
		t.Skip("SKIPPED: scripts/test-arch runs it, with HOLDFAST_FOREIGN")
	}
	const patience = 2 * time.Minute // it is emulated
	ports, err := port.Pick(1)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	data, config, addr := filepath.Join(dir, "data"), filepath.Join(dir, "holdfast.yaml"), fmt.Sprintf("127.0.0.1:%d", ports[0])
	text := fmt.Sprintf("leaf: {name: gw1, data: %q}\nstorage: {budget: 1GiB, reserve_free: 0, allow_volatile: true}\nstreams: [{name: S, max_bytes: 64MiB}]\n"+
		"sources:\n  - {name: devices, into: S, mqttserver: {listen: %q, anonymous: true, access: [{publish: [\"site/#\"]}]}}\n", data, addr)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	start := func() *daemon {
		return runDaemonAs(t, exec.Command(command[0], append(command[1:], "run", "-config", config)...), data)
	}
	d := start()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	sensor, err := device.NewSensor(ctx, "tcp://"+addr, "site")
	if err != nil {
		t.Fatalf("%v\n%s", err, tailOf(d.logged(), 4000))
	}
	defer sensor.Close()
	if err := sensor.Publish(ctx, "site/a", 10, messages(200)); err != nil {
		t.Fatalf("%v\n%s", err, tailOf(d.logged(), 4000))
	}
	d.kill()
	d = start()
	d.until(patience, "everything is there", func(r status.Report) bool {
		return running(r) && storedBy(r, "devices") == 200 && r.Streams[0].Records >= 200 && r.Verdict.Safe
	})
	d.stop()
	if code, out, errs := cli("check", "--store", data); code != exitDone {
		t.Errorf("check --store = %d: %s%s", code, out, errs)
	}
}
