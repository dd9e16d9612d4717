package leaf

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"github.com/holdfast-edge/holdfast/rig/hub"
	"github.com/holdfast-edge/holdfast/rig/leak"
	"github.com/holdfast-edge/holdfast/rig/poll"
	"github.com/holdfast-edge/holdfast/rig/wire"
)

func startWire(t *testing.T, target string) *wire.Wire {
	t.Helper()
	w, err := wire.New(target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	return w
}

func TestLinkFollowsEnable(t *testing.T) {
	leak.Check(t)
	h := startHub(t, hub.Options{})
	w := startWire(t, h.LeafAddr(0))
	s := startLeaf(t, Options{Hub: Hub{URLs: withUser(t, "nats-leaf://"+w.Addr())}})
	if l := s.Link(); l.State != LinkOff || w.Stats().Accepted != 0 {
		t.Fatalf("link after Start is %v with %d connections, want off with none", l, w.Stats().Accepted)
	}
	enable(t, s)
	l := waitState(t, s, LinkUp, patience)
	if l.Hub != "hub1" || l.Remote != w.Addr() || l.Reason != "" || l.Cause != "" {
		t.Errorf("link = %+v, want hub1 at %s and nothing wrong", l, w.Addr())
	}
	poll.Until(t, patience, func() bool { return s.Link().RTT > 0 }, "a round trip")
	if err := s.Enable(false); err != nil {
		t.Fatal(err)
	}
	waitState(t, s, LinkOff, patience)
	poll.Until(t, patience, func() bool { return w.Stats().Conns == 0 }, "the connection ends")
	accepted := w.Stats().Accepted
	enable(t, s)
	waitState(t, s, LinkUp, patience)
	begun := time.Now()
	if err := s.Redial(); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, patience, func() bool { return w.Stats().Accepted == accepted+2 && s.Link().State == LinkUp }, "the link comes back after Redial")
	t.Logf("redial took %v", time.Since(begun))
}

func TestEnableWithoutHub(t *testing.T) {
	leak.Check(t)
	s := startLeaf(t, Options{})
	enable(t, s)
	if err := s.Redial(); err != nil {
		t.Fatal(err)
	}
	if l := s.Link(); l.State != LinkOff || l.Cause == "" {
		t.Errorf("link = %v, want off with a cause", l)
	}
}

func TestCutIsNoticedAtOnceAndHealed(t *testing.T) {
	leak.Check(t)
	h := startHub(t, hub.Options{})
	w := startWire(t, h.LeafAddr(0))
	s := startLeaf(t, Options{Hub: Hub{URLs: withUser(t, "nats-leaf://"+w.Addr())}})
	enable(t, s)
	waitState(t, s, LinkUp, patience)
	drain(s)
	begun := time.Now()
	w.Cut()
	select {
	case <-s.Changed():
	case <-time.After(patience):
		t.Fatal("no change after the cut")
	}
	if took := time.Since(begun); took > time.Second {
		t.Errorf("cut noticed after %v, want at once", took)
	}
	if l := s.Link(); l.State != LinkDown || l.Cause == "" {
		t.Errorf("link after the cut is %v, want down with a cause", l)
	}
	waitReason(t, s, ReasonTCP, patience)
	if err := w.Restore(); err != nil {
		t.Fatal(err)
	}
	begun = time.Now()
	l := waitState(t, s, LinkUp, patience)
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("link up %v after the wire was restored", took)
	}
	if l.Reason != "" {
		t.Errorf("link up with reason %q", l.Reason)
	}
}

func drain(s *Server) {
	select {
	case <-s.Changed():
	default:
	}
}

func TestSilenceIsNoticed(t *testing.T) {
	if testing.Short() {
		t.Skip("slow: waits for three pings")
	}
	leak.Check(t)
	h := startHub(t, hub.Options{})
	w := startWire(t, h.LeafAddr(0))
	s := startLeaf(t, Options{Hub: Hub{URLs: withUser(t, "nats-leaf://"+w.Addr())}})
	enable(t, s)
	waitState(t, s, LinkUp, patience)
	begun := time.Now()
	w.Swallow(true)
	poll.Until(t, 36*time.Second, func() bool { return s.Link().State != LinkUp }, "silence noticed")
	l := s.Link()
	t.Logf("silence noticed after %v: %v", time.Since(begun), l)
	if l.Reason != ReasonSilent {
		t.Errorf("link is %+v, want reason %q", l, ReasonSilent)
	}
	w.Swallow(false)
	waitState(t, s, LinkUp, patience)
}

