package carry

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/forward"
	"github.com/holdfast-edge/holdfast/leaf"
	"github.com/holdfast-edge/holdfast/storage"
	"github.com/holdfast-edge/holdfast/storage/parcel"
)

// Place is a data directory that no daemon runs on.
type Place struct {
	Dir     string
	Leaf    string
	Streams []string
	Key     string // file with the store's key; empty: it is not encrypted
	Log     *slog.Logger

	sources  map[string]string // that records are there of, by name; to their streams
	unpacked bool              // the streams' blocks were written, and the streams are not made yet
}

// unlimited is more than all streams hold: nothing is removed from a directory that is only looked after. The daemon's next start sets its own limits, for
// which it must find no more than it lets its server have.
const unlimited = 1 << 39

// maxAppStreams is more than anybody has.
const maxAppStreams = 10_000

func (p Place) options() storage.Options {
	var c storage.Config
	c.SetDefaults()
	c.Budget, c.ReserveFree, c.AllowVolatile, c.Key = unlimited, 0, true, p.Key
	o := storage.Options{Leaf: p.Leaf, Dir: p.Dir, Config: c, Sources: p.sources, Log: p.Log, Unbound: true, Unpacked: p.unpacked}
	for _, name := range p.Streams {
		o.Streams = append(o.Streams, storage.StreamConfig{Name: name, MaxBytes: unlimited / int64(len(p.Streams)), KeepForwarded: unlimited, WhenFull: storage.Refuse})
	}
	return o
}

func (p Place) log() *slog.Logger {
	if p.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return p.Log
}

// with runs a store on the place, without sources and without a hub. prepare is called before the server starts.
func (p Place) with(ctx context.Context, prepare func(*storage.Store) error, do func(s *storage.Store, js, apps jetstream.JetStream) error) (err error) {
	s, err := storage.Open(p.options())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close(ctx)) }()
	if err := prepare(s); err != nil {
		return err
	}
	if err := s.Mend(ctx, forward.Remembered(s.Home(), s.ID())); err != nil {
		return err
	}
	lo := leaf.Options{Config: leaf.Config{Name: p.Leaf, Data: p.Dir}, Log: p.Log}
	lo.Key, lo.Cipher = s.ServerKey()
	lo.Apps.SetDefaults()
	lo.Apps.MaxFile, lo.Apps.MaxStreams, lo.Apps.DuplicateWindow = unlimited/2, maxAppStreams, unlimited
	server, err := leaf.Start(lo)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Shutdown(ctx)) }()
	nc, err := server.Connect(nats.Name("holdfast"))
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	if err := s.Attach(ctx, storage.Server{JetStream: js, Restart: server.RestartJetStream, Pause: server.PauseJetStream}); err != nil {
		return err
	}
	ac, err := server.AppConnect()
	if err != nil {
		return err
	}
	defer ac.Close()
	apps, err := jetstream.New(ac)
	if err != nil {
		return err
	}
	return errors.Join(do(s, js, apps), s.Close(ctx))
}

// BackupOf backs up a data directory that no daemon runs on, such as the card of a dead gateway. What its last run has left to do is done first, as at any
// start, so the directory must be writable; work on a copy where it is not.
func BackupOf(ctx context.Context, p Place, to, version string) (path string, h parcel.Header, end parcel.End, err error) {
	about, err := storage.Look(p.Dir)
	if err != nil {
		return "", h, end, err
	}
	p.Leaf, p.Streams = about.Leaf, about.Streams
	err = p.with(ctx, func(*storage.Store) error { return nil }, func(s *storage.Store, js, apps jetstream.JetStream) error {
		g := Gateway{Store: s, JS: js, Apps: apps, Version: version}
		for _, name := range p.Streams {
			g.Streams = append(g.Streams, parcel.Stream{Name: name})
		}
		if st, err := os.Stat(to); err == nil && st.IsDir() {
			to = filepath.Join(to, Name(g.header(parcel.Backup)))
		}
		h = g.header(parcel.Backup)
		h.Streams = g.Streams
		if h.Apps, err = appStreams(ctx, apps); err != nil {
			return err
		}
		return create(to, func(f *os.File) error {
			end, err = g.write(ctx, f, h)
			return err
		})
	})
	return to, h, end, err
}

// Restore makes a new data directory of a backup: another store, which knows the one that was backed up as its own. It goes on where that
// stood with the hub; should the old one come back, its records and those of the new one are told apart by their IDs. Dir must have no store.
func Restore(ctx context.Context, file string, p Place) (h parcel.Header, store storage.StoreID, err error) {
	if h, err = readHeader(file); err != nil {
		return h, "", err
	}
	if h.Kind != parcel.Backup {
		return h, "", fmt.Errorf("restore %s: it is an %s: `holdfast import` takes that to the hub", file, h.Kind)
	}
	for _, name := range []string{"store", "jetstream"} {
		if _, err := os.Lstat(filepath.Join(p.Dir, name)); !errors.Is(err, fs.ErrNotExist) {
			return h, "", fmt.Errorf("restore into %s: %w: move its %s away first", p.Dir, fs.ErrExist, name)
		}
	}
	if err := os.MkdirAll(p.Dir, 0o700); err != nil {
		return h, "", err
	}
	defer func() {
		if err != nil { // neither is there from before: a half is no store to start on, and would be in the way of the next try
			err = errors.Join(err, os.RemoveAll(filepath.Join(p.Dir, "store")), os.RemoveAll(filepath.Join(p.Dir, "jetstream")))
		}
	}()
	p.Leaf, p.Streams = h.Leaf, nil
	for _, s := range h.Streams {
		p.Streams = append(p.Streams, s.Name)
	}
	var spans map[string]span
	ctx, cancel := context.WithTimeout(ctx, 24*time.Hour)
	defer cancel()
	if p.Key != "" { // only a new store takes a key, and the server encrypts what it finds
		o := p.options()
		o.Streams = nil
		s, err := storage.Open(o)
		if err != nil {
			return h, "", fmt.Errorf("restore %s: %w", file, err)
		}
		if err := s.Close(ctx); err != nil {
			return h, "", fmt.Errorf("restore %s: %w", file, err)
		}
	}
	if spans, err = unpack(file, p.Dir); err != nil {
		return h, "", fmt.Errorf("restore %s: %w", file, err)
	}
	p.sources = map[string]string{} // the new store says how far each of them has come
	for name, sp := range spans {
		for source := range sp.sources {
			p.sources[source] = name
		}
	}
	p.unpacked = true
	err = p.with(ctx, func(s *storage.Store) error {
		for _, id := range append(h.Known, h.Store) {
			if err := s.Adopt(storage.StoreID(id)); err != nil {
				return err
			}
		}
		return nil
	}, func(s *storage.Store, _, apps jetstream.JetStream) error {
		store = s.ID()
		if err := makeApps(ctx, apps, h.Apps, spans, p.log()); err != nil {
			return err
		}
		s.KeepAppMetadata()
		for _, st := range s.Streams() {
			if sp := spans[st.Name]; sp.count > st.Messages || sp.last > uint64(st.Last) {
				return fmt.Errorf("stream %s holds %d records up to %d, and the backup has %d up to %d", st.Name, st.Messages, st.Last, sp.count, sp.last)
			}
		}
		return nil
	})
	if err != nil {
		return h, "", fmt.Errorf("restore %s: %w", file, err)
	}
	return h, store, nil
}
