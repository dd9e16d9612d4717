package carry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/forward"
	fleet "github.com/holdfast-edge/holdfast/forward/hub"
	"github.com/holdfast-edge/holdfast/leaf"
	"github.com/holdfast-edge/holdfast/rig/hub"
	"github.com/holdfast-edge/holdfast/rig/poll"
	"github.com/holdfast-edge/holdfast/storage"
	"github.com/holdfast-edge/holdfast/storage/parcel"
)

const patient = 40 * time.Second

var testStreams = map[string]forward.Config{"S": {Mode: forward.ModeSource, HubStream: "FIELD"}, "M": {Mode: forward.ModeMirror, HubStream: "g1_M"}}

// site is a hub that knows the leaf g1, and the IDs that each of its streams must have, in order.
type site struct {
	t    *testing.T
	hub  *hub.Cluster
	js   jetstream.JetStream
	want map[string][]string // by stream of the leaf
}

func newSite(t *testing.T) *site {
	t.Helper()
	if testing.Short() {
		t.Skip("SKIPPED: runs a hub of three nodes, not done with -short")
	}
	t.Parallel()
	fl := fleet.Leaf{Name: "g1", Password: "secret"}
	for name, c := range testStreams {
		fl.Streams = append(fl.Streams, fleet.Stream{Name: name, Mode: fleet.Mode(c.Mode), HubStream: c.HubStream})
	}
	plan, err := fleet.New(fleet.Spec{Leaves: []fleet.Leaf{fl}})
	if err != nil {
		t.Fatal(err)
	}
	s := &site{t: t, want: map[string][]string{}}
	if s.hub, err = hub.Start(hub.Options{Accounts: plan.Config()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.check(s.hub.Close()) })
	if s.js, err = s.hub.JetStream(); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, patient, func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_, err = fleet.Apply(ctx, s.js, plan)
		return err == nil
	}, "apply: %v", &err)
	return s
}

func (s *site) check(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Error(err)
	}
}

func (s *site) leafHub() leaf.Hub {
	return leaf.Hub{URLs: []string{"nats-leaf://g1:secret@" + s.hub.LeafAddr(0)}, Domain: "hub"}
}

// gateway is a daemon of g1 without sources.
type gateway struct {
	Gateway
	s    *site
	dir  string
	leaf *leaf.Server
	nc   *nats.Conn
	seqs map[string]uint64
	stop context.CancelFunc
	done chan error
}

func (s *site) start(dir string, linked bool) *gateway {
	s.t.Helper()
	g := &gateway{s: s, dir: dir, seqs: map[string]uint64{}, done: make(chan error, 1)}
	var err error
	fatal := func() {
		s.t.Helper()
		if err != nil {
			s.t.Fatal(err)
		}
	}
	log := slog.New(slog.DiscardHandler)
	if testing.Verbose() {
		log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	g.Store, err = storage.Open(storage.Options{
		Leaf: "g1", Dir: dir, Config: storage.Config{Budget: 1 << 30, AllowVolatile: true, Commit: storage.Commit{MaxRecords: 1024}},
		Streams: []storage.StreamConfig{{Name: "S"}, {Name: "M"}}, Sources: map[string]string{"s": "S", "m": "M"}, Log: log,
	})
	fatal()
	err = g.Store.Mend(context.Background(), forward.Remembered(g.Store.Home(), g.Store.ID()))
	fatal()
	g.leaf, err = leaf.Start(leaf.Options{Config: leaf.Config{Name: "g1", Data: dir}, Hub: s.leafHub(), Log: log})
	fatal()
	g.nc, err = g.leaf.Connect()
	fatal()
	g.JS, err = jetstream.New(g.nc)
	fatal()
	g.Uplink = forward.New(forward.Options{Leaf: "g1", Dir: g.Store.Home(), Streams: testStreams, Log: log}, g.Store, g.leaf)
	ctx, cancel := context.WithCancel(context.Background())
	g.stop = cancel
	err = g.Store.Attach(ctx, storage.Server{JetStream: g.JS, Restart: g.leaf.RestartJetStream, Pause: g.leaf.PauseJetStream, Forwarded: g.Uplink.Forwarded})
	fatal()
	for name, c := range testStreams {
		g.Streams = append(g.Streams, parcel.Stream{Name: name, Mode: c.Mode, HubStream: c.HubStream})
	}
	go func() { g.done <- g.Uplink.Run(ctx, g.nc) }()
	if linked {
		err = g.leaf.Enable(true)
		fatal()
	}
	s.t.Cleanup(g.close)
	return g
}

func (g *gateway) close() {
	if g.stop == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patient)
	defer cancel()
	g.s.check(g.Store.Close(ctx))
	g.stop()
	g.s.check(<-g.done)
	g.nc.Close()
	g.s.check(g.leaf.Shutdown(ctx))
	g.stop = nil
}

