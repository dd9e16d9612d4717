package leaf

import (
	"bytes"
	"log/slog"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/holdfast-edge/holdfast/rig/leak"
	"github.com/holdfast-edge/holdfast/rig/poll"
)

// scripted is a link without a server.
type scripted struct {
	*link
	t     *testing.T
	clock time.Time
	log   bytes.Buffer
}

func newScripted(t *testing.T) *scripted {
	s := &scripted{t: t, clock: time.Unix(1_000_000, 0)}
	s.link = newLink(slog.New(slog.NewTextHandler(&s.log, nil)), "leaf1", true)
	s.link.now = func() time.Time { return s.clock }
	return s
}

func (s *scripted) say(lines ...string) {
	s.t.Helper()
	for _, line := range lines {
		level := slog.LevelWarn
		if strings.Contains(line, "connection created") || strings.Contains(line, "connection closed") {
			level = slog.LevelDebug
		}
		if !s.hear(level, line) {
			s.t.Errorf("the link did not take %q", line)
		}
		s.settle(nil)
	}
}

func (s *scripted) want(state LinkState, reason Reason) {
	s.t.Helper()
	if l := s.current(); l.State != state || l.Reason != reason {
		s.t.Errorf("link = %v %q %q, want %v %q", l.State, l.Reason, l.Cause, state, reason)
	}
}

const (
	created1 = "127.0.0.1:7422 - lid:1 - Leafnode connection created for account: CAPTURE (hub:7422) "
	created2 = "127.0.0.1:7422 - lid:2 - Leafnode connection created for account: CAPTURE (hub:7422) "
	refused1 = "127.0.0.1:7422 - lid:1 - Leafnode Error 'Authorization Violation'"
	closed1  = "127.0.0.1:7422 - lid:1 - Leafnode connection closed: Client Closed - Remote: hub1, Host: hub:7422"
	stale1   = "127.0.0.1:7422 - lid:1 - Leafnode connection closed: Stale Connection - Remote: hub1, Host: hub:7422"
	evicted1 = "127.0.0.1:7422 - lid:1 - Leafnode Error 'Duplicate Remote LeafNode Connection'"
	dialled  = `Error trying to connect as leafnode to remote server "hub:7422" (attempt 1): lookup hub: no such host`
)

func TestRefusalStaysThroughRetries(t *testing.T) {
	s := newScripted(t)
	s.want(LinkOff, "")
	s.enable(true)
	s.want(LinkConnecting, "")
	s.say(created1, refused1, closed1)
	s.want(LinkRefused, ReasonCredentials)
	since := s.current().Since
	s.clock = s.clock.Add(time.Second)
	s.say(created2)
	s.want(LinkRefused, ReasonCredentials)
	if got := s.current().Since; !got.Equal(since) {
		t.Errorf("refused since %v, want %v", got, since)
	}
	s.say(dialled)
	s.want(LinkDown, ReasonDNS)
	s.enable(false)
	s.want(LinkOff, "")
	if n := strings.Count(s.log.String(), "link state"); n != 4 {
		t.Errorf("%d edges were logged, want 4:\n%s", n, s.log.String())
	}
}

// TestRevokedStaysTheCause: a hub says once that it has revoked our credentials, and then that it does not know us, through outages, too. New
// credentials and a link that is up end that.
func TestRevokedStaysTheCause(t *testing.T) {
	s := newScripted(t)
	s.enable(true)
	want := func(part string) {
		t.Helper()
		if l := s.current(); !strings.Contains(l.Cause, part) {
			t.Errorf("cause is %q, want %q in it", l.Cause, part)
		}
	}
	s.say(created1)
	s.settle([]*server.LeafInfo{{ID: 1}})
	s.say(strings.Replace(refused1, "Authorization Violation", "User Authentication Revoked", 1), closed1)
	want("revoked")
	refused2 := strings.ReplaceAll(refused1, "lid:1", "lid:2")
	s.say(created2, refused2)
	want("revoked")
	s.say(dialled)
	want("not found")
	s.say(created2, refused2)
	s.want(LinkRefused, ReasonCredentials)
	want("revoked")
	s.renewed()
	s.say(created2, refused2)
	want("does not accept our user")
}

func TestClosedConnectionIsNotUpThoughListed(t *testing.T) {
	s := newScripted(t)
	s.enable(true)
	s.say(created1)
	listed := []*server.LeafInfo{{ID: 1, Name: "hub1"}}
	s.settle(listed)
	s.want(LinkUp, "")
	if !s.hear(slog.LevelDebug, stale1) {
		t.Error("the link did not take the end of its connection")
	}
	s.settle(listed)
	s.want(LinkDown, ReasonSilent)
}

func TestDuplicateIsForgottenAfterAMinute(t *testing.T) {
	s := newScripted(t)
	s.enable(true)
	s.say(created1)
	s.settle([]*server.LeafInfo{{ID: 1}})
	s.say(evicted1, closed1)
	s.want(LinkRefused, ReasonDuplicate)
	s.settle([]*server.LeafInfo{{ID: 2}})
	s.want(LinkUp, ReasonDuplicate)
	s.clock = s.clock.Add(duplicateMemory)
	s.settle([]*server.LeafInfo{{ID: 2}})
	s.want(LinkUp, "")
}

func TestLinesOfOthersAreNotTheLinks(t *testing.T) {
	s := newScripted(t)
	for _, line := range []string{"Starting JetStream", "127.0.0.1:4222 - cid:1 - Client Error 'x'", ""} {
		if s.hear(slog.LevelWarn, line) {
			t.Errorf("the link took %q", line)
		}
	}
}

// backlog is a listener that lets no dial through: its queue is full.
func backlog(t *testing.T) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "backlog")
	t.Cleanup(func() { _ = file.Close() })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	address := (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: name.(*syscall.SockaddrInet4).Port}).String()
	for range 8 {
		c, err := net.DialTimeout("tcp", address, 200*time.Millisecond)
		if err != nil {
			return address
		}
		t.Cleanup(func() { _ = c.Close() })
	}
	t.Skip("this kernel lets more connections wait than the backlog says: no dial hangs")
	return ""
}

func TestSwitchingWhileADialHangs(t *testing.T) {
	if testing.Short() {
		t.Skip("slow: takes the dial time-out twice")
	}
	leak.Check(t)
	s := startLeaf(t, Options{Hub: Hub{URLs: []string{"nats-leaf://" + backlog(t)}}})
	enable(t, s)
	waitState(t, s, LinkConnecting, patience)
	begun := time.Now()
	if err := s.Enable(false); err != nil {
		t.Fatal(err)
	}
	if l := s.Link(); l.State != LinkOff {
		t.Errorf("link = %v, want off", l)
	}
	enable(t, s)
	if took := time.Since(begun); took > 3*time.Second {
		t.Errorf("switching off and on took %v while a dial hung", took)
	}
	l := waitReason(t, s, ReasonTCP, 3*dialTimeout)
	if !strings.Contains(l.Cause, "does not answer") {
		t.Errorf("cause %q", l.Cause)
	}
	poll.Until(t, patience, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.have
	}, "the link is on in the end")
}
