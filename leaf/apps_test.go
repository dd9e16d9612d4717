package leaf

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"github.com/holdfast-edge/holdfast/rig/hub"
	"github.com/holdfast-edge/holdfast/rig/leak"
	"github.com/holdfast-edge/holdfast/rig/poll"
	"github.com/holdfast-edge/holdfast/rig/port"
)

// unanswered is how long a test waits for an answer that must not come.
const unanswered = 300 * time.Millisecond

// appsLeaf starts a leaf with ports for applications, and captured stream S, which they may read.
func appsLeaf(t *testing.T, apps Apps) (s *Server, js jetstream.JetStream) {
	t.Helper()
	ports, err := port.Pick(2)
	if err != nil {
		t.Fatal(err)
	}
	apps.Websocket = fmt.Sprintf("127.0.0.1:%d", ports[1])
	apps.Captured = []Captured{{Stream: "S", Live: true, Consumers: []string{"panel"}}}
	s = startLeaf(t, Options{Config: Config{NATS: fmt.Sprintf("127.0.0.1:%d", ports[0])}, Apps: apps, Append: []string{"calc"}})
	js, _ = daemon(t, s)
	capture(t, js, "leaf1")
	if _, err := js.CreateConsumer(t.Context(), "S", jetstream.ConsumerConfig{Durable: "panel", AckPolicy: jetstream.AckExplicitPolicy}); err != nil {
		t.Fatal(err)
	}
	return s, js
}

func dial(t *testing.T, url string, opts ...nats.Option) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(url, append(opts, nats.NoReconnect())...)
	if err != nil {
		t.Fatalf("connect to %s: %v", url, err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func TestUsersAreKeptApart(t *testing.T) {
	leak.Check(t)
	hash, err := HashPassword("hunter2")
	if err != nil {
		t.Fatal(err)
	}
	keys, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	public, err := keys.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	s, _ := appsLeaf(t, Apps{Users: []User{
		{Name: "a", Password: hash, Publish: Subjects{Allow: []string{"a.>"}}, Subscribe: Subjects{Allow: []string{"a.>", "_INBOX_a.>"}}},
		{NKey: public, Subscribe: Subjects{Deny: []string{"secret.>"}}},
	}})
	for _, opts := range [][]nats.Option{nil, {nats.UserInfo("a", "wrong")}, {nats.UserInfo("b", "hunter2")}, {nats.UserInfo("a", hash)}} {
		for _, url := range []string{"nats://" + s.listen, "ws://" + s.websocket} {
			if nc, err := nats.Connect(url, append(opts, nats.NoReconnect())...); err == nil {
				nc.Close()
				t.Errorf("%s takes a connection with %d options that names no user", url, len(opts))
			}
		}
	}
	for _, url := range []string{"nats://" + s.listen, "ws://" + s.websocket} {
		refused := make(chan error, 16)
		a := dial(t, url, nats.UserInfo("a", "hunter2"), nats.CustomInboxPrefix("_INBOX_a"), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err }))
		b := dial(t, url, nats.Nkey(public, keys.Sign), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err }))
		expect := func(what string) {
			t.Helper()
			select {
			case err := <-refused:
				if !errors.Is(err, nats.ErrPermissionViolation) {
					t.Errorf("%s: %v, want a permission violation", what, err)
				}
			case <-time.After(patience):
				t.Errorf("%s was not refused", what)
			}
		}
		heard, err := b.SubscribeSync("b.x")
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Publish("b.x", nil); err != nil {
			t.Fatal(err)
		}
		expect("a's message to b.x")
		for _, subject := range []string{"b.>", "_INBOX.>", ">", "$JS.>"} {
			if _, err := a.SubscribeSync(subject); err != nil {
				t.Fatal(err)
			}
			expect("a's subscription to " + subject)
		}
		if _, err := b.SubscribeSync("secret.x"); err != nil {
			t.Fatal(err)
		}
		expect("b's subscription to secret.x")
		if m, err := heard.NextMsg(50 * time.Millisecond); err == nil {
			t.Errorf("b heard %q", m.Subject)
		}
		if _, err := a.SubscribeSync("a.b"); err != nil {
			t.Error(err)
		}
		if err := b.Publish("a.b", nil); err != nil {
			t.Error(err)
		}
	}
}

