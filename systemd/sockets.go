package systemd

import (
	"fmt"
	"net"
	"os"
	"sync"

	"github.com/coreos/go-systemd/v22/activation"
)

// Sockets are the listening sockets that the service manager opened for the daemon (socket units), by the name that the unit gives them
// (FileDescriptorName=). It holds them while the daemon is restarted, so clients that connect meanwhile wait and are not refused. Safe for concurrent use.
type Sockets struct {
	mu    sync.Mutex // guards the field below
	files map[string]*os.File
	used  map[string]bool
}

// TakeSockets takes what the service manager has handed over; none if it has not. It must be called once in a process, before others use descriptors.
func TakeSockets() *Sockets {
	s := &Sockets{files: map[string]*os.File{}, used: map[string]bool{}}
	for _, f := range activation.Files(true) {
		if s.files[f.Name()] != nil {
			_ = f.Close() // nobody could tell the two apart
			continue
		}
		s.files[f.Name()] = f
	}
	return s
}

// Listen returns a listener on the socket of a name; nil if there is none. It may be asked for again after the listener was closed, which leaves the socket
// itself open. The error says that what has the name is no listening socket.
func (s *Sockets) Listen(name string) (net.Listener, error) {
	if s == nil {
		return nil, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.files[name]
	if f == nil {
		return nil, nil
	}
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("use socket %s of the service manager: %w", name, err)
	}
	if u, ok := l.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false) // the name belongs to the socket unit
	}
	s.used[name] = true
	return l, nil
}

// Unused lists the sockets that nobody has asked for: their names are those of nothing here.
func (s *Sockets) Unused() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for name := range s.files {
		if !s.used[name] {
			names = append(names, name)
		}
	}
	return names
}
