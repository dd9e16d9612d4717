package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-edge/holdfast/cmd/holdfast/apps"
	"github.com/holdfast-edge/holdfast/configs"
	"github.com/holdfast-edge/holdfast/forward"
	"github.com/holdfast-edge/holdfast/ingest"
	"github.com/holdfast-edge/holdfast/ingest/command"
	"github.com/holdfast-edge/holdfast/leaf"
	"github.com/holdfast-edge/holdfast/storage"
	"github.com/holdfast-edge/holdfast/systemd"
)

// stopTimeout bounds a stop: what is in hand is committed, then the parts end in reverse order of the boot.
const stopTimeout = 20 * time.Second

func runCommand(ctx context.Context, args []string, std stdio) error {
	fs := flags("run", "", "Runs the gateway: captures from the configured sources and forwards to the hub.", std)
	path := fs.String("config", defaultConfig, "configuration `file`")
	debug := fs.Bool("debug", false, "log more than state changes")
	if _, err := parse(fs, args, 0); err != nil {
		return err
	}
	cfg, err := loadConfig(*path, std.err)
	if err != nil {
		return err
	}
	log, done := daemonLogger(std.err, *debug)
	defer done()
	return runDaemon(ctx, *path, cfg, log)
}

// sparingly has the collector keep memory low while the store is read, which goes through it in buffers of many megabytes; what is returned ends that.
func sparingly() (usual func()) {
	const percent = 30
	before := debug.SetGCPercent(percent)
	return sync.OnceFunc(func() {
		debug.SetGCPercent(before)
		debug.FreeOSMemory() // what the start has left behind
	})
}

// runDaemon runs a gateway until ctx ends; path is where the configuration is read from again.
func runDaemon(ctx context.Context, path string, cfg configs.Config, log *slog.Logger) error {
	hup := make(chan os.Signal, 1) // from the beginning, or it would end the process
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	systemd.LimitMemory()
	usual := sparingly()
	defer usual()
	b := begin(ctx, cfg, log)
	var err error
	if ctx.Err() == nil { // else it was told to end while it waited
		err = runGateway(ctx, path, cfg, b, hup, usual, log)
	}
	b.end(err)
	return err
}

