package storage

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/storage/blocks"
)

// metaStore makes a store directory with a stream S of 200 records and a durable consumer with pending deliveries, server stopped.
func metaStore(t *testing.T) (dir string, m metaCopies) {
	t.Helper()
	dir = t.TempDir()
	m = metaCopies{
		streams: filepath.Join(dir, "jetstream", "$G", "streams"),
		copies:  filepath.Join(dir, "meta"),
		aside:   filepath.Join(dir, "aside"),
	}
	s := startKeepServer(t, dir)
	st := s.stream("S", 1000)
	s.publish("data.leaf.S.a", 200)
	c, err := st.CreateOrUpdateConsumer(testContext(t), jetstream.ConsumerConfig{Durable: "app", AckPolicy: jetstream.AckExplicitPolicy})
	if err != nil {
		t.Fatal(err)
	}
	batch, err := c.Fetch(40)
	if err != nil {
		t.Fatal(err)
	}
	for msg := range batch.Messages() {
		if meta, err := msg.Metadata(); err != nil || meta.Sequence.Stream%4 != 0 {
			continue // stays pending
		}
		if err := msg.DoubleAck(testContext(t)); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.keep("S"); err != nil {
		t.Fatal(err)
	}
	s.stop()
	return dir, m
}

func TestMetaSumIsTheServers(t *testing.T) {
	_, m := metaStore(t)
	meta, err := os.ReadFile(filepath.Join(m.streams, "S", serverMeta))
	if err != nil {
		t.Fatal(err)
	}
	sum, err := os.ReadFile(filepath.Join(m.streams, "S", serverMetaSum))
	if err != nil || string(sum) != blocks.MetaSum("S", meta) {
		t.Fatalf("the server wrote %q, %v, metaSum gives %q", sum, err, blocks.MetaSum("S", meta))
	}
	if done, err := m.mend(); err != nil || len(done) != 0 {
		t.Errorf("mend of an undamaged store = %+v, %v", done, err)
	}
}

func TestMendStreamMetadata(t *testing.T) {
	flip := func(path string) error {
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		b[len(b)/2] ^= 0x20
		return os.WriteFile(path, b, 0o600)
	}
	empty := func(path string) error { return os.WriteFile(path, nil, 0o600) }
	cut := func(path string) error { return os.Truncate(path, 9) }
	cases := []struct {
		name   string
		damage func(path string) error
		copied bool
	}{
		{"flipped", flip, true}, {"empty", empty, true}, {"cut", cut, true}, {"missing", os.Remove, true},
		{"flipped and no copy", flip, false}, {"empty and no copy", empty, false}, {"missing and no copy", os.Remove, false},
	}
	for _, c := range cases {
		for _, file := range []string{serverMeta, serverMetaSum} {
			t.Run(c.name+" "+file, func(t *testing.T) {
				dir, m := metaStore(t)
				path := filepath.Join(m.streams, "S", file)
				if err := c.damage(path); err != nil {
					t.Fatal(err)
				}
				if !c.copied {
					if err := flip(filepath.Join(m.copies, "S")); err != nil {
						t.Fatal(err)
					}
				}
				done, err := m.mend()
				if err != nil || len(done) != 1 || done[0].Stream != "S" || done[0].Restored != c.copied || done[0].Why == "" {
					t.Fatalf("mend = %+v, %v", done, err)
				}
				if missing := c.name == "missing" || c.name == "missing and no copy"; !missing {
					if _, err := os.Stat(done[0].Aside); err != nil {
						t.Errorf("the damaged file is not kept: %v", err)
					}
				}
				s := startKeepServer(t, dir)
				st, err := s.js.Stream(testContext(t), "S")
				if c.copied && err != nil {
					t.Fatalf("after mend the server does not know the stream: %v", err)
				}
				if !c.copied {
					if err == nil {
						t.Fatal("the server knows a stream without metadata: mend has nothing to do here")
					}
					st = s.stream("S", 5) // as the store does at every start; the records count, not this first sequence
				}
				info, err := st.Info(testContext(t))
				if err != nil || info.State.Msgs != 200 || info.State.FirstSeq != 1000 || info.State.LastSeq != 1199 {
					t.Fatalf("after mend the stream holds %+v, %v", info.State, err)
				}
				if ack, err := s.js.Publish(testContext(t), "data.leaf.S.a", nil); err != nil || ack.Sequence != 1200 {
					t.Errorf("publish after mend = %+v, %v, want sequence 1200", ack, err)
				}
			})
		}
	}
}

// TestDamagedMetadataLosesStream shows what mend is for.
func TestDamagedMetadataLosesStream(t *testing.T) {
	dir, m := metaStore(t)
	if err := os.Truncate(filepath.Join(m.streams, "S", serverMetaSum), 0); err != nil {
		t.Fatal(err)
	}
	s := startKeepServer(t, dir)
	if _, err := s.js.Stream(testContext(t), "S"); err == nil {
		t.Error("the server finds a stream with an empty checksum file: mend is not needed any more")
	}
}

func TestKeepFollowsChanges(t *testing.T) {
	dir, m := metaStore(t)
	before := m.copyOf("S")
	s := startKeepServer(t, dir)
	st, err := s.js.Stream(testContext(t), "S")
	if err != nil {
		t.Fatal(err)
	}
	cfg := st.CachedInfo().Config
	cfg.Description = "changed"
	if _, err := s.js.UpdateStream(testContext(t), cfg); err != nil {
		t.Fatal(err)
	}
	if err := m.keep("S"); err != nil {
		t.Fatal(err)
	}
	if after := m.copyOf("S"); bytes.Equal(before, after) || !strings.Contains(string(after), "changed") {
		t.Errorf("the copy says %s", after)
	}
	if err := m.keep("ABSENT"); err == nil {
		t.Error("keep of a stream that is not there succeeded")
	}
}

func TestMendConsumer(t *testing.T) {
	cases := []struct {
		name   string
		file   string
		damage func(b []byte) []byte
	}{
		// The bytes of o.dat from 2: four positions of 1 or 2 bytes, then the count of pending deliveries.
		{"count of pending", serverConsumer, func(b []byte) []byte { return replaceCount(b) }},
		{"cut", serverConsumer, func(b []byte) []byte { return b[:len(b)/2] }},
		{"empty", serverConsumer, func([]byte) []byte { return nil }},
		{"other magic", serverConsumer, func(b []byte) []byte { b[0] ^= 1; return b }},
		{"empty metadata", serverMeta, func([]byte) []byte { return nil }},
		// JSON all the same: the server would stop the whole stream for the first, and work with the second.
		{"key of metadata", serverMeta, func(b []byte) []byte { return bytes.Replace(b, []byte(`"Created"`), []byte(`"Creared"`), 1) }},
		{"value of metadata", serverMeta, func(b []byte) []byte { return bytes.Replace(b, []byte(`:1000,`), []byte(`:9000,`), 1) }},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			dir, m := metaStore(t)
			path := filepath.Join(m.streams, "S", serverConsumers, "app", c.file)
			raw, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			was, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, c.damage(raw), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chtimes(path, was.ModTime(), was.ModTime()); err != nil { // nobody wrote it
				t.Fatal(err)
			}
			done, err := m.mend()
			if err != nil || len(done) != 1 || done[0].Path != path || done[0].Aside == "" {
				t.Fatalf("mend = %+v, %v", done, err)
			}
			s := startKeepServer(t, dir)
			st, err := s.js.Stream(testContext(t), "S")
			if err != nil {
				t.Fatal(err)
			}
			if info := st.CachedInfo(); info.State.Msgs != 200 || info.State.Consumers != 0 {
				t.Errorf("after mend the stream holds %+v", info.State)
			}
		})
	}
}