// TestRedialLosesNothingLocal shows that the reloads behind Enable do not disturb those who store meanwhile.
func TestRedialLosesNothingLocal(t *testing.T) {
	leak.Check(t)
	h := startHub(t, hub.Options{})
	s := startLeaf(t, Options{Hub: Hub{URLs: withUser(t, h.LeafURLs()...)}})
	js, nc := daemon(t, s)
	capture(t, js, "leaf1")
	disconnected := make(chan struct{}, 1)
	nc.SetDisconnectErrHandler(func(*nats.Conn, error) { signal(disconnected) })
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var stored, failed int
	wg.Add(1)
	go func() {
		defer wg.Done()
		for ctx.Err() == nil {
			if _, err := js.Publish(context.Background(), "data.leaf1.S.x", []byte("x"), jetstream.WithRetryAttempts(0)); err != nil {
				failed++
				continue
			}
			stored++
		}
	}()
	enable(t, s)
	for range 5 {
		waitState(t, s, LinkUp, patience)
		if err := s.Redial(); err != nil {
			t.Error(err)
		}
	}
	cancel()
	wg.Wait()
	if failed > 0 || stored == 0 {
		t.Errorf("%d publishes failed and %d were stored, want none failed", failed, stored)
	}
	if n := messages(t, js, "S"); n != uint64(stored) {
		t.Errorf("stream holds %d messages, want %d", n, stored)
	}
	select {
	case <-disconnected:
		t.Error("the daemon's connection was interrupted")
	default:
	}
	nc.SetDisconnectErrHandler(nil)
	t.Logf("%d stored meanwhile", stored)
}

func TestTLSWithKey(t *testing.T) {
	leak.Check(t)
	ca := newAuthority(t)
	from, to := valid()
	cert, key := ca.issue(from, to, "hub.example.com")
	kp, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	public, err := kp.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	seed, err := kp.Seed()
	if err != nil {
		t.Fatal(err)
	}
	h := startHub(t, hub.Options{
		Users:     "{ nkey: " + public + " }",
		LeafNodes: fmt.Sprintf("tls { cert_file: %q, key_file: %q, ca_file: %q, verify: true }", cert, key, ca.file),
	})
	ownCert, ownKey := ca.issue(from, to, "leaf1")
	section := Hub{
		URLs: []string{"tls://" + h.LeafAddr(0)},
		NKey: writeFile(t, []byte("# made for leaf1\n"+string(seed)+"\n")),
		TLS:  TLS{CA: ca.file, Cert: ownCert, Key: ownKey, ServerName: "hub.example.com"},
	}
	s := startLeaf(t, Options{Hub: section})
	enable(t, s)
	waitState(t, s, LinkUp, patience)

	// A reload with the link up reads the files again and keeps the name to verify.
	if err := s.Redial(); err != nil {
		t.Fatal(err)
	}
	waitState(t, s, LinkUp, patience)

	other, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	if seed, err = other.Seed(); err != nil {
		t.Fatal(err)
	}
	section.NKey = writeFile(t, seed)
	stranger := startLeaf(t, Options{Config: Config{Name: "leaf2"}, Hub: section})
	enable(t, stranger)
	waitReason(t, stranger, ReasonCredentials, patience)
}

