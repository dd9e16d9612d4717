package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/cmd/holdfast/status"
	"github.com/holdfast-edge/holdfast/rig/device"
)

func makeDir(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
}

// talk sends n sentences quickly and waits until the daemon has stored that many more.
func (s *site) talk(log *device.Sentences, n int) []string {
	s.t.Helper()
	s.daemon.until(30*time.Second, "capturing", running)
	r, _ := s.daemon.status()
	before, sent := storedBy(r, "gps"), len(s.gps.Sent())
	if err := s.gps.Run(context.Background(), log, n); err != nil {
		s.t.Fatal(err)
	}
	s.daemon.until(30*time.Second, "all captured", func(r status.Report) bool { return storedBy(r, "gps") >= before+n })
	return s.gps.Sent()[sent:]
}

// TestWipedStore loses the whole data directory of a gateway that its hub knows. Everything captured afterwards arrives, by a right
// clock and by one that says 1970, whether it was captured before or after the link came up.
func TestWipedStore(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: builds a daemon with another clock and runs a hub, not done with -short")
	}
	for _, tt := range []struct {
		name  string
		shift time.Duration
	}{{"right clock", 0}, {"1970", to1970()}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			binary := ""
			if tt.shift != 0 {
				binary = shifted(t, tt.shift)
			}
			s := newSite(t, siteOptions{gps: true})
			config, data := filepath.Join(s.dir, "holdfast.yaml"), filepath.Join(s.dir, "data")
			s.start()
			var log device.Sentences
			sent := s.talk(&log, 60)
			s.allAtHub(30 * time.Second)
			s.daemon.stop()
			if err := os.RemoveAll(data); err != nil {
				t.Fatal(err)
			}
			s.wire.Cut()
			s.daemon = startDaemon(t, binary, config, data)
			sent = append(sent, s.talk(&log, 30)...)
			closing(t, s.wire.Restore())
			s.allAtHub(60 * time.Second)
			sent = append(sent, s.talk(&log, 30)...)
			s.allAtHub(30 * time.Second)
			a := s.account("gps", "SENSORS", "SENSORS", sent)
			t.Log(a)
			if !a.Balances() || a.Redelivered > 0 || a.Captured != 120 {
				t.Errorf("the account does not balance: %v", a)
			}
		})
	}
}

// TestSameNameTwice runs two gateways of one name. The second says so, its records stay with it, and the hub has the first one's only.
func TestSameNameTwice(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: runs a hub, not done with -short")
	}
	t.Parallel()
	s := newSite(t, siteOptions{gps: true})
	s.start()
	var log device.Sentences
	first := s.talk(&log, 60)
	s.allAtHub(30 * time.Second)

	other := &site{t: t, leaf: s.leaf, dir: filepath.Join(s.dir, "other"), hub: s.hub, js: s.js, wire: s.wire}
	makeDir(t, other.dir)
	var err error
	if other.gps, err = device.NewGPS(filepath.Join(other.dir, "gps"), 4800); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closing(t, other.gps.Unplug()) })
	other.write("holdfast.yaml", other.config(s.wire.Addr()))
	other.start()
	foreign := device.Sentences{}
	for range 1000 { // other sentences than the first one's
		foreign.Next()
	}
	theirs := other.talk(&foreign, 30)
	other.daemon.until(90*time.Second, "same name twice", func(r status.Report) bool {
		for _, s := range r.Streams {
			if s.Name == "SENSORS" && s.State == "same name twice" {
				t.Logf("%s: %s → %s", s.State, s.Cause, s.Remedy)
				return s.Remedy != ""
			}
		}
		return false
	})
	first = append(first, s.talk(&log, 30)...)
	other.daemon.stop()
	s.allAtHub(90 * time.Second)
	a := s.account("gps", "SENSORS", "SENSORS", first)
	t.Log(a)
	if !a.Balances() {
		t.Errorf("the account does not balance: %v", a)
	}
	if got := s.account("gps", "SENSORS", "SENSORS", theirs); got.AtHub > 0 {
		t.Errorf("records of the second gateway are at the hub: %v", got)
	}
}

// TestOldCardComesBack swaps the card of a gateway for an empty one and later for the old one again. The old store sends nothing until it is told
// that the other one is gone; then everything it has captured since arrives.
func TestOldCardComesBack(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: runs a hub, not done with -short")
	}
	t.Parallel()
	s := newSite(t, siteOptions{gps: true})
	config, data, card := filepath.Join(s.dir, "holdfast.yaml"), filepath.Join(s.dir, "data"), filepath.Join(s.dir, "card")
	swap := func(from, to string) {
		t.Helper()
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	var log device.Sentences
	s.start()
	sent := s.talk(&log, 30)
	s.allAtHub(30 * time.Second)
	s.daemon.stop()

	swap(data, card)
	s.start()
	sent = append(sent, s.talk(&log, 30)...)
	s.allAtHub(60 * time.Second)
	r, _ := s.daemon.status()
	other := r.Store
	s.daemon.stop()

	swap(data, filepath.Join(s.dir, "lost"))
	swap(card, data)
	s.start()
	sent = append(sent, s.talk(&log, 30)...)
	s.daemon.until(60*time.Second, "same name twice", func(r status.Report) bool {
		return r.Streams[0].State == "same name twice" && strings.Contains(r.Streams[0].Remedy, "holdfast adopt "+other)
	})
	if code, out, errs := cli("adopt", "-config", config, other); code != exitDone {
		t.Fatalf("adopt = %d: %s%s", code, out, errs)
	}
	s.daemon.until(60*time.Second, "everything at the hub", func(r status.Report) bool {
		return r.Streams[0].State == "live" && r.Streams[0].Waiting == 0 // while records move, none of them is counted
	})
	a := s.account("gps", "SENSORS", "SENSORS", sent)
	t.Log(a)
	if !a.Balances() || a.Redelivered > 0 || a.Captured != 90 {
		t.Errorf("the account does not balance: %v", a)
	}
}

// TestOlderCopy puts an older copy of a data directory back. The hub already has other records under its numbers, so nothing is forwarded from it,
// also after a restart, and the verdict says why and what to do.
func TestOlderCopy(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: runs a hub, not done with -short")
	}
	t.Parallel()
	s := newSite(t, siteOptions{gps: true})
	data, older := filepath.Join(s.dir, "data"), filepath.Join(s.dir, "older")
	var log device.Sentences
	s.start()
	s.talk(&log, 20)
	s.allAtHub(30 * time.Second)
	s.daemon.stop()
	if err := os.CopyFS(older, os.DirFS(data)); err != nil {
		t.Fatal(err)
	}
	s.start()
	s.talk(&log, 20)
	s.allAtHub(30 * time.Second)
	s.daemon.stop()
	if err := os.Rename(data, filepath.Join(s.dir, "newer")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(older, data); err != nil {
		t.Fatal(err)
	}
	for start := range 3 {
		s.start()
		s.talk(&log, 20)
		s.daemon.until(60*time.Second, "refused as an older copy", func(r status.Report) bool {
			return r.Streams[0].State == "refused" && strings.Contains(r.Streams[0].Cause, "older copy") && r.Streams[0].Waiting >= uint64(20*(start+1))
		})
		s.daemon.stop()
	}
}
