package carry

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/forward"
	"github.com/holdfast-edge/holdfast/leaf"
	"github.com/holdfast-edge/holdfast/storage"
	"github.com/holdfast-edge/holdfast/storage/blocks"
	"github.com/holdfast-edge/holdfast/storage/parcel"
)

// ErrRefused means that the hub must not get an export, or not yet. Its message says why.
var ErrRefused = errors.New("not imported")

// ImportOptions are what Import needs.
type ImportOptions struct {
	Hub      leaf.Hub      // with the gateway's own user: to the hub an import is the gateway
	Patience time.Duration // how long nothing may move
	Log      *slog.Logger
}

// Imported says what Import did with one file.
type Imported struct {
	File    string
	Header  parcel.Header
	Records uint64 // in the file
	Receipt string // where the receipt is
}

// Import brings exports to the hub, in the order of their parts, and leaves a receipt beside each. It takes the part of the gateway: a leaf of its name
// serves the records at their sequences, the hub takes them by its own sources and mirrors, from where it stands. So a record that the hub has is not
// sent, whoever brought it, and the gateway itself can go on behind. An export that begins behind what the hub has is refused: the part before is missing.
func Import(ctx context.Context, files []string, o ImportOptions) ([]Imported, error) {
	all := make([]Imported, len(files))
	for i, f := range files {
		h, err := readHeader(f)
		if err != nil {
			return nil, err
		}
		if h.Kind != parcel.Export {
			return nil, fmt.Errorf("import %s: it is a %s: `holdfast restore` takes that", f, h.Kind)
		}
		all[i] = Imported{File: f, Header: h}
	}
	slices.SortFunc(all, func(a, b Imported) int {
		return cmp.Or(cmp.Compare(a.Header.Leaf+a.Header.Store, b.Header.Leaf+b.Header.Store), cmp.Compare(a.Header.Part, b.Header.Part))
	})
	for i := range all {
		if err := importFile(ctx, &all[i], o); err != nil {
			return all[:i], fmt.Errorf("import %s: %w", all[i].File, err)
		}
	}
	return all, nil
}

func readHeader(path string) (parcel.Header, error) {
	f, err := os.Open(path)
	if err != nil {
		return parcel.Header{}, err
	}
	defer func() { _ = f.Close() }() // read only
	r, err := parcel.NewReader(f)
	if err != nil {
		return parcel.Header{}, fmt.Errorf("%s: %w", path, err)
	}
	return r.Header, nil
}

func importFile(ctx context.Context, im *Imported, o ImportOptions) error {
	dir, err := os.MkdirTemp("", "holdfast-import-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // a temporary folder
	spans, err := unpack(im.File, dir)
	if err != nil {
		return err
	}
	for _, s := range spans {
		im.Records += s.count
	}
	server, err := leaf.Start(leaf.Options{Config: leaf.Config{Name: im.Header.Leaf, Data: dir}, Hub: o.Hub, Log: o.Log})
	if err != nil {
		return err
	}
	down, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
	defer cancel()
	defer func() { _ = server.Shutdown(down) }() // everything of it is temporary
	nc, err := server.Connect(nats.Name("holdfast import"))
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	st := &store{header: im.Header, js: js, spans: spans, ahead: map[string]storage.Position{}, failed: make(chan error, 1)}
	if err := st.makeStreams(ctx); err != nil {
		return err
	}
	streams, needs := map[string]forward.Config{}, map[string]storage.Position{}
	for _, s := range im.Header.Streams {
		if spans[s.Name].count > 0 {
			streams[s.Name] = forward.Config{Mode: s.Mode, HubStream: s.HubStream}
			needs[s.Name] = storage.Position(s.After)
		}
	}
	up := forward.New(forward.Options{Leaf: im.Header.Leaf, Domain: o.Hub.Domain, Streams: streams, Needs: needs, Log: o.Log}, st, server)
	running, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- up.Run(running, nc) }()
	err = server.Enable(true)
	if err == nil {
		err = st.await(ctx, up, server, o.Patience)
	}
	stop()
	if rerr := <-done; err == nil {
		err = rerr
	}
	if err != nil {
		return err
	}
	im.Receipt = strings.TrimSuffix(im.File, exportSuffix) + receiptSuffix
	return writeReceipt(im.Receipt, st.receipt(up))
}

