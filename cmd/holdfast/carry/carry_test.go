package carry

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/forward"
	"github.com/holdfast-edge/holdfast/rig/poll"
	"github.com/holdfast-edge/holdfast/storage/parcel"
)

const patient = 40 * time.Second

var testStreams = map[string]forward.Config{"S": {Mode: forward.ModeSource, HubStream: "FIELD"}, "M": {Mode: forward.ModeMirror, HubStream: "g1_M"}}

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
			for range 2 { // the second epoch of the restored store tells of the first
				r := s.start(fresh, true)
				r.append(10)
				if !sends {
					r.expect()
				} else {
					r.expectOf(r.Store.ID()) // what the backup holds is there; what is new comes behind
				}
				s.await()
				s.audited(0)
				r.close()
			}

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
			s.audited(0)
			if sends {
				return // what the old one took behind the backup nobody but itself knows of
			}
			// Of the newest record that was taken over, what the restored store says of it is all that tells that it ever was.
			s.takeAway("S", "s")
			s.takeAway("M", "m")
			s.audited(1)
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
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	short := filepath.Join(t.TempDir(), filepath.Base(file))
	if err := os.WriteFile(short, whole[:len(whole)*3/4], 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Restore(t.Context(), short, Place{Dir: fresh}); err == nil {
		t.Error("a backup that was cut short was restored")
	}
	if _, _, err := Restore(t.Context(), file, Place{Dir: fresh}); err != nil { // a try that failed is not in the way
		t.Fatal(err)
	}
	r := s.start(fresh, true)
	r.expect()
	s.await()
}
