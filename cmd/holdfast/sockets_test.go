package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/cmd/holdfast/status"
	"github.com/holdfast-edge/holdfast/rig/device"
)

// handed is a socket as a socket unit has it: open for as long as the test takes.
type handed struct {
	name string
	file *os.File
	addr string
}

// hand opens a socket for the daemon.
func hand(t *testing.T, name, network, addr string) handed {
	t.Helper()
	l, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	if u, ok := l.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false)
	}
	f, err := l.(interface{ File() (*os.File, error) }).File()
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().String()
	closing(t, l.Close())
	t.Cleanup(func() { closing(t, f.Close()) })
	return handed{name, f, at}
}

// startActivated starts a daemon as systemd does that has sockets for it: sd_listen_fds(3).
func startActivated(t *testing.T, config, data string, sockets ...handed) *daemon {
	t.Helper()
	var names []string
	cmd := exec.Command("sh", "-c", `LISTEN_PID=$$ exec "$@"`, "sh", os.Args[0], asHoldfast, "run", "-config", config)
	for _, s := range sockets {
		names = append(names, s.name)
		cmd.ExtraFiles = append(cmd.ExtraFiles, s.file)
	}
	cmd.Env = append(os.Environ(), fmt.Sprintf("LISTEN_FDS=%d", len(sockets)), "LISTEN_FDNAMES="+strings.Join(names, ":"))
	return runDaemonAs(t, cmd, data)
}

// TestSocketActivation hands the daemon its control socket and the port of its MQTT server. A device that connects before the daemon starts, and one that does
// while it is away, wait and are served, also after a reload that makes the source anew; the address in the configuration is not used.
func TestSocketActivation(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: starts a daemon twice, not done with -short")
	}
	t.Parallel()
	dir := t.TempDir()
	data, config := filepath.Join(dir, "data"), filepath.Join(dir, "holdfast.yaml")
	makeDir(t, data)
	write := func(keepAlive string) {
		t.Helper()
		text := fmt.Sprintf("leaf: {name: gw1, data: %q}\nstorage: {budget: 1GiB, reserve_free: 0, allow_volatile: true}\nstreams: [{name: S, max_bytes: 64MiB}]\n"+
			"sources:\n  - {name: devices, into: S, mqttserver: {listen: \"192.0.2.1:1\", anonymous: true, access: [{publish: [\"site/#\"]}]%s}}\n", data, keepAlive)
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("")
	sockets := []handed{hand(t, "control", "unix", controlSocket(data)), hand(t, "devices", "tcp", "127.0.0.1:0"), hand(t, "stranger", "tcp", "127.0.0.1:0")}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	publish := func(name string) chan error {
		done := make(chan error, 1)
		go func() {
			sensor, err := device.NewSensor(ctx, "tcp://"+sockets[1].addr, name)
			if err == nil {
				err = sensor.Publish(ctx, "site/"+name, 5, messages(20))
				sensor.Close()
			}
			done <- err
		}()
		return done
	}
	early := publish("early")
	d := startActivated(t, config, data, sockets...)
	if err := <-early; err != nil {
		t.Fatalf("connected before the daemon started: %v", err)
	}
	d.until(40*time.Second, "stored", func(r status.Report) bool { return running(r) && storedBy(r, "devices") == 20 })
	if !strings.Contains(d.logged(), "stranger") {
		t.Error("a socket that nothing has a use for is not told of")
	}
	write(", identify: true")
	if code, out, errs := cli("reload", "-config", config); code != exitDone {
		t.Fatalf("reload = %d: %s%s", code, out, errs)
	}
	if err := <-publish("reloaded"); err != nil {
		t.Errorf("after a reload: %v", err)
	}
	d.stop()
	away := publish("away")
	if conn, err := net.Dial("unix", sockets[0].addr); err != nil {
		t.Errorf("the control socket is gone with the daemon: %v", err)
	} else {
		closing(t, conn.Close())
	}
	d = startActivated(t, config, data, sockets...)
	if err := <-away; err != nil {
		t.Errorf("connected while the daemon was away: %v", err)
	}
	d.until(40*time.Second, "stored", func(r status.Report) bool { return running(r) && storedBy(r, "devices") == 60 })
	d.stop()
}