// span is what a file holds of a stream.
type span struct {
	first, last uint64
	count       uint64
	sources     map[string]bool // none for a stream of local applications
}

// note notes the source of a record of a captured stream: what is behind data, leaf and stream in its subject.
func (s *span) note(subject string) {
	if tokens := strings.SplitN(subject, ".", 5); len(tokens) > 3 && tokens[0] == "data" && !storage.Own(tokens[3]) && !s.sources[tokens[3]] {
		s.sources[tokens[3]] = true
	}
}

// unpack writes the records of a file into the blocks of streams, verifying the whole file.
func unpack(path, dir string) (map[string]span, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // read only
	r, err := parcel.NewReader(f)
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	for _, s := range r.Header.Streams {
		known[s.Name] = true
	}
	for _, a := range r.Header.Apps {
		known[parcel.AppRecords+a.Name] = true
	}
	spans, writers := map[string]span{}, map[string]*blocks.Writer{}
	for {
		rec, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		if !known[rec.Stream] {
			return nil, fmt.Errorf("%w: a record of stream %q, which its header does not name", parcel.ErrDamaged, rec.Stream)
		}
		w := writers[rec.Stream]
		if w == nil {
			files := storage.StreamFiles(dir, rec.Stream)
			if app, yes := strings.CutPrefix(rec.Stream, parcel.AppRecords); yes {
				files = storage.AppStreamFiles(dir, app)
			}
			if w, err = files.NewWriter(); err != nil {
				return nil, err
			}
			writers[rec.Stream] = w
			spans[rec.Stream] = span{first: rec.Seq, sources: map[string]bool{}}
		}
		if err := w.Write(blocks.Message{Seq: rec.Seq, Time: rec.Time.UnixNano(), Subject: rec.Subject, Header: rec.Header, Data: rec.Data}); err != nil {
			return nil, err
		}
		s := spans[rec.Stream]
		s.last, s.count = rec.Seq, s.count+1
		if !strings.HasPrefix(rec.Stream, parcel.AppRecords) {
			s.note(rec.Subject)
		}
		spans[rec.Stream] = s
	}
	if err := endApps(r.Header.Apps, dir, writers); err != nil {
		return nil, err
	}
	for _, w := range writers {
		if err := w.Close(); err != nil {
			return nil, err
		}
	}
	return spans, nil
}

// store is an export as the uplink sees a store.
type store struct {
	header parcel.Header
	js     jetstream.JetStream
	spans  map[string]span

	mu     sync.Mutex
	ahead  map[string]storage.Position // streams of which the hub has more than the export
	failed chan error                  // buffered 1: why the import cannot go on
}

var _ forward.Store = (*store)(nil)

func (s *store) makeStreams(ctx context.Context) error {
	for name, sp := range s.spans {
		st, err := s.js.CreateStream(ctx, jetstream.StreamConfig{
			Name: name, Subjects: []string{storage.DataSubject(s.header.Leaf, name, ">")}, Storage: jetstream.FileStorage, AllowDirect: true, FirstSeq: sp.first,
		})
		if err != nil {
			return fmt.Errorf("make stream %s: %w", name, err)
		}
		if got := st.CachedInfo().State; got.Msgs != sp.count || got.LastSeq != sp.last {
			return fmt.Errorf("stream %s holds %d records up to %d, and the file has %d up to %d", name, got.Msgs, got.LastSeq, sp.count, sp.last)
		}
	}
	return nil
}

func (s *store) fail(err error) error {
	select {
	case s.failed <- err:
	default:
	}
	return err
}

func (s *store) ID() storage.StoreID { return storage.StoreID(s.header.Store) }

