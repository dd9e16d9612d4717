package carry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sys/unix"

	"github.com/holdfast-edge/holdfast/forward"
	"github.com/holdfast-edge/holdfast/storage"
	"github.com/holdfast-edge/holdfast/storage/parcel"
)

// Suffixes of files on a stick.
const (
	exportSuffix  = ".parcel"
	receiptSuffix = ".receipt"
)

// progressFile is where a gateway keeps what it has exported, in the store's folder. Without it what the hub is not proven to have is exported again.
const progressFile = "exported.json"

// Progress is what a gateway has exported.
type Progress struct {
	Store   storage.StoreID             `json:"store"`
	Part    int                         `json:"part"` // newest
	Streams map[string]storage.Position `json:"streams"`
}

// Receipt is what an import has proven: the hub holds the streams of a store up to these sequences.
type Receipt struct {
	Leaf    string                   `json:"leaf"`
	Store   storage.StoreID          `json:"store"`
	Part    int                      `json:"part"`
	Streams map[string]ReceiptStream `json:"streams"`
}

// ReceiptStream is one stream of a Receipt.
type ReceiptStream struct {
	HubStream string           `json:"hub_stream"`
	Proven    storage.Position `json:"proven"`
}

// Gateway is the running daemon as exports and backups see it.
type Gateway struct {
	Store   *storage.Store
	Uplink  *forward.Uplink
	JS      jetstream.JetStream
	Apps    jetstream.JetStream // of local applications, nil: there are none
	Streams []parcel.Stream     // all captured ones; After is not used
	Version string
}

func (g Gateway) header(kind string) parcel.Header {
	h := parcel.Header{Kind: kind, Leaf: g.Store.Leaf(), Store: string(g.Store.ID()), Epoch: g.Store.Epoch(), Made: time.Now().UTC(), Version: g.Version}
	for _, id := range g.Store.Known() {
		h.Known = append(h.Known, string(id))
	}
	return h
}

// progress reads what was exported; nothing of another store counts.
func (g Gateway) progress() Progress {
	p := Progress{}
	raw, err := os.ReadFile(filepath.Join(g.Store.Home(), progressFile))
	if err != nil || json.Unmarshal(raw, &p) != nil || p.Store != g.Store.ID() || p.Streams == nil {
		return Progress{Store: g.Store.ID(), Streams: map[string]storage.Position{}}
	}
	return p
}

// settle waits until what was acknowledged can be read in the streams.
func (g Gateway) settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	return g.Store.Settle(ctx)
}

// Export writes what waits for the hub and was not exported yet; with again, also what was. Every record is verified first.
func (g Gateway) Export(ctx context.Context, w io.Writer, again bool) error {
	if err := g.settle(ctx); err != nil {
		return fmt.Errorf("export: %w", err)
	}
	p := g.progress()
	h := g.header(parcel.Export)
	h.Part = p.Part + 1
	for _, s := range g.Streams {
		if s.Mode == forward.ModeNone {
			continue
		}
		proven, _ := g.Uplink.Forwarded(s.Name)
		s.After = uint64(proven)
		if !again {
			s.After = max(s.After, uint64(p.Streams[s.Name]))
		}
		if err := g.Store.Verify(ctx, s.Name, storage.Position(s.After+1)); err != nil {
			return fmt.Errorf("export: %w", err)
		}
		h.Streams = append(h.Streams, s)
	}
	_, err := g.write(ctx, w, h)
	return err
}

// Backup writes everything that the captured streams hold, and those of local applications.
func (g Gateway) Backup(ctx context.Context, w io.Writer) error {
	if err := g.settle(ctx); err != nil {
		return fmt.Errorf("back up: %w", err)
	}
	h := g.header(parcel.Backup)
	h.Streams = g.Streams
	var err error
	if h.Apps, err = appStreams(ctx, g.Apps); err != nil {
		return fmt.Errorf("back up: %w", err)
	}
	_, err = g.write(ctx, w, h)
	return err
}

func (g Gateway) write(ctx context.Context, to io.Writer, h parcel.Header) (parcel.End, error) {
	w, err := parcel.NewWriter(to, h)
	if err != nil {
		return parcel.End{}, err
	}
	for _, s := range h.Streams {
		if err := dump(ctx, g.JS, storage.DataSubject(h.Leaf, s.Name, ">"), s, w); err != nil {
			return parcel.End{}, err
		}
	}
	for _, a := range h.Apps {
		if err := dumpApp(ctx, g.Apps, a, w); err != nil {
			return parcel.End{}, err
		}
	}
	return w.Close(false)
}

