package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/cmd/holdfast/apps"
	"github.com/holdfast-edge/holdfast/configs"
	"github.com/holdfast-edge/holdfast/ingest"
	"github.com/holdfast-edge/holdfast/ingest/command"
	"github.com/holdfast-edge/holdfast/leaf"
	"github.com/holdfast-edge/holdfast/storage"
	"github.com/holdfast-edge/holdfast/systemd"
)

// gateway is a running daemon that can take another configuration.
type gateway struct {
	path     string // of the configuration; empty: there is nothing to reload
	cfg      atomic.Pointer[configs.Config]
	conn     *lateConn
	sockets  *systemd.Sockets
	store    *storage.Store
	runner   *ingest.Runner
	executor *command.Executor
	server   *leaf.Server
	js       jetstream.JetStream // of the captured streams
	keeper   *apps.Keeper        // of local applications
	notify   *systemd.Notifier
	log      *slog.Logger
	hup      <-chan os.Signal // never closed: asks for a reload

	mu      sync.Mutex // guards the field below; held for a whole reload
	entries []ingest.Entry
}

// reloadPlan is what another configuration would change, or has changed.
type reloadPlan struct {
	Changes []string           `json:"changes,omitempty"` // what is done while everything runs
	Restart []string           `json:"restart,omitempty"` // what needs a restart, and is left as it is until then
	Assets  []leaf.AssetChange `json:"assets,omitempty"`  // of the jetstream section
	Failed  []string           `json:"failed,omitempty"`  // what could not be done, after a reload
}

// lossy tells whether the plan would lose data of local applications.
func (p reloadPlan) lossy() bool {
	return slices.ContainsFunc(p.Assets, func(c leaf.AssetChange) bool { return c.Loss != "" })
}

// String returns the plan in lines for a person.
func (p reloadPlan) String() string {
	var b strings.Builder
	for _, c := range p.Changes {
		fmt.Fprintf(&b, "change %s\n", c)
	}
	for _, c := range p.Assets {
		fmt.Fprintf(&b, "%s\n", c)
	}
	for _, c := range p.Restart {
		fmt.Fprintf(&b, "needs a restart: %s\n", c)
	}
	for _, c := range p.Failed {
		fmt.Fprintf(&b, "failed: %s\n", c)
	}
	if b.Len() == 0 {
		return "nothing changes\n"
	}
	return b.String()
}

// faultsError says that a configuration has faults.
type faultsError struct{ faults []configs.Fault }

func (e faultsError) Error() string {
	return "the configuration has faults, nothing is changed:\n" + strings.TrimSuffix(configs.Format(e.faults), "\n")
}

// plan says what a configuration would change. It changes nothing.
func (g *gateway) plan(ctx context.Context, want configs.Config) (reloadPlan, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	next, p := g.next(want)
	var err error
	p.Assets, err = g.server.PlanAssets(ctx, appsOf(next), next.JetStream)
	return p, err
}

// next returns the configuration that the gateway can go on with: what needs a restart is as it was. mu is held.
func (g *gateway) next(want configs.Config) (configs.Config, reloadPlan) {
	have := *g.cfg.Load()
	next := have
	next.Hub, next.Apps, next.JetStream, next.Sources = want.Hub, want.Apps, want.JetStream, nil
	next.Streams = slices.Clone(have.Streams)
	for i, s := range next.Streams {
		for _, w := range want.Streams {
			if w.Name == s.Name {
				next.Streams[i].StreamConfig = w.StreamConfig
			}
		}
	}
	there := func(stream string) bool {
		return slices.ContainsFunc(have.Streams, func(s configs.Stream) bool { return s.Name == stream })
	}
	for _, s := range want.Sources {
		i := slices.IndexFunc(have.Sources, func(h configs.Source) bool { return h.Name == s.Name })
		switch {
		case i >= 0 && have.Sources[i].Into != s.Into:
			next.Sources = append(next.Sources, have.Sources[i]) // its numbers belong to the other stream
		case there(s.Into):
			next.Sources = append(next.Sources, s)
		}
	}
	keep := leaf.RestartNeeded(leafOptions(have, g.store, slog.New(slog.DiscardHandler)), leafOptions(want, g.store, slog.New(slog.DiscardHandler)))
	for _, key := range keep {
		switch key {
		case "apps.websocket":
			next.Apps.Websocket = have.Apps.Websocket
		case "apps.origins":
			next.Apps.Origins = have.Apps.Origins
		case "apps.tls":
			next.Apps.TLS = have.Apps.TLS
		case "apps.users":
			next.Apps.Users = have.Apps.Users
		case "apps.max_file":
			next.Apps.MaxFile = have.Apps.MaxFile
		}
	}
	var p reloadPlan
	for _, d := range configs.Diff(have, next) {
		if !strings.HasPrefix(d.Path, "jetstream.") {
			p.Changes = append(p.Changes, d.String())
		}
	}
	for _, d := range configs.Diff(next, want) {
		p.Restart = append(p.Restart, d.String())
	}
	return next, p
}

