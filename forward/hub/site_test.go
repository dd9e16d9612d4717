package hub_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	fleet "github.com/holdfast-edge/holdfast/forward/hub"
	"github.com/holdfast-edge/holdfast/leaf"
	"github.com/holdfast-edge/holdfast/rig/hub"
	"github.com/holdfast-edge/holdfast/rig/poll"
	"github.com/holdfast-edge/holdfast/rig/port"
)

var auths = []fleet.Auth{fleet.ByJWT, fleet.ByConfig}

// made is a hub that was written by Create and runs from these files.
type made struct {
	fleet.Fleet
	t       *testing.T
	hub     *hub.Files
	clients []string
}

// makeHub writes a hub of three nodes for some leaves and starts it.
func makeHub(t *testing.T, auth fleet.Auth, leaves ...fleet.Leaf) *made {
	t.Helper()
	m, err := tryHub(t, auth, leaves...)
	for range 2 {
		if err != nil { // somebody took a port between its choice and the server's start
			t.Log(err)
			m, err = tryHub(t, auth, leaves...)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func tryHub(t *testing.T, auth fleet.Auth, leaves ...fleet.Leaf) (*made, error) {
	t.Helper()
	ports, err := port.Pick(12)
	if err != nil {
		return nil, err
	}
	m := &made{t: t, Fleet: fleet.Fleet{Dir: filepath.Join(t.TempDir(), "hub"), Auth: auth}}
	site := fleet.Site{Auth: auth}
	var files []string
	for i := range 3 {
		n := fleet.Node{Host: "127.0.0.1", Client: ports[i], Cluster: ports[3+i], Leaf: ports[6+i], Monitor: ports[9+i]}
		site.Nodes = append(site.Nodes, n)
		m.clients = append(m.clients, fmt.Sprintf("tls://127.0.0.1:%d", n.Client))
		m.URLs = append(m.URLs, fmt.Sprintf("tls://127.0.0.1:%d", n.Leaf))
		files = append(files, filepath.Join(m.Dir, fmt.Sprintf("hub%d", i+1), "nats-server.conf"))
	}
	if err := site.Create(m.Dir); err != nil {
		return nil, err
	}
	if m.hub, err = hub.StartFiles(nil, files...); err != nil {
		return nil, err
	}
	t.Cleanup(m.hub.Close)
	m.Spec = fleet.Spec{Account: m.account(), Leaves: leaves}
	return m, nil
}

// account reads the account from the fleet file, as the command does.
func (m *made) account() string {
	m.t.Helper()
	data, err := os.ReadFile(filepath.Join(m.Dir, fleet.FleetFile))
	if err != nil {
		m.t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "account: "); ok {
			return strings.Fields(rest)[0]
		}
	}
	m.t.Fatal("the fleet file names no account")
	return ""
}

// connect connects as one of the operator's users.
func (m *made) connect(secret string) *nats.Conn {
	m.t.Helper()
	path := fleet.Secret(m.Dir, secret)
	option := nats.UserCredentials(path)
	if m.Auth == fleet.ByConfig {
		var err error
		if option, err = nats.NkeyOptionFromSeed(path); err != nil {
			m.t.Fatal(err)
		}
	}
	nc, err := nats.Connect(strings.Join(m.clients, ","), option, nats.RootCAs(filepath.Join(m.Dir, fleet.AuthorityFile)))
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(nc.Close)
	return nc
}

func (m *made) jetStream() jetstream.JetStream {
	m.t.Helper()
	js, err := jetstream.New(m.connect(fleet.AdminFile))
	if err != nil {
		m.t.Fatal(err)
	}
	return js
}

func (m *made) apply() jetstream.JetStream {
	m.t.Helper()
	p, err := m.Plan()
	if err != nil {
		m.t.Fatal(err)
	}
	js := m.jetStream()
	ctx, cancel := context.WithTimeout(m.t.Context(), patience)
	defer cancel()
	if _, err := fleet.Apply(ctx, js, p); err != nil {
		m.t.Fatal(err)
	}
	return js
}

// enrol enrols a leaf and returns how it reaches the hub, by the one file that it is given.
func (m *made) enrol(name string) leaf.Hub {
	m.t.Helper()
	path, err := m.Enrol(name, time.Now())
	if err != nil {
		m.t.Fatal(err)
	}
	m.tell()
	data, err := os.ReadFile(path)
	if err != nil {
		m.t.Fatal(err)
	}
	e, hasCA, err := fleet.ParseEnrolment(data)
	if err != nil || !hasCA || e.Leaf != name || e.Auth != m.Auth {
		m.t.Fatalf("enrolment = %+v, authority %v, %v", e, hasCA, err)
	}
	h := leaf.Hub{URLs: e.URLs, Domain: e.Domain, TLS: leaf.TLS{CA: path}}
	if m.Auth == fleet.ByJWT {
		h.Credentials = path
	} else {
		h.NKey = path
	}
	return h
}

// tell tells the hub who is enrolled and who is not.
func (m *made) tell() {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), patience)
	defer cancel()
	nc := m.connect(fleet.SystemFile)
	var servers []string
	var err error
	if m.Auth == fleet.ByJWT {
		servers, err = m.Push(ctx, nc)
	} else {
		var r fleet.Register
		if r, err = fleet.LoadRegister(m.Dir); err != nil {
			m.t.Fatal(err)
		}
		var keys []string
		for _, gone := range r.Revoked {
			keys = append(keys, gone.Key)
		}
		servers, err = fleet.Reload(ctx, nc, m.Spec.Account, keys)
	}
	if err != nil || len(servers) != 3 {
		m.t.Fatalf("told %v, %v; want all three servers", servers, err)
	}
}

