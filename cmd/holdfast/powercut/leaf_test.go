package powercut

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/holdfast-edge/holdfast/forward"
	"github.com/holdfast-edge/holdfast/leaf"
	"github.com/holdfast-edge/holdfast/storage"
)

// leafArg is the first argument of a process that is a leaf.
const leafArg = "powercut-leaf"

// spec is what a leaf process is started from.
type spec struct {
	Name    string
	Data    string
	Hub     []string // empty: no link
	Devices []device
	Small   bool          // the streams hold little and records are large, so that the store makes room all the time
	Sealed  bool          // everything on disk is encrypted
	Packed  bool          // blocks are compressed
	Drops   bool          // streams that are full give up their oldest records
	Rest    time.Duration // between two batches of a device, at most; zero: a few milliseconds
	Batch   int           // a device sends 1 to Batch records at once
	Fault   fault
	Listen  string // address of an MQTT server, whose devices are in the parent; empty: none
	Bucket  bool   // a local application puts into a bucket all the time
}

// fault takes one protection away from a leaf, so that the rig can show that it notices.
type fault string

const (
	noSync fault = "no sync"      // syncfs and fdatasync answer 0 and do nothing
	blind  fault = "no handshake" // the sourcing consumer is made without looking at the hub
)

// device is a source of the leaf that counts: its n-th record says n. What it got no acknowledgement for, it sends again in its next life.
type device struct {
	Name   string
	Stream string
	Next   uint64 // the next number to send
}

// child is a leaf process while it runs.
type child struct {
	spec spec
	log  *slog.Logger

	mu  sync.Mutex // guards out
	out *bufio.Writer
}

// leafMain runs a leaf until its standard input ends.
func leafMain(text string) error {
	var s spec
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return err
	}
	c := &child{spec: s, out: bufio.NewWriter(os.Stdout), log: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	if err := ownMounts(s.Data); err != nil {
		return err
	}
	if s.Bucket {
		if err := bootAnew(filepath.Dir(s.Data)); err != nil {
			return fmt.Errorf("look like another boot: %w", err)
		}
	}
	if s.Fault == noSync {
		if err := forbidSync(); err != nil {
			return fmt.Errorf("take the sync away: %w", err)
		}
	}
	return c.run(context.Background())
}

// say prints one line for the parent. A parent that is gone ends the process by its standard input.
func (c *child) say(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, _ = fmt.Fprintf(c.out, format+"\n", args...)
	_ = c.out.Flush()
}

// run goes through the boot order of the daemon.
func (c *child) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := c.spec
	streams := map[string]string{}
	for _, d := range s.Devices {
		streams[d.Name] = d.Stream
	}
	if s.Listen != "" {
		streams[mqttSource] = sourced
	}
	options := storage.Options{Leaf: s.Name, Dir: s.Data, Config: storageConfig(s.Small), Streams: streamConfigs(s), Sources: streams, Log: c.log}
	if s.Sealed {
		options.Key = filepath.Join(filepath.Dir(s.Data), "key")
		if err := os.WriteFile(options.Key, []byte("the key of a test, long enough\n"), 0o600); err != nil {
			return err
		}
	}
	store, err := storage.Open(options)
	if err != nil {
		return err
	}
	c.say("epoch %s %d", store.ID(), store.Epoch())
	if err := c.tell(store); err != nil {
		return err
	}
	writing, stop := context.WithCancel(ctx)
	defer stop()
	var writers errgroup.Group
	for _, d := range s.Devices {
		writers.Go(func() error { return c.send(writing, store, d) })
	}
	if s.Listen != "" {
		writers.Go(func() error { return c.serve(writing, store) })
	}
	if err := store.Mend(ctx, forward.Remembered(store.Home(), store.ID())); err != nil {
		return err
	}
	server := leaf.Options{Config: leaf.Config{Name: s.Name, Data: s.Data}, Hub: leaf.Hub{URLs: s.Hub, Domain: "hub"}, Log: c.log}
	server.Key, server.Cipher = store.ServerKey()
	if s.Bucket {
		if err := store.Mend(ctx, func(string) (storage.Position, bool) { return 0, false }); err != nil {
			return err
		}
	}
	srv, err := leaf.Start(server)
	if err != nil {
		return err
	}
	nc, err := srv.Connect()
	if err != nil {
		return err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	uplink := forward.New(forward.Options{Leaf: s.Name, Domain: "hub", Streams: forwardConfigs(), Log: c.log}, store, srv)
	if err := store.Attach(ctx, storage.Server{JetStream: js, Restart: srv.RestartJetStream, Forwarded: uplink.Forwarded}); err != nil {
		return err
	}
	if s.Packed {
		if err := compress(ctx, js); err != nil {
			return err
		}
	}
	if err := c.dump(ctx, js); err != nil {
		return err
	}
	var g errgroup.Group
	g.Go(func() error { c.audit(ctx, store); return nil })
	if s.Bucket {
		g.Go(func() error {
			err := c.bucket(ctx, srv, store)
			if err != nil {
				c.say("error bucket: %v", err)
			}
			return err
		})
	}
	g.Go(func() error {
		err := c.link(ctx, nc, js, srv, uplink)
		if err != nil {
			c.say("error link: %v", err)
		}
		return err
	})
	return c.obey(ctx, store, js, stop, &writers)
}