// append captures n records into each stream; expected says whether the hub is to get them.
func (g *gateway) append(n int) {
	g.s.t.Helper()
	for _, stream := range []string{"S", "M"} {
		var recs []storage.Record
		for range n {
			g.seqs[stream]++
			recs = append(recs, storage.Record{Stream: stream, Source: strings.ToLower(stream), Seq: g.seqs[stream], Data: fmt.Appendf(make([]byte, 200), "%s %d", stream, g.seqs[stream])})
		}
		if err := g.Store.Append(context.Background(), recs...); err != nil {
			g.s.t.Fatal(err)
		}
	}
}

// expect notes that the hub must have everything that the gateway has now.
func (g *gateway) expect() {
	g.s.t.Helper()
	if err := g.Store.Settle(context.Background()); err != nil {
		g.s.t.Fatal(err)
	}
	for _, stream := range []string{"S", "M"} {
		for _, id := range ids(g.s.t, g.JS, stream) {
			if !slices.Contains(g.s.want[stream], id) {
				g.s.want[stream] = append(g.s.want[stream], id)
			}
		}
	}
}

// ids returns the IDs of all records of a stream, in its order.
func ids(t *testing.T, js jetstream.JetStream, stream string) []string {
	t.Helper()
	var b bytes.Buffer
	w, err := parcel.NewWriter(&b, parcel.Header{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patient)
	defer cancel()
	var all []string
	if err := dump(ctx, js, "data.>", parcel.Stream{Name: stream}, w); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Close(false); err != nil {
		t.Fatal(err)
	}
	r, err := parcel.NewReader(&b)
	if err != nil {
		t.Fatal(err)
	}
	for {
		rec, err := r.Next()
		if err != nil {
			return all
		}
		_, rest, _ := strings.Cut(string(rec.Header), storage.HeaderID+": ")
		id, _, _ := strings.Cut(rest, "\r\n")
		all = append(all, id)
	}
}

// await fails unless the hub comes to have exactly what is wanted, in order.
func (s *site) await() {
	s.t.Helper()
	for _, stream := range []string{"S", "M"} {
		var got []string
		name := testStreams[stream].HubStream
		poll.Wait(context.Background(), patient, func() bool {
			st, err := s.js.Stream(context.Background(), name)
			return err == nil && int(st.CachedInfo().State.Msgs) >= len(s.want[stream])
		})
		poll.Wait(context.Background(), 3*time.Second, func() bool {
			got = ids(s.t, s.js, name)
			return slices.Equal(got, s.want[stream])
		})
		if !slices.Equal(got, s.want[stream]) {
			n := 0
			for n < min(len(got), len(s.want[stream])) && got[n] == s.want[stream][n] {
				n++
			}
			s.t.Fatalf("hub stream %s has %d records, want %d; they differ from %d on: %v, %v", name, len(got), len(s.want[stream]), n, got[n:min(n+3, len(got))], s.want[stream][n:min(n+3, len(s.want[stream]))])
		}
	}
}

// export writes a part into a folder.
func (g *gateway) export(dir string, limit int64, again bool) (string, parcel.End) {
	g.s.t.Helper()
	var b bytes.Buffer
	if err := g.Export(context.Background(), &b, again); err != nil {
		g.s.t.Fatal(err)
	}
	path, h, end, err := Save(&b, dir, limit)
	if err != nil {
		g.s.t.Fatal(err)
	}
	if err := g.Exported(h.Part, end.Last); err != nil {
		g.s.t.Fatal(err)
	}
	return path, end
}

// TestExportImport: a site without any link. Its records go to the hub on three sticks, the first of which is too small; the wrong order is refused,
// importing again changes nothing, the receipts free the gateway, and a link that comes at last goes on behind.
func TestExportImport(t *testing.T) {
	s := newSite(t)
	g := s.start(t.TempDir(), false)
	stick := t.TempDir()
	g.append(300)
	first, end := g.export(stick, 60_000, false)
	if !end.Full || end.Records == 0 || end.Records >= 600 {
		t.Fatalf("the first part holds %+v", end)
	}
	second, end := g.export(stick, 0, false)
	if end.Full || first == second {
		t.Fatalf("the second part %s holds %+v", second, end)
	}
	g.append(20)
	third, _ := g.export(stick, 0, false)
	g.expect()
	o := ImportOptions{Hub: s.leafHub(), Patience: 30 * time.Second}
	if _, err := Import(t.Context(), []string{third}, o); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "the part before") {
		t.Fatalf("Import of the third part = %v, want ErrRefused", err)
	}
	done, err := Import(t.Context(), []string{third, first, second}, o)
	if err != nil || len(done) != 3 || done[0].File != first || done[2].Receipt == "" {
		t.Fatalf("Import = %+v, %v", done, err)
	}
	s.await()
	if _, err := Import(t.Context(), []string{second, third}, o); err != nil {
		t.Fatalf("Import again: %v", err)
	}
	s.await()

	receipts, err := Receipts(stick)
	if err != nil || len(receipts) != 3 {
		t.Fatalf("Receipts = %+v, %v", receipts, err)
	}
	for _, r := range receipts {
		if err := g.Accept(r); err != nil {
			t.Fatal(err)
		}
	}
	for _, st := range g.Store.Streams() {
		if st.Waiting != 0 || st.Forwarded != 320 {
			t.Errorf("after the receipts %s: %+v", st.Name, st)
		}
	}
	wrong := receipts[0]
	wrong.Store = "ffffffffff"
	if err := g.Accept(wrong); err == nil {
		t.Error("a receipt of another store was taken")
	}
	g.append(30)
	g.expect()
	s.check(g.leaf.Enable(true))
	s.await()
}

