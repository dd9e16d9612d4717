package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/cmd/holdfast/apps"
	"github.com/holdfast-edge/holdfast/cmd/holdfast/status"
	"github.com/holdfast-edge/holdfast/leaf"
	"github.com/holdfast-edge/holdfast/rig/leak"
	"github.com/holdfast-edge/holdfast/rig/poll"
)

// TestApplicationsOutliveDamage kills a daemon, damages the metadata of a bucket, the state of a consumer and a block of local applications, and starts it
// again: without mending, the first is forgotten, the second takes all memory at each start, and the third loses what is behind the damage. The state
// names all three.
func TestApplicationsOutliveDamage(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: waits for a flush, not done with -short")
	}
	t.Parallel()
	a := startApplication(t)
	kv, err := a.js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "state"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kv.PutString(t.Context(), "pump", "on"); err != nil {
		t.Fatal(err)
	}
	stream, name := a.stream(t, jetstream.StreamConfig{Name: "WORK"})
	for _, text := range []string{"the first", "second", "third"} {
		a.publish(t, name+".x", text)
	}
	c := a.consumer(t, stream, jetstream.ConsumerConfig{Durable: "c", AckPolicy: jetstream.AckExplicitPolicy})
	if err := fetch(t, c, 1)[0].DoubleAck(t.Context()); err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(a.daemon.data, "store", "metadata-app", "KV_state")
	poll.Until(t, 2*apps.SyncInterval+topicPatience, func() bool { _, err := os.Stat(copied); return err == nil }, "the copy of the bucket's metadata")
	a.daemon.kill()
	streams := filepath.Join(a.daemon.data, "jetstream", leaf.AccountApp, "streams")
	for path, text := range map[string]string{
		filepath.Join(streams, "KV_state", "meta.inf"):         "{",
		filepath.Join(streams, "WORK", "obs", "c", "o.dat"):    "\x16\x02\x00\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
		filepath.Join(streams, "KV_state", "not-a-stream.tmp"): "",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	block := filepath.Join(streams, "WORK", "msgs", "1.blk")
	raw, err := os.ReadFile(block)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(block, bytes.Replace(raw, []byte("the first"), []byte("worn away"), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	a.daemon = startDaemon(t, "", filepath.Join(filepath.Dir(a.daemon.data), "holdfast.yaml"), a.daemon.data)
	a.daemon.until(topicPatience, "the daemon to run", running)
	poll.Until(t, topicPatience, func() bool {
		e, err := kv.Get(t.Context(), "pump")
		return err == nil && string(e.Value()) == "on"
	}, "the bucket to be as it was")
	if n := held(t, stream); n != 2 {
		t.Errorf("%d messages of the stream whose block was damaged in one of three, want 2", n)
	}
	a.daemon.until(topicPatience, "the damage to be named", func(r status.Report) bool {
		named := fmt.Sprint(r.Damage)
		return strings.Contains(named, "KV_state/meta.inf") && strings.Contains(named, "o.dat") && strings.Contains(named, "WORK/msgs/1.blk")
	})
	a.daemon.until(topicPatience, "the headline to say that data was lost", func(r status.Report) bool {
		v := r.Verdict
		return strings.Contains(v.Sentence, "LOST") && !strings.Contains(v.Sentence, "safe") && v.AppsLost == 1 && strings.Contains(fmt.Sprint(v.Findings), "WORK/msgs/1.blk data of local applications is LOST")
	})
}

// TestHostileApplication lets a program do its worst while another appends: too many connections, connections that do not read, more data than
// it may store, more subjects than it may use. What is appended is stored all the same, the limits hold, and the daemon stays small.
func TestHostileApplication(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: presses on the machine for some seconds, not done with -short")
	}
	leak.Check(t)
	a := startApplication(t)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	load := &appender{source: "calc"}
	wg.Go(func() { load.run(ctx, t, a.nc) })
	begun := time.Now()
	for i := 0; i < 6; i++ { // connections that take everything and read nothing
		nc, err := nats.Connect(a.url, nats.NoReconnect(), nats.SetCustomDialer(deaf{}))
		if err == nil {
			defer nc.Close()
			if _, err := nc.Subscribe(">", func(*nats.Msg) {}); err != nil {
				t.Fatal(err)
			}
		}
	}
	flood, err := nats.Connect(a.url, nats.NoReconnect())
	if err != nil {
		t.Fatal(err)
	}
	defer flood.Close()
	js, err := jetstream.New(flood)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "FLOOD", Subjects: []string{"flood.>"}}); err != nil {
		t.Fatal(err)
	}
	payload := make([]byte, 256<<10)
	for i := 0; time.Since(begun) < 4*time.Second; i++ {
		if err := flood.Publish(fmt.Sprint("flood.", i), payload); err != nil {
			break
		}
	}
	before := load.stored.Load()
	poll.Until(t, topicPatience, func() bool { return load.stored.Load() > before+20 }, "appending to go on")
	tooManySubjects(t, a, load)
	info, err := a.js.AccountInfo(t.Context())
	if err != nil || info.Store > 1<<30 {
		t.Errorf("local applications hold %d bytes, %v, want 1 GiB at most", info.Store, err)
	}
	peak := peakBytes(t, a.daemon.cmd.Process.Pid)
	t.Logf("%d records appended meanwhile; the daemon took %d MB at most", load.stored.Load(), peak>>20)
	if peak > 400<<20 {
		t.Errorf("the daemon took %d MB", peak>>20)
	}
	if strings.Contains(a.daemon.logged(), "panic") {
		t.Error("the daemon panicked")
	}
}