// Exported notes, on flash, that a part is on its way by file.
func (g Gateway) Exported(part int, last map[string]uint64) error {
	p := g.progress()
	p.Part = max(p.Part, part)
	for stream, seq := range last {
		p.Streams[stream] = max(p.Streams[stream], storage.Position(seq))
	}
	raw, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return storage.WriteFile(filepath.Join(g.Store.Home(), progressFile), raw, true)
}

// Accept counts as forwarded what a receipt proves. One of another gateway or store is an error.
func (g Gateway) Accept(r Receipt) error {
	if r.Leaf != g.Store.Leaf() || r.Store != g.Store.ID() {
		return fmt.Errorf("receipt is of gateway %s, store %s, and this is %s, store %s", r.Leaf, r.Store, g.Store.Leaf(), g.Store.ID())
	}
	for _, s := range g.Store.Streams() {
		if got, ok := r.Streams[s.Name]; ok {
			if got.Proven > s.Last {
				return fmt.Errorf("receipt: the hub is said to have stream %s up to %d, and it ends at %d", s.Name, got.Proven, s.Last)
			}
			g.Uplink.Received(s.Name, got.HubStream, got.Proven)
		}
	}
	return nil
}

// Save takes an export or backup off a stream and writes it to a file, up to a number of bytes (0: what the medium has room for). A stick
// that has no room for all is closed properly: End.Full is set, and the rest goes into the next part.
func Save(from io.Reader, to string, limit int64) (path string, h parcel.Header, end parcel.End, err error) {
	r, err := parcel.NewReader(from)
	if err != nil {
		return "", h, end, err
	}
	h = r.Header
	if st, err := os.Stat(to); err == nil && st.IsDir() {
		to = filepath.Join(to, Name(h))
	}
	if limit == 0 {
		limit = room(filepath.Dir(to))
	}
	err = create(to, func(f *os.File) error {
		w, err := parcel.NewWriter(f, h)
		if err != nil {
			return err
		}
		full := false
		for {
			rec, err := r.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				return err
			}
			if h.Kind == parcel.Export && w.Written()+int64(len(rec.Data)+len(rec.Header)+len(rec.Subject)+512) > limit {
				full = true
				break
			}
			if err := w.Write(rec); err != nil {
				return err
			}
		}
		end, err = w.Close(full)
		return err
	})
	return to, h, end, err
}

// Name is what a file is called in a folder.
func Name(h parcel.Header) string {
	if h.Kind == parcel.Export {
		return fmt.Sprintf("%s-%s-%04d%s", h.Leaf, h.Store, h.Part, exportSuffix)
	}
	return fmt.Sprintf("%s-%s-backup%s", h.Leaf, h.Store, exportSuffix)
}

// slack is what stays free on a stick for its own administration.
const slack = 1 << 20

func room(dir string) int64 {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 1 << 62 // the write will tell
	}
	return max(int64(st.Bavail)*int64(st.Bsize)-slack, 0)
}

// Receipts returns the receipts in a folder, of whatever gateway.
func Receipts(dir string) ([]Receipt, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*"+receiptSuffix))
	if err != nil {
		return nil, fmt.Errorf("look for receipts in %s: %w", dir, err)
	}
	var all []Receipt
	var faults []error
	for _, n := range names {
		r, err := readReceipt(n)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		all = append(all, r)
	}
	return all, errors.Join(faults...)
}

// A receipt's file is one line of JSON and one with its checksum.
func writeReceipt(path string, r Receipt) error {
	raw, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return storage.WriteFile(path, fmt.Appendf(raw, "\n%s\n", checksum(raw)), true)
}

func readReceipt(path string) (Receipt, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return Receipt{}, fmt.Errorf("read receipt: %w", err)
	}
	body, sum, _ := strings.Cut(string(raw), "\n")
	var r Receipt
	if strings.TrimSpace(sum) != checksum([]byte(body)) || json.Unmarshal([]byte(body), &r) != nil {
		return Receipt{}, fmt.Errorf("read receipt %s: it is damaged: import the export again to get another", path)
	}
	return r, nil
}
