package leaf

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/rig/hub"
	"github.com/holdfast-edge/holdfast/rig/leak"
	"github.com/holdfast-edge/holdfast/rig/poll"
)

// daemon returns the JetStream of a leaf's daemon, whose connection is closed with the test.
func daemon(t *testing.T, s *Server) (jetstream.JetStream, *nats.Conn) {
	t.Helper()
	nc, err := s.Connect()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js, nc
}

// capture makes a captured stream S of a leaf.
func capture(t *testing.T, js jetstream.JetStream, leaf string) {
	t.Helper()
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "S", Subjects: []string{"data." + leaf + ".S.>", "hf.leap.S"}, AllowDirect: true,
	}); err != nil {
		t.Fatal(err)
	}
}

func messages(t *testing.T, js jetstream.JetStream, stream string) uint64 {
	t.Helper()
	st, err := js.Stream(t.Context(), stream)
	if err != nil {
		t.Fatal(err)
	}
	return st.CachedInfo().State.Msgs
}

// leastRights is what a leaf that forwards stream S may do at the hub.
func leastRights(name string) string {
	return fmt.Sprintf(`{ user: leaf, password: leaf, permissions: {
      publish: [ "up.%[1]s.>", "$JSC.R.%[1]s.v71kSBge.S.up_%[1]s_S.*", "$JS.hub.API.DIRECT.GET.F.data.%[1]s.>", "$JS.hub.API.INFO" ]
      subscribe: [ "$JS.%[1]s.API.CONSUMER.RESET.S.up_%[1]s_S", "$JS.FC.%[1]s.9UlZYYrs.S.up_%[1]s_S.*", "_INBOX_%[1]s.>" ] } }`, name)
}

func TestUplinkGetsThrough(t *testing.T) {
	for _, tc := range []struct {
		name, users string
		mirror      bool
	}{
		{"source, least rights", leastRights("leaf1"), false},
		{"mirror, least rights", leastRights("leaf1"), true},
		{"source, all rights", hub.DefaultUsers, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			leak.Check(t)
			h := startHub(t, hub.Options{Users: tc.users})
			s := startLeaf(t, Options{Hub: Hub{URLs: withUser(t, h.LeafURLs()...)}})
			js, nc := daemon(t, s)
			capture(t, js, "leaf1")
			if _, err := js.CreatePushConsumer(t.Context(), "S", jetstream.ConsumerConfig{
				Durable: "up_leaf1_S", DeliverSubject: "up.leaf1.S", FilterSubjects: []string{"data.leaf1.S.>"},
				AckPolicy: jetstream.AckFlowControlPolicy, FlowControl: true, IdleHeartbeat: time.Second, MaxDeliver: -1, MaxAckPending: 100,
				MemoryStorage: true,
			}); err != nil {
				t.Fatal(err)
			}
			hubJS, err := h.JetStream()
			if err != nil {
				t.Fatal(err)
			}
			source := &jetstream.StreamSource{
				Name: "S", External: &jetstream.ExternalStream{APIPrefix: "$JS.leaf1.API"},
				Consumer: &jetstream.StreamConsumerSource{Name: "up_leaf1_S", DeliverSubject: "up.leaf1.S"},
			}
			cfg := jetstream.StreamConfig{Name: "F", AllowDirect: true}
			if tc.mirror {
				cfg.Mirror = source
			} else {
				cfg.Sources = []*jetstream.StreamSource{source}
			}
			if _, err := hubJS.CreateStream(t.Context(), cfg); err != nil {
				t.Fatal(err)
			}
			enable(t, s)
			waitState(t, s, LinkUp, patience)
			for i := range 500 {
				if _, err := js.Publish(t.Context(), "data.leaf1.S.src", []byte(fmt.Sprint(i))); err != nil {
					t.Fatal(err)
				}
			}
			poll.Until(t, 3*patience, func() bool { return messages(t, hubJS, "F") == 500 }, "500 records at the hub")
			poll.Until(t, patience, func() bool {
				c, err := js.PushConsumer(t.Context(), "S", "up_leaf1_S")
				return err == nil && c.CachedInfo().AckFloor.Stream == 500
			}, "ack floor at 500")
			var msg *nats.Msg
			poll.Until(t, patience, func() bool {
				msg, err = nc.Request("$JS.hub.API.DIRECT.GET.F.data.leaf1.S.>", nil, 2*time.Second)
				return err == nil
			}, "direct get from the hub")
			if string(msg.Data) != "499" {
				t.Errorf("newest record at the hub = %q %v, want 499", msg.Data, msg.Header)
			}
		})
	}
}

