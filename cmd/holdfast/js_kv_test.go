package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/cmd/holdfast/status"
	"github.com/holdfast-edge/holdfast/rig/poll"
)

func keyValue(t *testing.T, a *application) {
	kv, err := a.js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "config", History: 5, LimitMarkerTTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	watcher, err := kv.Watch(t.Context(), "pump.>")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = watcher.Stop() }() // with the connection at the latest
	changes := func() (text string) {
		for {
			select {
			case e := <-watcher.Updates():
				if e != nil { // nil ends what was there before
					return fmt.Sprintf("%s=%s %v", e.Key(), e.Value(), e.Operation())
				}
			case <-time.After(topicPatience):
				return "nothing"
			}
		}
	}
	first, err := kv.PutString(t.Context(), "pump.1", "on")
	if err != nil {
		t.Fatal(err)
	}
	if got := changes(); got != "pump.1=on KeyValuePutOp" {
		t.Errorf("watch: %s", got)
	}
	second, err := kv.Update(t.Context(), "pump.1", []byte("off"), first)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kv.Update(t.Context(), "pump.1", []byte("lost"), first); err == nil {
		t.Error("compare and set by an old revision went through")
	}
	if _, err := kv.Create(t.Context(), "pump.1", nil); !errors.Is(err, jetstream.ErrKeyExists) {
		t.Errorf("create of a key that is there: %v", err)
	}
	if e, err := kv.Get(t.Context(), "pump.1"); err != nil || string(e.Value()) != "off" || e.Revision() != second {
		t.Errorf("get: %v, %v", e, err)
	}
	if e, err := kv.GetRevision(t.Context(), "pump.1", first); err != nil || string(e.Value()) != "on" {
		t.Errorf("an older revision: %v, %v", e, err)
	}
	if all, err := kv.History(t.Context(), "pump.1"); err != nil || len(all) != 2 {
		t.Errorf("history: %v, %v, want 2", all, err)
	}
	leases, err := a.js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "leases", LimitMarkerTTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := leases.Create(t.Context(), "lease", []byte("mine"), jetstream.KeyTTL(time.Second)); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, topicPatience, func() bool {
		_, err := leases.Get(t.Context(), "lease")
		return errors.Is(err, jetstream.ErrKeyNotFound)
	}, "the lease to run out")
	if err := kv.Delete(t.Context(), "pump.1"); err != nil {
		t.Fatal(err)
	}
	if _, err := kv.Get(t.Context(), "pump.1"); !errors.Is(err, jetstream.ErrKeyNotFound) {
		t.Errorf("get of a deleted key: %v", err)
	}
	if err := kv.Purge(t.Context(), "pump.1"); err != nil {
		t.Error(err)
	}
}

// objects puts 200 MB through a daemon that must not grow by as much: its limit is 128 MB.
func objects(t *testing.T, a *application) {
	store, err := a.js.CreateObjectStore(t.Context(), jetstream.ObjectStoreConfig{Bucket: "files", MaxBytes: 300 << 20})
	if err != nil {
		t.Fatal(err)
	}
	watcher, err := store.Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = watcher.Stop() }() // with the connection at the latest
	if _, err := store.PutString(t.Context(), "small", "text"); err != nil {
		t.Fatal(err)
	}
	for {
		info := <-watcher.Updates()
		if info != nil {
			if info.Name != "small" {
				t.Errorf("watch: %s", info.Name)
			}
			break
		}
	}
	small, err := store.GetInfo(t.Context(), "small")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.AddLink(t.Context(), "alias", small); err != nil {
		t.Fatal(err)
	}
	if text, err := store.GetString(t.Context(), "alias"); err != nil || text != "text" {
		t.Errorf("by the link: %q, %v", text, err)
	}
	const size = 200 << 20
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute) // without one the client gives the whole file 5 s
	defer cancel()
	var info *jetstream.ObjectInfo
	poll.Until(t, time.Minute, func() bool {
		info, err = store.Put(ctx, jetstream.ObjectMeta{Name: "large"}, io.LimitReader(pattern{}, size))
		var refused *jetstream.APIError
		return !errors.As(err, &refused) || refused.ErrorCode != tooManyRequests // the client sends faster than the disk takes it
	}, "the disk to take 200 MB")
	if err != nil || info.Size != size {
		t.Fatalf("put of 200 MB: %+v, %v", info, err)
	}
	large, err := store.Get(ctx, "large")
	if err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(io.Discard, large) // Close compares the digest
	if err := errors.Join(err, large.Close()); err != nil || n != size {
		t.Errorf("get of 200 MB: %d bytes, %v", n, err)
	}
	if peak := peakBytes(t, a.daemon.cmd.Process.Pid); peak > 128<<20 {
		t.Errorf("the daemon took %d MB, want 128 at most", peak>>20)
	} else {
		t.Logf("the daemon took %d MB at most", peak>>20)
	}
	if err := store.Delete(t.Context(), "large"); err != nil {
		t.Error(err)
	}
}

