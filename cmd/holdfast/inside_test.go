package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/holdfast-edge/holdfast/configs"
	"github.com/holdfast-edge/holdfast/rig/poll"
	"github.com/holdfast-edge/holdfast/rig/port"
)

// reloadPatience bounds what takes no time when all is well.
const reloadPatience = 30 * time.Second

// inside is a daemon within the test's process.
type inside struct {
	t      *testing.T
	config string // file
	data   string
	nats   string // address for applications
	stop   func()
	log    *daemon // only its log
}

// startInside runs a daemon whose configuration is below a head with leaf and storage; {port} in it is one that is free.
func startInside(t *testing.T, config string) *inside {
	t.Helper()
	dir := t.TempDir()
	ports, err := port.Pick(1)
	if err != nil {
		t.Fatal(err)
	}
	d := &inside{t: t, config: filepath.Join(dir, "holdfast.yaml"), data: filepath.Join(dir, "data"), nats: fmt.Sprintf("127.0.0.1:%d", ports[0]), log: &daemon{}}
	d.write(config)
	cfg, faults, err := configs.Load(d.config)
	if err != nil || len(faults) > 0 {
		t.Fatal(err, configs.Format(faults))
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- runDaemon(ctx, d.config, cfg, slog.New(slog.NewTextHandler(d.log, nil))) }()
	stopped := false
	d.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the daemon ended with %v", err)
		}
	}
	t.Cleanup(func() {
		d.stop()
		if t.Failed() {
			t.Logf("the daemon's log:\n%s", tailOf(d.log.logged(), 6000))
		}
	})
	poll.Until(t, reloadPatience, func() bool { return strings.Contains(d.log.logged(), "msg=ready") }, "the daemon")
	return d
}

func (d *inside) write(config string) {
	d.t.Helper()
	head := fmt.Sprintf("leaf: {name: gw1, data: %q, nats: %q}\nstorage: {budget: 1GiB, reserve_free: 0, allow_volatile: true}\n", d.data, d.nats)
	if err := os.WriteFile(d.config, []byte(head+config), 0o600); err != nil {
		d.t.Fatal(err)
	}
}

// reload asks for a reload of a configuration.
func (d *inside) reload(config string) (reloadPlan, error) {
	d.t.Helper()
	d.write(config)
	ctx, cancel := context.WithTimeout(context.Background(), reloadPatience)
	defer cancel()
	return askPlan(ctx, d.data, "/reload", nil, nil)
}

func (d *inside) dial(opts ...nats.Option) *nats.Conn {
	d.t.Helper()
	nc, err := nats.Connect("nats://"+d.nats, opts...)
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(nc.Close)
	return nc
}

// configBytes returns a configuration as it would be in the file.
func configBytes(t *testing.T, d *inside, text string) []byte {
	t.Helper()
	d.write(text)
	raw, err := os.ReadFile(d.config)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}
