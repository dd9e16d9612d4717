package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/cmd/holdfast/status"
	"github.com/holdfast-edge/holdfast/rig/device"
)

// TestDevicesThroughKills lets devices publish 2,000 messages with QoS 1 straight to the gateway while it is killed with -9 again and again. All of
// them are at the hub in the end, once, in the order in which the gateway had them: paho sends what is open again in another order (shuffled); that a
// client which keeps its order finds it kept is shown by TestKillAfterEveryAcknowledgement.
func TestDevicesThroughKills(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: runs a hub of three processes, not done with -short")
	}
	t.Parallel()
	kills := 5
	if *full {
		kills = 20
	}
	s := newSite(t, siteOptions{devices: true})
	s.start()
	s.daemon.until(30*time.Second, "capturing", running)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	sensor, err := device.NewSensor(ctx, "tcp://"+s.listen, "site-devices")
	if err != nil {
		t.Fatal(err)
	}
	defer sensor.Close()
	sent := messages(400 * kills)
	ended := make(chan error, 1)
	go func() {
		for i := 0; i < len(sent); i += 50 {
			if err := sensor.Publish(ctx, fmt.Sprintf("site/room %d/temp", i%7), 20, sent[i:i+50]); err != nil {
				ended <- err
				return
			}
			pause(ctx, 100*time.Millisecond)
		}
		ended <- nil
	}()
	for range kills {
		pause(ctx, 200*time.Millisecond+rand.N(600*time.Millisecond))
		s.daemon.kill()
		s.start()
		s.daemon.until(30*time.Second, "capturing", running)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	s.daemon.until(60*time.Second, "all captured", func(r status.Report) bool { return running(r) && storedBy(r, "devices") >= len(sent) })
	s.allAtHub(90 * time.Second)
	a := s.account("devices", "SENSORS", "SENSORS", sensor.Acked())
	t.Log(a)
	if a.Missing+a.Double+a.OutOfOrder+a.Unknown+a.Holes+a.Redelivered > 0 {
		t.Errorf("the account does not balance: %v", a)
	}
}
