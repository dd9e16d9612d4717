package leaf

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/rig/leak"
	"github.com/holdfast-edge/holdfast/rig/poll"
)

// TestAppsAreHeld: local applications that are held store nothing more, and read and remove what there is, until they are let again.
func TestAppsAreHeld(t *testing.T) {
	leak.Check(t)
	s, _ := appsLeaf(t, Apps{})
	js, err := jetstream.New(dial(t, "nats://"+s.listen))
	if err != nil {
		t.Fatal(err)
	}
	st, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "X", Subjects: []string{"x.>"}, MaxMsgs: 20, Discard: jetstream.DiscardNew})
	if err != nil {
		t.Fatal(err)
	}
	publish := func(n int) error {
		_, err := js.Publish(t.Context(), fmt.Sprint("x.", n), nil)
		return err
	}
	for i := range 10 {
		if err := publish(i); err != nil {
			t.Fatal(err)
		}
	}
	all := s.AppStreams(true)
	if len(all) != 1 || all[0].Name != "X" || all[0].Last != 10 || all[0].Subjects != 10 || all[0].Full != "" {
		t.Errorf("AppStreams = %+v", all)
	}
	if err := s.HoldApps(true); err != nil {
		t.Fatal(err)
	}
	if err := publish(1); err == nil || !strings.Contains(err.Error(), "resource limits exceeded") {
		t.Errorf("a message while they are held: %v", err)
	}
	if m, err := st.GetMsg(t.Context(), 3); err != nil || m.Subject != "x.2" {
		t.Errorf("reading while they are held: %v, %v", m, err)
	}
	if err := st.Purge(t.Context(), jetstream.WithPurgeSubject("x.5")); err != nil {
		t.Errorf("purging while they are held: %v", err)
	}
	if err := s.HoldApps(false); err != nil {
		t.Fatal(err)
	}
	for i := range 11 {
		if err := publish(i); err != nil {
			t.Errorf("a message after they were let again: %v", err)
		}
	}
	if all := s.AppStreams(false); all[0].Full == "" {
		t.Errorf("AppStreams says of a stream with 20 of 20 messages: %+v", all[0])
	}
	if _, err := js.Stream(t.Context(), "NONE"); err == nil {
		t.Fatal("a stream that is not there was found")
	}
	if u := s.AppUsage(); u.Streams != 1 || u.Bytes == 0 || u.APIErrors == 0 || u.Connections == 0 {
		t.Errorf("AppUsage = %+v", u)
	}
}

// TestUsersAreLimited: of a user with more connections or subscriptions than it may have the newest are closed; others are left alone.
func TestUsersAreLimited(t *testing.T) {
	leak.Check(t)
	hash, err := HashPassword("pw")
	if err != nil {
		t.Fatal(err)
	}
	s, _ := appsLeaf(t, Apps{Users: []User{{Name: "greedy", Password: hash, MaxConnections: 2, MaxSubscriptions: 5}, {Name: "other", Password: hash}}})
	connect := func(user string, subscriptions int) *nats.Conn {
		nc := dial(t, "nats://"+s.listen, nats.UserInfo(user, "pw"))
		for i := range subscriptions {
			if _, err := nc.Subscribe(fmt.Sprint("s.", i), func(*nats.Msg) {}); err != nil {
				t.Fatal(err)
			}
		}
		if err := nc.Flush(); err != nil {
			t.Fatal(err)
		}
		return nc
	}
	first, second := connect("greedy", 1), connect("greedy", 1)
	others := []*nats.Conn{connect("other", 10), connect("other", 10), connect("other", 10)}
	if limited := s.LimitUsers(); len(limited) > 0 {
		t.Errorf("within their limits %v were limited", limited)
	}
	third := connect("greedy", 0)
	if limited := s.LimitUsers(); !slices.Equal(limited, []string{"greedy"}) {
		t.Errorf("limited are %v, want greedy", limited)
	}
	poll.Until(t, patience, third.IsClosed, "the third connection to be closed")
	for i := range 6 {
		if _, err := second.Subscribe(fmt.Sprint("t.", i), func(*nats.Msg) {}); err != nil {
			t.Fatal(err)
		}
	}
	if err := second.Flush(); err != nil {
		t.Fatal(err)
	}
	s.LimitUsers()
	poll.Until(t, patience, second.IsClosed, "the connection with too many subscriptions to be closed")
	for _, nc := range append(others, first) {
		if err := nc.Flush(); err != nil {
			t.Errorf("another connection: %v", err)
		}
	}
}

// TestMappings: what is published by one name is stored by another, while a mapping says so.
func TestMappings(t *testing.T) {
	leak.Check(t)
	apps := Apps{Mappings: []Mapping{{From: "door.*", To: "event.{{wildcard(1)}}.{{partition(1,1)}}"}}}
	apps.Validate(func(key, problem, _ string) {
		if strings.HasPrefix(key, "mappings") {
			t.Errorf("%s %s", key, problem)
		}
	})
	wrong := 0
	Apps{Mappings: []Mapping{{From: "a.*", To: "b.{{wildcard(2)}}"}, {From: "", To: "x"}, {From: "a.>.b", To: "x"}}}.Validate(func(key, _, _ string) {
		if strings.HasPrefix(key, "mappings") {
			wrong++
		}
	})
	if wrong != 3 {
		t.Errorf("%d of 3 faulty mappings were found", wrong)
	}
	s, _ := appsLeaf(t, apps)
	js, err := jetstream.New(dial(t, "nats://"+s.listen))
	if err != nil {
		t.Fatal(err)
	}
	st, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "X", Subjects: []string{"event.>", "door.>"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"event.front.0", "door.front"} {
		ack, err := js.Publish(t.Context(), "door.front", nil)
		if err != nil {
			t.Fatal(err)
		}
		if m, err := st.GetMsg(t.Context(), ack.Sequence); err != nil || m.Subject != want {
			t.Errorf("stored as %+v, %v, want %s", m, err, want)
		}
		next := *s.options()
		next.Apps.Mappings = nil
		if err := s.Reconfigure(next); err != nil {
			t.Fatal(err)
		}
	}
}
