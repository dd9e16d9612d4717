package leaf

import (
	"bufio"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nkeys"

	"github.com/holdfast-edge/holdfast/rig/hub"
	"github.com/holdfast-edge/holdfast/rig/poll"
	"github.com/holdfast-edge/holdfast/rig/port"
)

// TestConnectionResetWhileItIsMade: after that the server may never dial again by itself (seen with 2.15.3); the link comes back all the same.
func TestConnectionResetWhileItIsMade(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("waits until the server has not dialled for long")
	}
	h := startHub(t, hub.Options{LeafNodes: "authorization { timeout: 30 }"})
	w := startWire(t, h.LeafAddr(0))
	w.Delay(300 * time.Millisecond)
	s := startLeaf(t, Options{Hub: Hub{URLs: withUser(t, "nats-leaf://"+w.Addr())}})
	enable(t, s)
	poll.Until(t, patience, func() bool { return w.Stats().Accepted > 0 }, "a dial")
	w.Cut()
	poll.Until(t, patience, func() bool { return s.Link().State == LinkDown }, "down")
	if err := w.Restore(); err != nil {
		t.Fatal(err)
	}
	waitState(t, s, LinkUp, 3*patience)
}

// connectProxy is an HTTP proxy that connects through for one user.
func connectProxy(t *testing.T, user, password string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() { cancel(); _ = l.Close(); wg.Wait() })
	want := "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { proxyThrough(ctx, c, want) })
		}
	})
	return "http://" + l.Addr().String()
}

func proxyThrough(ctx context.Context, c net.Conn, want string) {
	defer func() { _ = c.Close() }()
	r := bufio.NewReader(c)
	req, err := http.ReadRequest(r)
	if err != nil || req.Method != http.MethodConnect {
		return
	}
	if req.Header.Get("Proxy-Authorization") != want {
		_, _ = io.WriteString(c, "HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
		return
	}
	target, err := net.Dial("tcp", req.Host)
	if err != nil {
		_, _ = io.WriteString(c, "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
		return
	}
	stop := context.AfterFunc(ctx, func() { _ = c.Close(); _ = target.Close() })
	defer stop()
	if _, err := io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n"); err != nil {
		return
	}
	go func() { _, _ = io.Copy(target, r); _ = target.Close() }() // ends with the connection
	_, _ = io.Copy(c, target)
}

func TestProxy(t *testing.T) {
	t.Parallel()
	h := startHub(t, hub.Options{})
	proxy := connectProxy(t, "pump", "pw-7")
	good, bad := writeFile(t, []byte("pw-7\n")), writeFile(t, []byte("guess"))
	ports, err := port.Pick(1)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name   string
		proxy  Proxy
		url    string
		state  LinkState
		reason Reason
	}{
		{"through", Proxy{URL: proxy, User: "pump", PasswordFile: good}, h.LeafAddr(0), LinkUp, ""},
		{"wrong password", Proxy{URL: proxy, User: "pump", PasswordFile: bad}, h.LeafAddr(0), LinkRefused, ReasonProxy},
		{"no password", Proxy{URL: proxy}, h.LeafAddr(0), LinkRefused, ReasonProxy},
		{"not there", Proxy{URL: fmt.Sprintf("http://127.0.0.1:%d", ports[0])}, h.LeafAddr(0), LinkDown, ReasonProxy},
		{"hub not there", Proxy{URL: proxy, User: "pump", PasswordFile: good}, fmt.Sprintf("127.0.0.1:%d", ports[0]), LinkDown, ReasonProxy},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := startLeaf(t, Options{Hub: Hub{URLs: withUser(t, "nats-leaf://"+tc.url), Proxy: tc.proxy}})
			enable(t, s)
			poll.Until(t, patience, func() bool { l := s.Link(); return l.State == tc.state && l.Reason == tc.reason }, "%v %q, it is %v", tc.state, tc.reason, describe{s})
			if l := s.Link(); strings.Contains(l.Cause+l.Remedy, "pw-7") {
				t.Errorf("the password is shown: %v", l)
			}
		})
	}
}

func TestWebsocket(t *testing.T) {
	t.Parallel()
	ports, err := port.Pick(1)
	if err != nil {
		t.Fatal(err)
	}
	startHub(t, hub.Options{Config: fmt.Sprintf("websocket { listen: \"127.0.0.1:%d\", no_tls: true }", ports[0])})
	s := startLeaf(t, Options{Hub: Hub{URLs: withUser(t, fmt.Sprintf("ws://127.0.0.1:%d", ports[0]))}})
	enable(t, s)
	waitState(t, s, LinkUp, patience)
	if err := s.Redial(); err != nil {
		t.Fatal(err)
	}
	waitState(t, s, LinkUp, patience)
}

// TestFirstHubIsPreferred: with one of two hubs down the other is used, and when the first is back the link goes there.
func TestFirstHubIsPreferred(t *testing.T) {
	t.Parallel()
	h := startHub(t, hub.Options{})
	first, second := startWire(t, h.LeafAddr(0)), startWire(t, h.LeafAddr(0))
	first.Cut()
	s := startLeaf(t, Options{Hub: Hub{URLs: withUser(t, "nats-leaf://"+first.Addr(), "nats-leaf://"+second.Addr()), Prefer: PreferFirst}})
	enable(t, s)
	waitState(t, s, LinkUp, patience)
	if l := s.Link(); l.Remote != second.Addr() {
		t.Fatalf("link to %s, want %s", l.Remote, second.Addr())
	}
	if err := first.Restore(); err != nil {
		t.Fatal(err)
	}
	care := &tender{server: s, free: make(chan bool, 1)}
	later := time.Now().Add(preferInterval)
	poll.Until(t, patience, func() bool {
		care.tend(context.Background(), later)
		l := s.Link()
		return l.State == LinkUp && l.Remote == first.Addr()
	}, "back at the first, it is %v", describe{s})
}

