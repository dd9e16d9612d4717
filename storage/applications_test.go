package storage

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// appServer is an embedded server with an account of local applications alone, on the directory of a bed.
func (b *bed) appServer(t *testing.T) (js jetstream.JetStream, stop func()) {
	t.Helper()
	o := &server.Options{}
	if err := o.ProcessConfigString("accounts { " + appAccount + " { jetstream: enabled, users: [{user: a, password: a}] } }"); err != nil {
		t.Fatal(err)
	}
	o.DontListen, o.JetStream, o.NoSigs, o.NoLog, o.StoreDir = true, true, true, true, b.dir
	srv, err := server.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	srv.Start()
	nc, err := nats.Connect("", nats.InProcessServer(srv), nats.UserInfo("a", "a"))
	if err != nil {
		t.Fatal(err)
	}
	if js, err = jetstream.New(nc); err != nil {
		t.Fatal(err)
	}
	return js, func() {
		nc.Close()
		srv.Shutdown()
		srv.WaitForShutdown()
	}
}

// TestApplicationsNeverGoBack takes 50 of 150 messages of a local application's stream away again, as a power cut does, and starts anew after stops of all
// kinds: only a power cut raises the stream, and above everything that was ever given out.
func TestApplicationsNeverGoBack(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		end    func(b *bed) error // before the next start
		boot   string             // of the kernel then; empty: the same
		raised bool
	}{
		{name: "power cut", boot: "another", raised: true},
		{name: "power cut, and the file with the reserves damaged", boot: "another", raised: true, end: func(b *bed) error {
			for _, name := range []string{"applications", "applications.bak"} {
				if err := os.WriteFile(filepath.Join(b.dir, "store", name), []byte("zeros"), 0o600); err != nil {
					return err
				}
			}
			return nil
		}},
		{name: "the process killed"},
		{name: "orderly stop", boot: "another", end: func(b *bed) error { return b.s.RestApplications() }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBed(t)
			b.open()
			if err := b.s.Mend(t.Context(), nothingForwarded); err != nil {
				t.Fatal(err)
			}
			js, stop := b.appServer(t)
			if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "KV_state", Subjects: []string{"x.>"}}); err != nil {
				t.Fatal(err)
			}
			for i := range 100 {
				if _, err := js.Publish(t.Context(), fmt.Sprint("x.", i), nil); err != nil {
					t.Fatal(err)
				}
			}
			if err := b.s.ReserveApplications(map[string]uint64{"KV_state": 100}); err != nil {
				t.Fatal(err)
			}
			stop()
			disk := filepath.Join(t.TempDir(), "disk")
			if err := os.CopyFS(disk, os.DirFS(filepath.Join(b.dir, "jetstream"))); err != nil {
				t.Fatal(err)
			}
			js, stop = b.appServer(t)
			for i := range 50 {
				if _, err := js.Publish(t.Context(), fmt.Sprint("x.", i), nil); err != nil {
					t.Fatal(err)
				}
			}
			stop()
			if tt.end != nil {
				if err := tt.end(b); err != nil {
					t.Fatal(err)
				}
			}
			last := uint64(150)
			if tt.raised { // what was not flushed is gone
				last = 100
				if err := os.RemoveAll(filepath.Join(b.dir, "jetstream")); err != nil {
					t.Fatal(err)
				}
				if err := os.CopyFS(filepath.Join(b.dir, "jetstream"), os.DirFS(disk)); err != nil {
					t.Fatal(err)
				}
			}
			b.crash()
			b.open()
			if tt.boot != "" {
				b.s.reserves.boot = tt.boot
			}
			if err := b.s.Mend(t.Context(), nothingForwarded); err != nil {
				t.Fatal(err)
			}
			js, stop = b.appServer(t)
			defer stop()
			ack, err := js.Publish(t.Context(), "x.new", nil)
			if err != nil {
				t.Fatal(err)
			}
			if tt.raised && ack.Sequence <= 150 || !tt.raised && ack.Sequence != last+1 {
				t.Errorf("the next message got %d, 150 were given out before", ack.Sequence)
			}
			if ack.Sequence > 150+2*leastAhead {
				t.Errorf("the next message got %d, which is farther than need be", ack.Sequence)
			}
			if alarms := b.s.Alarms(); len(alarms) > 0 {
				t.Errorf("alarms %+v", alarms)
			}
		})
	}
}