// TestTornConsumerStays cuts the power between the two files of a consumer's metadata: it goes on where it was. What is torn itself is set aside.
func TestTornConsumerStays(t *testing.T) {
	for _, c := range []struct {
		name  string
		file  string
		write func(b []byte) []byte
		stays bool
	}{
		{"newer metadata", serverMeta, func(b []byte) []byte { return bytes.Replace(b, []byte(`:1000,`), []byte(`:2000,`), 1) }, true},
		{"no checksum yet", serverMetaSum, func([]byte) []byte { return nil }, true},
		{"half of the metadata", serverMeta, func(b []byte) []byte { return b[:len(b)/2] }, false},
		{"metadata of another", serverMeta, func(b []byte) []byte { return bytes.ReplaceAll(b, []byte(`"app"`), []byte(`"apq"`)) }, false},
		{"an unknown key", serverMeta, func(b []byte) []byte {
			return bytes.Replace(b, []byte(`"max_ack_pending"`), []byte(`"max_acc_pending"`), 1)
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, m := metaStore(t)
			consumer := filepath.Join(m.streams, "S", serverConsumers, "app")
			path := filepath.Join(consumer, c.file)
			raw, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, c.write(raw), 0o600); err != nil {
				t.Fatal(err)
			}
			later := time.Now().Add(time.Second) // some file systems count in more than a tick of the clock
			if err := os.Chtimes(path, later, later); err != nil {
				t.Fatal(err)
			}
			done, err := m.mend()
			if err != nil || len(done) != 1 || done[0].Restored != c.stays || (done[0].Aside == "") != c.stays {
				t.Fatalf("mend = %+v, %v", done, err)
			}
			if again, err := m.mend(); err != nil || len(again) != 0 {
				t.Errorf("a second mend = %+v, %v", again, err)
			}
			if !c.stays {
				return
			}
			s := startKeepServer(t, dir)
			got, err := s.js.Consumer(testContext(t), "S", "app")
			if err != nil {
				t.Fatal(err)
			}
			if info := got.CachedInfo(); info.NumAckPending != 30 || info.Delivered.Stream != 1039 {
				t.Errorf("the consumer came back with %d pending, delivered up to %d, want 30 and 1039", info.NumAckPending, info.Delivered.Stream)
			}
		})
	}
}

