package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/configs"
	"github.com/holdfast-edge/holdfast/forward"
	"github.com/holdfast-edge/holdfast/leaf"
	"github.com/holdfast-edge/holdfast/storage"
)

// bringUpPause is how long a start waits before it tries again.
const bringUpPause = 2 * time.Second

// streamPatience is how long READY waits for the streams, so that who comes after it finds them there, as a rule. Then it is enough that capture goes on in
// the journal: a restart by the service manager would not help streams that cannot be brought up.
const streamPatience = 10 * time.Second

// streams is the embedded server that the store is attached to.
type streams struct {
	server *leaf.Server
	nc     *nats.Conn
	js     jetstream.JetStream
	uplink *forward.Uplink
	ac     *nats.Conn          // as a local application
	apps   jetstream.JetStream // of local applications
}

func (s *streams) close(ctx context.Context) error {
	for _, nc := range []*nats.Conn{s.nc, s.ac} {
		if nc != nil {
			nc.Close()
		}
	}
	return s.server.Shutdown(ctx)
}

// bringing is the way to streams that are up. Safe for concurrent use.
type bringing struct {
	ended chan struct{} // closed when it has ended: the streams are up, or err says why they never will be

	mu  sync.Mutex // guards the fields below
	up  *streams
	err error // of the newest try
}

func newBringing() *bringing { return &bringing{ended: make(chan struct{})} }

// streams returns the streams if they are up, and otherwise why not.
func (b *bringing) streams() (*streams, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.up != nil:
		return b.up, nil
	case b.err != nil:
		return nil, fmt.Errorf("the streams cannot be brought up, which is tried again: %w", b.err)
	}
	return nil, errors.New("the streams are being brought up")
}

func (b *bringing) set(up *streams, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.up, b.err = up, err
}

// wait returns the streams, or nil if they are not up after a time or at the end of ctx. An error means that they never will be.
func (b *bringing) wait(ctx context.Context, patience time.Duration) (*streams, error) {
	select {
	case <-b.ended:
	case <-ctx.Done():
	case <-time.After(patience):
		return nil, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if ctx.Err() != nil { // what is up comes down again
		return nil, nil
	}
	return b.up, b.err
}

// forEver is a patience that does not end.
const forEver = time.Duration(math.MaxInt64)

// run starts the server and attaches the store to it. Capture has begun, and goes on in the journal. Where the disk has no room for the server it is tried
// again until there is room or ctx ends, and so is an Attach that fails, whatever the reason, unless nothing can be stored any more.
func (b *bringing) run(ctx, stopping context.Context, cfg configs.Config, store *storage.Store, conn *lateConn, log *slog.Logger) {
	defer close(b.ended)
	up := &streams{}
	err := b.start(ctx, up, cfg, store, conn, log)
	if err == nil {
		b.set(up, nil)
		return
	}
	if up.server != nil {
		err = errors.Join(err, up.close(stopping))
	}
	b.set(nil, err)
}

func (b *bringing) start(ctx context.Context, up *streams, cfg configs.Config, store *storage.Store, conn *lateConn, log *slog.Logger) (err error) {
	for tries := 0; ; tries++ {
		if up.server, err = leaf.Start(leafOptions(cfg, store, log)); err == nil {
			break
		}
		err = fmt.Errorf("start the embedded server: %w", err)
		if store.DiskFull() == nil || !b.again(ctx, tries, err, log) {
			return err
		}
	}
	if up.nc, err = up.server.Connect(nats.Name("holdfast")); err != nil {
		return fmt.Errorf("connect to the embedded server: %w", err)
	}
	if up.js, err = jetstream.New(up.nc); err != nil {
		return fmt.Errorf("use JetStream: %w", err)
	}
	if up.ac, err = up.server.AppConnect(); err != nil {
		return fmt.Errorf("connect to the embedded server: %w", err)
	}
	if up.apps, err = jetstream.New(up.ac); err != nil {
		return fmt.Errorf("use JetStream: %w", err)
	}
	conn.set(up.nc)
	up.uplink = forward.New(uplinkOptions(cfg, store.Home(), log), store, up.server)
	if err = up.uplink.Hold(ctx, up.js); err != nil {
		log.Error("commands and documents may come from the hub before it is known from where on", "err", err)
	}
	srv := storage.Server{JetStream: up.js, Restart: up.server.RestartJetStream, Pause: up.server.PauseJetStream, Forwarded: up.uplink.Forwarded}
	for tries := 0; ; tries++ {
		if err = store.Attach(ctx, srv); err == nil {
			return nil
		}
		if errors.Is(err, storage.ErrClosed) || errors.Is(err, storage.ErrFailing) {
			return exitError{exitStore, err}
		}
		if !b.again(ctx, tries, err, log) {
			return err
		}
	}
}

// again waits until the next try; false when ctx has ended.
func (b *bringing) again(ctx context.Context, tries int, err error, log *slog.Logger) bool {
	b.set(nil, err)
	if tries%10 == 0 {
		log.Error("the streams cannot be brought up; capture goes on in the journal", "err", err)
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(bringUpPause):
		return true
	}
}
