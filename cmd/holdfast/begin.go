package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"github.com/holdfast-edge/holdfast/configs"
	"github.com/holdfast-edge/holdfast/storage"
	"github.com/holdfast-edge/holdfast/systemd"
)

// settled is how long the streams have to be up until a start counts as one that went well.
const settled = time.Minute

// mountPause is how often it is looked whether the data partition is there.
const mountPause = time.Second

// beginning is a start of the daemon, as the service manager and the next start see it.
type beginning struct {
	notify  *systemd.Notifier
	sockets *systemd.Sockets
	start   *storage.Start // nil: told to end before the data partition was there
	told    func() bool    // takes back that the end of ctx is noted
	stop    func()         // ends the asking for more time; waits
}

// begin waits until the data partition is there, or ctx ends, and notes that a start begins. While it goes on, the service manager is asked for more time.
func begin(ctx context.Context, cfg configs.Config, log *slog.Logger) *beginning {
	b := &beginning{notify: systemd.New(log), sockets: systemd.TakeSockets(), told: func() bool { return true }}
	extending, cancel := context.WithCancel(ctx)
	var wait sync.WaitGroup
	wait.Go(func() { b.notify.Extend(extending) })
	b.stop = func() { cancel(); wait.Wait() }
	awaitMount(ctx, cfg, b.notify, log)
	if ctx.Err() != nil {
		return b
	}
	b.start = storage.BeginStart(storageOptions(cfg, log))
	reportCrashes(cfg.Leaf.Data, log)
	told := context.AfterFunc(ctx, b.start.Told) // a kill from now on is no crash at start
	b.told = told
	return b
}

// awaitMount waits until the data partition is there, as storage.mount asks for. Nothing is captured meanwhile: what lies in its place, such as
// the folder on a root file system, has neither the room nor, as a rule, the right to be written to. READY is not said, and the status says why.
func awaitMount(ctx context.Context, cfg configs.Config, notify *systemd.Notifier, log *slog.Logger) {
	var since time.Time
	said := ""
	for {
		err := cfg.Storage.CheckMount(cfg.Leaf.Data)
		if err == nil {
			if said != "" {
				log.Info("the data partition is in its place", "dur", time.Since(since))
			}
			return
		}
		if since.IsZero() {
			since = time.Now()
		}
		notify.Status("NOTHING IS CAPTURED: " + err.Error())
		notify.MoreTime()
		if err.Error() != said {
			said = err.Error()
			log.Error("nothing is captured", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(mountPause):
		}
	}
}

// reportCrashes lets the runtime leave a report of a crash where the next start finds it.
func reportCrashes(data string, log *slog.Logger) {
	f, err := os.OpenFile(storage.CrashReport(data), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err == nil {
		err = debug.SetCrashOutput(f, debug.CrashOptions{})
		_ = f.Close() // the runtime has its own descriptor
	}
	if err != nil {
		log.Warn("crashes of this run will not be reported to the next", "err", err)
	}
}

// ready says that the start is complete.
func (b *beginning) ready() {
	b.stop()
	b.notify.Ready()
}

// running notes that the start went well when the streams have been up for a while, unless ctx ends first.
func (b *beginning) running(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(settled):
		b.start.Running()
	}
}

// end notes how the run ended.
func (b *beginning) end(err error) {
	b.stop()
	if b.told() && b.start != nil {
		b.start.Told()
	}
	if err != nil {
		b.notify.Status(fmt.Sprintf("ended: %v", err))
	}
	_ = debug.SetCrashOutput(nil, debug.CrashOptions{}) // there is no file to fail
}

// waitWithin waits for wg until ctx ends; false if it was not done by then.
func waitWithin(ctx context.Context, wg *sync.WaitGroup) bool {
	done := make(chan struct{})
	go func() {
		defer close(done)
		wg.Wait()
	}()
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}