// tooManySubjects stores messages with a subject of its own each: memory that no limit of the server bounds. The daemon does, says so, and lets go again.
func tooManySubjects(t *testing.T, a *application, load *appender) {
	t.Helper()
	for _, name := range []string{"FLOOD", "MANY"} {
		_ = a.js.DeleteStream(t.Context(), name) // makes room
	}
	many, err := a.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "MANY", Subjects: []string{"many.>"}})
	if err != nil {
		t.Fatal(err)
	}
	n, refused := 0, errors.New("not yet")
	poll.Until(t, 3*topicPatience, func() bool {
		for range 500 {
			if _, refused = a.js.Publish(t.Context(), fmt.Sprint("many.", n), nil); refused != nil {
				return true
			}
			n++
		}
		return false
	}, "a message with one more subject to be refused")
	var limit *jetstream.APIError
	if !errors.As(refused, &limit) {
		t.Errorf("after %d subjects a message is refused with %v, want the account's limit", n, refused)
	}
	a.daemon.until(topicPatience, "the state to say so", func(r status.Report) bool {
		return r.Apps.Held != "" && r.Verdict.Safe && strings.Contains(fmt.Sprint(r.Verdict.Findings), "can store nothing more")
	})
	before := load.stored.Load()
	poll.Until(t, topicPatience, func() bool { return load.stored.Load() > before+20 }, "appending to go on while they are held")
	if err := many.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, topicPatience, func() bool {
		_, err := a.js.Publish(t.Context(), "many.again", nil)
		return err == nil
	}, "storing to be possible again")
	t.Logf("held after %d subjects", n)
}

// deaf dials connections that stop reading once they are set up.
type deaf struct{}

func (deaf) Dial(network, address string) (net.Conn, error) {
	c, err := net.Dial(network, address)
	return &deafConn{Conn: c, until: time.Now().Add(time.Second), closed: make(chan struct{})}, err
}

type deafConn struct {
	net.Conn
	until  time.Time
	closed chan struct{} // closed by Close
	once   sync.Once
}

func (c *deafConn) Read(p []byte) (int, error) {
	if time.Now().After(c.until) {
		<-c.closed
		return 0, net.ErrClosed
	}
	return c.Conn.Read(p)
}

func (c *deafConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}
