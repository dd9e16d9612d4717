package forward

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	fleet "github.com/holdfast-edge/holdfast/forward/hub"
	"github.com/holdfast-edge/holdfast/leaf"
	"github.com/holdfast-edge/holdfast/rig/leak"
	"github.com/holdfast-edge/holdfast/rig/poll"
	"github.com/holdfast-edge/holdfast/rig/port"
)

// TestLeafCanDoNoMore: with the planned permissions everything arrives, and whoever holds a leaf's credentials can neither read nor
// change anything else at the hub, nor can the hub do more to the leaf than attach and acknowledge.
func TestLeafCanDoNoMore(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("waits for what must not come")
	}
	s := newSite(t, "g1", "g2")
	g := s.start("g1", t.TempDir())
	other := s.start("g2", t.TempDir())
	g.append(20, "S", "M")
	other.append(20, "S", "M")
	s.await(patient, "FIELD", "g1_M", "g2_M")

	for _, subject := range []string{
		"$JS.hub.API.STREAM.NAMES", "$JS.hub.API.STREAM.LIST", "$JS.hub.API.STREAM.INFO.FIELD", "$JS.hub.API.STREAM.DELETE.FIELD",
		"$JS.hub.API.STREAM.PURGE.FIELD", "$JS.hub.API.STREAM.UPDATE.FIELD", "$JS.hub.API.STREAM.CREATE.EVIL", "$JS.hub.API.STREAM.MSG.GET.FIELD",
		"$JS.hub.API.STREAM.MSG.DELETE.FIELD", "$JS.hub.API.STREAM.SNAPSHOT.FIELD", "$JS.hub.API.STREAM.LEADER.STEPDOWN.FIELD",
		"$JS.hub.API.CONSUMER.CREATE.FIELD", "$JS.hub.API.CONSUMER.CREATE.FIELD.evil.data.>", "$JS.hub.API.CONSUMER.LIST.FIELD",
		"$JS.hub.API.DIRECT.GET.FIELD", "$JS.hub.API.DIRECT.GET.FIELD.data.g2.S.>", "$JS.hub.API.DIRECT.GET.FIELD.>", "$JS.hub.API.DIRECT.GET.g2_M.data.g2.M.>",
		"$JS.hub.API.META.LEADER.STEPDOWN", "$JS.g2.API.STREAM.INFO.S", "$JS.g2.API.CONSUMER.RESET.S.up_g2_S", "$JS.g2.API.STREAM.PURGE.S",
		"$SYS.REQ.SERVER.PING", "$SYS.REQ.ACCOUNT.EDGE.INFO",
	} {
		body := ""
		if subject == "$JS.hub.API.DIRECT.GET.FIELD" {
			body = `{"seq":1}`
		}
		ctx, cancel := context.WithTimeout(context.Background(), 80*time.Millisecond)
		if m, err := g.nc.RequestWithContext(ctx, subject, []byte(body)); err == nil && len(m.Data) > 0 {
			t.Errorf("a leaf asked the hub for %s and got %.100q", subject, m.Data)
		}
		cancel()
	}
	sub, err := g.nc.SubscribeSync(">")
	if err != nil {
		t.Fatal(err)
	}
	admin, err := s.hub.Admin()
	if err != nil {
		t.Fatal(err)
	}
	heard, err := admin.SubscribeSync(">")
	if err != nil {
		t.Fatal(err)
	}
	sentinel := "_INBOX_g1.sentinel"
	poll.Until(t, patient, func() bool { // subscriptions travel
		s.check(admin.Publish(sentinel, nil))
		return saw(sub, sentinel)
	}, "the leaf hears what it may")
	for _, subject := range []string{"up.g2.S", "data.g2.S.s", "anything", "$JS.FC.g2.x.S.c.y", "$JSC.R.g2.x.S.c.y"} {
		s.check(g.nc.Publish(subject, []byte("evil")))
	}
	for _, subject := range []string{"data.g2.M.m", "up.g2.M", "another", "hf.probe", "hf.leap.S", "data.g1.S.s", "$JS.API.STREAM.PURGE.S"} {
		s.check(admin.Publish(subject, []byte("evil")))
	}
	s.check(g.nc.Publish("up.g1.S", []byte("last")))
	poll.Until(t, patient, func() bool {
		s.check(admin.Publish(sentinel, nil))
		return saw(sub, sentinel)
	}, "the leaf hears what it may")
	for m := range drain(sub) {
		if string(m.Data) == "evil" && !own(m.Subject) {
			t.Errorf("the leaf heard %s of the hub", m.Subject)
		}
	}
	for m := range drain(heard) {
		if string(m.Data) == "evil" && !hubOwn(m.Subject) {
			t.Errorf("the hub heard %s of the leaf", m.Subject)
		}
	}
	for _, subject := range []string{
		"$JS.g1.API.STREAM.INFO.S", "$JS.g1.API.STREAM.DELETE.S", "$JS.g1.API.STREAM.PURGE.S", "$JS.g1.API.STREAM.MSG.GET.S", "$JS.g1.API.DIRECT.GET.S",
		"$JS.g1.API.CONSUMER.CREATE.S", "$JS.g1.API.CONSUMER.LIST.S", "$JS.g1.API.INFO", "holdfast.append.s",
	} {
		ctx, cancel := context.WithTimeout(context.Background(), 80*time.Millisecond)
		if m, err := admin.RequestWithContext(ctx, subject, nil); err == nil {
			t.Errorf("the hub asked the leaf for %s and got %.100q", subject, m.Data)
		}
		cancel()
	}
	g.append(5, "S", "M")
	s.await(patient, "FIELD", "g1_M", "g2_M")
}

