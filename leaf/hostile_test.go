package leaf

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/rig/hub"
	"github.com/holdfast-edge/holdfast/rig/leak"
	"github.com/holdfast-edge/holdfast/rig/poll"
	"github.com/holdfast-edge/holdfast/rig/port"
)

// TestHostileApplicationBesideTheLink lets a local application say all that could concern the link while it is up, at a hub that allows the leaf everything:
// nothing of it arrives, nothing of the hub's is heard, and the link and the uplink's consumer are as they were.
func TestHostileApplicationBesideTheLink(t *testing.T) {
	leak.Check(t)
	h := startHub(t, hub.Options{})
	ports, err := port.Pick(1)
	if err != nil {
		t.Fatal(err)
	}
	s := startLeaf(t, Options{
		Config: Config{NATS: fmt.Sprintf("127.0.0.1:%d", ports[0])}, Hub: Hub{URLs: withUser(t, h.LeafURLs()...)},
		Apps: Apps{Captured: []Captured{{Stream: "S", Live: true, Consumers: []string{"panel"}}}}, Append: []string{"calc"},
	})
	js, daemonConn := daemon(t, s)
	capture(t, js, "leaf1")
	uplink, err := js.CreatePushConsumer(t.Context(), "S", jetstream.ConsumerConfig{
		Durable: "up_leaf1_S", DeliverSubject: "up.leaf1.S", FilterSubjects: []string{"data.leaf1.S.>"},
		AckPolicy: jetstream.AckFlowControlPolicy, FlowControl: true, IdleHeartbeat: time.Second, MaxDeliver: -1, MaxAckPending: 100, MemoryStorage: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	enable(t, s)
	waitState(t, s, LinkUp, patience)
	admin, err := h.Admin()
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	atHub := make(chan *nats.Msg, 10_000)
	if _, err := admin.ChanSubscribe(">", atHub); err != nil {
		t.Fatal(err)
	}
	if err := admin.Flush(); err != nil {
		t.Fatal(err)
	}
	app := dial(t, "nats://"+s.listen, nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	heard := make(chan *nats.Msg, 10_000)
	if _, err := app.ChanSubscribe(">", heard); err != nil {
		t.Fatal(err)
	}
	inbox := InboxPrefix("leaf1") + ".x"
	for _, subject := range []string{
		"data.leaf1.S.gps", "hf.leap.S", "up.leaf1.S", "any.thing", inbox, "$JS.FC.leaf1.9UlZYYrs.S.up_leaf1_S.1", "$JS.ACK.leaf1.9UlZYYrs.S.up_leaf1_S.1.1.1.1.1",
		"$JSC.R.leaf1.v71kSBge.S.up_leaf1_S.1", "$JS.hub.API.STREAM.DELETE.F", "$JS.hub.API.INFO", "$JS.leaf1.API.CONSUMER.DELETE.S.up_leaf1_S",
		"$JS.leaf1.API.CONSUMER.RESET.S.up_leaf1_S", "$SYS.REQ.SERVER.PING", "$SYS.REQ.ACCOUNT.CAPTURE.LEAFZ", "$LDS.x", "command.leaf1",
	} {
		if err := app.Publish(subject, []byte("forged")); err != nil {
			t.Fatal(err)
		}
		if err := admin.Publish(subject, []byte("secret")); err != nil {
			t.Fatal(err)
		}
	}
	for _, nc := range []*nats.Conn{app, admin} {
		if err := nc.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	// What was said before this has arrived when this has.
	end := make(chan *nats.Msg, 1) // more are dropped
	if _, err := daemonConn.ChanSubscribe("the.end", end); err != nil {
		t.Fatal(err)
	}
	if err := daemonConn.Flush(); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, patience, func() bool {
		if err := admin.Publish("the.end", nil); err != nil {
			t.Fatal(err)
		}
		return len(end) > 0
	}, "the link to bring what the hub says")
	if err := daemonConn.Publish("the.end.here", nil); err != nil {
		t.Fatal(err)
	}
	for arrived := false; !arrived; {
		select {
		case m := <-atHub:
			arrived = m.Subject == "the.end.here"
			if string(m.Data) == "forged" {
				t.Errorf("%s of the application has arrived at the hub", m.Subject)
			}
		case <-time.After(patience):
			t.Fatal("what the daemon says does not arrive at the hub")
		}
	}
	if err := app.Flush(); err != nil {
		t.Fatal(err)
	}
	for len(heard) > 0 {
		if m := <-heard; string(m.Data) == "secret" || strings.HasPrefix(m.Subject, "up.") && string(m.Data) != "forged" {
			t.Errorf("the application has heard %s: %s", m.Subject, m.Data)
		}
	}
	if n := messages(t, js, "S"); n != 0 {
		t.Errorf("captured stream holds %d records, want none", n)
	}
	before := uplink.CachedInfo()
	after, err := uplink.Info(t.Context())
	if err != nil || after.Delivered != before.Delivered || after.AckFloor != before.AckFloor || !after.Created.Equal(before.Created) {
		t.Errorf("the uplink's consumer is %+v, %v, and was %+v", after, err, before)
	}
	if l := s.Link(); l.State != LinkUp {
		t.Errorf("the link is %v", l)
	}
}
