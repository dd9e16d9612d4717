package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/rig/poll"
)

func publishing(t *testing.T, a *application) {
	s, name := a.stream(t, jetstream.StreamConfig{})
	ack, err := a.js.Publish(t.Context(), name+".x", []byte("1"), jetstream.WithMsgID("id1"), jetstream.WithExpectStream(name), jetstream.WithExpectLastSequence(0))
	if err != nil || ack.Stream != name || ack.Sequence != 1 || ack.Duplicate || ack.Domain != "gw1" {
		t.Fatalf("acknowledgement %+v, %v", ack, err)
	}
	if ack, err = a.js.Publish(t.Context(), name+".x", []byte("1"), jetstream.WithMsgID("id1")); err != nil || !ack.Duplicate {
		t.Errorf("the same again: %+v, %v, want a duplicate", ack, err)
	}
	var refused *jetstream.APIError
	if _, err = a.js.Publish(t.Context(), name+".x", nil, jetstream.WithExpectLastSequence(7)); !errors.As(err, &refused) {
		t.Errorf("a wrong expectation: %v, want a refusal", err)
	}
	if _, err = a.js.Publish(t.Context(), "nobody.listens", nil, jetstream.WithRetryAttempts(0)); !errors.Is(err, jetstream.ErrNoStreamResponse) {
		t.Errorf("a subject of no stream: %v", err)
	}
	if n := held(t, s); n != 1 {
		t.Errorf("%d messages, want 1", n)
	}
}

func limits(t *testing.T, a *application) {
	old, name := a.stream(t, jetstream.StreamConfig{Name: "OLD", MaxMsgs: 3, MaxMsgSize: 100})
	for i := range 5 {
		a.publish(t, name+".x", fmt.Sprint(i))
	}
	if n := held(t, old); n != 3 {
		t.Errorf("discard old keeps %d, want 3", n)
	}
	if _, err := a.js.Publish(t.Context(), name+".x", make([]byte, 101)); err == nil {
		t.Error("a message above max_msg_size was taken")
	}
	_, name = a.stream(t, jetstream.StreamConfig{Name: "NEW", MaxBytes: 1000, Discard: jetstream.DiscardNew})
	full := false
	for range 50 {
		if _, err := a.js.Publish(t.Context(), name+".x", make([]byte, 100)); err != nil {
			full = true
			break
		}
	}
	if !full {
		t.Error("discard new took 5000 bytes into 1000")
	}
	per, name := a.stream(t, jetstream.StreamConfig{Name: "PER", MaxMsgsPerSubject: 1, MaxMsgs: 100, Discard: jetstream.DiscardNew, DiscardNewPerSubject: true})
	a.publish(t, name+".a", "1")
	a.publish(t, name+".b", "1")
	if _, err := a.js.Publish(t.Context(), name+".a", nil); err == nil {
		t.Error("a second message of a subject was taken")
	}
	if n := held(t, per); n != 2 {
		t.Errorf("%d messages, want one of each subject", n)
	}
	aged, name := a.stream(t, jetstream.StreamConfig{Name: "AGED", MaxAge: 300 * time.Millisecond, Duplicates: 200 * time.Millisecond})
	a.publish(t, name+".x", "1")
	poll.Until(t, topicPatience, func() bool { return held(t, aged) == 0 }, "the message to grow old")
}

