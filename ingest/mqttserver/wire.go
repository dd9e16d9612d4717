package mqttserver

import (
	"net"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// wire counts what is written to a TCP connection and asks the kernel how much of it the other side has confirmed. A client that
// did not confirm an acknowledgement may send its message again; one that did will not.
type wire struct {
	net.Conn
	written atomic.Uint64
}

// Write implements net.Conn.
func (w *wire) Write(p []byte) (int, error) {
	n, err := w.Conn.Write(p)
	w.written.Add(uint64(n))
	return n, err
}

// confirmed returns how many bytes the other side has confirmed; ok is false when that cannot be known.
func (w *wire) confirmed() (n uint64, ok bool) {
	tcp, isTCP := w.Conn.(*net.TCPConn)
	if !isTCP {
		return 0, false
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return 0, false
	}
	err = raw.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			n, ok = info.Bytes_acked, true
		}
	})
	return n, ok && err == nil
}