// link brings the uplink up: the daemon's own, or for the blind leaf a sourcing consumer made without a handshake.
func (c *child) link(ctx context.Context, nc *nats.Conn, js jetstream.JetStream, srv *leaf.Server, uplink *forward.Uplink) error {
	if len(c.spec.Hub) == 0 {
		return nil
	}
	if c.spec.Fault != blind {
		if err := srv.Enable(true); err != nil {
			return err
		}
		return uplink.Run(ctx, nc)
	}
	for _, s := range streamNames() {
		_, err := js.CreateOrUpdatePushConsumer(ctx, s, blindConsumer(c.spec.Name, s))
		if err != nil {
			return err
		}
	}
	return srv.Enable(true)
}

// obey does what the parent says on standard input until that ends.
func (c *child) obey(ctx context.Context, store *storage.Store, js jetstream.JetStream, stop func(), writers *errgroup.Group) error {
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		switch in.Text() {
		case "stop":
			stop()
			if err := errors.Join(writers.Wait(), store.Settle(ctx)); err != nil {
				return err
			}
			c.say("stopped")
		case "dump":
			if err := c.dump(ctx, js); err != nil {
				return err
			}
		case "account":
			if err := c.tell(store); err != nil {
				return err
			}
		}
	}
	return in.Err()
}

// send appends a device's records until ctx ends, and reports each acknowledgement.
func (c *child) send(ctx context.Context, store *storage.Store, d device) error {
	var seq uint64
	padding := 200
	if c.spec.Small {
		padding = 2000
	}
	rest := int64(cmp.Or(c.spec.Rest, 8*time.Millisecond))
	for ctx.Err() == nil {
		if rand.IntN(30) == 0 {
			seq++
			if err := c.reject(ctx, store, d, seq); err != nil {
				return err
			}
		}
		batch := make([]storage.Record, 1+rand.IntN(c.spec.Batch))
		for i := range batch {
			batch[i] = storage.Record{
				Stream: d.Stream, Source: d.Name, Seq: seq + 1 + uint64(i), Time: time.Now(),
				Data: []byte(strconv.FormatUint(d.Next+uint64(i), 10) + strings.Repeat(" ", rand.IntN(padding))),
			}
		}
		// An Append that was begun is waited for: its acknowledgement must be known.
		err := store.Append(context.WithoutCancel(ctx), batch...)
		for later(err) && ctx.Err() == nil {
			pause(ctx, 50*time.Millisecond)
			err = store.Append(context.WithoutCancel(ctx), batch...)
		}
		if later(err) {
			return nil
		}
		if err != nil {
			c.say("error append: %v", err)
			return err
		}
		c.say("ack %s %s %d %d %d %d", d.Name, store.ID(), store.Epoch(), seq+1, d.Next, len(batch))
		seq += uint64(len(batch))
		d.Next += uint64(len(batch))
		pause(ctx, time.Duration(rand.Int64N(rest)))
	}
	return nil
}

// reject has the store refuse a record for good, as it does with what a device sends and the stream can never take.
func (c *child) reject(ctx context.Context, store *storage.Store, d device, seq uint64) error {
	err := store.Append(ctx, storage.Record{Stream: d.Stream, Source: d.Name, Seq: seq, Time: time.Now(), Tail: ".."})
	if ctx.Err() != nil {
		return nil
	}
	if !errors.Is(err, storage.ErrInvalid) {
		c.say("error append of a record that cannot be: %v", err)
		return fmt.Errorf("append of a record that cannot be: %w", err)
	}
	store.Reject(d.Name, 1)
	c.say("reject %s", d.Name)
	return nil
}

// later says whether an Append that failed is to be made again.
func later(err error) bool {
	return errors.Is(err, storage.ErrFull) || errors.Is(err, storage.ErrUnavailable)
}

// dump tells the parent every record that the leaf holds.
func (c *child) dump(ctx context.Context, js jetstream.JetStream) error {
	for _, s := range streamNames() {
		err := readStream(ctx, js, s, "data.>", func(id string, data []byte) {
			c.say("has %s", id)
			if strings.Contains(id, "."+mqttSource+".") {
				c.say("holds %s", data)
			}
		})
		if err != nil {
			c.say("error dump: %v", err)
			return err
		}
	}
	c.say("dumped")
	return nil
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// readStream hands over the ID and the data of every record of a stream that has one and whose subject matches, in order.
func readStream(ctx context.Context, js jetstream.JetStream, name, filter string, take func(id string, data []byte)) error {
	stream, err := js.Stream(ctx, name)
	if err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	cons, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{FilterSubjects: []string{filter}})
	if err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	info, err := cons.Info(ctx)
	if err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	left := info.NumPending
	for left > 0 {
		batch, err := cons.Fetch(int(min(left, 500)), jetstream.FetchMaxWait(*patience))
		if err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
		got := uint64(0)
		for msg := range batch.Messages() {
			got++
			take(msg.Headers().Get(storage.HeaderID), msg.Data())
		}
		if err := batch.Error(); err != nil || got == 0 {
			return fmt.Errorf("read %s, %d records from its end: %w", name, left, cmp.Or(err, io.ErrUnexpectedEOF))
		}
		left -= got
	}
	return nil
}
