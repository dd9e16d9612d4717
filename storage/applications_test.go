package storage

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

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
