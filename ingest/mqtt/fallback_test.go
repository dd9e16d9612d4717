package mqtt

import (
	"context"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"github.com/eclipse/paho.mqtt.golang/packets"

	"github.com/holdfast-edge/holdfast/ingest"
	"github.com/holdfast-edge/holdfast/ingest/ingesttest"
	"github.com/holdfast-edge/holdfast/ingest/topic"
	"github.com/holdfast-edge/holdfast/rig/broker"
	"github.com/holdfast-edge/holdfast/rig/leak"
	"github.com/holdfast-edge/holdfast/rig/poll"
	"github.com/holdfast-edge/holdfast/rig/port"
)

// TestFallback takes the first address away while a message is under way. What the second one has under the same packet id is another
// message, and back at the first one, what was under way is stored again rather than taken for something else.
func TestFallback(t *testing.T) {
	leak.Check(t)
	a, b, st := newScript(t), newScript(t), &fakeStore{epoch: 1}
	cfg := config(a.url())
	cfg.Fallback = []string{b.url()}
	r := run(t, t.TempDir(), cfg, st)
	p := a.session(false)
	p.mute = true
	p.publish(pub{id: 1, topic: "a", payload: "x"})
	p.pubacks(1)
	addr := a.ln.Addr().String()
	_ = a.ln.Close()
	_ = p.Close()
	p = b.session(true)
	p.mute = true
	p.publish(pub{id: 1, topic: "a", payload: "x", dup: true})
	p.pubacks(1)
	wantPayloads(t, st, "x", "x")
	if n := r.Stats().Forgotten; n != 0 {
		t.Errorf("Forgotten = %d: another address is no broker that forgot", n)
	}
	// The list begins with the first again.
	var err error
	if a.ln, err = net.Listen("tcp", addr); err != nil {
		t.Fatal(err)
	}
	_ = p.Close()
	p = a.session(true)
	p.publish(pub{id: 1, topic: "a", payload: "x", dup: true}, pub{id: 2, topic: "a", payload: "y"})
	p.pubacks(1, 2)
	wantPayloads(t, st, "x", "x", "x", "y")
	r.until(ingest.Running, "")
}

func TestCommand(t *testing.T) {
	b, st := newScript(t), &fakeStore{epoch: 1}
	r := run(t, t.TempDir(), config(b.url()), st)
	order := func(within time.Duration, c ingest.Command) ingest.Outcome {
		ctx, cancel := context.WithTimeout(context.Background(), within)
		defer cancel()
		return r.Command(ctx, c)
	}
	want := func(got ingest.Outcome, state string) {
		t.Helper()
		if got.State != state || (got.Cause == "") != (state == ingest.OutcomeDone) {
			t.Errorf("outcome %+v, want %s", got, state)
		}
	}
	want(order(time.Second, ingest.Command{Tail: "cmd.x"}), ingest.OutcomeFailed)
	p := b.session(false)
	r.until(ingest.Running, "")
	done := make(chan ingest.Outcome, 1)
	go func() {
		done <- order(patience, ingest.Command{Tail: "cmd.x%20y", Data: []byte("open"), Header: map[string]string{HeaderRetained: "1"}})
	}()
	m, ok := p.next().(*packets.PublishPacket)
	if !ok || m.TopicName != "cmd/x y" || string(m.Payload) != "open" || m.Qos != 1 || !m.Retain {
		t.Fatalf("the broker got %v", m)
	}
	ack := packets.NewControlPacket(packets.Puback).(*packets.PubackPacket)
	ack.MessageID = m.MessageID
	p.send(ack)
	want(<-done, ingest.OutcomeDone)
	want(order(100*time.Millisecond, ingest.Command{Tail: "cmd.x"}), ingest.OutcomeUnknown)
	if _, ok := p.next().(*packets.PublishPacket); !ok {
		t.Error("the broker did not get the command that it does not acknowledge")
	}
	go func() { done <- order(patience, ingest.Command{Tail: "cmd.x"}) }()
	p.next()
	_ = p.Close()
	want(<-done, ingest.OutcomeUnknown)
	for _, c := range []ingest.Command{{Tail: "a.+"}, {Tail: ""}, {Tail: "%23.00"}, {Tail: "%23.00", Header: map[string]string{topic.Header: "a/#"}}} {
		c.Data = make([]byte, 1)
		want(order(time.Second, c), ingest.OutcomeRefused)
	}
	p = b.session(true)
	p.publish(pub{id: 1, topic: "a", payload: "1"}) // nothing of the commands is sent again
	p.pubacks(1)
}

// TestCertificateIsRenewed changes the files of the certificate while messages come.
func TestCertificateIsRenewed(t *testing.T) {
	ca := ingesttest.NewAuthority(t)
	cert, key := ca.Issue(t, "localhost", time.Hour)
	mine, mineKey := ca.Issue(t, "gateway", time.Hour)
	next, nextKey := ca.Issue(t, "gateway", 2*time.Hour)
	ports, err := port.Pick(1)
	if err != nil {
		t.Fatal(err)
	}
	b := broker.Need(t, broker.Options{Cert: cert, Key: key, Persistence: true, Config: fmt.Sprintf("listener %d 127.0.0.1", ports[0])})
	cfg := config(b.URL(), "a")
	cfg.TLS = TLS{CA: ca.File, ServerName: "localhost", Cert: mine, Key: mineKey}
	st := &fakeStore{epoch: 1}
	r := run(t, t.TempDir(), cfg, st)
	r.until(ingest.Running, "")
	p, err := broker.Dial(t.Context(), fmt.Sprintf("127.0.0.1:%d", ports[0]), broker.Login{ClientID: "device"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	for i := range 20 {
		if i == 10 {
			for from, to := range map[string]string{next: mine, nextKey: mineKey} {
				data, err := os.ReadFile(from)
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(to, data, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			poll.Until(t, patience, func() bool { return r.log.contains("certificate files have changed") }, "the source to notice")
		}
		publish(t, p, numbered("a", 1, i, i+1)...)
	}
	untilStored(t, st, 20)
	wantNumbers(t, st.payloads(), 20)
	if r.Stats().Forgotten != 0 || st.len() != 20 {
		t.Errorf("Stats = %+v, %d records", r.Stats(), st.len())
	}
}
