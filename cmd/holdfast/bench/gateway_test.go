package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sys/unix"

	"github.com/holdfast-edge/holdfast/forward"
	forwardhub "github.com/holdfast-edge/holdfast/forward/hub"
	"github.com/holdfast-edge/holdfast/leaf"
	"github.com/holdfast-edge/holdfast/rig/hub"
	"github.com/holdfast-edge/holdfast/rig/poll"
	"github.com/holdfast-edge/holdfast/storage"
)

const (
	leafName   = "bench"
	diskName   = "even-disk" // leaves that are set beside other forms, see comparisons
	cardName   = "even-card"
	idleName   = "idle" // the daemon whose memory is measured
	streamName = "BENCH"
	password   = "secret"
	patience   = 5 * time.Minute
)

// startHub starts a hub of three processes that takes the streams of the benchmark. Its stores are in memory, where there is room for that, so that they do
// not use the disk that is measured.
func startHub(t *testing.T) *hub.Cluster {
	t.Helper()
	var spec forwardhub.Spec
	for _, name := range []string{leafName, diskName, cardName, idleName} {
		spec.Leaves = append(spec.Leaves, forwardhub.Leaf{Name: name, Password: password, Streams: []forwardhub.Stream{{Name: streamName, Mode: forwardhub.Source}}})
	}
	plan, err := forwardhub.New(spec)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("/dev/shm", "holdfast-bench-hub-")
	if err != nil {
		dir = t.TempDir() // no such file system here
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	h, err := hub.Start(hub.Options{Accounts: plan.Config(), Processes: true, Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(closer(t, h))
	if err := yield(); err != nil {
		t.Fatal(err)
	}
	js, err := h.JetStream()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := forwardhub.Apply(ctx, js, plan); err != nil {
		t.Fatal(err)
	}
	return h
}

// yield lets the hub's processes, which are all children of this one so far, have only the processor time that the gateway leaves: on a real site they are
// another machine. Threads that they start later inherit that.
func yield() error {
	lists, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		return err
	}
	for _, list := range lists {
		pids, err := os.ReadFile(list)
		if err != nil {
			return fmt.Errorf("find the hub's processes: %w", err)
		}
		for _, pid := range strings.Fields(string(pids)) {
			threads, err := filepath.Glob("/proc/" + pid + "/task/*")
			if err != nil {
				return err
			}
			for _, thread := range threads {
				id, err := strconv.Atoi(filepath.Base(thread))
				if err != nil {
					return err
				}
				if err := unix.Setpriority(unix.PRIO_PROCESS, id, 19); err != nil && !errors.Is(err, unix.ESRCH) {
					return fmt.Errorf("lower the priority of thread %d of process %s: %w", id, pid, err)
				}
			}
		}
	}
	return nil
}

// gateway is the part of the daemon that is measured, in its boot order.
type gateway struct {
	store  *storage.Store
	server *leaf.Server
	uplink *forward.Uplink
	js     jetstream.JetStream
	up     bool // the link is enabled
	stop   func()
	ended  chan error // the uplink's end
}

func startGateway(ctx context.Context, p plan, name string, size int64, dir string, h *hub.Cluster) (*gateway, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	sources := map[string]string{}
	for i := range maxCallers {
		sources[sourceName(i)] = streamName
	}
	var cfg storage.Config
	cfg.SetDefaults()
	cfg.Budget, cfg.ReserveFree = size/2, 16<<20
	stream := storage.StreamConfig{Name: streamName, MaxBytes: size / 4, WhenFull: storage.DropOldest}
	store, err := storage.Open(storage.Options{Leaf: name, Dir: dir, Config: cfg, Streams: []storage.StreamConfig{stream}, Sources: sources, Log: p.log})
	if err != nil {
		return nil, err
	}
	g := &gateway{store: store, stop: func() {}, ended: make(chan error, 1)}
	urls, err := hub.WithUser(h.LeafURLs(), name, password)
	if err != nil {
		return nil, errors.Join(err, g.close())
	}
	g.server, err = leaf.Start(leaf.Options{
		Config: leaf.Config{Name: name, Data: dir}, Hub: leaf.Hub{URLs: urls, Domain: "hub"}, Log: p.log})
	if err != nil {
		return nil, errors.Join(err, g.close())
	}
	nc, err := g.server.Connect()
	if err != nil {
		return nil, errors.Join(err, g.close())
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, errors.Join(err, g.close())
	}
	g.js = js
	g.uplink = forward.New(forward.Options{Leaf: name, Domain: "hub", Dir: dir, Streams: map[string]forward.Config{streamName: {Mode: "source"}}, Log: p.log}, store, g.server)
	if err := store.Attach(ctx, storage.Server{JetStream: js, Restart: g.server.RestartJetStream, Forwarded: g.uplink.Forwarded}); err != nil {
		return nil, errors.Join(err, g.close())
	}
	running, cancel := context.WithCancel(ctx)
	g.stop = cancel
	go func() { g.ended <- g.uplink.Run(running, nc) }()
	return g, nil
}

// link enables or disables the link and waits until it is so, and drained.
func (g *gateway) link(ctx context.Context, on bool) error {
	g.up = on
	if err := g.server.Enable(on); err != nil {
		return err
	}
	if !poll.Wait(ctx, patience, func() bool { return (g.server.Link().State == leaf.LinkUp) == on }) {
		return fmt.Errorf("link enabled: %v: not so after %v: %+v", on, patience, g.server.Link())
	}
	return g.drained(ctx)
}

// drained waits until nothing waits for the link, when it is up.
func (g *gateway) drained(ctx context.Context) error {
	there := func() bool {
		p := g.uplink.Progress()
		return len(p) == 1 && p[0].Waiting == 0
	}
	if g.up && !poll.Wait(ctx, patience, there) {
		return fmt.Errorf("the link has not sent everything after %v: %+v", patience, g.uplink.Progress())
	}
	return nil
}

// settled waits until the streams have what is in the journal and the link has sent it.
func (g *gateway) settled(ctx context.Context) error {
	return errors.Join(g.store.Settle(ctx), g.drained(ctx))
}

// close ends the parts in reverse.
func (g *gateway) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	g.stop()
	var errs []error
	if g.uplink != nil {
		if err := <-g.ended; err != nil && !errors.Is(err, context.Canceled) {
			errs = append(errs, err)
		}
	}
	errs = append(errs, g.store.Close(ctx))
	if g.server != nil {
		errs = append(errs, g.server.Shutdown(ctx))
	}
	return errors.Join(errs...)
}

func newStore(s *storage.Store) *store {
	return &store{store: s, data: []byte(strings.Repeat("s", recordSize))}
}
