package leaf

import (
	"net/netip"
	"os"
	"strconv"
	"sync"

	"github.com/nats-io/nats-server/v2/server"
	"golang.org/x/sys/unix"
)

// Traffic is what the links to the hub have carried since the start, in bytes with the headers of TCP and IP, as the kernel counts them. What a
// connection carried in its last second is missing.
type Traffic struct {
	Sent, Received int64
}

// Traffic returns the counts so far.
func (s *Server) Traffic() Traffic { return s.meter.sum() }

// meter adds up what the sockets of the link carry. The server does not show its sockets; they are ours, so they are found by their peer.
type meter struct {
	mu    sync.Mutex // guards the fields below
	total Traffic
	seen  map[int]socket // by descriptor
}

type socket struct {
	local, peer netip.AddrPort
	carried     Traffic
}

func (m *meter) sum() Traffic {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.total
}

// look counts what the sockets to these peers have carried since the last look.
func (m *meter) look(conns []*server.LeafInfo) {
	m.mu.Lock()
	defer m.mu.Unlock()
	peers := map[netip.AddrPort]bool{}
	for _, c := range conns {
		if ip, err := netip.ParseAddr(c.IP); err == nil && c.Port > 0 && c.Port < 1<<16 {
			peers[netip.AddrPortFrom(ip.Unmap(), uint16(c.Port))] = true
		}
	}
	known := len(peers) > 0
	for fd, s := range m.seen {
		if !peers[s.peer] || !m.count(fd, s) {
			delete(m.seen, fd)
			known = false
		}
	}
	if len(peers) == 0 || known && len(m.seen) >= len(peers) {
		return
	}
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return // without /proc there is no count
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if _, counted := m.seen[fd]; err != nil || counted {
			continue
		}
		if s, ok := ends(fd); ok && peers[s.peer] {
			m.count(fd, s)
		}
	}
}

// count adds what a socket has carried since it was counted last; false: the descriptor is another one's by now.
func (m *meter) count(fd int, s socket) bool {
	now, ok := ends(fd)
	if !ok || now.peer != s.peer || now.local != s.local {
		return false
	}
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return false
	}
	header := int64(40)
	if s.peer.Addr().Is6() {
		header = 60
	}
	sent := max(info.Bytes_sent, info.Bytes_acked) // older kernels do not know the first
	carried := Traffic{Sent: int64(sent) + header*int64(info.Segs_out), Received: int64(info.Bytes_received) + header*int64(info.Segs_in)}
	m.total.Sent += max(0, carried.Sent-s.carried.Sent)
	m.total.Received += max(0, carried.Received-s.carried.Received)
	s.carried = carried
	if m.seen == nil {
		m.seen = map[int]socket{}
	}
	m.seen[fd] = s
	return true
}

// ends returns the addresses of a connected TCP socket.
func ends(fd int) (socket, bool) {
	local, err := unix.Getsockname(fd)
	if err != nil {
		return socket{}, false
	}
	peer, err := unix.Getpeername(fd)
	if err != nil {
		return socket{}, false
	}
	s := socket{local: address(local), peer: address(peer)}
	return s, s.peer.IsValid()
}

func address(a unix.Sockaddr) netip.AddrPort {
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr).Unmap(), uint16(a.Port))
	}
	return netip.AddrPort{}
}