func TestImportRefuses(t *testing.T) {
	dir := t.TempDir()
	junk := filepath.Join(dir, "junk")
	if err := os.WriteFile(junk, []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Import(t.Context(), []string{junk}, ImportOptions{}); !errors.Is(err, parcel.ErrFormat) {
		t.Errorf("Import of junk = %v", err)
	}
	var b bytes.Buffer
	w, err := parcel.NewWriter(&b, parcel.Header{Kind: parcel.Backup, Leaf: "g1", Store: "0123456789", Streams: []parcel.Stream{{Name: "S"}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Close(false); err != nil {
		t.Fatal(err)
	}
	backup := filepath.Join(dir, "backup")
	if err := os.WriteFile(backup, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Import(t.Context(), []string{backup}, ImportOptions{}); err == nil || !strings.Contains(err.Error(), "holdfast restore") {
		t.Errorf("Import of a backup = %v", err)
	}
	if _, _, err := Restore(t.Context(), junk, Place{Dir: t.TempDir()}); !errors.Is(err, parcel.ErrFormat) {
		t.Errorf("Restore of junk = %v", err)
	}
	full := t.TempDir()
	if err := os.Mkdir(filepath.Join(full, "store"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Restore(t.Context(), backup, Place{Dir: full}); !errors.Is(err, os.ErrExist) {
		t.Errorf("Restore over a store = %v", err)
	}
}

// TestRestoreGoesOn: the gateway dies after a backup that was made while it ran; another machine goes on with what was backed up. What the dead one had sent
// since the backup is not sent again, and when it comes back it is told apart.
func TestRestoreGoesOn(t *testing.T) {
	for _, sends := range []bool{false, true} {
		name := "dead since the backup"
		if sends {
			name = "sends after the backup"
		}
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			old := t.TempDir()
			g := s.start(old, true)
			g.append(200)
			g.expect()
			s.await()
			g.close()
			g = s.start(old, false)
			g.append(100)
			g.expect()
			var b bytes.Buffer
			if err := g.Backup(t.Context(), &b); err != nil {
				t.Fatal(err)
			}
			file, _, _, err := Save(&b, t.TempDir(), 0)
			if err != nil {
				t.Fatal(err)
			}
			g.append(50)
			if sends {
				g.expect()
				s.check(g.leaf.Enable(true))
				s.await()
			}
			g.close()

			fresh := t.TempDir()
			if _, id, err := Restore(t.Context(), file, Place{Dir: fresh}); err != nil || id == "" {
				t.Fatalf("Restore = %v, %v", id, err)
			}
			r := s.start(fresh, true)
			r.append(10)
			if err := r.Store.Settle(t.Context()); err != nil {
				t.Fatal(err)
			}
			if sends {
				// What the backup holds is there; what is new comes behind.
				for _, stream := range []string{"S", "M"} {
					for _, id := range ids(t, r.JS, stream) {
						if strings.Contains(id, string(r.Store.ID())) {
							s.want[stream] = append(s.want[stream], id)
						}
					}
				}
			} else {
				r.expect()
			}
			s.await()
			r.close()

			g = s.start(old, true)
			g.append(5)
			poll.Until(t, patient, func() bool {
				for _, p := range g.Uplink.Progress() {
					if p.State != forward.SameName && p.State != forward.OtherIncarnation {
						return false
					}
				}
				return true
			}, "the old gateway is told apart")
			s.await()
		})
	}
}

// TestBackupOfDeadGateway backs up the directory of a daemon that was killed.
func TestBackupOfDeadGateway(t *testing.T) {
	s := newSite(t)
	dead := t.TempDir()
	g := s.start(dead, false)
	g.append(200)
	card := t.TempDir() // the card is read while the daemon has not stopped: as after a kill
	if err := os.CopyFS(card, os.DirFS(dead)); err != nil {
		t.Fatal(err)
	}
	g.expect()
	g.close()
	file, h, end, err := BackupOf(t.Context(), Place{Dir: card}, t.TempDir(), "test")
	if err != nil || h.Leaf != "g1" || end.Records < 400 {
		t.Fatalf("BackupOf = %+v, %+v, %v", h, end, err)
	}
	fresh := t.TempDir()
	if _, _, err := Restore(t.Context(), file, Place{Dir: fresh}); err != nil {
		t.Fatal(err)
	}
	r := s.start(fresh, true)
	r.expect()
	s.await()
}
