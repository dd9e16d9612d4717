package leaf

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/rig/leak"
)

// declare decodes assets from their JSON form.
func declare[T any](t *testing.T, form func(*T) any, texts ...string) []T {
	t.Helper()
	out := make([]T, len(texts))
	for i, text := range texts {
		if err := json.Unmarshal([]byte(text), form(&out[i])); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func streams(t *testing.T, texts ...string) JetStream {
	return JetStream{Streams: declare(t, (*StreamAsset).Form, texts...)}
}

// appJetStream returns JetStream as an application has it.
func appJetStream(t *testing.T, s *Server) jetstream.JetStream {
	t.Helper()
	nc, err := s.AppConnect()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// settleAssets plans and applies, and returns the plan in lines.
func settleAssets(t *testing.T, s *Server, js JetStream, allowLoss bool) (plan []string, failed []AssetChange) {
	t.Helper()
	changes, err := s.PlanAssets(t.Context(), s.options().Apps, js)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range changes {
		plan = append(plan, c.String())
	}
	if failed, err = s.ApplyAssets(t.Context(), changes, allowLoss); err != nil {
		t.Fatal(err)
	}
	return plan, failed
}

func TestAssetsAreMadeAndChanged(t *testing.T) {
	leak.Check(t)
	s := startLeaf(t, Options{})
	app := appJetStream(t, s)
	if _, err := app.CreateStream(t.Context(), jetstream.StreamConfig{Name: "MINE", Subjects: []string{"mine.>"}}); err != nil {
		t.Fatal(err)
	}
	all := streams(t, `{"name":"ORDERS","subjects":["orders.>"],"max_age":3600000000000,"allow_msg_ttl":true,"metadata":{"owner":"plant"}}`)
	all.Consumers = declare(t, (*ConsumerAsset).Form,
		`{"stream":"ORDERS","durable_name":"billing","ack_policy":"explicit","filter_subjects":["orders.a","orders.b"]}`,
		`{"stream":"MINE","durable_name":"mine","ack_policy":"explicit"}`)
	all.KV = declare(t, (*BucketAsset).Form, `{"bucket":"settings","history":5,"limit_marker_ttl":1000000000}`)
	all.Objects = declare(t, (*ObjectAsset).Form, `{"bucket":"firmware","max_bytes":1000000}`)
	plan, failed := settleAssets(t, s, all, false)
	if len(plan) != 5 || len(failed) > 0 {
		t.Fatalf("plan %q, failed %v, want 5 creations", plan, failed)
	}
	if plan, _ = settleAssets(t, s, all, false); len(plan) > 0 {
		t.Fatalf("second plan %q, want nothing", plan)
	}
	until := time.Now().Add(time.Hour)
	if _, err := app.PauseConsumer(t.Context(), "ORDERS", "billing", until); err != nil {
		t.Fatal(err)
	}
	if plan, _ = settleAssets(t, s, all, false); len(plan) > 0 {
		t.Errorf("plan with a paused consumer %q, want nothing", plan)
	}
	if c, err := app.Consumer(t.Context(), "ORDERS", "billing"); err != nil || !c.CachedInfo().Paused {
		t.Errorf("the paused consumer: %v, want it to rest on", err)
	}
	kv, err := app.KeyValue(t.Context(), "settings")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kv.PutString(t.Context(), "a", "1"); err != nil {
		t.Fatal(err)
	}
	objects, err := app.ObjectStore(t.Context(), "firmware")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := objects.PutString(t.Context(), "a", "1"); err != nil {
		t.Fatal(err)
	}
	// What clients make by themselves is the same, so that they find it equal.
	if _, err := app.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "settings", History: 5, LimitMarkerTTL: time.Second}); err != nil {
		t.Errorf("a client that makes the same bucket: %v", err)
	}
	if _, err := app.CreateObjectStore(t.Context(), jetstream.ObjectStoreConfig{Bucket: "firmware", MaxBytes: 1000000}); err != nil {
		t.Errorf("a client that makes the same object store: %v", err)
	}

	changed := streams(t, `{"name":"ORDERS","subjects":["orders.>","o.>"],"allow_msg_ttl":true}`)
	plan, failed = settleAssets(t, s, changed, false)
	want := `[update stream ORDERS: max_age: 3600000000000 -> 0, metadata: {"owner":"plant"} -> none, subjects: ["orders.>"] -> ["orders.>","o.>"]]`
	if fmt.Sprint(plan) != want || len(failed) > 0 {
		t.Errorf("plan %v, failed %v, want %s", plan, failed, want)
	}
	for _, name := range []string{"MINE", "KV_settings", "OBJ_firmware"} {
		if _, err := app.Stream(t.Context(), name); err != nil {
			t.Errorf("%s, which is not declared any more: %v, want it left alone", name, err)
		}
	}
}

func TestPlanNamesWhatIsInTheWay(t *testing.T) {
	leak.Check(t)
	s := startLeaf(t, Options{})
	app := appJetStream(t, s)
	for _, name := range []string{"MINE", "ORDERS"} {
		if _, err := app.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{strings.ToLower(name) + ".>"}}); err != nil {
			t.Fatal(err)
		}
	}
	for _, declared := range []string{`{"name":"NEW","subjects":["new.>","mine.x"]}`, `{"name":"ORDERS","subjects":["orders.>","mine.y"]}`} {
		plan, failed := settleAssets(t, s, streams(t, declared), true)
		if len(plan) != 1 || !strings.Contains(plan[0], "stream MINE is there, is not declared") || len(failed) != 1 {
			t.Errorf("plan for %s: %q, failed %v", declared, plan, failed)
		}
	}
	// What is declared, too, changes before.
	plan, _ := settleAssets(t, s, streams(t, `{"name":"MINE","subjects":["other.>"]}`, `{"name":"NEW","subjects":["mine.x"]}`), true)
	if len(plan) != 2 || strings.Contains(fmt.Sprint(plan), "is not declared") {
		t.Errorf("plan where what is in the way is declared: %q", plan)
	}
}