func TestPortWithTLS(t *testing.T) {
	leak.Check(t)
	ca := newAuthority(t)
	from, to := valid()
	cert, key := ca.issue(from, to, "localhost")
	s, _ := appsLeaf(t, Apps{TLS: AppTLS{Cert: cert, Key: key}})
	dial(t, "tls://localhost:"+strings.Split(s.listen, ":")[1], nats.RootCAs(ca.file))
	dial(t, "wss://localhost:"+strings.Split(s.websocket, ":")[1], nats.RootCAs(ca.file))
	if nc, err := nats.Connect("nats://"+s.listen, nats.Secure(&tls.Config{MinVersion: tls.VersionTLS12}), nats.NoReconnect()); err == nil {
		nc.Close()
		t.Error("a client that does not know the authority connected")
	}
}

func TestCapturedStreamsCanOnlyBeRead(t *testing.T) {
	leak.Check(t)
	s, js := appsLeaf(t, Apps{})
	if _, err := js.CreatePushConsumer(t.Context(), "S", jetstream.ConsumerConfig{
		Durable: "up_leaf1_S", DeliverSubject: "up.leaf1.S", AckPolicy: jetstream.AckExplicitPolicy, MemoryStorage: true,
	}); err != nil {
		t.Fatal(err)
	}
	nc := dial(t, "nats://"+s.listen)
	live, err := nc.SubscribeSync("data.leaf1.S.>")
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		if _, err := js.Publish(t.Context(), "data.leaf1.S.gps", []byte(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	if m, err := live.NextMsg(patience); err != nil || string(m.Data) != "0" {
		t.Errorf("live data: %v, %v", m, err)
	}
	readCaptured(t, nc)

	// Nothing else goes.
	app, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	for _, prefix := range []string{"$JS.capture.API.", "$JS.API.", "$JS.leaf1.API."} {
		for _, request := range []struct{ subject, body string }{
			{"STREAM.DELETE.S", ""}, {"STREAM.PURGE.S", ""}, {"STREAM.UPDATE.S", `{"name":"S","subjects":["x"]}`}, {"STREAM.MSG.DELETE.S", `{"seq":1}`},
			{"STREAM.SNAPSHOT.S", `{"deliver_subject":"x"}`}, {"STREAM.MSG.GET.S", `{"seq":1}`}, {"CONSUMER.DELETE.S.up_leaf1_S", ""}, {"CONSUMER.DELETE.S.panel", ""},
			{"CONSUMER.CREATE.S.mine", `{"stream_name":"S","config":{"name":"mine","deliver_subject":"up.leaf1.S"}}`},
			{"CONSUMER.RESET.S.up_leaf1_S", `{"seq":1}`}, {"CONSUMER.PAUSE.S.up_leaf1_S", `{"pause_until":"2099-01-01T00:00:00Z"}`},
			{"CONSUMER.INFO.S.up_leaf1_S", ""}, {"CONSUMER.LIST.S", ""},
		} {
			m, err := nc.Request(prefix+request.subject, []byte(request.body), unanswered)
			if err == nil && !strings.Contains(string(m.Data), `"error"`) && !strings.Contains(string(m.Data), `"total":0`) {
				t.Errorf("%s%s was answered: %s", prefix, request.subject, m.Data)
			}
		}
	}
	for _, subject := range []string{"data.leaf1.S.gps", "hf.leap.S", "up.leaf1.S", "$JS.FC.leaf1.9UlZYYrs.S.up_leaf1_S.x", "$SYS.REQ.SERVER.PING", "$SYS.ACCOUNT.CAPTURE.x"} {
		if m, err := nc.Request(subject, []byte("forged"), unanswered); err == nil {
			t.Errorf("%s was answered: %s", subject, m.Data)
		}
	}
	// A stream of its own that sources S gets nothing: there is no API to make the consumer by.
	if _, err := app.CreateStream(t.Context(), jetstream.StreamConfig{Name: "COPY", Sources: []*jetstream.StreamSource{
		{Name: "S", External: &jetstream.ExternalStream{APIPrefix: "$JS.capture.API", DeliverPrefix: "up.leaf1"}},
	}}); err != nil {
		t.Fatal(err)
	}
	if n := messages(t, js, "S"); n != 20 {
		t.Errorf("captured stream holds %d records, want 20", n)
	}
	c, err := js.PushConsumer(t.Context(), "S", "up_leaf1_S")
	if err != nil || c.CachedInfo().Paused {
		t.Errorf("the uplink's consumer: %v, want it untouched", err)
	}
}

// readCaptured does what a local application may do with stream S of 20 records.
func readCaptured(t *testing.T, nc *nats.Conn) {
	t.Helper()
	js, err := jetstream.NewWithAPIPrefix(nc, CapturePrefix)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), "S")
	if err != nil {
		t.Fatal(err)
	}
	if n := stream.CachedInfo().State.Msgs; n != 20 {
		t.Errorf("stream info says %d records, want 20", n)
	}
	if m, err := stream.GetMsg(t.Context(), 3); err != nil || string(m.Data) != "2" {
		t.Errorf("direct get of 3: %v, %v", m, err)
	}
	if m, err := stream.GetLastMsgForSubject(t.Context(), "data.leaf1.S.gps"); err != nil || string(m.Data) != "19" {
		t.Errorf("last for subject: %v, %v", m, err)
	}
	consumer, err := js.Consumer(t.Context(), "S", "panel")
	if err != nil {
		t.Fatal(err)
	}
	batch, err := consumer.Fetch(20, jetstream.FetchMaxWait(patience))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for m := range batch.Messages() {
		if string(m.Data()) != fmt.Sprint(n) {
			t.Errorf("record %d is %q", n, m.Data())
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		if err := m.DoubleAck(ctx); err != nil {
			t.Errorf("double ack of %d: %v", n, err)
		}
		cancel()
		n++
	}
	if info, err := consumer.Info(t.Context()); n != 20 || err != nil || info.AckFloor.Stream != 20 {
		t.Errorf("%d records fetched, consumer %+v, %v, want 20 acknowledged", n, info, err)
	}
}

func TestLimitsOfApplications(t *testing.T) {
	leak.Check(t)
	s, _ := appsLeaf(t, Apps{
		MaxMem: 1 << 20, MaxFile: 2 << 20, MaxStreams: 3, MaxConsumers: 2, MaxConnections: 3, MaxSubscriptions: 4, MaxPayload: 64 << 10, DuplicateWindow: time.Minute,
	})
	nc := dial(t, "nats://"+s.listen)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	fill := func(name string, storage jetstream.StorageType) (n int) {
		if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Storage: storage}); err != nil {
			t.Fatal(err)
		}
		for ; n < 100; n++ {
			if _, err := js.Publish(t.Context(), name, make([]byte, 60<<10)); err != nil {
				return n
			}
		}
		return n
	}
	if n := fill("FILE", jetstream.FileStorage); n > 40 {
		t.Errorf("%d messages of 60 KiB went into 2 MiB of disk", n)
	}
	if n := fill("MEMORY", jetstream.MemoryStorage); n > 20 {
		t.Errorf("%d messages of 60 KiB went into 1 MiB of memory", n)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "THIRD", Duplicates: time.Hour}); err == nil {
		t.Error("a duplicate window of an hour was allowed, want a minute at most")
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "THIRD"}); err != nil {
		t.Error(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "FOURTH"}); err == nil {
		t.Error("a fourth stream was allowed, want 3")
	}
	for i := range 3 {
		if _, err := js.CreateConsumer(t.Context(), "THIRD", jetstream.ConsumerConfig{Durable: fmt.Sprint("c", i)}); (err == nil) != (i < 2) {
			t.Errorf("consumer %d: %v, want 2 at most", i, err)
		}
	}
	if err := nc.Publish("x", make([]byte, 65<<10)); err == nil {
		_ = nc.Flush() // the server hangs up
		poll.Until(t, patience, nc.IsClosed, "hanging up on a message above max_payload")
	}
	var open []*nats.Conn
	for range 10 {
		c, err := nats.Connect("nats://"+s.listen, nats.NoReconnect())
		if err == nil {
			defer c.Close()
			open = append(open, c)
		}
	}
	if len(open) > 3+spareAppConns || len(open) == 0 {
		t.Fatalf("%d connections at once, want %d at most", len(open), 3+spareAppConns)
	}
	refused := make(chan struct{}, 1)
	open[0].SetErrorHandler(func(*nats.Conn, *nats.Subscription, error) {
		select {
		case refused <- struct{}{}:
		default:
		}
	})
	for i := range 6 {
		if _, err := open[0].SubscribeSync(fmt.Sprint("s.", i)); err != nil {
			break
		}
	}
	select {
	case <-refused:
	case <-time.After(patience):
		t.Error("6 subscriptions were allowed, want 4")
	}
}