func TestNothingElseCrossesTheLink(t *testing.T) {
	leak.Check(t)
	h := startHub(t, hub.Options{})
	s := startLeaf(t, Options{Hub: Hub{URLs: withUser(t, h.LeafURLs()...)}})
	js, nc := daemon(t, s)
	capture(t, js, "leaf1")
	enable(t, s)
	waitState(t, s, LinkUp, patience)
	admin, err := h.Admin()
	if err != nil {
		t.Fatal(err)
	}
	subjects := []string{"data.leaf1.S.x", "hf.leap.S", "holdfast.append.x", "$MQTT.msgs.x", "plain.x"}
	// One channel a side keeps the order; the plain subject goes last, shows that interest in the others has crossed, and ends a round.
	down, up := make(chan *nats.Msg, 64), make(chan *nats.Msg, 64)
	for _, subject := range subjects {
		if _, err := nc.ChanSubscribe(subject, down); err != nil {
			t.Fatal(err)
		}
		if _, err := admin.ChanSubscribe(subject, up); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []*nats.Conn{nc, admin} {
		if err := c.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	cross := func(from *nats.Conn, text string, arrived chan *nats.Msg) {
		t.Helper()
		next := func(text string) (got string) {
			poll.Until(t, patience, func() bool {
				select {
				case msg := <-arrived:
					got = msg.Subject
					return string(msg.Data) == text
				default:
					if text == "ready?" {
						_ = from.Publish("plain.x", []byte(text)) // interest may take a moment to cross
					}
					return false
				}
			}, "%q from the other side", text)
			return got
		}
		next("ready?")
		for _, subject := range subjects {
			if err := from.Publish(subject, []byte(text)); err != nil {
				t.Fatal(err)
			}
		}
		for got := next(text); got != "plain.x"; got = next(text) {
			t.Errorf("%s %s crossed the link", got, text)
		}
	}
	cross(admin, "from hub", down)
	if n := messages(t, js, "S"); n != 0 {
		t.Errorf("captured stream holds %d messages written at the hub", n)
	}
	cross(nc, "from leaf", up)

	for _, request := range []string{
		"$JS.leaf1.API.STREAM.DELETE.S", "$JS.leaf1.API.STREAM.PURGE.S", "$JS.leaf1.API.STREAM.CREATE.NEW", "$JS.leaf1.API.STREAM.UPDATE.S",
		"$JS.leaf1.API.CONSUMER.CREATE.S.c", "$JS.leaf1.API.CONSUMER.DELETE.S.c", "$JS.leaf1.API.STREAM.MSG.DELETE.S",
	} {
		if msg, err := admin.Request(request, []byte(`{"name":"NEW"}`), 300*time.Millisecond); err == nil {
			t.Errorf("hub's request %s was answered: %s", request, msg.Data)
		}
	}
	if _, err := admin.Request("$JS.leaf1.API.STREAM.INFO.S", nil, 5*time.Second); err != nil {
		t.Errorf("hub's request for information: %v", err)
	}
}

func TestApplicationsCannotTouchCapture(t *testing.T) {
	leak.Check(t)
	s := startLeaf(t, Options{})
	js, nc := daemon(t, s)
	capture(t, js, "leaf1")
	if _, err := js.Publish(t.Context(), "data.leaf1.S.x", []byte("1")); err != nil {
		t.Fatal(err)
	}
	app, err := s.AppConnect()
	if err != nil {
		t.Fatal(err)
	}
	defer app.Close()
	heard, err := app.SubscribeSync(">")
	if err != nil {
		t.Fatal(err)
	}
	if err := app.Flush(); err != nil {
		t.Fatal(err)
	}
	for _, subject := range []string{"data.leaf1.S.x", "hf.leap.S"} {
		if msg, err := app.Request(subject, []byte("forged"), 300*time.Millisecond); err == nil {
			t.Errorf("application's publish on %s was answered: %s", subject, msg.Data)
		}
	}
	if _, err := js.Publish(t.Context(), "data.leaf1.S.x", []byte("2")); err != nil {
		t.Fatal(err)
	}
	if n := messages(t, js, "S"); n != 2 {
		t.Errorf("captured stream holds %d messages, want the daemon's 2", n)
	}
	appJS, err := jetstream.New(app)
	if err != nil {
		t.Fatal(err)
	}
	for _, prefix := range []string{"$JS.API.", "$JS.leaf1.API.", "$JS.hub.API."} {
		msg, err := app.Request(prefix+"STREAM.INFO.S", nil, 300*time.Millisecond)
		if err == nil && !strings.Contains(string(msg.Data), "not found") {
			t.Errorf("application reads about the captured stream through %s: %s", prefix, msg.Data)
		}
	}
	if err := appJS.DeleteStream(t.Context(), "S"); err == nil {
		t.Error("application deleted the captured stream")
	}
	// A stream of the application's own may have the same name and subjects without touching ours.
	if _, err := appJS.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"data.leaf1.S.>"}}); err != nil {
		t.Errorf("application's own stream: %v", err)
	}
	if _, err := appJS.Publish(t.Context(), "data.leaf1.S.x", []byte("forged")); err != nil {
		t.Errorf("publish into the application's own stream: %v", err)
	}
	if n := messages(t, js, "S"); n != 2 {
		t.Errorf("captured stream holds %d messages after the application's publish, want 2", n)
	}
	for {
		msg, err := heard.NextMsg(50 * time.Millisecond)
		if err != nil {
			break
		}
		if string(msg.Data) == "1" || string(msg.Data) == "2" {
			t.Errorf("application heard captured record %q on %s", msg.Data, msg.Subject)
		}
	}
	if nc.Status() != nats.CONNECTED {
		t.Errorf("daemon's connection is %v", nc.Status())
	}
}