func TestAssetsThatWouldLoseData(t *testing.T) {
	leak.Check(t)
	s := startLeaf(t, Options{})
	app := appJetStream(t, s)
	if _, failed := settleAssets(t, s, streams(t, `{"name":"S","subjects":["s.>"]}`), false); len(failed) > 0 {
		t.Fatal(failed)
	}
	for i := range 20 {
		if _, err := app.Publish(t.Context(), fmt.Sprint("s.", i%4), []byte("12345")); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct{ name, declared, action, loss string }{
		{"fewer messages", `{"name":"S","subjects":["s.>"],"max_msgs":15}`, AssetUpdate, "5 messages above max_msgs"},
		{"fewer bytes", `{"name":"S","subjects":["s.>"],"max_bytes":100}`, AssetUpdate, "above max_bytes"},
		{"fewer of a subject", `{"name":"S","subjects":["s.>"],"max_msgs_per_subject":2}`, AssetUpdate, "max_msgs_per_subject"},
		{"younger", `{"name":"S","subjects":["s.>"],"max_age":100000000,"duplicate_window":100000000}`, AssetUpdate, "older than max_age"},
		{"other storage", `{"name":"S","subjects":["s.>"],"storage":"memory"}`, AssetRecreate, "all it holds: 20 messages"},
	} {
		begun := time.Now()
		for time.Since(begun) < 150*time.Millisecond { // the records grow older than max_age of one case
			if err := app.Conn().Flush(); err != nil {
				t.Fatal(err)
			}
		}
		changes, err := s.PlanAssets(t.Context(), s.options().Apps, streams(t, tt.declared))
		if err != nil || len(changes) != 1 {
			t.Fatalf("%s: plan %v, %v, want one change", tt.name, changes, err)
		}
		if c := changes[0]; c.Action != tt.action || !strings.Contains(c.Loss, tt.loss) {
			t.Errorf("%s: %v, want %s with a loss of %s", tt.name, c, tt.action, tt.loss)
		}
		if failed, err := s.ApplyAssets(t.Context(), changes, false); err != nil || len(failed) != 1 {
			t.Errorf("%s: failed %v, %v, want it refused", tt.name, failed, err)
		}
		if n := messages(t, app, "S"); n != 20 {
			t.Fatalf("%s: %d messages are left, want 20", tt.name, n)
		}
	}
	if _, failed := settleAssets(t, s, streams(t, `{"name":"S","subjects":["s.>"],"max_msgs":15}`), true); len(failed) > 0 {
		t.Fatal(failed)
	}
	if n := messages(t, app, "S"); n != 15 {
		t.Errorf("%d messages after the loss was allowed, want 15", n)
	}
	// What holds nothing any more still has consumers and sequences that were given out.
	st, err := app.Stream(t.Context(), "S")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := st.CreateConsumer(t.Context(), jetstream.ConsumerConfig{Durable: "mine"}); err != nil {
		t.Fatal(err)
	}
	if err := st.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	if plan, failed := settleAssets(t, s, streams(t, `{"name":"S","subjects":["s.>"],"storage":"memory"}`), false); len(failed) != 1 ||
		!strings.Contains(failed[0].Loss, "1 consumers; its sequences, of which 20 is the last") {
		t.Errorf("plan for an empty stream %v, failed %v, want its consumer and sequences to be named", plan, failed)
	}
	if info, err := st.Info(t.Context()); err != nil || info.State.LastSeq != 20 || info.State.Consumers != 1 {
		t.Errorf("the empty stream is %+v, %v, want it as it was", info, err)
	}
}

func TestCheckAssetsIsPedantic(t *testing.T) {
	leak.Check(t)
	var apps Apps
	apps.SetDefaults()
	for _, tt := range []struct{ name, stream, consumer, want string }{
		{"good", `{"name":"S","subjects":["s.>"]}`, `{"stream":"S","durable_name":"c","ack_policy":"explicit"}`, ""},
		{"bad subject", `{"name":"S","subjects":["s..x"]}`, "", "invalid subject"},
		{"too many replicas", `{"name":"S","num_replicas":3}`, "", "replicas"},
		{"duplicates longer than age", `{"name":"S","max_age":1000000000,"duplicate_window":2000000000}`, "", "duplicates window"},
		{"work queue with acks none", `{"name":"S","retention":"workqueue"}`, `{"stream":"S","durable_name":"c"}`, "explicit ack"},
		{"back-off without ack wait", `{"name":"S"}`, `{"stream":"S","durable_name":"c","ack_policy":"explicit","backoff":[1000000000]}`, "pedantic"},
		{"longer duplicates than allowed", `{"name":"S","duplicate_window":7200000000000}`, "", "server limit"},
	} {
		js := streams(t, tt.stream)
		if tt.consumer != "" {
			js.Consumers = declare(t, (*ConsumerAsset).Form, tt.consumer)
		}
		var got string
		if err := CheckAssets(apps, js, func(key, problem, _ string) { got += key + ": " + problem }); err != nil {
			t.Fatal(err)
		}
		if (tt.want == "") != (got == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s: faults %q, want %q", tt.name, got, tt.want)
		}
	}
}

// TestEveryFieldIsPassedOn declares every key of a stream and reads them back.
func TestEveryFieldIsPassedOn(t *testing.T) {
	leak.Check(t)
	s := startLeaf(t, Options{})
	app := appJetStream(t, s)
	text := `{"name":"ALL","description":"d","subjects":["all.>"],"retention":"limits","max_consumers":3,"max_msgs":100,"max_bytes":1000000,"max_age":7200000000000,
  "max_msgs_per_subject":10,"max_msg_size":1000,"discard":"old","storage":"file","num_replicas":1,"duplicate_window":60000000000,
  "compression":"s2","first_seq":1000,"subject_transform":{"src":"all.>","dest":"new.>"},"republish":{"src":"new.>","dest":"again.>","headers_only":true},
  "allow_direct":true,"deny_delete":true,"allow_rollup_hdrs":true,"consumer_limits":{"inactive_threshold":3600000000000,"max_ack_pending":50},
  "allow_msg_ttl":true,"subject_delete_marker_ttl":5000000000,"allow_atomic":true,"allow_msg_schedules":true,"allow_batched":true,"metadata":{"a":"b"}}`
	if _, failed := settleAssets(t, s, streams(t, text), false); len(failed) > 0 {
		t.Fatal(failed)
	}
	stream, err := app.Stream(t.Context(), "ALL")
	if err != nil {
		t.Fatal(err)
	}
	is, err := fields(stream.CachedInfo().Config)
	if err != nil {
		t.Fatal(err)
	}
	var declared server.StreamConfig
	if err := json.Unmarshal([]byte(text), &declared); err != nil {
		t.Fatal(err)
	}
	want, err := fields(declared)
	if err != nil {
		t.Fatal(err)
	}
	for key, value := range want {
		if is[key] != value && key != "metadata" && value != "false" {
			t.Errorf("%s = %s, want %s", key, is[key], value)
		}
	}
}