func TestApplicationsHaveALinkOfTheirOwn(t *testing.T) {
	leak.Check(t)
	h := startHub(t, hub.Options{Accounts: `accounts {
  EDGE { jetstream: enabled, users: [ { user: leaf, password: leaf } ] }
  APPS { jetstream: enabled, users: [ { user: apps, password: apps }, { user: panel, password: panel } ] }
}`})
	urls, err := hub.WithUser(h.LeafURLs(), "apps", "apps")
	if err != nil {
		t.Fatal(err)
	}
	s := startLeaf(t, Options{Hub: Hub{URLs: withUser(t, h.LeafURLs()...)}, Apps: Apps{Hub: Hub{URLs: urls}}})
	enable(t, s)
	waitState(t, s, LinkUp, patience)
	up := func() bool { _, up := s.AppLink(); return up }
	poll.Until(t, patience, up, "the applications' link")
	app, err := s.AppConnect()
	if err != nil {
		t.Fatal(err)
	}
	defer app.Close()
	if _, err := app.Subscribe("ask.>", func(m *nats.Msg) { _ = m.Respond([]byte("from the leaf")) }); err != nil {
		t.Fatal(err)
	}
	panel := dial(t, h.ClientURL(0), nats.UserInfo("panel", "panel"))
	poll.Until(t, patience, func() bool {
		m, err := panel.Request("ask.x", nil, time.Second)
		return err == nil && string(m.Data) == "from the leaf"
	}, "an answer from the leaf's application at the hub")
	if err := s.Redial(); err != nil {
		t.Fatal(err)
	}
	if !up() {
		t.Error("a redial of the uplink hung up the applications' link")
	}
	waitState(t, s, LinkUp, patience)
	if err := s.Enable(false); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, patience, func() bool { return !up() }, "the end of the applications' link")
}