// runGateway runs a gateway whose start has begun. Read from top to bottom it is the boot order of docs/ARCHITECTURE.md.
func runGateway(ctx context.Context, path string, cfg configs.Config, b *beginning, hup chan os.Signal, usual func(), log *slog.Logger) (err error) {
	started, notify := time.Now(), b.notify
	notify.Status("opening the store")
	store, err := storage.Open(storageOptions(cfg, log))
	if err != nil {
		return exitError{exitStore, err}
	}
	stopping, cancelStopping := context.WithCancel(context.WithoutCancel(ctx))
	defer cancelStopping()
	deadline := sync.OnceFunc(func() { time.AfterFunc(stopTimeout, cancelStopping) })
	defer func() { err = errors.Join(err, closeStore(stopping, store)) }()
	conn := newLateConn()
	var runner *ingest.Runner
	entries, err := newSources(cfg, store, func(source string) uint64 { return runner.Newest(source) }, conn, b.sockets, log)
	if err != nil {
		return err
	}
	runner = ingest.NewRunner(store, log, entries...)

	var capture, service sync.WaitGroup
	captureCtx, stopCapture := context.WithCancel(ctx)
	serviceCtx, stopService := context.WithCancel(context.WithoutCancel(ctx))
	defer func() { // an error ended the start; else both have ended by now
		deadline()
		stopCapture()
		waitWithin(stopping, &capture)
		stopService()
		waitWithin(stopping, &service)
	}()
	capture.Go(func() { restart(captureCtx, log, "ingest", runner.Run) })
	service.Go(func() {
		restart(serviceCtx, log, "watchdog", func(ctx context.Context) error { return notify.Watchdog(ctx, store.Probe) })
	})

	notify.Status("capturing; reading what waits for the hub before it is sent")
	if err := store.Mend(ctx, forward.Remembered(store.Home(), store.ID())); err != nil {
		log.Error("damaged blocks could not be put right", "err", err) // no reason not to capture
	}
	notify.Status("capturing; bringing the streams up")
	bring := newBringing()
	capture.Go(func() { bring.run(captureCtx, stopping, cfg, store, conn, log) })
	defer func() {
		deadline()
		stopCapture()
		select {
		case <-bring.ended:
		case <-stopping.Done():
		}
		if up, _ := bring.streams(); up != nil {
			if cerr := up.close(stopping); cerr != nil {
				err = errors.Join(err, cerr)
			} else if cerr := store.RestApplications(); cerr != nil {
				log.Warn("the next start takes this stop for a power cut", "err", cerr)
			}
		}
	}()
	self := &gateway{path: path, conn: conn, sockets: b.sockets, store: store, runner: runner, notify: notify, log: log, hup: hup, entries: entries}
	self.cfg.Store(&cfg)
	reports := &reporter{cfg: &self.cfg, started: started, store: store, runner: runner, bring: bring, start: b.start}
	control := newControl(reports, b.sockets, log)
	begin := func(up *streams) { // what needs the streams
		self.server, self.js = up.server, up.js
		self.executor = command.New(commandOptions(cfg, store, runner, up.js, entries, log))
		self.keeper = apps.New(up.server, store, log)
		self.keeper.SetFailed(append(ensureCaptured(ctx, up.js, cfg, log), ensureAssets(ctx, up.server, cfg, false, log)...))
		reports.apps.Store(self.keeper)
		control.extend(self, up.js, carrier(cfg, store, up), cfg)
		capture.Go(func() { restart(captureCtx, log, "commands", self.executor.Run) })
		service.Go(func() {
			restart(serviceCtx, log, "uplink", func(ctx context.Context) error { return up.uplink.Run(ctx, up.nc) })
		})
		service.Go(func() { restart(serviceCtx, log, "reload", self.reloadOnSignal) })
		service.Go(func() { restart(serviceCtx, log, "local applications", self.keeper.Run) })
		service.Go(func() { b.running(serviceCtx) })
	}
	up, err := bring.wait(ctx, streamPatience)
	if err != nil || ctx.Err() != nil {
		return err
	}
	if up != nil {
		begin(up)
	}
	if err := control.listen(cfg.Leaf.Data); err != nil {
		log.Error("the control socket cannot be opened", "err", err)
	}
	service.Go(func() {
		restart(serviceCtx, log, "control socket", func(ctx context.Context) error { return control.serve(ctx, cfg.Leaf.Data) })
	})
	service.Go(func() { keepStatusLine(serviceCtx, notify, reports) })
	if unused := b.sockets.Unused(); len(unused) > 0 {
		log.Warn("sockets of the service manager have the name of nothing here: control, or a source", "names", unused)
	}
	log.Info("ready", "leaf", cfg.Leaf.Name, "version", version(), "epoch", store.Epoch(), "streams", up != nil, "dur", time.Since(started))
	b.ready()
	var failed error
	if up == nil {
		if up, failed = bring.wait(ctx, forEver); up != nil {
			log.Info("the streams are up", "dur", time.Since(started))
			begin(up)
		}
	}
	usual()
	if up != nil && cfg.Hub.Link != leaf.LinkOnDemand {
		if err := up.server.Enable(true); err != nil {
			log.Error("the link to the hub cannot be opened; capture goes on", "err", err)
		}
	}

	if failed == nil {
		<-ctx.Done()
	}
	notify.Stopping()
	log.Info("stopping")
	deadline()
	stopCapture()
	sources, cancelSources := context.WithTimeout(stopping, stopTimeout/2) // the store needs some of it
	defer cancelSources()
	if !waitWithin(sources, &capture) {
		log.Error("a source does not end; what it has not delivered is not acknowledged", "dur", stopTimeout/2)
	}
	err = errors.Join(failed, closeStore(stopping, store))
	stopService()
	waitWithin(stopping, &service)
	return err
}

// closeStore closes s; closing a closed store is no error.
func closeStore(ctx context.Context, s *storage.Store) error {
	if err := s.Close(ctx); err != nil && !errors.Is(err, storage.ErrClosed) {
		return exitError{exitStore, fmt.Errorf("close the store: %w", err)}
	}
	return nil
}

// restart runs one part until ctx ends. A part that ends by itself has a fault; it is logged and run again, since no part may take capture down with it.
func restart(ctx context.Context, log *slog.Logger, part string, run func(context.Context) error) {
	const pause = 2 * time.Second
	for {
		err := run(ctx)
		if ctx.Err() != nil {
			return
		}
		log.Error("a part ended and is started again", "part", part, "err", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// keepStatusLine shows the verdict in `systemctl status` until ctx ends.
func keepStatusLine(ctx context.Context, notify *systemd.Notifier, reports *reporter) {
	tick := time.NewTicker(5 * time.Second)
	defer tick.Stop()
	for {
		notify.Status(reports.line())
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