// appsOf returns the apps section with what is left for it on the disk.
func appsOf(cfg configs.Config) leaf.Apps {
	apps := cfg.Apps
	apps.MaxFile = cfg.AppsRoom()
	return apps
}

// reload reads the configuration file and goes on with it. A file with faults changes nothing. What can be changed while everything runs is; the
// plan says what was, what needs a restart, and what failed.
func (g *gateway) reload(ctx context.Context, allowLoss bool) (p reloadPlan, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.notify.Reloading()
	defer g.notify.Ready()
	defer func() {
		if err != nil {
			g.log.Error("reload refused, nothing is changed", "err", err)
		}
	}()
	if g.path == "" {
		return p, errors.New("there is no configuration file to read again")
	}
	want, faults, err := configs.Load(g.path)
	if err != nil {
		return p, fmt.Errorf("nothing is changed: %w", err)
	}
	if len(faults) > 0 {
		return p, faultsError{faults}
	}
	next, p := g.next(want)
	entries, fresh, err := g.rebuild(next)
	if err != nil {
		return p, fmt.Errorf("nothing is changed: %w", err)
	}
	if p.Assets, err = g.server.PlanAssets(ctx, appsOf(next), next.JetStream); err != nil {
		return p, fmt.Errorf("nothing is changed: %w", err)
	}
	if err := g.server.Reconfigure(leafOptions(next, g.store, g.log)); err != nil {
		return p, fmt.Errorf("nothing is changed: %w", err)
	}
	entries, p.Failed = g.apply(ctx, &next, entries, fresh)
	lacking := append(ensureCaptured(ctx, g.js, next, g.log), ensureAssets(ctx, g.server, next, allowLoss, g.log)...)
	g.keeper.SetFailed(lacking)
	p.Failed = append(p.Failed, lacking...)
	g.cfg.Store(&next)
	g.entries = entries
	for _, c := range p.Changes {
		g.log.Info("configuration changed", "change", c)
	}
	for _, c := range p.Restart {
		g.log.Warn("needs a restart", "change", c)
	}
	for _, c := range p.Failed {
		g.log.Error("part of the configuration cannot be applied", "err", c)
	}
	g.log.Info("configuration reloaded", "changes", len(p.Changes), "assets", len(p.Assets), "restart", len(p.Restart), "failed", len(p.Failed))
	return p, nil
}

// apply changes streams, sources and consumers, and returns the sources that run then and what could not be done. A source that cannot be added is left out of next.
func (g *gateway) apply(ctx context.Context, next *configs.Config, entries []ingest.Entry, fresh []string) (done []ingest.Entry, failed []string) {
	o := storageOptions(*next, g.log)
	if err := g.store.SetLimits(ctx, o.Streams, o.TTL); err != nil {
		failed = append(failed, fmt.Sprintf("limits: %v", err))
	}
	for _, name := range fresh {
		if err := g.store.AddSource(ctx, name, o.Sources[name]); err != nil {
			failed = append(failed, err.Error())
			entries = slices.DeleteFunc(entries, func(e ingest.Entry) bool { return e.Source.Name() == name })
			next.Sources = slices.DeleteFunc(next.Sources, func(s configs.Source) bool { return s.Name == name })
		}
	}
	g.executor.Set(entries)
	g.runner.Set(entries...)
	return entries, failed
}

// rebuild returns the sources of a configuration: those that run and have not changed, and new ones. fresh are the names that were not there.
func (g *gateway) rebuild(next configs.Config) (entries []ingest.Entry, fresh []string, err error) {
	have := *g.cfg.Load()
	for _, s := range next.Sources {
		i := slices.IndexFunc(have.Sources, func(h configs.Source) bool { return h.Name == s.Name })
		j := slices.IndexFunc(g.entries, func(e ingest.Entry) bool { return e.Source.Name() == s.Name })
		if i < 0 {
			fresh = append(fresh, s.Name)
		}
		if i >= 0 && j >= 0 && reflect.DeepEqual(have.Sources[i], s) && maxSize(have, s.Into) == maxSize(next, s.Into) {
			entries = append(entries, g.entries[j])
			continue
		}
		one := next
		one.Sources = []configs.Source{s}
		made, err := newSources(one, g.store, g.runner.Newest, g.conn, g.sockets, g.log)
		if err != nil {
			return nil, nil, err
		}
		entries = append(entries, made...)
	}
	return entries, fresh, nil
}

// reloadOnSignal reloads at every SIGHUP until ctx ends.
func (g *gateway) reloadOnSignal(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-g.hup:
			_, _ = g.reload(ctx, false) // it has logged why
		}
	}
}
