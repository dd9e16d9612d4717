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

func TestReconfigureUsers(t *testing.T) {
	leak.Check(t)
	hash, err := HashPassword("hunter2")
	if err != nil {
		t.Fatal(err)
	}
	ports, err := port.Pick(1)
	if err != nil {
		t.Fatal(err)
	}
	user := func(name string) User { return User{Name: name, Password: hash} }
	o := Options{Config: Config{Name: "leaf1", Data: t.TempDir(), NATS: fmt.Sprintf("127.0.0.1:%d", ports[0])}, Apps: Apps{Users: []User{user("a"), user("b")}}}
	s := startLeaf(t, o)
	js, _ := daemon(t, s)
	capture(t, js, "leaf1")
	a, b := dial(t, "nats://"+s.listen, nats.UserInfo("a", "hunter2")), dial(t, "nats://"+s.listen, nats.UserInfo("b", "hunter2"))
	appJS, err := jetstream.New(a)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := appJS.CreateStream(t.Context(), jetstream.StreamConfig{Name: "MINE"}); err != nil {
		t.Fatal(err)
	}
	o.Apps.Users = []User{user("a"), user("c")}
	o.Apps.Captured = []Captured{{Stream: "S", Live: true}}
	o.Apps.Websocket = "127.0.0.1:1"
	o.Name = "another"
	if got := fmt.Sprint(RestartNeeded(*s.options(), o)); got != "[leaf apps.websocket]" {
		t.Errorf("restart needed for %s, want leaf and apps.websocket", got)
	}
	if err := s.Reconfigure(o); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, patience, b.IsClosed, "b, who may not connect any more, being disconnected")
	dial(t, "nats://"+s.listen, nats.UserInfo("c", "hunter2"))
	if a.IsClosed() {
		t.Fatal("a, about whom nothing changed, was disconnected")
	}
	if _, err := appJS.Publish(t.Context(), "MINE", nil); err != nil {
		t.Errorf("publish of a after the reload: %v", err)
	}
	captured, err := jetstream.NewWithAPIPrefix(a, CapturePrefix)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := captured.Stream(t.Context(), "S"); err != nil {
		t.Errorf("the captured stream that was opened: %v", err)
	}
	if _, err := js.Publish(t.Context(), "data.leaf1.S.x", nil); err != nil {
		t.Errorf("the daemon's publish: %v", err)
	}
	o.Apps.Captured = nil
	if err := s.Reconfigure(o); err != nil {
		t.Fatal(err)
	}
	if m, err := a.Request("$JS.capture.API.STREAM.INFO.S", nil, unanswered); err == nil {
		t.Errorf("the captured stream that was closed again answers: %s", m.Data)
	}
}

func TestReconfigureHub(t *testing.T) {
	leak.Check(t)
	h := startHub(t, hub.Options{})
	o := Options{Config: Config{Name: "leaf1", Data: t.TempDir()}}
	s := startLeaf(t, o)
	enable(t, s)
	if l := s.Link(); l.State != LinkOff {
		t.Fatalf("link %v without a hub, want off", l)
	}
	change := func(h Hub) error {
		o.Hub = h
		return s.Reconfigure(o)
	}
	if err := change(Hub{URLs: withUser(t, h.LeafURLs()...)}); err != nil {
		t.Fatal(err)
	}
	waitState(t, s, LinkUp, patience)
	js, _ := daemon(t, s)
	capture(t, js, "leaf1")
	before := s.connections()[0].ID
	// What cannot be is refused, and the link goes on.
	if err := change(Hub{URLs: withUser(t, h.LeafURLs()...), Credentials: "/not/there"}); err == nil || !strings.Contains(err.Error(), "/not/there") {
		t.Errorf("credentials that are not there: %v, want an error that names them", err)
	}
	o.Apps.MaxConnections = 7 // something else, which leaves the link alone
	o.Apps = o.Apps.limited()
	if err := change(Hub{URLs: withUser(t, h.LeafURLs()...)}); err != nil {
		t.Fatal(err)
	}
	if c := s.connections(); len(c) != 1 || c[0].ID != before {
		t.Errorf("the link was hung up by a change that does not concern it")
	}
	wrong, err := hub.WithUser(h.LeafURLs(), "leaf", "wrong")
	if err != nil {
		t.Fatal(err)
	}
	if err := change(Hub{URLs: wrong}); err != nil {
		t.Fatal(err)
	}
	waitReason(t, s, ReasonCredentials, patience)
	if err := change(Hub{URLs: []string{"nats-leaf://127.0.0.1:1"}}); err != nil {
		t.Fatal(err)
	}
	waitReason(t, s, ReasonTCP, patience)
	if err := change(Hub{URLs: withUser(t, h.LeafURLs()...)}); err != nil {
		t.Fatal(err)
	}
	waitState(t, s, LinkUp, patience)
	if err := change(Hub{}); err != nil {
		t.Fatal(err)
	}
	waitState(t, s, LinkOff, patience)
	poll.Until(t, patience, func() bool { return len(s.connections()) == 0 }, "the end of the connection")
	if _, err := js.Publish(t.Context(), "data.leaf1.S.x", nil); err != nil {
		t.Errorf("the daemon's publish: %v", err)
	}
}

func TestReconfigureWhileADialHangs(t *testing.T) {
	if testing.Short() {
		t.Skip("slow: waits for a dial")
	}
	leak.Check(t)
	o := Options{Config: Config{Name: "leaf1", Data: t.TempDir()}, Hub: Hub{URLs: []string{"nats-leaf://" + backlog(t)}}}
	s := startLeaf(t, o)
	enable(t, s)
	waitState(t, s, LinkConnecting, patience)
	o.Hub.URLs = []string{"nats-leaf://127.0.0.1:1"}
	begun := time.Now()
	if err := s.Reconfigure(o); err != nil {
		t.Errorf("after %v: %v", time.Since(begun), err)
	}
	waitReason(t, s, ReasonTCP, patience)
}
