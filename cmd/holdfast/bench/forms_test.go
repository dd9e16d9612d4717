package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	mqtt "github.com/eclipse/paho.mqtt.golang"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/holdfast-edge/holdfast/rig/broker"
	"github.com/holdfast-edge/holdfast/rig/disk"
)

// Names of the forms that the goals speak of.
const (
	formStore = "store"
	formLog   = "zero-filled log"
	formStock = "stock default (*)"
)

// form is one way to keep records, on a disk of its own, so that the device's counters tell what this one costs.
type form struct {
	name string
	writer
	mount   *disk.Mount
	drained func(context.Context) error              // waits until what was committed needs nothing more; nil: it never does
	link    func(ctx context.Context, on bool) error // nil: it has none
	close   func() error
}

// maker starts a form in a directory. broker.ErrAbsent: this machine cannot.
type maker struct {
	name  string
	start func(ctx context.Context, dir string) (*form, error)
}

// makers lists the forms: the store, the floor of the medium, and what others do. Those marked (*) lose acknowledged records in a power cut.
func (b *bench) makers(leaf string) []maker {
	return []maker{
		{formStore, func(ctx context.Context, dir string) (*form, error) {
			g, err := startGateway(ctx, b.plan, leaf, evenSize, filepath.Join(dir, "data"), b.hub)
			if err != nil {
				return nil, err
			}
			f := &form{writer: newStore(g.store), close: g.close, drained: g.settled, link: g.link}
			if err := g.link(ctx, true); err != nil {
				return nil, errors.Join(err, g.close())
			}
			return f, nil
		}},
		{formLog, func(_ context.Context, dir string) (*form, error) {
			z, err := newZeroed(dir)
			return &form{writer: z, close: z.file.Close}, err
		}},
		{"stream and syncfs", func(ctx context.Context, dir string) (*form, error) {
			root, err := os.Open(dir)
			if err != nil {
				return nil, err
			}
			f, err := startStock(ctx, dir, false, func(d *direct) writer { d.root = root; return d })
			if err != nil {
				return nil, errors.Join(err, root.Close())
			}
			down := f.close
			f.close = func() error { return errors.Join(root.Close(), down()) }
			return f, nil
		}},
		{formStock, func(ctx context.Context, dir string) (*form, error) {
			return startStock(ctx, dir, false, func(d *direct) writer { return d })
		}},
		{"`sync_interval: always`", func(ctx context.Context, dir string) (*form, error) {
			return startStock(ctx, dir, true, func(d *direct) writer { return d })
		}},
		{"always, atomic batch", func(ctx context.Context, dir string) (*form, error) {
			return startStock(ctx, dir, true, func(d *direct) writer { return &batched{direct: d} })
		}},
		{"Mosquitto, autosave 1 s (*)", startMosquitto},
	}
}

// zeroed overwrites a file that was written with zeros before, and syncs it: the floor of a medium, since no metadata changes.
type zeroed struct {
	file *os.File
	data []byte
	off  int64
}

const zeroedSize = 16 << 20

func newZeroed(dir string) (*zeroed, error) {
	f, err := os.Create(filepath.Join(dir, "zeroed"))
	if err == nil {
		_, err = f.Write(make([]byte, zeroedSize))
	}
	if err == nil {
		err = f.Sync()
	}
	return &zeroed{file: f, data: make([]byte, 1<<20)}, err
}

func (z *zeroed) commit(_ context.Context, _, group int) error {
	const around = 150 // what a log has to keep beside the payload: subject, ID, time, checksum
	n := int64(group * (recordSize + around))
	if z.off+n > zeroedSize {
		z.off = 0
	}
	if _, err := z.file.WriteAt(z.data[:n], z.off); err != nil {
		return err
	}
	z.off += n
	return unix.Fdatasync(int(z.file.Fd()))
}

// direct publishes into a stream of a server of its own, without a link, and makes that durable by syncfs, or leaves it to the server.
type direct struct {
	nc   *nats.Conn
	js   jetstream.JetStream
	root *os.File // of the file system; nil: no sync of ours
	data []byte
}

const directSubject = "bench.direct"

// startStock starts a plain nats-server with one stream. always: it syncs each write before it answers.
func startStock(ctx context.Context, dir string, always bool, as func(*direct) writer) (*form, error) {
	srv, err := server.NewServer(&server.Options{ServerName: "stock", DontListen: true, NoLog: true, NoSigs: true, JetStream: true,
		StoreDir: filepath.Join(dir, "stock"), JetStreamMaxStore: evenSize / 2, SyncAlways: always})
	if err != nil {
		return nil, fmt.Errorf("start the stock server: %w", err)
	}
	srv.Start()
	down := func() error { srv.Shutdown(); srv.WaitForShutdown(); return nil }
	if !srv.ReadyForConnections(patience) {
		return nil, errors.Join(errors.New("the stock server does not get ready"), down())
	}
	d := &direct{data: newStore(nil).data}
	if d.nc, err = nats.Connect("", nats.InProcessServer(srv)); err == nil {
		d.js, err = jetstream.New(d.nc)
	}
	if err == nil {
		_, err = d.js.CreateStream(ctx, jetstream.StreamConfig{Name: "DIRECT", Subjects: []string{directSubject}, MaxBytes: evenSize / 4,
			Storage: jetstream.FileStorage, AllowAtomicPublish: always})
	}
	if err != nil {
		return nil, errors.Join(err, down())
	}
	return &form{writer: as(d), close: func() error { d.nc.Close(); return down() }}, nil
}

