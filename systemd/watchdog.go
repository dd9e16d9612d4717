package systemd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// A probe runs feeds times in the interval within which the service manager wants to hear of us, and may take one such period less
// than that: a single slow probe is forgiven, a hung daemon is not.
const feeds = 3

// Watchdog feeds the service manager's watchdog until ctx ends, then returns nil. It feeds only after probe succeeded, so a probe should try
// what the daemon is there for. A probe that fails or hangs feeds nothing, and the service manager restarts the process when that lasts for
// the interval it has set (WatchdogSec). Without a watchdog Watchdog waits for ctx. The error says that the environment makes no sense.
func (n *Notifier) Watchdog(ctx context.Context, probe func(ctx context.Context) error) error {
	interval, err := n.watchdog()
	if err != nil {
		return fmt.Errorf("read the watchdog's interval: %w", err)
	}
	if interval <= 0 {
		<-ctx.Done()
		return nil
	}
	period := interval / feeds
	tick := time.NewTicker(period)
	defer tick.Stop()
	var failed time.Time // since when the probe fails, zero while it succeeds
	for {
		err := try(ctx, interval-period, probe)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && failed.IsZero():
			failed = time.Now()
			n.log.Error("the probe failed, so the watchdog is not fed: the service is restarted if this lasts", "dur", interval, "err", err)
		case err == nil:
			if !failed.IsZero() {
				n.log.Info("the probe succeeds again", "dur", time.Since(failed))
				failed = time.Time{}
			}
			n.tell(daemon.SdNotifyWatchdog)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

var errProbeSlow = errors.New("the probe did not end in time")

func try(ctx context.Context, limit time.Duration, probe func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errProbeSlow)
	defer cancel()
	err := probe(ctx)
	if err == nil && ctx.Err() != nil { // a late success says that the daemon was stuck
		return context.Cause(ctx)
	}
	return err
}