// Epoch is above all, so that a hub that is ahead of the export calls for a Leap.
func (s *store) Epoch() uint64 { return 1 << 62 }

func (s *store) Knows(id storage.StoreID) bool {
	return id == s.ID() || slices.Contains(s.header.Known, string(id))
}

func (s *store) Known() []storage.StoreID {
	known := make([]storage.StoreID, len(s.header.Known))
	for i, id := range s.header.Known {
		known[i] = storage.StoreID(id)
	}
	return known
}

func (s *store) Adopt(id storage.StoreID) error {
	return s.fail(fmt.Errorf("%w: the hub has records of another store (%s) of the name %s", ErrRefused, id, s.header.Leaf))
}

func (s *store) MarkOutrun(uint64) error { return nil }

func (s *store) OutrunBy() uint64 { return 0 }

// Leap is asked for when the hub has more than the export: there is nothing to send.
func (s *store) Leap(_ context.Context, stream string, above, _ storage.Position) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ahead[stream] = above
	return fmt.Errorf("the hub has stream %s up to %d", stream, above)
}

func (s *store) Gap(context.Context, storage.GapRecord) error {
	return s.fail(fmt.Errorf("%w: the hub lost records while they were imported", ErrRefused))
}

func (s *store) Verify(context.Context, string, storage.Position) error { return nil } // unpack has

func (s *store) Sync() error { return nil } // nothing comes down

func (s *store) Streams() []storage.StreamState {
	var all []storage.StreamState
	for name, sp := range s.spans {
		all = append(all, storage.StreamState{Name: name, First: storage.Position(sp.first), Last: storage.Position(sp.last), Messages: sp.count})
	}
	return all
}

// proven returns how far the hub has a stream.
func (s *store) proven(up *forward.Uplink, stream string) storage.Position {
	s.mu.Lock()
	at := s.ahead[stream]
	s.mu.Unlock()
	p, _ := up.Forwarded(stream)
	return max(at, p)
}

// await returns when the hub has proven to hold everything, or when it cannot go on.
func (s *store) await(ctx context.Context, up *forward.Uplink, server *leaf.Server, patience time.Duration) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	var moved time.Time
	var before string
	for {
		at, all := "", true
		for _, name := range slices.Sorted(maps.Keys(s.spans)) {
			p := s.proven(up, name)
			at += fmt.Sprintf("%s %d ", name, p)
			all = all && uint64(p) >= s.spans[name].last
		}
		if all {
			return nil
		}
		if at != before || moved.IsZero() {
			before, moved = at, time.Now()
		}
		why := ""
		for _, p := range up.Progress() {
			switch p.State {
			case forward.Refused, forward.SameName, forward.OtherIncarnation:
				s.mu.Lock()
				_, ahead := s.ahead[p.Stream]
				s.mu.Unlock()
				if !ahead {
					return fmt.Errorf("%w: stream %s: %s: %s (%s)", ErrRefused, p.Stream, p.State, p.Cause, p.Remedy)
				}
			default:
				if p.Cause != "" {
					why = fmt.Sprintf("stream %s: %s: %s", p.Stream, p.State, p.Cause)
				}
			}
		}
		if time.Since(moved) > patience {
			link := server.Link()
			return fmt.Errorf("nothing has moved for %v: link %s %s; %s", patience, link.State, link.Cause, why)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-s.failed:
			return err
		case <-tick.C:
		}
	}
}

func (s *store) receipt(up *forward.Uplink) Receipt {
	r := Receipt{Leaf: s.header.Leaf, Store: s.ID(), Part: s.header.Part, Streams: map[string]ReceiptStream{}}
	hubStreams := map[string]string{}
	for _, p := range up.Progress() {
		hubStreams[p.Stream] = p.HubStream
	}
	for name, sp := range s.spans {
		// No more than the file has: what the hub has beyond, it has from elsewhere.
		r.Streams[name] = ReceiptStream{HubStream: hubStreams[name], Proven: min(s.proven(up, name), storage.Position(sp.last))}
	}
	return r
}

func checksum(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