func (d *direct) commit(ctx context.Context, _, group int) error {
	acks := make([]jetstream.PubAckFuture, group)
	for i := range acks {
		var err error
		if acks[i], err = d.js.PublishMsgAsync(&nats.Msg{Subject: directSubject, Data: d.data}); err != nil {
			return err
		}
	}
	for _, a := range acks {
		select {
		case <-a.Ok():
		case err := <-a.Err():
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if d.root == nil {
		return nil
	}
	return unix.Syncfs(int(d.root.Fd()))
}

// batched commits each group as one atomic batch: ADR-50 of nats-architecture-and-design.
type batched struct {
	*direct
	batches int
}

func (d *batched) commit(ctx context.Context, _, group int) error {
	d.batches++
	id := strconv.Itoa(d.batches)
	for i := range group {
		m := &nats.Msg{Subject: directSubject, Data: d.data, Header: nats.Header{"Nats-Batch-Id": {id}, "Nats-Batch-Sequence": {strconv.Itoa(i + 1)}}}
		if i < group-1 {
			if err := d.nc.PublishMsg(m); err != nil {
				return err
			}
			continue
		}
		m.Header["Nats-Batch-Commit"] = []string{"1"}
		if _, err := d.js.PublishMsg(ctx, m); err != nil {
			return fmt.Errorf("commit a batch of %d: %w", group, err)
		}
	}
	return nil
}

// queued publishes to Mosquitto, which keeps the messages for a session that is away.
type queued struct {
	publisher *broker.Publisher
	data      []byte
}

const queuedTopic = "bench/queued"

func startMosquitto(ctx context.Context, dir string) (f *form, err error) {
	dir = filepath.Join(dir, "mosquitto")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	m, err := broker.Start(broker.Options{Dir: dir, Config: "persistence true\npersistence_location " + dir + "/\nautosave_interval 1"})
	if err != nil {
		return nil, err
	}
	away := mqtt.NewClient(mqtt.NewClientOptions().AddBroker(m.URL()).SetClientID("away").SetCleanSession(false))
	for _, step := range []func() mqtt.Token{away.Connect, func() mqtt.Token { return away.Subscribe(queuedTopic, 1, nil) }} {
		if t := step(); !t.WaitTimeout(patience) || t.Error() != nil {
			return nil, errors.Join(fmt.Errorf("make a session at mosquitto: %w", t.Error()), m.Close())
		}
	}
	away.Disconnect(250)
	p, err := broker.Dial(ctx, m.Addr(), broker.Login{ClientID: "device"})
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return &form{writer: &queued{p, newStore(nil).data}, close: func() error { return errors.Join(p.Close(), m.Close()) }}, nil
}

func (q *queued) commit(ctx context.Context, _, group int) error {
	msgs := make([]broker.Message, group)
	for i := range msgs {
		msgs[i] = broker.Message{Topic: queuedTopic, Payload: q.data, QoS: 1}
	}
	return q.publisher.Publish(ctx, msgs...)
}

// startForms starts all forms of a medium, each on a disk of its own, and returns those that this machine has.
func (b *bench) startForms(ctx context.Context, card bool, leaf string) (forms []*form, absent []string, err error) {
	all := b.makers(leaf)
	started := make([]*form, len(all))
	var g errgroup.Group
	for i, m := range all {
		mount, err := b.disks(card, evenSize)
		if err != nil {
			return nil, nil, errors.Join(err, g.Wait(), closeForms(started))
		}
		g.Go(func() error {
			f, err := m.start(ctx, mount.Dir)
			if err != nil {
				return fmt.Errorf("start %s: %w", m.name, err)
			}
			f.name, f.mount = m.name, mount
			started[i] = f
			return nil
		})
	}
	err = g.Wait()
	if errors.Is(err, broker.ErrAbsent) {
		err, absent = nil, []string{err.Error()}
	}
	if err != nil {
		return nil, nil, errors.Join(err, closeForms(started))
	}
	for _, f := range started {
		if f != nil {
			forms = append(forms, f)
		}
	}
	return forms, absent, nil
}

func closeForms(forms []*form) error {
	var errs []error
	for _, f := range forms {
		if f == nil {
			continue
		}
		if err := f.close(); err != nil {
			errs = append(errs, fmt.Errorf("close %s: %w", f.name, err))
		}
	}
	return errors.Join(errs...)
}
