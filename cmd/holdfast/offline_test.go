package main

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/cmd/holdfast/demo"
	"github.com/holdfast-edge/holdfast/cmd/holdfast/status"
	fleet "github.com/holdfast-edge/holdfast/forward/hub"
	"github.com/holdfast-edge/holdfast/rig/device"
	"github.com/holdfast-edge/holdfast/storage"
)

// notifySocket is what systemd listens on for a daemon's READY.
func notifySocket(t *testing.T) (path string, conn *net.UnixConn) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closing(t, conn.Close()) })
	return path, conn
}

// awaitReady returns when READY=1 arrives.
func awaitReady(t *testing.T, conn *net.UnixConn, within time.Duration) {
	t.Helper()
	awaitNotice(t, conn, "READY=1", within)
}

// awaitNotice returns when a notice arrives that is to come.
func awaitNotice(t *testing.T, conn *net.UnixConn, notice string, within time.Duration) {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(within)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4096)
	for {
		n, err := conn.Read(buf)
		if err != nil {
			t.Fatalf("no %s within %v: %v", notice, within, err)
		}
		if strings.Contains(string(buf[:n]), notice) {
			return
		}
	}
}

// TestOffline starts a gateway without hub, name service and time: its clock says 1970. It is ready in 3 s, captures an hour of 20 messages
// a second, and all of them are at the hub when the link comes.
func TestOffline(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: builds a daemon with another clock, runs a hub and a broker, not done with -short")
	}
	t.Parallel()
	binary := shifted(t, to1970())
	s := newSite(t, siteOptions{broker: true})
	s.wire.Cut()
	config := strings.Replace(s.config(s.wire.Addr()), "urls: [", fmt.Sprintf("urls: [\"nats-leaf://%s:%s@hub.invalid:7422\", ", s.leaf, sitePassword), 1)
	socket, conn := notifySocket(t)
	began := time.Now()
	s.daemon = startDaemon(t, binary, s.write("holdfast.yaml", config), filepath.Join(s.dir, "data"), "NOTIFY_SOCKET="+socket)
	awaitReady(t, conn, 3*time.Second)
	t.Logf("ready after %.2f s", time.Since(began).Seconds())
	s.daemon.until(10*time.Second, "capturing", running)

	const n = 72000
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	sensor, err := device.NewSensor(ctx, s.broker.URL(), "site-sensors")
	if err != nil {
		t.Fatal(err)
	}
	defer sensor.Close()
	if err := sensor.Publish(ctx, "site/hour", 100, messages(n)); err != nil {
		t.Fatal(err)
	}
	s.daemon.until(60*time.Second, "all captured", func(r status.Report) bool { return storedBy(r, "sensors") == n && storedBy(r, "events") == n })
	r, _ := s.daemon.status()
	if r.Link.State == "up" || r.Link.Cause == "" || r.Verdict.Waiting < 2*n || !r.Verdict.Safe {
		t.Errorf("offline: link %+v, verdict %+v; want it down with a cause, all waiting and safe", r.Link, r.Verdict)
	}
	if r.Clock != "unsynced" {
		t.Errorf("clock is %q in 1970, want unsynced", r.Clock)
	}
	closing(t, s.wire.Restore())
	s.allAtHub(2 * time.Minute)
	for _, a := range []demo.Account{
		s.account("sensors", "SENSORS", "SENSORS", messages(n)),
		s.account("events", "EVENTS", fleet.MirrorName(s.leaf, "EVENTS"), messages(n)),
	} {
		t.Log(a)
		if !a.Balances() || a.Redelivered > 0 {
			t.Errorf("the account does not balance: %v", a)
		}
	}
	checkStamps(t, s)
}

// checkStamps reads the newest record at the hub: it must say that its time is not to be trusted.
func checkStamps(t *testing.T, s *site) {
	t.Helper()
	stream, err := s.js.Stream(context.Background(), "SENSORS")
	if err != nil {
		t.Fatal(err)
	}
	m, err := stream.GetLastMsgForSubject(context.Background(), storage.DataSubject(s.leaf, "SENSORS", "sensors.>"))
	if err != nil {
		t.Fatal(err)
	}
	stamp, err := storage.ParseStamp(m.Header.Get(storage.HeaderTime))
	if err != nil {
		t.Fatal(err)
	}
	if stamp.Clock != storage.ClockUnsynced || stamp.Wall.Year() != 1970 {
		t.Errorf("stamp of a record captured in 1970: %v, want its year and unsynced", stamp)
	}
}