// TestReserveIsWrittenSeldom: the file of the reserves changes for a new stream and when half of a reserve is used up, not with each message.
func TestReserveIsWrittenSeldom(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.open()
	written := 0
	for at := uint64(1); at < 2*leastAhead; at += 1000 {
		before := b.s.reserves.file.generation
		if err := b.s.ReserveApplications(map[string]uint64{"S": at}); err != nil {
			t.Fatal(err)
		}
		if b.s.reserves.file.generation != before {
			written++
		}
		if got := b.s.reserves.state.Reserve["S"]; got < at+leastAhead/2 {
			t.Fatalf("at %d the reserve is %d", at, got)
		}
	}
	if written > 5 {
		t.Errorf("written %d times", written)
	}
	if err := b.s.ReserveApplications(map[string]uint64{"S": 1 << 30}); err != nil { // it grows faster than ever before
		t.Fatal(err)
	}
	if got := b.s.reserves.state.Reserve["S"]; got < 1<<33 {
		t.Errorf("a stream that grows by %d between two looks has a reserve of %d", 1<<30, got)
	}
}

// TestDamagedApplications does to every file of a local application's stream what can happen to a file: capture begins within five seconds, and what is not
// whole any more has an alarm, and is found by Check.
func TestDamagedApplications(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: starts a store some twenty times, not done with -short")
	}
	t.Parallel()
	whole := small(t)
	js, stop := whole.appServer(t)
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "KV_state", Subjects: []string{"x.>"}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		if _, err := js.Publish(t.Context(), fmt.Sprint("x.", i), []byte("some value")); err != nil {
			t.Fatal(err)
		}
	}
	c, err := stream.CreateConsumer(t.Context(), jetstream.ConsumerConfig{Durable: "c"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Fetch(3); err != nil {
		t.Fatal(err)
	}
	stop()
	whole.open().KeepAppMetadata()
	whole.crash()
	n := 0
	for _, file := range whole.files() {
		if !strings.Contains(file, appAccount+"/streams/KV_state/") {
			continue
		}
		for i, harm := range harms {
			if n++; !strings.HasSuffix(file, ".blk") && n%3 != 0 {
				continue // some of all
			}
			t.Run(fmt.Sprint(filepath.Base(file), " ", harm.name, " ", i), func(t *testing.T) {
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
				r, err := Check(b.dir, "")
				if err != nil {
					t.Fatal(err)
				}
				if i%2 == 0 { // as somebody who is careful does it
					done, err := Repair(b.dir, "", false)
					if err != nil {
						t.Fatal(err)
					}
					if after, err := Check(b.dir, ""); err != nil || len(done.Blocks) > 0 && done.Blocks[0].Account != appAccount || streamDamaged(after) {
						t.Errorf("after Repair, which did %+v: %+v, %v", done, after, err)
					}
				}
				begins := func(b *bed) time.Duration {
					began := time.Now()
					b.open()
					b.add("a2", 1, 1)
					return time.Since(began)
				}
				if d := begins(b); d > 5*time.Second {
					if busy := begins(copyBed(t, whole)); d > 5*time.Second+5*busy {
						t.Errorf("captured after %v, want 5 s; a store without damage takes %v", d, busy)
					}
				}
				if err := b.s.Mend(t.Context(), nothingForwarded); err != nil {
					t.Fatal(err)
				}
				js, stop := b.appServer(t)
				defer stop()
				kept := uint64(0)
				st, err := js.Stream(t.Context(), "KV_state")
				if err == nil {
					kept = st.CachedInfo().State.Msgs
				}
				alarms := fmt.Sprint(b.s.Alarms())
				if kept != 20 && !strings.Contains(alarms, "KV_state") && (i%2 != 0 || r.Clean()) {
					t.Errorf("%d of 20 messages are there, %v; alarms %s", kept, err, alarms)
				}
				if kept != 20 && r.Clean() {
					t.Errorf("%d of 20 messages are there, and Check found nothing", kept)
				}
				if _, err := js.Publish(t.Context(), "x.new", nil); err != nil {
					t.Errorf("the stream cannot be used: %v", err)
				}
				if kept < 18 && harm.name == "a byte flipped" {
					t.Errorf("a byte took %d messages", 20-kept)
				}
			})
		}
	}
	if n == 0 {
		t.Error("no file of the stream was found")
	}
}

// streamDamaged tells of blocks that Repair should have put right.
func streamDamaged(r CheckReport) bool {
	return slices.ContainsFunc(r.Streams, func(st StreamCheck) bool { return len(st.Damaged) > 0 })
}
