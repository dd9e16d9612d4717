package leaf

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/holdfast-edge/holdfast/rig/hub"
	"github.com/holdfast-edge/holdfast/rig/leak"
	"github.com/holdfast-edge/holdfast/rig/poll"
	"github.com/holdfast-edge/holdfast/rig/port"
)

// listeners returns the TCP ports that this process listens on.
func listeners(t *testing.T) map[int]bool {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("needs /proc to see this process's sockets:", err)
	}
	ours := make(map[string]bool)
	for _, fd := range fds {
		if target, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil {
			ours[strings.TrimSuffix(strings.TrimPrefix(target, "socket:["), "]")] = true
		}
	}
	found := make(map[int]bool)
	for _, file := range []string{"/proc/self/net/tcp", "/proc/self/net/tcp6"} {
		table, err := os.ReadFile(file)
		if err != nil {
			continue // no IPv6
		}
		for line := range strings.Lines(string(table)) {
			f := strings.Fields(line) // 1 is the local address, 3 the state with 0A for listening, 9 the inode
			if len(f) < 10 || f[3] != "0A" || !ours[f[9]] {
				continue
			}
			_, hex, _ := strings.Cut(f[1], ":")
			p, err := strconv.ParseUint(hex, 16, 16)
			if err != nil {
				t.Fatal(err)
			}
			found[int(p)] = true
		}
	}
	return found
}

func TestNoPortUnlessConfigured(t *testing.T) {
	leak.Check(t)
	h := startHub(t, hub.Options{Processes: true}) // its ports belong to another process
	before := listeners(t)
	s := startLeaf(t, Options{Hub: Hub{URLs: withUser(t, h.LeafURLs()...)}})
	enable(t, s)
	waitState(t, s, LinkUp, patience)
	for p := range listeners(t) {
		if !before[p] {
			t.Errorf("port %d is open, want none", p)
		}
	}
	if s.Listening() != "" {
		t.Errorf("Listening() = %q, want nothing", s.Listening())
	}
}

func TestLocalPortLeadsToApplicationsAccount(t *testing.T) {
	leak.Check(t)
	ports, err := port.Pick(1)
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", ports[0])
	s := startLeaf(t, Options{Config: Config{NATS: address}})
	if s.Listening() != address || !listeners(t)[ports[0]] {
		t.Fatalf("Listening() = %q, want %s and that port open", s.Listening(), address)
	}
	js, _ := daemon(t, s)
	capture(t, js, "leaf1")
	nc, err := nats.Connect("nats://" + address)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if msg, err := nc.Request("data.leaf1.S.x", []byte("forged"), 300*time.Millisecond); err == nil {
		t.Errorf("publish from the port was answered: %s", msg.Data)
	}
	if n := messages(t, js, "S"); n != 0 {
		t.Errorf("captured stream holds %d messages from the port", n)
	}
	public, err := s.identity.daemon.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	if nc, err := nats.Connect("nats://"+address, nats.Nkey(public, s.identity.daemon.Sign)); err == nil {
		nc.Close()
		t.Error("the daemon's user may connect through the port")
	}
}

func TestPortTakenDoesNotPreventStart(t *testing.T) {
	leak.Check(t)
	taken, err := port.Listen()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	s := startLeaf(t, Options{Config: Config{NATS: taken.Addr().String()}})
	if s.Listening() != "" {
		t.Errorf("Listening() = %q on a taken port", s.Listening())
	}
	js, _ := daemon(t, s)
	capture(t, js, "leaf1")
}

func TestStartReportsUnusableStore(t *testing.T) {
	leak.Check(t)
	file := writeFile(t, []byte("not a directory"))
	s, err := Start(Options{Config: Config{Name: "leaf1", Data: file}})
	if err == nil {
		_ = s.Shutdown(t.Context())
		t.Fatal("Start on a file = nil")
	}
	if !strings.Contains(err.Error(), file) {
		t.Errorf("Start on a file = %v, want an error that names it", err)
	}
}

func TestShutdownEndsEverything(t *testing.T) {
	leak.Check(t)
	s, err := Start(Options{Config: Config{Name: "leaf1", Data: t.TempDir()}, Hub: Hub{URLs: []string{"nats-leaf://127.0.0.1:1"}}})
	if err != nil {
		t.Fatal(err)
	}
	enable(t, s)
	waitReason(t, s, ReasonTCP, patience)
	if err := s.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestListenersSeesAPort shows that listeners sees what it looks for.
func TestListenersSeesAPort(t *testing.T) {
	l, err := port.Listen()
	if err != nil {
		t.Fatal(err)
	}
	p := l.Addr().(*net.TCPAddr).Port
	if !listeners(t)[p] {
		t.Errorf("port %d is open and does not show", p)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, patience, func() bool { return !listeners(t)[p] }, "port %d still shows", p)
}
