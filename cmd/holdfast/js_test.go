package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/rig/poll"
	"github.com/holdfast-edge/holdfast/rig/port"
)

// topicPatience bounds what takes no time when all is well.
const topicPatience = 20 * time.Second

// topic is one row of docs/JETSTREAM.md.
type topic struct {
	name string
	run  func(t *testing.T, a *application)
}

func topics() []topic {
	return []topic{
		{"first stream", firstStream},
		{"publish", publishing},
		{"durable", durable},
		{"filters", filters},
		{"in flight", inFlight},
		{"acks", acknowledgements},
		{"push and pull", pushAndPull},
		{"workers", workers},
		{"ordered", ordered},
		{"priority groups", priorityGroups},
		{"pause", pausing},
		{"limits", limits},
		{"retention", retention},
		{"delete and purge", deleteAndPurge},
		{"batches", batches},
		{"mirrors and sources", mirrorsAndSources},
		{"direct get", directGet},
		{"mapping", mapping},
		{"transforms", transforms},
		{"message ttl", messageTTL},
		{"schedules", schedules},
		{"counters", counters},
		{"kv", keyValue},
		{"objects", objects},
		{"storage", storages},
		{"bare requests", bareRequests},
		{"advisories", advisories},
		{"account limits", accountLimits},
	}
}

// application is a program beside the daemon.
type application struct {
	url    string
	nc     *nats.Conn
	js     jetstream.JetStream
	daemon *daemon
}

// stream makes a stream with a name of its own, whose subjects begin with that name.
func (a *application) stream(t *testing.T, c jetstream.StreamConfig) (jetstream.Stream, string) {
	t.Helper()
	if c.Name == "" {
		c.Name = strings.ToUpper(regexp.MustCompile(`[^A-Za-z0-9]+`).ReplaceAllString(strings.TrimPrefix(t.Name(), "TestJetStreamTopics/"), "_"))
	}
	if c.Subjects == nil && c.Mirror == nil && c.Sources == nil {
		c.Subjects = []string{c.Name + ".>"}
	}
	s, err := a.js.CreateStream(t.Context(), c)
	if err != nil {
		t.Fatalf("create stream %s: %v", c.Name, err)
	}
	return s, c.Name
}

func (a *application) publish(t *testing.T, subject, data string, opts ...jetstream.PublishOpt) uint64 {
	t.Helper()
	ack, err := a.js.Publish(t.Context(), subject, []byte(data), opts...)
	if err != nil {
		t.Fatalf("publish to %s: %v", subject, err)
	}
	return ack.Sequence
}

func (a *application) consumer(t *testing.T, s jetstream.Stream, c jetstream.ConsumerConfig) jetstream.Consumer {
	t.Helper()
	consumer, err := s.CreateOrUpdateConsumer(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return consumer
}

// fetch returns what a consumer has at once, up to n messages, and does not acknowledge.
func fetch(t *testing.T, c jetstream.Consumer, n int, opts ...jetstream.FetchOpt) []jetstream.Msg {
	t.Helper()
	batch, err := c.Fetch(n, append([]jetstream.FetchOpt{jetstream.FetchMaxWait(topicPatience)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	var all []jetstream.Msg
	for m := range batch.Messages() {
		all = append(all, m)
	}
	if err := batch.Error(); err != nil {
		t.Fatal(err)
	}
	return all
}

// none checks that a consumer has nothing.
func none(t *testing.T, c jetstream.Consumer) {
	t.Helper()
	batch, err := c.FetchNoWait(10)
	if err != nil {
		t.Fatal(err)
	}
	for m := range batch.Messages() {
		t.Errorf("unexpected message %s %q", m.Subject(), m.Data())
	}
}

// texts returns the data of messages with blanks between.
func texts(messages []jetstream.Msg) string {
	var words []string
	for _, m := range messages {
		words = append(words, string(m.Data()))
	}
	return strings.Join(words, " ")
}

func held(t *testing.T, s jetstream.Stream) uint64 {
	t.Helper()
	info, err := s.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return info.State.Msgs
}

// startApplication starts a daemon process without a hub, and an application beside it.
func startApplication(t *testing.T) *application {
	t.Helper()
	return startApplicationWithin(t, "96MiB")
}

// startApplicationWithin does so with a limit of the daemon's heap.
func startApplicationWithin(t *testing.T, heap string) *application {
	t.Helper()
	dir := t.TempDir()
	ports, err := port.Pick(1)
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "holdfast.yaml")
	text := fmt.Sprintf(`leaf: {name: gw1, data: %q, nats: "127.0.0.1:%d"}
storage: {budget: 2GiB, reserve_free: 0, allow_volatile: true}
streams: [{name: S, max_bytes: 64MiB}]
sources: [{name: calc, into: S, append: {}}]
apps: {max_file: 1GiB, max_mem: 32MiB, max_subjects: 5000, mappings: [{from: "door.*", to: "event.{{wildcard(1)}}"}], captured: [{stream: S, live: true, consumers: [panel]}]}
jetstream:
  streams: [{name: DECLARED, subjects: ["declared.>"], max_age: 1h, allow_direct: true}]
`, filepath.Join(dir, "data"), ports[0])
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	a := &application{url: fmt.Sprintf("nats://127.0.0.1:%d", ports[0])}
	a.daemon = startDaemon(t, "", config, filepath.Join(dir, "data"), "GOMEMLIMIT="+heap)
	poll.Until(t, topicPatience, func() bool {
		a.nc, err = nats.Connect(a.url)
		return err == nil
	}, "the daemon's port")
	t.Cleanup(a.nc.Close)
	if a.js, err = jetstream.New(a.nc); err != nil {
		t.Fatal(err)
	}
	a.daemon.until(topicPatience, "the daemon to run", running)
	return a
}

// TestJetStreamTopics goes through docs/JETSTREAM.md against a daemon process with no hub.
func TestJetStreamTopics(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: takes half a minute, not done with -short")
	}
	a := startApplication(t)
	for _, topic := range topics() {
		t.Run(topic.name, func(t *testing.T) { topic.run(t, a) })
	}
}

// TestJetStreamPage holds docs/JETSTREAM.md against the topics: a row for each, with an example.
func TestJetStreamPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/JETSTREAM.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|.*\\| `(.+)` \\|$").FindAllStringSubmatch(string(page), -1) {
		rows[m[1]] = true
	}
	for _, topic := range topics() {
		if !rows[topic.name] {
			t.Errorf("docs/JETSTREAM.md has no row with an example for %q", topic.name)
		}
		delete(rows, topic.name)
	}
	delete(rows, "hub streams") // TestHubStreamsFromTheLeaf
	for name := range rows {
		t.Errorf("docs/JETSTREAM.md has a row %q, which no test runs", name)
	}
}