func TestChangedKeyFileIsTakenUp(t *testing.T) {
	leak.Check(t)
	users := make([]string, 2)
	seeds := make([][]byte, 2)
	for i := range users {
		kp, err := nkeys.CreateUser()
		if err != nil {
			t.Fatal(err)
		}
		if users[i], err = kp.PublicKey(); err != nil {
			t.Fatal(err)
		}
		if seeds[i], err = kp.Seed(); err != nil {
			t.Fatal(err)
		}
	}
	h := startHub(t, hub.Options{Users: "{ nkey: " + users[1] + " }"})
	file := writeFile(t, seeds[0])
	s := startLeaf(t, Options{Hub: Hub{URLs: h.LeafURLs(), NKey: file}})
	enable(t, s)
	waitReason(t, s, ReasonCredentials, patience)
	overwrite(t, file, seeds[1])
	if err := s.Redial(); err != nil {
		t.Fatal(err)
	}
	waitState(t, s, LinkUp, patience)
}

func TestMissingFileIsTriedAgain(t *testing.T) {
	leak.Check(t)
	h := startHub(t, hub.Options{})
	missing := t.TempDir() + "/leaf.seed"
	s := startLeaf(t, Options{Hub: Hub{URLs: withUser(t, h.LeafURLs()...), NKey: missing}})
	if err := s.Enable(true); err == nil {
		t.Error("Enable without its key file = nil")
	}
	if l := waitReason(t, s, ReasonLocal, patience); !strings.Contains(l.Cause, missing) {
		t.Errorf("cause %q does not name %s", l.Cause, missing)
	}
	kp, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	seed, err := kp.Seed()
	if err != nil {
		t.Fatal(err)
	}
	overwrite(t, missing, seed)
	poll.Until(t, patience, func() bool { return s.Link().Reason != ReasonLocal }, "the file is found")
}

// TestCredentialsOfAnotherLeaf: a file that says that it is of another leaf is not used, and the right one is, as soon as it is there.
func TestCredentialsOfAnotherLeaf(t *testing.T) {
	leak.Check(t)
	kp := newKeyPair(t, nkeys.CreateUser)
	seed, err := kp.kp.Seed()
	if err != nil {
		t.Fatal(err)
	}
	h := startHub(t, hub.Options{Users: "{ nkey: " + kp.public + " }"})
	file := writeFile(t, append([]byte("# of leaf2\n"), seed...))
	s := startLeaf(t, Options{Hub: Hub{URLs: h.LeafURLs(), NKey: file}, Owner: func(file []byte) string {
		head, _, _ := strings.Cut(string(file), "\n")
		return strings.TrimPrefix(head, "# of ")
	}})
	if err := s.Enable(true); err == nil || !strings.Contains(err.Error(), "leaf leaf2") {
		t.Errorf("Enable with the file of another leaf = %v", err)
	}
	if l := waitReason(t, s, ReasonLocal, patience); l.State != LinkRefused || !strings.Contains(l.Cause, "made for leaf leaf2") || l.Remedy == "" {
		t.Errorf("link = %+v", l)
	}
	overwrite(t, file, append([]byte("# of leaf1\n"), seed...))
	waitState(t, s, LinkUp, patience)
}