// own are subjects that the test itself publishes on the leaf, and hubOwn at the hub: a subscription there hears them in any case.
func own(subject string) bool {
	return subject == "up.g2.S" || subject == "data.g2.S.s" || subject == "anything" || strings.HasPrefix(subject, "$JS.FC.g2.") || strings.HasPrefix(subject, "$JSC.R.g2.")
}

func hubOwn(subject string) bool {
	switch subject {
	case "data.g2.M.m", "up.g2.M", "another", "hf.probe", "hf.leap.S", "data.g1.S.s", "$JS.API.STREAM.PURGE.S":
		return true
	}
	return false
}

func saw(sub *nats.Subscription, subject string) bool {
	for {
		m, err := sub.NextMsg(50 * time.Millisecond)
		if err != nil {
			return false
		}
		if m.Subject == subject {
			return true
		}
	}
}

func drain(sub *nats.Subscription) func(yield func(*nats.Msg) bool) {
	return func(yield func(*nats.Msg) bool) {
		for {
			m, err := sub.NextMsg(100 * time.Millisecond)
			if err != nil || !yield(m) {
				return
			}
		}
	}
}

// TestCredentialsOfAnotherLeaf: the hub lets a gateway in that has the user of another leaf, and nothing of ours through. The state says what is wrong, and
// all is well with rights of its own.
func TestCredentialsOfAnotherLeaf(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("waits for longer than a link may be silent")
	}
	s := newSiteWith(t, func(config string) string {
		return strings.NewReplacer(`user: "g1"`, `user: "g2"`, `user: "g2"`, `user: "g1"`).Replace(config)
	}, "g1", "g2")
	g := s.start("g1", t.TempDir())
	g.linked()
	g.append(1, "S")
	p := g.reach("S", Refused, 2*patient)
	if !strings.Contains(p.Cause, "permission denied") || !strings.Contains(p.Cause, "another leaf") || !strings.Contains(p.Remedy, "enrol g1") {
		t.Errorf("progress = %+v, want cause and remedy", p)
	}
	if l := g.leaf.Link(); l.State != leaf.LinkUp {
		t.Errorf("link is %v, want it up", l)
	}
}

// TestOldHubIsRefused: a hub below the API level of nats-server 2.15 is sent nothing, and the state says what it is.
func TestOldHubIsRefused(t *testing.T) {
	leak.Check(t)
	plan, err := fleet.New(fleet.Spec{Leaves: []fleet.Leaf{{Name: "g1", Password: password, Streams: []fleet.Stream{{Name: "S"}}}}})
	if err != nil {
		t.Fatal(err)
	}
	ports, err := port.Pick(2)
	if err != nil {
		t.Fatal(err)
	}
	o := &server.Options{NoSigs: true, NoLog: true, Host: "127.0.0.1", Port: ports[0]}
	text := strings.Replace(plan.Config(), "jetstream: enabled", "", 1)
	if err := o.ProcessConfigString(fmt.Sprintf("%s\nleafnodes { listen: \"127.0.0.1:%d\" }\nport: %d\n", strings.Replace(text, "users: [", "users: [ {user: adm, password: adm}", 1), ports[1], ports[0])); err != nil {
		t.Fatal(err)
	}
	o.NoSigs, o.NoLog = true, true
	srv, err := server.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	srv.Start()
	t.Cleanup(func() { srv.Shutdown(); srv.WaitForShutdown() })
	if !srv.ReadyForConnections(patient) {
		t.Fatal("the old hub does not start")
	}
	nc, err := nats.Connect(fmt.Sprintf("nats://adm:adm@127.0.0.1:%d", ports[0]))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	if _, err := nc.Subscribe("$JS.hub.API.INFO", func(m *nats.Msg) { _ = m.Respond([]byte(`{"api":{"level":4}}`)) }); err != nil {
		t.Fatal(err)
	}
	s := &site{t: t, want: map[string][]string{}}
	g := s.start("g1", filepath.Join(t.TempDir(), "data"), fmt.Sprintf("127.0.0.1:%d", ports[1]))
	g.linked()
	p := g.reach("S", Refused, patient)
	if !strings.Contains(p.Cause, "level 4") || !strings.Contains(p.Cause, fleet.MinVersion) || p.Remedy == "" {
		t.Errorf("progress = %+v, want the level found, the version needed and a remedy", p)
	}
	if g.leaf.Link().State != leaf.LinkUp {
		t.Errorf("link is %v, want it up", g.leaf.Link())
	}
}
