package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/rig/poll"
)

func firstStream(t *testing.T, a *application) {
	s, name := a.stream(t, jetstream.StreamConfig{})
	a.publish(t, name+".a", "hello")
	if n := held(t, s); n != 1 {
		t.Errorf("%d messages, want 1", n)
	}
	declared, err := a.js.Stream(t.Context(), "DECLARED")
	if err != nil || declared.CachedInfo().Config.MaxAge != time.Hour {
		t.Errorf("the declared stream: %+v, %v", declared, err)
	}
}

func durable(t *testing.T, a *application) {
	s, name := a.stream(t, jetstream.StreamConfig{})
	for i := range 4 {
		a.publish(t, name+".x", fmt.Sprint(i))
	}
	c := a.consumer(t, s, jetstream.ConsumerConfig{Durable: "reader", AckPolicy: jetstream.AckExplicitPolicy})
	for _, m := range fetch(t, c, 2) {
		if err := m.DoubleAck(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	again, err := a.js.Consumer(t.Context(), name, "reader") // as another program, later
	if err != nil {
		t.Fatal(err)
	}
	if got := texts(fetch(t, again, 2)); got != "2 3" {
		t.Errorf("the durable goes on with %q, want 2 3", got)
	}
}

func filters(t *testing.T, a *application) {
	s, name := a.stream(t, jetstream.StreamConfig{})
	for _, subject := range []string{"a", "b", "c", "a"} {
		a.publish(t, name+"."+subject, subject)
	}
	one := a.consumer(t, s, jetstream.ConsumerConfig{Durable: "one", FilterSubject: name + ".a"})
	if got := texts(fetch(t, one, 2)); got != "a a" {
		t.Errorf("one filter: %q, want a a", got)
	}
	many := a.consumer(t, s, jetstream.ConsumerConfig{Durable: "many", FilterSubjects: []string{name + ".b", name + ".c"}})
	if got := texts(fetch(t, many, 2)); got != "b c" {
		t.Errorf("two filters: %q, want b c", got)
	}
}

func inFlight(t *testing.T, a *application) {
	s, name := a.stream(t, jetstream.StreamConfig{})
	for i := range 4 {
		a.publish(t, name+".x", fmt.Sprint(i))
	}
	c := a.consumer(t, s, jetstream.ConsumerConfig{Durable: "c", AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: 2, AckWait: 3 * time.Second})
	first := fetch(t, c, 2)
	none(t, c) // two are out, no more
	if err := first[0].DoubleAck(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := texts(fetch(t, c, 1)); got != "2" {
		t.Errorf("after one acknowledgement: %q, want 2", got)
	}
	again := fetch(t, c, 1) // 1 was not acknowledged in time
	meta, err := again[0].Metadata()
	if err != nil || string(again[0].Data()) != "1" || meta.NumDelivered != 2 {
		t.Errorf("redelivered %q, %+v, %v, want 1 for the second time", again[0].Data(), meta, err)
	}
}

func acknowledgements(t *testing.T, a *application) {
	s, name := a.stream(t, jetstream.StreamConfig{})
	config := jetstream.ConsumerConfig{Durable: "c", AckPolicy: jetstream.AckExplicitPolicy, AckWait: time.Second, MaxDeliver: 5}
	c := a.consumer(t, s, config)
	next := func() jetstream.Msg { t.Helper(); return fetch(t, c, 1)[0] }
	a.publish(t, name+".x", "1")
	if err := next().Nak(); err != nil {
		t.Fatal(err)
	}
	m := next()
	begun := time.Now()
	if err := m.NakWithDelay(500 * time.Millisecond); err != nil {
		t.Fatal(err)
	}
	m = next()
	if d := time.Since(begun); d < 400*time.Millisecond {
		t.Errorf("came again %v after a nak with a delay of 500 ms", d)
	}
	begun = time.Now()
	poll.Until(t, topicPatience, func() bool { // in work for longer than ack_wait
		if err := m.InProgress(); err != nil {
			t.Fatal(err)
		}
		none(t, c)
		return time.Since(begun) > 1500*time.Millisecond
	}, "the work")
	if err := m.TermWithReason("cannot be read"); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, topicPatience, func() bool {
		info, err := c.Info(t.Context())
		return err == nil && info.NumAckPending == 0
	}, "the message to be given up")
	none(t, c)
	// Back-off: the first repetition after 100 ms, the others after 300.
	steps := a.consumer(t, s, jetstream.ConsumerConfig{Durable: "steps", AckPolicy: jetstream.AckExplicitPolicy, MaxDeliver: 3,
		AckWait: 100 * time.Millisecond, BackOff: []time.Duration{100 * time.Millisecond, 300 * time.Millisecond}})
	begun = time.Now()
	for range 3 {
		fetch(t, steps, 1)
	}
	if d := time.Since(begun); d < 350*time.Millisecond {
		t.Errorf("three deliveries took %v, want 400 ms by the back-off", d)
	}
}

func pushAndPull(t *testing.T, a *application) {
	s, name := a.stream(t, jetstream.StreamConfig{})
	for i := range 20 {
		a.publish(t, name+".x", fmt.Sprintf("%02d", i))
	}
	push, err := s.CreateOrUpdatePushConsumer(t.Context(), jetstream.ConsumerConfig{DeliverSubject: "deliver." + name, AckPolicy: jetstream.AckExplicitPolicy, IdleHeartbeat: time.Second, FlowControl: true})
	if err != nil {
		t.Fatal(err)
	}
	consume := func(start func(func(jetstream.Msg)) (jetstream.ConsumeContext, error)) {
		t.Helper()
		got := make(chan string, 100)
		running, err := start(func(m jetstream.Msg) {
			got <- string(m.Data())
			_ = m.Ack() // redelivered otherwise
		})
		if err != nil {
			t.Fatal(err)
		}
		defer running.Stop()
		for i := range 20 {
			select {
			case text := <-got:
				if text != fmt.Sprintf("%02d", i) {
					t.Errorf("message %d is %q", i, text)
				}
			case <-time.After(topicPatience):
				t.Fatalf("%d of 20 messages came", i)
			}
		}
	}
	consume(func(h func(jetstream.Msg)) (jetstream.ConsumeContext, error) { return push.Consume(h) })
	pull := func(durable string) jetstream.Consumer {
		return a.consumer(t, s, jetstream.ConsumerConfig{Durable: durable, AckPolicy: jetstream.AckExplicitPolicy, MaxRequestBatch: 10, MaxRequestExpires: 30 * time.Second, MaxRequestMaxBytes: 1 << 20, MaxWaiting: 5})
	}
	consume(func(h func(jetstream.Msg)) (jetstream.ConsumeContext, error) {
		return pull("callback").Consume(h, jetstream.PullMaxMessages(10), jetstream.PullExpiry(5*time.Second), jetstream.PullThresholdMessages(5))
	})
	c := pull("bounds")
	if n := len(fetch(t, c, 3)); n != 3 {
		t.Errorf("fetch of 3 brought %d", n)
	}
	free := a.consumer(t, s, jetstream.ConsumerConfig{Durable: "bytes", AckPolicy: jetstream.AckExplicitPolicy})
	bytes, err := free.FetchBytes(400, jetstream.FetchMaxWait(500*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for range bytes.Messages() {
		n++
	}
	if n == 0 || n > 7 {
		t.Errorf("400 bytes brought %d messages, want one to seven", n)
	}
	batch, err := c.Fetch(11, jetstream.FetchMaxWait(time.Second)) // above max_batch
	if err == nil {
		for range batch.Messages() {
		}
		err = batch.Error()
	}
	if err == nil {
		t.Error("a fetch above max_batch was allowed")
	}
	iterator, err := pull("iterator").Messages(jetstream.PullMaxMessages(4))
	if err != nil {
		t.Fatal(err)
	}
	defer iterator.Stop()
	for i := range 20 {
		m, err := iterator.Next()
		if err != nil || string(m.Data()) != fmt.Sprintf("%02d", i) {
			t.Fatalf("message %d: %v, %v", i, m, err)
		}
	}
}

func workers(t *testing.T, a *application) {
	s, name := a.stream(t, jetstream.StreamConfig{})
	c := a.consumer(t, s, jetstream.ConsumerConfig{Durable: "shared", AckPolicy: jetstream.AckExplicitPolicy})
	var mu sync.Mutex
	by, seen := map[int]int{}, map[string]int{}
	for worker := range 3 {
		running, err := c.Consume(func(m jetstream.Msg) {
			mu.Lock()
			defer mu.Unlock()
			by[worker]++
			seen[string(m.Data())]++
			_ = m.Ack() // redelivered otherwise, and counted
		}, jetstream.PullMaxMessages(2))
		if err != nil {
			t.Fatal(err)
		}
		defer running.Stop()
	}
	for i := range 60 {
		a.publish(t, name+".x", fmt.Sprint(i))
	}
	poll.Until(t, topicPatience, func() bool { mu.Lock(); defer mu.Unlock(); return len(seen) == 60 }, "all work to be done")
	mu.Lock()
	defer mu.Unlock()
	if len(by) != 3 {
		t.Errorf("work was done by %v, want all three", by)
	}
	for text, n := range seen {
		if n != 1 {
			t.Errorf("%s was done %d times", text, n)
		}
	}
}

func ordered(t *testing.T, a *application) {
	s, name := a.stream(t, jetstream.StreamConfig{})
	for i := range 500 {
		if _, err := a.js.PublishAsync(name+".x", []byte(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	<-a.js.PublishAsyncComplete()
	c, err := s.OrderedConsumer(t.Context(), jetstream.OrderedConsumerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	messages, err := c.Messages()
	if err != nil {
		t.Fatal(err)
	}
	defer messages.Stop()
	for i := range 500 {
		m, err := messages.Next()
		if err != nil || string(m.Data()) != fmt.Sprint(i) {
			t.Fatalf("message %d: %v, %v", i, m, err)
		}
	}
}

func priorityGroups(t *testing.T, a *application) {
	s, name := a.stream(t, jetstream.StreamConfig{})
	for i := range 10 {
		a.publish(t, name+".x", fmt.Sprint(i))
	}
	overflow := a.consumer(t, s, jetstream.ConsumerConfig{Durable: "overflow", AckPolicy: jetstream.AckExplicitPolicy, PriorityPolicy: jetstream.PriorityPolicyOverflow, PriorityGroups: []string{"g"}})
	empty := func(opts ...jetstream.FetchOpt) {
		t.Helper()
		batch, err := overflow.Fetch(1, append(opts, jetstream.FetchMaxWait(1100*time.Millisecond), jetstream.FetchPriorityGroup("g"))...)
		if err != nil {
			t.Fatal(err)
		}
		for m := range batch.Messages() {
			t.Errorf("the overflow worker got %q though less waits", m.Data())
		}
	}
	empty(jetstream.FetchMinPending(100))
	if got := texts(fetch(t, overflow, 1, jetstream.FetchMinPending(5), jetstream.FetchPriorityGroup("g"))); got != "0" {
		t.Errorf("overflow above 5: %q, want 0", got)
	}
	pinned := a.consumer(t, s, jetstream.ConsumerConfig{Durable: "pinned", AckPolicy: jetstream.AckExplicitPolicy, PriorityPolicy: jetstream.PriorityPolicyPinned, PinnedTTL: 10 * time.Second, PriorityGroups: []string{"g"}})
	first := fetch(t, pinned, 2, jetstream.FetchPriorityGroup("g"))
	if first[0].Headers().Get("Nats-Pin-Id") == "" {
		t.Error("the pinned client was not told its pin")
	}
	info, err := pinned.Info(t.Context())
	if err != nil || len(info.PriorityGroups) != 1 || info.PriorityGroups[0].PinnedClientID == "" {
		t.Errorf("priority groups %+v, %v, want one that is pinned", info, err)
	}
	if err := s.UnpinConsumer(t.Context(), "pinned", "g"); err != nil {
		t.Error(err)
	}
	prioritized := a.consumer(t, s, jetstream.ConsumerConfig{Durable: "prioritized", AckPolicy: jetstream.AckExplicitPolicy, PriorityPolicy: jetstream.PriorityPolicyPrioritized, PriorityGroups: []string{"g"}})
	if got := texts(fetch(t, prioritized, 2, jetstream.FetchPrioritized(0), jetstream.FetchPriorityGroup("g"))); got != "0 1" {
		t.Errorf("prioritized: %q, want 0 1", got)
	}
}

func pausing(t *testing.T, a *application) {
	s, name := a.stream(t, jetstream.StreamConfig{})
	a.publish(t, name+".x", "1")
	c := a.consumer(t, s, jetstream.ConsumerConfig{Durable: "c", AckPolicy: jetstream.AckExplicitPolicy})
	if p, err := s.PauseConsumer(t.Context(), "c", time.Now().Add(time.Hour)); err != nil || !p.Paused {
		t.Fatalf("pause: %+v, %v", p, err)
	}
	none(t, c)
	if p, err := s.ResumeConsumer(t.Context(), "c"); err != nil || p.Paused {
		t.Fatalf("resume: %+v, %v", p, err)
	}
	if got := texts(fetch(t, c, 1)); got != "1" {
		t.Errorf("after resuming: %q", got)
	}
}

func retention(t *testing.T, a *application) {
	queue, name := a.stream(t, jetstream.StreamConfig{Name: "QUEUE", Retention: jetstream.WorkQueuePolicy})
	a.publish(t, name+".a", "1")
	c := a.consumer(t, queue, jetstream.ConsumerConfig{Durable: "a", AckPolicy: jetstream.AckExplicitPolicy, FilterSubject: name + ".a"})
	if _, err := queue.CreateConsumer(t.Context(), jetstream.ConsumerConfig{Durable: "b", AckPolicy: jetstream.AckExplicitPolicy, FilterSubject: name + ".>"}); err == nil {
		t.Error("a second consumer of the same messages of a work queue was allowed")
	}
	if err := fetch(t, c, 1)[0].DoubleAck(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := held(t, queue); n != 0 {
		t.Errorf("the work queue holds %d messages after they were done", n)
	}
	interest, name := a.stream(t, jetstream.StreamConfig{Name: "INTEREST", Retention: jetstream.InterestPolicy})
	a.publish(t, name+".x", "nobody waits")
	one := a.consumer(t, interest, jetstream.ConsumerConfig{Durable: "one", AckPolicy: jetstream.AckExplicitPolicy})
	two := a.consumer(t, interest, jetstream.ConsumerConfig{Durable: "two", AckPolicy: jetstream.AckExplicitPolicy})
	a.publish(t, name+".x", "both")
	for i, c := range []jetstream.Consumer{one, two} {
		m := fetch(t, c, 1)
		if texts(m) != "both" {
			t.Fatalf("consumer %d got %q", i, texts(m))
		}
		ctx, cancel := context.WithTimeout(t.Context(), topicPatience)
		if err := m[0].DoubleAck(ctx); err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		cancel()
		if n := held(t, interest); n != uint64(1-i) {
			t.Errorf("%d messages are kept after %d of 2 consumers have acknowledged", n, i+1)
		}
	}
}