func TestRestartJetStreamKeepsEverything(t *testing.T) {
	leak.Check(t)
	h := startHub(t, hub.Options{})
	s := startLeaf(t, Options{Hub: Hub{URLs: withUser(t, h.LeafURLs()...)}})
	js, _ := daemon(t, s)
	capture(t, js, "leaf1")
	publish := func(want uint64) {
		t.Helper()
		var ack *jetstream.PubAck
		poll.Until(t, patience, func() bool {
			var err error
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			ack, err = js.Publish(ctx, "data.leaf1.S.x", nil)
			return err == nil
		}, "publish")
		if ack.Sequence != want {
			t.Errorf("stored at %d, want %d", ack.Sequence, want)
		}
	}
	publish(1)
	for i := range 3 {
		if err := s.RestartJetStream(); err != nil {
			t.Fatal(err)
		}
		publish(uint64(i + 2))
	}
	app, err := s.AppConnect()
	if err != nil {
		t.Fatal(err)
	}
	defer app.Close()
	appJS, err := jetstream.New(app)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := appJS.CreateStream(t.Context(), jetstream.StreamConfig{Name: "A"}); err != nil {
		t.Errorf("application's stream after the restart: %v", err)
	}
	enable(t, s)
	waitState(t, s, LinkUp, patience)
	if err := s.RestartJetStream(); err != nil {
		t.Fatal(err)
	}
	publish(5)
	if l := s.Link(); l.State != LinkUp {
		t.Errorf("link after the restart is %v", l)
	}
}
