package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/configs"
	"github.com/holdfast-edge/holdfast/forward"
	"github.com/holdfast-edge/holdfast/leaf"
	"github.com/holdfast-edge/holdfast/storage"
	"github.com/holdfast-edge/holdfast/systemd"
)

// bringUpPause is how long a start waits before it tries again.
const bringUpPause = 2 * time.Second

// streams is the embedded server that the store is attached to.
type streams struct {
	server *leaf.Server
	nc     *nats.Conn
	js     jetstream.JetStream
	uplink *forward.Uplink
}

func (s *streams) close(ctx context.Context) error {
	if s.nc != nil {
		s.nc.Close()
	}
	return s.server.Shutdown(ctx)
}

// bringUp starts the server and attaches the store to it. Capture has begun, and goes on in the journal. Where the disk has no room for the server it says
// READY and tries again until there is room or ctx ends; an Attach that fails is tried again whatever the reason, unless nothing can be stored any more.
func bringUp(ctx, stopping context.Context, cfg configs.Config, store *storage.Store, notify *systemd.Notifier, log *slog.Logger) (_ *streams, err error) {
	up := &streams{}
	defer func() {
		if err != nil && up.server != nil {
			err = errors.Join(err, up.close(stopping))
		}
	}()
	again := newPatience(store, notify, log)
	for {
		if up.server, err = leaf.Start(leafOptions(cfg, store, log)); err == nil {
			break
		}
		err = fmt.Errorf("start the embedded server: %w", err)
		if store.DiskFull() == nil || !again.wait(ctx, err) {
			return nil, err
		}
	}
	if up.nc, err = up.server.Connect(nats.Name("holdfast")); err != nil {
		return nil, fmt.Errorf("connect to the embedded server: %w", err)
	}
	if up.js, err = jetstream.New(up.nc); err != nil {
		return nil, fmt.Errorf("use JetStream: %w", err)
	}
	up.uplink = forward.New(uplinkOptions(cfg, store.Home(), log), store, up.server)
	srv := storage.Server{JetStream: up.js, Restart: up.server.RestartJetStream, Pause: up.server.PauseJetStream, Forwarded: up.uplink.Forwarded}
	for {
		if err = store.Attach(ctx, srv); err == nil {
			return up, nil
		}
		if errors.Is(err, storage.ErrClosed) || errors.Is(err, storage.ErrFailing) {
			return nil, exitError{exitStore, err}
		}
		if !again.wait(ctx, err) {
			return nil, err
		}
	}
}

// patience is how bringUp waits, and what it says meanwhile.
type patience struct {
	store  *storage.Store
	notify *systemd.Notifier
	log    *slog.Logger
	tries  int
}

func newPatience(store *storage.Store, notify *systemd.Notifier, log *slog.Logger) *patience {
	return &patience{store: store, notify: notify, log: log}
}

// wait waits until the next try; false when ctx has ended.
func (p *patience) wait(ctx context.Context, err error) bool {
	if p.tries++; p.tries%10 == 1 {
		p.log.Error("the streams cannot be brought up; capture goes on in the journal", "err", err)
	}
	if full := p.store.DiskFull(); full != nil {
		p.notify.Ready()
		p.notify.Status("DISK FULL: the streams do not come up, records wait in the journal: " + full.Error())
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(bringUpPause):
		return true
	}
}