// TestNewFilesAreTakenUp: a file of the hub section that is replaced while it does not work is used at once, and one that is replaced while the
// link is up leaves it up.
func TestNewFilesAreTakenUp(t *testing.T) {
	t.Parallel()
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
	ca, other := newAuthority(t), newAuthority(t)
	from, to := valid()
	cert, key := ca.issue(from, to, "hub.example.com")
	h := startHub(t, hub.Options{Users: "{ nkey: " + public + " }", LeafNodes: fmt.Sprintf("tls { cert_file: %q, key_file: %q }", cert, key)})
	trust := writeFile(t, readFile(t, other.file))
	s := startLeaf(t, Options{Hub: Hub{URLs: []string{"tls://" + h.LeafAddr(0)}, NKey: writeFile(t, seed), TLS: TLS{CA: trust, ServerName: "hub.example.com"}}})
	enable(t, s)
	waitReason(t, s, ReasonTLS, patience)
	overwrite(t, trust, append(readFile(t, ca.file), '\n')) // of another size, whatever the file system's clock
	up := waitState(t, s, LinkUp, 2*patience)
	overwrite(t, trust, append(readFile(t, ca.file), "\n\n"...))
	poll.Wait(context.Background(), filesInterval+2*time.Second, func() bool { return false })
	if l := s.Link(); l.State != LinkUp || !l.Since.Equal(up.Since) {
		t.Errorf("a replaced file cost the link: %v, up since %v, was %v", l, l.Since, up.Since)
	}
}

// TestOneLinePerCause: two addresses that fail in two ways by turns are logged once each, not at every attempt.
func TestOneLinePerCause(t *testing.T) {
	s := newScripted(t)
	s.enable(true)
	for range 50 {
		s.say(dialled, strings.Replace(dialled, "lookup hub: no such host", "dial tcp: connect: connection refused", 1))
	}
	if n := strings.Count(s.log.String(), "link state"); n != 3 {
		t.Errorf("%d lines, want connecting and two causes:\n%s", n, s.log.String())
	}
}

func TestPauseBetweenAttempts(t *testing.T) {
	for _, tc := range []struct {
		state     LinkState
		lasted    time.Duration
		low, high time.Duration
	}{
		{LinkDown, time.Minute, 0, 0},
		{LinkDown, 9 * time.Minute, 0, 0},
		{LinkDown, 11 * time.Minute, 4 * time.Second, 12 * time.Second},
		{LinkDown, 2 * time.Hour, 15 * time.Second, 45 * time.Second},
		{LinkRefused, 30 * time.Second, 0, 0},
		{LinkRefused, 2 * time.Minute, 4 * time.Second, 12 * time.Second},
	} {
		for range 20 {
			if d := pause(tc.state, tc.lasted); d < tc.low || d > tc.high {
				t.Errorf("pause(%v, %v) = %v, want %v to %v", tc.state, tc.lasted, d, tc.low, tc.high)
			}
		}
	}
}

// TestRestingLinkComesBack: a link that rests between attempts is dialled again.
func TestRestingLinkComesBack(t *testing.T) {
	t.Parallel()
	h := startHub(t, hub.Options{})
	w := startWire(t, h.LeafAddr(0))
	w.Cut()
	s := startLeaf(t, Options{Hub: Hub{URLs: withUser(t, "nats-leaf://"+w.Addr())}})
	enable(t, s)
	waitReason(t, s, ReasonTCP, patience)
	s.rest(true)
	if err := w.Restore(); err != nil {
		t.Fatal(err)
	}
	poll.Wait(context.Background(), 3*time.Second, func() bool { return false })
	if n := w.Stats().Accepted; n != 0 || s.Link().State != LinkDown {
		t.Errorf("%d dials of a resting link, which is %v", n, s.Link())
	}
	s.rest(false)
	waitState(t, s, LinkUp, patience)
}

// TestTrafficIsCounted: what the kernel says of the link's socket is what a wire carried, and headers.
func TestTrafficIsCounted(t *testing.T) {
	t.Parallel()
	h := startHub(t, hub.Options{})
	w := startWire(t, h.LeafAddr(0))
	s := startLeaf(t, Options{Hub: Hub{URLs: withUser(t, "nats-leaf://"+w.Addr())}})
	enable(t, s)
	waitState(t, s, LinkUp, patience)
	var tr Traffic
	poll.Until(t, patience, func() bool {
		tr = s.Traffic()
		st := w.Stats()
		return st.Up > 0 && tr.Sent >= st.Up && tr.Sent <= st.Up+40*200 && tr.Received >= st.Down && tr.Received <= st.Down+40*200
	}, "%+v is what the wire carried, %+v", &tr, w)
}

// TestDNSNeverAnswers: the cause is named, and the link comes up when DNS answers.
func TestDNSNeverAnswers(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for the resolver to give up")
	}
	void, err := net.ListenPacket("udp", "127.0.0.1:0") // takes questions and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = void.Close() }()
	before := net.DefaultResolver
	defer func() { net.DefaultResolver = before }()
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "udp", void.LocalAddr().String())
	}}
	s := startLeaf(t, Options{Hub: Hub{URLs: []string{"nats-leaf://hub.example.com:7422"}}})
	enable(t, s)
	l := waitReason(t, s, ReasonDNS, 2*time.Minute)
	if l.State != LinkDown || l.Remedy == "" {
		t.Errorf("link %+v", l)
	}
}