func deleteAndPurge(t *testing.T, a *application) {
	s, name := a.stream(t, jetstream.StreamConfig{})
	for i := range 10 {
		a.publish(t, fmt.Sprint(name, ".", i%2), fmt.Sprint(i))
	}
	if err := s.DeleteMsg(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if err := s.SecureDeleteMsg(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		what string
		opts []jetstream.StreamPurgeOpt
		left uint64
	}{
		{"below sequence 5", []jetstream.StreamPurgeOpt{jetstream.WithPurgeSequence(5)}, 6},
		{"all but 2 of a subject", []jetstream.StreamPurgeOpt{jetstream.WithPurgeSubject(name + ".0"), jetstream.WithPurgeKeep(2)}, 5},
		{"a subject", []jetstream.StreamPurgeOpt{jetstream.WithPurgeSubject(name + ".1")}, 2},
		{"everything", nil, 0},
	} {
		if err := s.Purge(t.Context(), tt.opts...); err != nil {
			t.Fatal(err)
		}
		if n := held(t, s); n != tt.left {
			t.Errorf("after a purge of %s %d are left, want %d", tt.what, n, tt.left)
		}
	}
}

func batches(t *testing.T, a *application) {
	s, name := a.stream(t, jetstream.StreamConfig{AllowAtomicPublish: true, AllowBatchPublish: true})
	futures := make([]jetstream.PubAckFuture, 100)
	var err error
	for i := range futures {
		if futures[i], err = a.js.PublishAsync(name+".async", []byte(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range futures {
		select {
		case <-f.Ok():
		case err := <-f.Err():
			t.Fatal(err)
		case <-time.After(topicPatience):
			t.Fatal("no acknowledgement")
		}
	}
	// Atomic: all or nothing, one acknowledgement (ADR-50).
	for i := 1; i <= 10; i++ {
		m := nats.NewMsg(name + ".atomic")
		m.Header.Set("Nats-Batch-Id", "b1")
		m.Header.Set("Nats-Batch-Sequence", fmt.Sprint(i))
		if i < 10 {
			if err := a.nc.PublishMsg(m); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if n := held(t, s); n != 100 {
			t.Errorf("%d messages before the commit, want none of the batch", n-100)
		}
		m.Header.Set("Nats-Batch-Commit", "1")
		reply, err := a.nc.RequestMsg(m, topicPatience)
		if err != nil || !strings.Contains(string(reply.Data), `"count":10`) {
			t.Fatalf("commit: %v, %s", err, reply.Data)
		}
	}
	// Fast: flow control by the server, an acknowledgement at the end. <inbox>.<id>.<flow>.<gap mode>.<seq>.<operation>.$FI
	inbox := a.nc.NewInbox()
	replies, err := a.nc.SubscribeSync(inbox + ".>")
	if err != nil {
		t.Fatal(err)
	}
	const start, more, commit = 0, 1, 2
	for i := 1; i <= 50; i++ {
		operation := more
		if i == 1 {
			operation = start
		} else if i == 50 {
			operation = commit
		}
		if err := a.nc.PublishRequest(name+".fast", fmt.Sprintf("%s.f1.10.fail.%d.%d.$FI", inbox, i, operation), []byte(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	for {
		m, err := replies.NextMsg(topicPatience)
		if err != nil {
			t.Fatalf("no acknowledgement of the fast batch: %v", err)
		}
		var ack struct {
			Seq   uint64          `json:"seq"`
			Type  string          `json:"type"`
			Error json.RawMessage `json:"error"`
		}
		if err := json.Unmarshal(m.Data, &ack); err != nil || ack.Error != nil {
			t.Fatalf("fast batch: %s, %v", m.Data, err)
		}
		if ack.Type == "" {
			break
		}
	}
	if n := held(t, s); n != 160 {
		t.Errorf("%d messages, want 160", n)
	}
}

func mirrorsAndSources(t *testing.T, a *application) {
	_, name := a.stream(t, jetstream.StreamConfig{Name: "ORIGIN"})
	for i := range 10 {
		a.publish(t, fmt.Sprint(name, ".", i%2), fmt.Sprint(i))
	}
	mirror, _ := a.stream(t, jetstream.StreamConfig{Name: "MIRROR", Mirror: &jetstream.StreamSource{Name: name, FilterSubject: name + ".0"}, MirrorDirect: true})
	sourced, _ := a.stream(t, jetstream.StreamConfig{Name: "SOURCED", Sources: []*jetstream.StreamSource{
		{Name: name, SubjectTransforms: []jetstream.SubjectTransformConfig{{Source: name + ".1", Destination: "odd.x"}}, OptStartSeq: 3},
	}, SubjectTransform: nil})
	poll.Until(t, topicPatience, func() bool { return held(t, mirror) == 5 && held(t, sourced) >= 4 }, "mirror and source")
	m, err := sourced.GetLastMsgForSubject(t.Context(), "odd.>")
	if err != nil || string(m.Data) != "9" {
		t.Errorf("last sourced: %+v, %v, want 9 below odd", m, err)
	}
	if m, err := mirror.GetMsg(t.Context(), 9); err != nil || string(m.Data) != "8" {
		t.Errorf("message 9 of the mirror: %+v, %v, want the sequences of the origin", m, err)
	}
}

func directGet(t *testing.T, a *application) {
	s, name := a.stream(t, jetstream.StreamConfig{AllowDirect: true})
	for i := range 10 {
		a.publish(t, fmt.Sprint(name, ".", i%3), fmt.Sprint(i))
	}
	if m, err := s.GetMsg(t.Context(), 4); err != nil || string(m.Data) != "3" {
		t.Errorf("by sequence: %+v, %v", m, err)
	}
	if m, err := s.GetMsg(t.Context(), 2, jetstream.WithGetMsgSubject(name+".0")); err != nil || string(m.Data) != "3" {
		t.Errorf("next of a subject: %+v, %v", m, err)
	}
	if m, err := s.GetLastMsgForSubject(t.Context(), name+".1"); err != nil || string(m.Data) != "7" {
		t.Errorf("last of a subject: %+v, %v", m, err)
	}
	many := func(request string) string {
		t.Helper()
		inbox := a.nc.NewInbox()
		sub, err := a.nc.SubscribeSync(inbox)
		if err != nil {
			t.Fatal(err)
		}
		if err := a.nc.PublishRequest("$JS.API.DIRECT.GET."+name, inbox, []byte(request)); err != nil {
			t.Fatal(err)
		}
		var words []string
		for {
			m, err := sub.NextMsg(topicPatience)
			if err != nil {
				t.Fatal(err)
			}
			if m.Header.Get("Status") == "204" { // the end
				return strings.Join(words, " ")
			}
			words = append(words, string(m.Data))
		}
	}
	if got := many(`{"seq":2,"batch":3}`); got != "1 2 3" {
		t.Errorf("batch get: %q", got)
	}
	if got := many(fmt.Sprintf(`{"multi_last":[%q]}`, name+".*")); got != "7 8 9" {
		t.Errorf("last for subjects: %q", got)
	}
}

// mapping uses apps.mappings of the configuration.
func mapping(t *testing.T, a *application) {
	s, _ := a.stream(t, jetstream.StreamConfig{Subjects: []string{"event.>"}})
	a.publish(t, "door.front", "open")
	if m, err := s.GetLastMsgForSubject(t.Context(), "event.front"); err != nil || string(m.Data) != "open" {
		t.Errorf("what was published at door.front: %+v, %v", m, err)
	}
}

func transforms(t *testing.T, a *application) {
	heard, err := a.nc.SubscribeSync("again.>")
	if err != nil {
		t.Fatal(err)
	}
	s, _ := a.stream(t, jetstream.StreamConfig{
		Subjects: []string{"raw.*.*"}, SubjectTransform: &jetstream.SubjectTransformConfig{Source: "raw.*.*", Destination: "clean.{{wildcard(2)}}.{{wildcard(1)}}"},
		RePublish: &jetstream.RePublish{Source: "clean.>", Destination: "again.>"},
	})
	a.publish(t, "raw.a.b", "1")
	if m, err := s.GetLastMsgForSubject(t.Context(), "clean.b.a"); err != nil || string(m.Data) != "1" {
		t.Errorf("transformed: %+v, %v", m, err)
	}
	if m, err := heard.NextMsg(topicPatience); err != nil || m.Subject != "again.b.a" || m.Header.Get("Nats-Stream") == "" {
		t.Errorf("republished: %+v, %v", m, err)
	}
}

func messageTTL(t *testing.T, a *application) {
	s, name := a.stream(t, jetstream.StreamConfig{AllowMsgTTL: true})
	a.publish(t, name+".short", "1", jetstream.WithMsgTTL(time.Second))
	a.publish(t, name+".long", "2")
	poll.Until(t, topicPatience, func() bool {
		_, err := s.GetLastMsgForSubject(t.Context(), name+".short")
		return errors.Is(err, jetstream.ErrMsgNotFound)
	}, "the message to expire")
	if _, err := s.GetLastMsgForSubject(t.Context(), name+".long"); err != nil {
		t.Errorf("the other message: %v", err)
	}
	marked, name := a.stream(t, jetstream.StreamConfig{Name: "MARKED", AllowMsgTTL: true, SubjectDeleteMarkerTTL: time.Minute, MaxAge: time.Second, MaxMsgsPerSubject: 1, AllowRollup: true, Duplicates: time.Second})
	a.publish(t, name+".x", "1")
	poll.Until(t, topicPatience, func() bool {
		m, err := marked.GetLastMsgForSubject(t.Context(), name+".x")
		return err == nil && m.Header.Get("Nats-Marker-Reason") == "MaxAge"
	}, "the marker in the place of the message that grew old")
}

func schedules(t *testing.T, a *application) {
	s, name := a.stream(t, jetstream.StreamConfig{AllowMsgSchedules: true, AllowMsgTTL: true, AllowRollup: true})
	begun := time.Now()
	a.publish(t, name+".plan", "later", jetstream.WithScheduleAt(time.Now().Add(2*time.Second)), jetstream.WithScheduleTarget(name+".due"))
	poll.Until(t, topicPatience, func() bool {
		m, err := s.GetLastMsgForSubject(t.Context(), name+".due")
		return err == nil && string(m.Data) == "later"
	}, "the scheduled message")
	if d := time.Since(begun); d < 500*time.Millisecond {
		t.Errorf("it came after %v, want two seconds, cut to a whole one", d)
	}
}

func counters(t *testing.T, a *application) {
	_, name := a.stream(t, jetstream.StreamConfig{AllowMsgCounter: true, AllowDirect: true})
	var value string
	for _, by := range []string{"5", "-2", "+40"} {
		m := nats.NewMsg(name + ".hits")
		m.Header.Set("Nats-Incr", by)
		reply, err := a.nc.RequestMsg(m, topicPatience)
		if err != nil {
			t.Fatal(err)
		}
		var ack struct {
			Value string `json:"val"`
		}
		if err := json.Unmarshal(reply.Data, &ack); err != nil {
			t.Fatal(err)
		}
		value = ack.Value
	}
	if value != "43" {
		t.Errorf("the counter says %q, want 43", value)
	}
}

func storages(t *testing.T, a *application) {
	for _, kind := range []jetstream.StorageType{jetstream.FileStorage, jetstream.MemoryStorage} {
		s, name := a.stream(t, jetstream.StreamConfig{Name: strings.ToUpper(kind.String()), Storage: kind, Compression: jetstream.NoCompression})
		a.publish(t, name+".x", "1")
		if n := held(t, s); n != 1 || s.CachedInfo().Config.Storage != kind {
			t.Errorf("%v: %d messages in %v", kind, n, s.CachedInfo().Config.Storage)
		}
	}
}
