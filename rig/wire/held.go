package wire

import (
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// held keeps a port of the loopback that refuses connections: bound, and nobody listens. Others who look for a free port pass it by.
type held struct{ fd int }

func hold(addr string) (*held, error) {
	tcp, err := net.ResolveTCPAddr("tcp4", addr)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("hold %s: %w", addr, err)
	}
	sa := &unix.SockaddrInet4{Port: tcp.Port}
	copy(sa.Addr[:], tcp.IP.To4())
	err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	if err == nil {
		err = unix.Bind(fd, sa)
	}
	if err != nil {
		_ = unix.Close(fd) // never used
		return nil, fmt.Errorf("hold %s: %w", addr, err)
	}
	return &held{fd}, nil
}

// listen takes connections at the port that was held.
func (h *held) listen() (net.Listener, error) {
	if err := unix.Listen(h.fd, unix.SOMAXCONN); err != nil {
		h.release()
		return nil, err
	}
	f := os.NewFile(uintptr(h.fd), "wire")
	ln, err := net.FileListener(f) // a duplicate
	_ = f.Close()
	return ln, err
}

func (h *held) release() { _ = unix.Close(h.fd) } // nothing was written to it
