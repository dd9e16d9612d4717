package leaf

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/rig/hub"
	"github.com/holdfast-edge/holdfast/rig/leak"
	"github.com/holdfast-edge/holdfast/rig/poll"
	"github.com/holdfast-edge/holdfast/rig/port"
)

// refusal is a hub section that cannot work, and what the link has to say about it.
type refusal struct {
	name   string
	hub    Hub
	state  LinkState
	reason Reason
	cause  string // part of it
	slow   bool   // takes the first-info time-out
}

func (r refusal) run(t *testing.T) {
	t.Helper()
	if r.slow && testing.Short() {
		t.Skip("slow: takes the first-info time-out")
	}
	s := startLeaf(t, Options{Hub: r.hub})
	enable(t, s)
	var l Link
	poll.Until(t, 3*patience, func() bool {
		l = s.Link()
		return l.State == r.state && l.Reason == r.reason && strings.Contains(l.Cause, r.cause)
	}, "link %v for reason %q with a cause that says %q, it is %v", r.state, r.reason, r.cause, describe{s})
	if l.State == LinkRefused && l.Remedy == "" {
		t.Errorf("link refused with cause %q and no remedy", l.Cause)
	}
	t.Logf("%s, cause: %s; remedy: %s", l.State, l.Cause, l.Remedy)
}

func TestCauseOfNoConnection(t *testing.T) {
	leak.Check(t)
	ports, err := port.Pick(1)
	if err != nil {
		t.Fatal(err)
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts by its backlog and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	web := httptest.NewServer(http.NotFoundHandler())
	defer web.Close()
	impatient := httptest.NewUnstartedServer(http.NotFoundHandler())
	impatient.Config.ReadHeaderTimeout = 300 * time.Millisecond
	impatient.Start()
	defer impatient.Close()
	t.Run("all", func(t *testing.T) { // and wait for them
		causesOfNoConnection(t, []refusal{
			{name: "web server", hub: Hub{URLs: []string{"nats-leaf://" + web.Listener.Addr().String()}}, state: LinkRefused, reason: ReasonNoHub, cause: "HTTP", slow: true},
			{name: "web server that hangs up", hub: Hub{URLs: []string{"nats-leaf://" + impatient.Listener.Addr().String()}}, state: LinkRefused, reason: ReasonNoHub, cause: "HTTP"},
			{name: "web server, websocket", hub: Hub{URLs: []string{"ws://" + web.Listener.Addr().String()}}, state: LinkRefused, reason: ReasonNoHub, cause: "HTTP"},
			{name: "web server, TLS", hub: Hub{URLs: []string{"tls://" + web.Listener.Addr().String()}}, state: LinkRefused, reason: ReasonNoHub, cause: "HTTP", slow: true},
			{name: "no such host", hub: Hub{URLs: []string{"nats-leaf://hub.invalid:7422"}}, state: LinkDown, reason: ReasonDNS, cause: "hub.invalid"},
			{name: "port closed", hub: Hub{URLs: []string{fmt.Sprintf("nats-leaf://127.0.0.1:%d", ports[0])}}, state: LinkDown, reason: ReasonTCP, cause: "refuses connections"},
			{name: "silent listener", hub: Hub{URLs: []string{"nats-leaf://" + silent.Addr().String()}}, state: LinkDown, reason: ReasonSilent, cause: "said nothing", slow: true},
			{name: "credentials file missing", hub: Hub{URLs: []string{"nats-leaf://127.0.0.1:1"}, Credentials: "/nonexistent/x.creds"}, state: LinkRefused, reason: ReasonLocal, cause: "/nonexistent/x.creds"},
		})
	})
}

func causesOfNoConnection(t *testing.T, all []refusal) {
	for _, tc := range all {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if tc.reason == ReasonLocal {
				s := startLeaf(t, Options{Hub: tc.hub})
				if err := s.Enable(true); err == nil || !strings.Contains(err.Error(), tc.cause) {
					t.Errorf("Enable with a missing file = %v, want an error that names it", err)
				}
				waitReason(t, s, tc.reason, patience)
				return
			}
			tc.run(t)
		})
	}
}

func TestCauseOfRefusal(t *testing.T) {
	leak.Check(t)
	h := startHub(t, hub.Options{})
	ca, other := newAuthority(t), newAuthority(t)
	from, to := valid()
	secure := func(from, to time.Time, extra string, names ...string) *hub.Cluster {
		cert, key := ca.issue(from, to, names...)
		return startHub(t, hub.Options{LeafNodes: fmt.Sprintf("tls { cert_file: %q, key_file: %q, ca_file: %q, %s }", cert, key, ca.file, extra)})
	}
	good := secure(from, to, "", "127.0.0.1")
	named := secure(from, to, "", "hub.example.com")
	early := secure(time.Now().Add(time.Hour), time.Now().Add(2*time.Hour), "", "127.0.0.1")
	late := secure(time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour), "", "127.0.0.1")
	mutual := secure(from, to, "verify: true", "127.0.0.1")
	trust := TLS{CA: ca.file}
	client := []string{strings.Replace(h.ClientURL(0), "nats://", "nats-leaf://leaf:leaf@", 1)}
	for _, tc := range []refusal{
		{name: "no user", hub: Hub{URLs: h.LeafURLs()}, state: LinkRefused, reason: ReasonCredentials, cause: "does not accept our user"},
		{name: "wrong password", hub: Hub{URLs: []string{"nats-leaf://leaf:wrong@" + h.LeafAddr(0)}}, state: LinkRefused, reason: ReasonCredentials, cause: "does not accept our user"},
		{name: "client port", hub: Hub{URLs: client}, state: LinkRefused, reason: ReasonNoHub, cause: "not a leaf port"},
		{name: "wrong authority", hub: Hub{URLs: withUser(t, good.LeafURLs()...), TLS: TLS{CA: other.file}}, state: LinkRefused, reason: ReasonTLS, cause: "authority we do not trust"},
		{name: "system authorities", hub: Hub{URLs: withUser(t, good.LeafURLs()...)}, state: LinkRefused, reason: ReasonTLS, cause: "authority we do not trust"},
		{name: "wrong name", hub: Hub{URLs: withUser(t, named.LeafURLs()...), TLS: trust}, state: LinkRefused, reason: ReasonTLS, cause: "name"},
		{name: "not yet valid", hub: Hub{URLs: withUser(t, early.LeafURLs()...), TLS: trust}, state: LinkRefused, reason: ReasonClock, cause: "not valid yet"},
		{name: "expired", hub: Hub{URLs: withUser(t, late.LeafURLs()...), TLS: trust}, state: LinkRefused, reason: ReasonTLS, cause: "has expired"},
		{name: "no client certificate", hub: Hub{URLs: withUser(t, mutual.LeafURLs()...), TLS: trust}, state: LinkRefused, reason: ReasonTLS, cause: "does not accept our certificate"},
		{name: "hub without TLS", hub: Hub{URLs: withUser(t, h.LeafURLs()...), TLS: trust}, state: LinkRefused, reason: ReasonTLS, cause: "does not speak TLS"},
		{name: "tls address, hub without TLS", hub: Hub{URLs: []string{"tls://leaf:leaf@" + h.LeafAddr(0)}}, state: LinkRefused, reason: ReasonTLS, cause: "does not speak TLS"},
	} {
		t.Run(tc.name, tc.run)
	}
}