func TestApplicationsDoNotRestore(t *testing.T) {
	leak.Check(t)
	hash, err := HashPassword("hunter2")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		apps Apps
		opts []nats.Option
	}{
		{"without users", Apps{}, nil},
		{"user without lists", Apps{Users: []User{{Name: "panel", Password: hash}}}, []nats.Option{nats.UserInfo("panel", "hunter2")}},
		{
			"user with lists", Apps{Users: []User{{Name: "panel", Password: hash, Publish: Subjects{Allow: []string{"$JS.>"}}}}},
			[]nats.Option{nats.UserInfo("panel", "hunter2")},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, _ := appsLeaf(t, tt.apps)
			quiet := nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})
			nc := dial(t, "nats://"+s.listen, append(tt.opts, quiet)...)
			if _, err := nc.Request("$JS.API.INFO", nil, patience); err != nil {
				t.Fatal(err)
			}
			for _, api := range []string{"$JS.API.", "$JS.leaf1.API."} {
				body := `{"config":{"name":"R","subjects":["r"],"storage":"file","max_bytes":-1},"state":{}}`
				if m, err := nc.Request(api+"STREAM.RESTORE.R", []byte(body), unanswered); err == nil {
					t.Errorf("%sSTREAM.RESTORE is answered with %s", api, m.Data)
				}
			}
		})
	}
}