func eachAuth(t *testing.T, run func(t *testing.T, auth fleet.Auth)) {
	for _, auth := range auths {
		t.Run(string(auth), func(t *testing.T) { run(t, auth) })
	}
}

// TestHubWorksAsWritten: three stock servers run from the files of hub init; a leaf joins by the one file that it was given, gets its commands
// and is forwarded to; when it is revoked it is cut off at once and not let in again, also by servers that
// restart, with new certificates.
func TestHubWorksAsWritten(t *testing.T) {
	t.Parallel()
	eachAuth(t, func(t *testing.T, auth fleet.Auth) {
		t.Parallel()
		m := makeHub(t, auth, fleet.Leaf{Name: "g1", Commands: true, Streams: []fleet.Stream{{Name: "S"}}}, fleet.Leaf{Name: "g2", Streams: []fleet.Stream{{Name: "S"}}})
		js := m.apply()
		s, local := join(t, "g1", t.TempDir(), m.enrol("g1"))
		other, _ := join(t, "g2", t.TempDir(), m.enrol("g2"))
		linked := func(s *leaf.Server) bool { return s.Link().State == leaf.LinkUp }
		poll.Until(t, patience, func() bool { return linked(s) && linked(other) }, "both leaves joined: %v", s.Link())
		if _, err := js.Publish(t.Context(), "cmd.g1.x", nil); err != nil {
			t.Errorf("command = %v", err)
		}
		if _, err := local.CreateStream(t.Context(), jetstream.StreamConfig{Name: fleet.Commands, Sources: []*jetstream.StreamSource{fromHub("g1", fleet.Commands)}}); err != nil {
			t.Fatal(err)
		}
		poll.Until(t, patience, func() bool {
			st, err := local.Stream(t.Context(), fleet.Commands)
			return err == nil && st.CachedInfo().State.Msgs == 1
		}, "the command at the leaf")
		if _, err := m.Revoke("g1", time.Now()); err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		m.tell()
		poll.Until(t, time.Minute, func() bool { return s.Link().State == leaf.LinkRefused }, "a revoked leaf is cut off: %v", s.Link())
		t.Logf("cut off after %v: %v", time.Since(begun).Round(time.Millisecond), s.Link())
		if s.Link().Reason != leaf.ReasonCredentials {
			t.Errorf("link of a revoked leaf = %+v, want the reason credentials", s.Link())
		}
		if !linked(other) {
			t.Errorf("another leaf was cut off, too: %v", other.Link())
		}
		if done, err := fleet.Renew(m.Dir, time.Now()); err != nil || len(done) != 3 {
			t.Errorf("Renew = %v, %v, want three servers", done, err)
		}
		for i := range 3 {
			m.hub.Stop(i)
			if err := m.hub.Start(i); err != nil {
				t.Fatal(err)
			}
		}
		poll.Until(t, time.Minute, func() bool { return linked(other) }, "the other leaf is back")
		if l := s.Link(); l.State == leaf.LinkUp {
			t.Errorf("a restart lets a revoked leaf in: %v", l)
		}
		if m.hub.Leaves() != 1 {
			t.Errorf("%d leaves are connected, want 1", m.hub.Leaves())
		}
	})
}
