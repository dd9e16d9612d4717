package carry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/storage"
	"github.com/holdfast-edge/holdfast/storage/parcel"
)

// TestApplicationsAreBackedUp backs up a bucket, an object store, a work queue and a stream that was purged, restores them, encrypted and not, and goes on:
// everything is there at its revision, and no revision is given out again.
func TestApplicationsAreBackedUp(t *testing.T) {
	t.Parallel()
	log := slog.New(slog.DiscardHandler)
	place := Place{Dir: t.TempDir(), Leaf: "g1", Streams: []string{"S"}, Log: log}
	object := bytes.Repeat([]byte("0123456789"), 50_000)
	var revision uint64
	var backup bytes.Buffer
	nothing := func(*storage.Store) error { return nil }
	err := place.with(t.Context(), nothing, func(s *storage.Store, js, apps jetstream.JetStream) error {
		ctx := t.Context()
		kv, err := apps.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: "state", History: 3, Description: "kept"})
		if err != nil {
			return err
		}
		for _, text := range []string{"off", "on"} {
			if revision, err = kv.PutString(ctx, "pump", text); err != nil {
				return err
			}
		}
		store, err := apps.CreateObjectStore(ctx, jetstream.ObjectStoreConfig{Bucket: "files"})
		if err == nil {
			_, err = store.PutBytes(ctx, "large", object)
		}
		if err != nil {
			return err
		}
		for _, c := range []jetstream.StreamConfig{
			{Name: "S", Subjects: []string{"work.>"}, Retention: jetstream.WorkQueuePolicy}, // as a captured one is called
			{Name: "PURGED", Subjects: []string{"p"}},
			{Name: "MEMORY", Subjects: []string{"m"}, Storage: jetstream.MemoryStorage},
		} {
			st, err := apps.CreateStream(ctx, c)
			if err != nil {
				return err
			}
			subject := strings.Replace(c.Subjects[0], ">", "1", 1)
			for range 2 {
				if _, err := apps.Publish(ctx, subject, []byte(c.Name)); err != nil {
					return err
				}
			}
			if c.Name == "PURGED" {
				if err := st.Purge(ctx); err != nil {
					return err
				}
			}
		}
		if err := read(ctx, apps); err != nil {
			return err
		}
		return Gateway{Store: s, JS: js, Apps: apps, Streams: []parcel.Stream{{Name: "S"}}}.Backup(ctx, &backup)
	})
	if err != nil {
		t.Fatal(err)
	}
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte("a key that is long enough for it\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	file, h, _, err := Save(bytes.NewReader(backup.Bytes()), t.TempDir(), 0)
	if err != nil || len(h.Apps) != 5 {
		t.Fatalf("the backup has %+v, %v", h.Apps, err)
	}
	for name, key := range map[string]string{"plain": "", "encrypted": key} {
		t.Run(name, func(t *testing.T) {
			var said bytes.Buffer
			to := Place{Dir: t.TempDir(), Leaf: "g1", Streams: []string{"S"}, Key: key, Log: slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelWarn}))}
			if _, _, err := Restore(t.Context(), file, to); err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(said.String()) {
				if !strings.Contains(line, `msg="server log"`) && !strings.Contains(line, "consumer=late") {
					t.Errorf("restore says %s", line)
				}
			}
			if !strings.Contains(said.String(), "consumer=late") {
				t.Error("restore does not name the consumer that is not where it was")
			}
			to.Log = log
			for round := range 2 { // also after another start
				if err := to.with(t.Context(), nothing, func(_ *storage.Store, _, apps jetstream.JetStream) error {
					return restored(t, apps, revision, object, round)
				}); err != nil {
					t.Fatal(err)
				}
			}
			again, _, end, err := BackupOf(t.Context(), to, t.TempDir(), "test")
			if err != nil || end.Last[parcel.AppRecords+"KV_state"] <= revision {
				t.Errorf("a backup of what was restored: %s, %+v, %v", again, end, err)
			}
		})
	}
}

// read makes a stream LOG of five messages, of which consumer reader has acknowledged two and late, which wants new ones only, none; a third one is not durable.
func read(ctx context.Context, apps jetstream.JetStream) error {
	log, err := apps.CreateStream(ctx, jetstream.StreamConfig{Name: "LOG", Subjects: []string{"log.>"}})
	if err != nil {
		return err
	}
	for i := range 5 {
		if _, err := apps.Publish(ctx, fmt.Sprint("log.", i%2), nil); err != nil {
			return err
		}
	}
	for _, c := range []jetstream.ConsumerConfig{
		{Durable: "reader", AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: 7, Description: "kept"},
		{Durable: "few", AckPolicy: jetstream.AckExplicitPolicy, FilterSubject: "log.1"},
		{Durable: "late", DeliverPolicy: jetstream.DeliverNewPolicy, AckPolicy: jetstream.AckExplicitPolicy},
		{Name: "passing", AckPolicy: jetstream.AckExplicitPolicy},
	} {
		if _, err := log.CreateConsumer(ctx, c); err != nil {
			return err
		}
	}
	reader, err := log.Consumer(ctx, "reader")
	if err != nil {
		return err
	}
	for range 2 {
		m, err := reader.Next()
		if err == nil {
			err = m.DoubleAck(ctx)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func restored(t *testing.T, apps jetstream.JetStream, revision uint64, object []byte, round int) error {
	ctx := t.Context()
	kv, err := apps.KeyValue(ctx, "state")
	if err != nil {
		return err
	}
	if e, err := kv.GetRevision(ctx, "pump", revision); err != nil || string(e.Value()) != "on" {
		t.Errorf("revision %d: %v, %v", revision, e, err)
	}
	if all, err := kv.History(ctx, "pump"); err != nil || len(all) != 2+min(round, 1) {
		t.Errorf("history of %d, %v", len(all), err)
	}
	if next, err := kv.PutString(ctx, "pump", "off"); err != nil || next <= revision+1000 {
		t.Errorf("the next revision is %d, %v; %d was given out, and perhaps more", next, err, revision)
	}
	store, err := apps.ObjectStore(ctx, "files")
	if err != nil {
		return err
	}
	if got, err := store.GetBytes(ctx, "large"); err != nil || !bytes.Equal(got, object) {
		t.Errorf("the object has %d bytes, %v", len(got), err)
	}
	for name, want := range map[string]uint64{"reader": 3, "few": 2, "late": 0} {
		c, err := apps.Consumer(ctx, "LOG", name)
		if err != nil {
			return err
		}
		if i := c.CachedInfo(); i.NumPending != want || name == "reader" && (i.AckFloor.Stream != 2 || i.Config.MaxAckPending != 7 || i.Config.Description != "kept" || i.Config.DeliverPolicy != jetstream.DeliverAllPolicy) {
			t.Errorf("consumer %s is %+v, want %d to come", name, i, want)
		}
	}
	if _, err := apps.Consumer(ctx, "LOG", "passing"); !errors.Is(err, jetstream.ErrConsumerNotFound) {
		t.Errorf("a consumer that is not durable: %v", err)
	}
	queue, err := apps.Stream(ctx, "S")
	if err != nil {
		return err
	}
	if i := queue.CachedInfo(); i.State.Msgs != 2 || i.Config.Retention != jetstream.WorkQueuePolicy {
		t.Errorf("the work queue is %+v", i)
	}
	if ack, err := apps.Publish(ctx, "p", nil); err != nil || ack.Sequence < 1000 {
		t.Errorf("the purged stream gives %+v, %v", ack, err)
	}
	if _, err := apps.Stream(ctx, "MEMORY"); !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Errorf("the stream in memory: %v", err)
	}
	return nil
}