// tooManyRequests is what the server says to a client that is too fast (nats-server, errors.json).
const tooManyRequests = 10167

// pattern is an endless file.
type pattern struct{}

func (pattern) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(i * 7)
	}
	return len(p), nil
}

// peakBytes is the most memory that a process has had: proc_pid_status(5).
func peakBytes(t *testing.T, pid int) int64 {
	t.Helper()
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		t.Skip("needs /proc:", err)
	}
	for line := range bytes.Lines(text) {
		if rest, ok := strings.CutPrefix(string(line), "VmHWM:"); ok {
			kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kb << 10
		}
	}
	t.Fatal("no VmHWM")
	return 0
}

func bareRequests(t *testing.T, a *application) {
	for _, tt := range []struct{ subject, body, want string }{
		{"$JS.API.INFO", "", `"domain":"gw1"`},
		{"$JS.API.STREAM.CREATE.BARE", `{"name":"BARE","subjects":["bare"],"storage":"file"}`, `"did_create":true`},
		{"bare", "hello", `"stream":"BARE"`},
		{"$JS.API.STREAM.MSG.GET.BARE", `{"seq":1}`, `"data":"aGVsbG8="`},
		{"$JS.API.CONSUMER.CREATE.BARE.c", `{"stream_name":"BARE","config":{"name":"c","durable_name":"c","ack_policy":"explicit"}}`, `"name":"c"`},
		{"$JS.API.CONSUMER.MSG.NEXT.BARE.c", `{"batch":1}`, `hello`},
		{"$JS.API.STREAM.NAMES", `{"subject":"bare"}`, `"BARE"`},
		{"$JS.gw1.API.STREAM.INFO.BARE", "", `"messages":1`},
		{"$JS.API.STREAM.DELETE.BARE", "", `"success":true`},
	} {
		m, err := a.nc.Request(tt.subject, []byte(tt.body), topicPatience)
		if err != nil || !strings.Contains(string(m.Data), tt.want) {
			t.Errorf("%s: %v, %s, want %s", tt.subject, err, m.Data, tt.want)
		}
	}
}

func advisories(t *testing.T, a *application) {
	heard, err := a.nc.SubscribeSync("$JS.EVENT.ADVISORY.>")
	if err != nil {
		t.Fatal(err)
	}
	s, name := a.stream(t, jetstream.StreamConfig{})
	c := a.consumer(t, s, jetstream.ConsumerConfig{Durable: "c", AckPolicy: jetstream.AckExplicitPolicy, MaxDeliver: 1, AckWait: 100 * time.Millisecond})
	a.publish(t, name+".x", "1")
	fetch(t, c, 1)
	want := map[string]bool{"stream_action": true, "consumer_action": true, "max_deliver": true}
	if err := a.nc.Publish(name+".x", []byte("2")); err != nil { // moves the consumer on
		t.Fatal(err)
	}
	fetch(t, c, 1)
	deadline := time.Now().Add(topicPatience)
	for len(want) > 0 && time.Now().Before(deadline) {
		m, err := heard.NextMsg(topicPatience)
		if err != nil {
			break
		}
		var event struct {
			Type string `json:"type"`
		}
		if err := json.Unmarshal(m.Data, &event); err != nil {
			t.Fatal(err)
		}
		delete(want, strings.TrimPrefix(event.Type, "io.nats.jetstream.advisory.v1."))
	}
	for kind := range want {
		t.Errorf("no advisory %s came", kind)
	}
	a.daemon.until(topicPatience, "the message that was given up in the state", func(r status.Report) bool {
		return r.Apps != nil && r.Apps.GaveUp > 0 && strings.HasPrefix(r.Apps.GaveUpNewest, name+".") && r.Apps.Streams > 0
	})
	if m, err := a.nc.Request("$SYS.REQ.USER.INFO", nil, topicPatience); err != nil || !strings.Contains(string(m.Data), `"account":"APP"`) {
		t.Errorf("who am I: %v, %s", err, m.Data)
	}
}

func accountLimits(t *testing.T, a *application) {
	info, err := a.js.AccountInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if l := info.Limits; l.MaxMemory != 32<<20 || l.MaxStore != 1<<30 || l.MaxStreams != 64 {
		t.Errorf("limits %+v, want those of the configuration", l)
	}
	if info.Streams == 0 || info.Store == 0 {
		t.Errorf("usage %+v", info)
	}
	if _, err := a.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "TOOBIG", MaxBytes: 2 << 30}); err == nil {
		t.Error("a stream of 2 GiB was allowed in an account of 1 GiB")
	}
}