// replaceCount puts 3.6 billion where the number of pending deliveries was, as one flipped byte can.
func replaceCount(b []byte) []byte {
	at := 2
	for range 4 {
		for b[at] >= 0x80 {
			at++
		}
		at++
	}
	end := at
	for b[end] >= 0x80 {
		end++
	}
	return append(append(append([]byte{}, b[:at]...), 0xC0, 0xD0, 0xCC, 0xB1, 0x0D), b[end+1:]...)
}

func TestSoundConsumerStays(t *testing.T) {
	dir, m := metaStore(t)
	raw, err := os.ReadFile(filepath.Join(m.streams, "S", serverConsumers, "app", serverConsumer))
	if err != nil || !blocks.ConsumerStateReadable(raw) {
		t.Fatalf("the server's own state of %d bytes counts as damaged, %v", len(raw), err)
	}
	if done, err := m.mend(); err != nil || len(done) != 0 {
		t.Fatalf("mend = %+v, %v", done, err)
	}
	s := startKeepServer(t, dir)
	c, err := s.js.Consumer(testContext(t), "S", "app")
	if err != nil {
		t.Fatal(err)
	}
	if info := c.CachedInfo(); info.NumAckPending != 30 || info.Delivered.Stream != 1039 {
		t.Errorf("the consumer came back with %d pending, delivered up to %d, want 30 and 1039", info.NumAckPending, info.Delivered.Stream)
	}
}

func FuzzConsumerState(f *testing.F) {
	f.Add([]byte{22, 2, 1, 1, 3, 3, 1, 10, 1, 1, 0, 0})
	f.Add([]byte{22, 2, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{22, 1, 1, 1, 3, 3, 1, 10, 1, 0, 1, 1, 2})
	f.Add([]byte{22, 2, 1, 1, 3, 3, 0xC0, 0xD0, 0xCC, 0xB1, 0x0D})
	f.Fuzz(func(t *testing.T, b []byte) {
		_ = blocks.ConsumerStateReadable(b) // must return soon and take no memory, whatever it is given
	})
}