func TestCredentialsInOperatorMode(t *testing.T) {
	leak.Check(t)
	operator, account, system := newKeyPair(t, nkeys.CreateOperator), newKeyPair(t, nkeys.CreateAccount), newKeyPair(t, nkeys.CreateAccount)
	oc := jwt.NewOperatorClaims(operator.public)
	oc.SystemAccount = system.public
	ac := jwt.NewAccountClaims(account.public)
	ac.Name = hub.Account
	ac.Limits.JetStreamLimits = jwt.JetStreamLimits{DiskStorage: -1, MemoryStorage: -1}
	encode := func(claims interface {
		Encode(nkeys.KeyPair) (string, error)
	}, by pair) string {
		token, err := claims.Encode(by.kp)
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	config := fmt.Sprintf("operator: %q\nsystem_account: %s\nresolver: MEMORY\nresolver_preload: { %s: %q, %s: %q }",
		encode(oc, operator), system.public, account.public, encode(ac, operator), system.public, encode(jwt.NewAccountClaims(system.public), operator))
	creds := func(by pair) string {
		user := newKeyPair(t, nkeys.CreateUser)
		token := encode(jwt.NewUserClaims(user.public), by)
		seed, err := user.kp.Seed()
		if err != nil {
			t.Fatal(err)
		}
		file, err := jwt.FormatUserConfig(token, seed)
		if err != nil {
			t.Fatal(err)
		}
		return writeFile(t, file)
	}
	h := startHub(t, hub.Options{Operator: true, Config: config, Credentials: userCredentials(creds(account))})
	s := startLeaf(t, Options{Hub: Hub{URLs: h.LeafURLs(), Credentials: creds(account)}})
	enable(t, s)
	waitState(t, s, LinkUp, patience)

	forged := startLeaf(t, Options{Config: Config{Name: "leaf2"}, Hub: Hub{URLs: h.LeafURLs(), Credentials: creds(newKeyPair(t, nkeys.CreateAccount))}})
	enable(t, forged)
	waitReason(t, forged, ReasonCredentials, patience)

	broken := startLeaf(t, Options{Config: Config{Name: "leaf3"}, Hub: Hub{URLs: h.LeafURLs(), Credentials: writeFile(t, []byte("nothing"))}})
	enable(t, broken)
	waitReason(t, broken, ReasonLocal, patience)
}

func TestTwoLeavesOfOneName(t *testing.T) {
	leak.Check(t)
	h := startHub(t, hub.Options{Nodes: 3})
	// On one node the younger connection ends the older, in turns.
	first := startLeaf(t, Options{Hub: Hub{URLs: withUser(t, h.LeafURLs()[0])}})
	enable(t, first)
	waitState(t, first, LinkUp, patience)
	second := startLeaf(t, Options{Hub: Hub{URLs: withUser(t, h.LeafURLs()[0])}})
	enable(t, second)
	for _, s := range []*Server{first, second} {
		l := waitReason(t, s, ReasonDuplicate, patience)
		if !strings.Contains(l.Cause, "leaf1") {
			t.Errorf("cause %q does not name the leaf", l.Cause)
		}
	}
	// The reason stays while they take turns.
	poll.Until(t, patience, func() bool { l := first.Link(); return l.State == LinkUp && l.Reason == ReasonDuplicate }, "up and still known to be two")
	if err := second.Enable(false); err != nil {
		t.Fatal(err)
	}

	// On different nodes neither notices: the handshake has to.
	third := startLeaf(t, Options{Hub: Hub{URLs: withUser(t, h.LeafURLs()[1])}})
	enable(t, third)
	waitState(t, third, LinkUp, patience)
	waitState(t, first, LinkUp, patience)
	ended := poll.Wait(t.Context(), 3*time.Second, func() bool { return third.Link().State != LinkUp || first.Link().State != LinkUp })
	if ended {
		t.Errorf("links of one name at two nodes: %v and %v; the server has learnt to see this, so use it", first.Link(), third.Link())
	}
}

func TestGreet(t *testing.T) {
	leak.Check(t)
	ca := newAuthority(t)
	from, to := valid()
	cert, key := ca.issue(from, to, "127.0.0.1")
	for _, tc := range []struct {
		name string
		tls  string
	}{{"plain", ""}, {"tls", fmt.Sprintf("tls { cert_file: %q, key_file: %q }", cert, key)}} {
		t.Run(tc.name, func(t *testing.T) {
			h := startHub(t, hub.Options{LeafNodes: tc.tls})
			section := Hub{URLs: withUser(t, h.LeafURLs()...)}
			if tc.tls != "" {
				section.TLS = TLS{CA: ca.file}
			}
			s := startLeaf(t, Options{Hub: section})
			if _, err := s.Greet(t.Context()); err == nil {
				t.Error("Greet before the link was on = nil")
			}
			enable(t, s)
			waitState(t, s, LinkUp, patience)
			g, err := s.Greet(t.Context())
			want := Greeting{Name: "hub1", Version: server.VERSION, Domain: hub.Domain, JetStream: true, APILevel: server.JSApiLevel, TLS: tc.tls != ""}
			if err != nil || g != want {
				t.Errorf("Greet() = %+v, %v, want %+v", g, err, want)
			}
			if l := s.Link(); l.State != LinkUp {
				t.Errorf("link after Greet is %v", l)
			}
		})
	}
}
