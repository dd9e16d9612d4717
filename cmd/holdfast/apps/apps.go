// Package apps looks after what local applications store and use while the daemon runs.
package apps

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/holdfast-edge/holdfast/leaf"
	"github.com/holdfast-edge/holdfast/storage"
)

// SyncInterval is within what time something that a local application has stored is on flash.
const SyncInterval = 10 * time.Second

// look is how often the streams are looked at. A reserve lasts for longer than the server can store in it.
const look = 500 * time.Millisecond

// press is how often it is seen whether memory is short.
const press = 50 * time.Millisecond

// verify is how often everything is read, to find damage that nobody has come across.
const verify = 24 * time.Hour

// Keeper puts what local applications store on flash, with copies of their streams' metadata, sees to it that no sequence of theirs is given out twice, keeps
// them within limits that the server does not have, and counts what people have to know of. Status is safe for concurrent use with Run.
type Keeper struct {
	server *leaf.Server
	store  *storage.Store
	log    *slog.Logger
	synced uint64 // what Sync has seen last
	flow   flow   // of guard

	mu    sync.Mutex // guards the field below
	state state
}

// New returns a keeper for a server that runs and a store that is attached to it.
func New(server *leaf.Server, store *storage.Store, log *slog.Logger) *Keeper {
	return &Keeper{server: server, store: store, log: log}
}

// The advisories of JetStream that are heard.
const (
	streamCreated = "$JS.EVENT.ADVISORY.STREAM.CREATED."
	maxDeliveries = "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES."
)

// Run looks after the streams until ctx ends. While nothing is stored it writes nothing.
func (k *Keeper) Run(ctx context.Context) error {
	nc, err := k.server.AppConnect()
	if err != nil {
		return err
	}
	defer nc.Close()
	heard := make(chan *nats.Msg, 1024) // what does not fit is not counted
	for _, subject := range []string{streamCreated + ">", maxDeliveries + ">"} {
		if _, err := nc.ChanSubscribe(subject, heard); err != nil {
			return fmt.Errorf("listen for events of local applications: %w", err)
		}
	}
	tick := time.NewTicker(look)
	defer tick.Stop()
	short := time.NewTicker(press)
	defer short.Stop()
	due, unread := time.Now().Add(SyncInterval), time.Now().Add(time.Minute)
	var last time.Time // of a sync
	for {
		select {
		case <-ctx.Done():
			return nil
		case m := <-heard:
			if of, yes := strings.CutPrefix(m.Subject, maxDeliveries); yes {
				k.gaveUp(of)
				continue
			}
			// Until it is flushed, a power cut takes a new stream as a whole. Somebody who makes streams all the time does not get a flush for each.
			if next := last.Add(look); next.Before(due) {
				due = next
			}
		case <-short.C:
			k.relieve()
			continue
		case <-tick.C:
			k.guard()
		}
		if err := k.Reserve(); err != nil {
			k.log.Error("a sequence of local applications may be given out twice after a power cut", "err", err)
		}
		if time.Now().After(unread) {
			unread = time.Now().Add(verify)
			if err := k.store.VerifyApplications(ctx); err != nil {
				k.log.Warn("not all that local applications have stored could be read", "err", err)
			}
		}
		if time.Now().Before(due) {
			continue
		}
		last = time.Now()
		due = last.Add(SyncInterval)
		if err := k.Sync(); err != nil && !errors.Is(err, storage.ErrClosed) {
			k.log.Error("what local applications have stored is not on flash", "err", err)
		}
	}
}

// Reserve tells the store how far the streams are.
func (k *Keeper) Reserve() error {
	last := map[string]uint64{}
	for _, st := range k.server.AppStreams(false) {
		last[st.Name] = st.Last
	}
	if len(last) == 0 {
		return nil
	}
	return k.store.ReserveApplications(last)
}

// Sync puts everything that is stored by now on flash, unless nothing was since the last time.
func (k *Keeper) Sync() error {
	var now uint64
	for _, st := range k.server.AppStreams(true) {
		now += st.Changed + 1
	}
	if now == k.synced {
		return nil
	}
	k.store.KeepAppMetadata()
	if err := k.store.Sync(); err != nil {
		return err
	}
	k.synced = now
	return nil
}
