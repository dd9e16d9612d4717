package storage

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// small makes a stopped store with 200 records in A, and an application's consumer on it with deliveries pending.
func small(t testing.TB) *bed {
	t.Helper()
	b := newBed(t)
	b.start()
	b.add("a1", 1, 200)
	c, err := b.js.CreateOrUpdateConsumer(b.ctx(), "A", jetstream.ConsumerConfig{Durable: "app", AckPolicy: jetstream.AckExplicitPolicy})
	if err != nil {
		t.Fatal(err)
	}
	batch, err := c.Fetch(40)
	if err != nil {
		t.Fatal(err)
	}
	for m := range batch.Messages() {
		if meta, err := m.Metadata(); err == nil && meta.Sequence.Consumer%4 == 0 {
			if err := m.DoubleAck(b.ctx()); err != nil {
				t.Fatal(err)
			}
		}
	}
	b.stop()
	return b
}

// files returns all files of a directory, from it.
func (b *bed) files() []string {
	b.t.Helper()
	var all []string
	err := fs.WalkDir(os.DirFS(b.dir), ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			all = append(all, path)
		}
		return err
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return all
}

// poison is a consumer's state that announces 2^60 pending deliveries.
var poison = []byte{22, 2, 1, 1, 1, 1, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x10, 1}

// harms are what can happen to any file.
var harms = []struct {
	name string
	do   func(path string, raw []byte) error
}{
	{"empty", func(path string, _ []byte) error { return os.Truncate(path, 0) }},
	{"zeros", func(path string, raw []byte) error { return os.WriteFile(path, make([]byte, len(raw)), 0o600) }},
	{"a byte flipped", func(path string, raw []byte) error {
		if len(raw) > 0 {
			raw[len(raw)/2] ^= 0x5a
		}
		return os.WriteFile(path, raw, 0o600)
	}},
	{"cut in half", func(path string, raw []byte) error { return os.Truncate(path, int64(len(raw)/2)) }},
	{"gone", func(path string, _ []byte) error { return os.Remove(path) }},
	{"a folder", func(path string, _ []byte) error {
		if err := os.Remove(path); err != nil {
			return err
		}
		return os.MkdirAll(filepath.Join(path, "x"), 0o700)
	}},
	{"poison", func(path string, raw []byte) error {
		if filepath.Base(path) != serverConsumer {
			return os.WriteFile(path, bytes.Repeat([]byte{0xff}, len(raw)), 0o600)
		}
		return os.WriteFile(path, poison, 0o600)
	}},
}

// TestAnyDamageDoesNotStopCapture does to every file of a data directory, and to some folders, what can happen to a file. The store starts, takes a record
// within five seconds, or on a busy machine in little more than a store without damage does, and keeps all that can be read; what is lost is told of.
func TestAnyDamageDoesNotStopCapture(t *testing.T) {
	whole := small(t)
	for n, file := range whole.files() {
		for i, harm := range harms {
			if testing.Short() && i != n%len(harms) {
				continue // one for each file, in turn
			}
			t.Run(file+" "+harm.name, func(t *testing.T) {
				t.Parallel()
				b := copyBed(t, whole)
				path := filepath.Join(b.dir, file)
				raw, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				if err := harm.do(path, raw); err != nil {
					t.Fatal(err)
				}
				b.survives(whole, strings.HasSuffix(file, ".blk"))
			})
		}
	}
	for _, folder := range []string{"store", "jetstream", "store/metadata", "jetstream/CAPTURE", "jetstream/CAPTURE/streams", "jetstream/CAPTURE/streams/A",
		"jetstream/CAPTURE/streams/A/msgs", "jetstream/CAPTURE/streams/A/obs", "jetstream/CAPTURE/streams/A/obs/app"} {
		for _, harm := range []string{"a file", "gone"} {
			if testing.Short() && harm == "gone" {
				continue
			}
			t.Run(folder+" "+harm, func(t *testing.T) {
				t.Parallel()
				b := copyBed(t, whole)
				path := filepath.Join(b.dir, folder)
				if err := os.RemoveAll(path); err != nil {
					t.Fatal(err)
				}
				if harm == "a file" {
					if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				b.survives(whole, folder != "store" && folder != "store/metadata" && !strings.Contains(folder, "obs"))
			})
		}
	}
}

// captures starts the store, takes a record, and returns how long that took.
func (b *bed) captures() time.Duration {
	b.t.Helper()
	began := time.Now()
	b.open()
	if err := b.s.Mend(b.ctx(), nothingForwarded); err != nil {
		b.t.Fatal(err)
	}
	b.serve()
	b.attach()
	b.add("a2", 1, 1)
	return time.Since(began)
}

// survives starts the store and checks what TestAnyDamageDoesNotStopCapture says. Without losing, all old records must be there.
func (b *bed) survives(whole *bed, losing bool) {
	b.t.Helper()
	if d := b.captures(); d > 5*time.Second {
		same := copyBed(b.t, whole)
		if busy := same.captures(); d > 3*busy {
			b.t.Errorf("captured after %v, want 5 s; a store without damage takes %v", d, busy)
		}
		same.stop()
	}
	if err := b.s.Verify(b.ctx(), "A", 1); err != nil {
		b.t.Fatal(err)
	}
	var old, fresh int
	ids := map[string]bool{}
	for _, k := range b.captured("A") {
		if ids[k.ID.String()] {
			b.t.Errorf("%v is there twice", k.ID)
		}
		ids[k.ID.String()] = true
		if k.Source == "a2" {
			fresh++
		} else {
			old++
		}
	}
	if fresh != 1 || !losing && old != 200 {
		b.t.Errorf("%d new and %d old records are there", fresh, old)
	}
	var told uint64
	for _, g := range b.gaps("A") {
		told += g.Count
	}
	if old+int(told) != 200 && (losing && old+int(told) > 200 || fmt.Sprint(b.s.Alarms()) == "[]") {
		b.t.Errorf("%d of 200 records are there, gap records tell of %d, and no alarm: %v", old, told, b.s.Alarms())
	}
	b.stop()
}

// TestWrongPermissions takes every right from every file and folder. It needs a user who is not root, so root runs it as another one.
func TestWrongPermissions(t *testing.T) {
	if os.Geteuid() == 0 {
		if testing.Short() {
			t.Skip("SKIPPED: starts a store some fifty times, not done with -short")
		}
		asNobody(t)
		return
	}
	whole := small(t)
	for _, what := range append(whole.files(), "jetstream/CAPTURE/streams/A/msgs", "jetstream/CAPTURE/streams/A", "store/metadata", "store") {
		for _, mode := range []fs.FileMode{0, 0o400} {
			t.Run(fmt.Sprint(what, " ", mode), func(t *testing.T) {
				b := copyBed(t, whole)
				if err := os.Chmod(filepath.Join(b.dir, what), mode); err != nil {
					t.Fatal(err)
				}
				b.survives(whole, false)
			})
		}
	}
}

func asNobody(t *testing.T) {
	t.Helper()
	const nobody = 65534
	dir, err := os.MkdirTemp("", "holdfast")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	self, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(dir, "test")
	if err := os.WriteFile(binary, self, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(dir, nobody, nobody); err != nil {
		t.Skipf("SKIPPED: cannot become another user: %v", err)
	}
	cmd := exec.CommandContext(t.Context(), binary, "-test.run", "^TestWrongPermissions$")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "TMPDIR="+dir, "HOME="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	if err != nil && !strings.Contains(string(out), "FAIL") {
		t.Skipf("SKIPPED: cannot become another user: %v", err)
	}
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
