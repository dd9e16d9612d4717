// Package systemd tells the service manager how the daemon is doing: ready, in one line, still alive, stopping.
package systemd

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"
)

// maxStatus is how long a status line may get, in bytes; `systemctl status` shows one line.
const maxStatus = 512

// Notifier speaks to the service manager that started the process. Without one (no NOTIFY_SOCKET) every call does nothing. A message that
// cannot be sent is logged, the first of a row: the daemon's work does not depend on it. All methods are safe for concurrent use.
type Notifier struct {
	log      *slog.Logger
	send     func(state string) (sent bool, err error)
	watchdog func() (time.Duration, error)
	work     func() effort

	mu      sync.Mutex // guards the fields below
	status  string     // sent last
	failing bool       // the last message could not be sent
}

// New returns a Notifier for the service manager named in the environment, if there is one. A nil log discards.
func New(log *slog.Logger) *Notifier {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Notifier{
		log:      log,
		send:     func(state string) (bool, error) { return daemon.SdNotify(false, state) },
		watchdog: func() (time.Duration, error) { return daemon.SdWatchdogEnabled(false) },
		work:     usedSoFar,
	}
}

// Ready says that the start, or a reload, is complete: the daemon does its work from now on.
func (n *Notifier) Ready() { n.tell(daemon.SdNotifyReady) }

// Stopping says that the daemon has begun to stop.
func (n *Notifier) Stopping() { n.tell(daemon.SdNotifyStopping) }

// Reloading says that the daemon reads its configuration anew. Ready must follow. See sd_notify(3) for the time that goes with it.
func (n *Notifier) Reloading() {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		n.log.Warn("the service manager is not told of a reload", "err", fmt.Errorf("read the monotonic clock: %w", err))
		return
	}
	n.tell(fmt.Sprintf("%s\nMONOTONIC_USEC=%d", daemon.SdNotifyReloading, now.Nano()/int64(time.Microsecond)))
}

// Status sets the line that `systemctl status` shows. Line breaks become blanks. A line that did not change is not sent again.
func (n *Notifier) Status(line string) {
	line = strings.Join(strings.Fields(line), " ")
	if len(line) > maxStatus {
		line = strings.ToValidUTF8(line[:maxStatus], "") + "…"
	}
	n.mu.Lock()
	same := line == n.status
	n.status = line
	n.mu.Unlock()
	if !same && !n.tell("STATUS="+line) {
		n.mu.Lock()
		n.status = "" // so that the next call tries again
		n.mu.Unlock()
	}
}

// tell sends a message and tells whether it went out, or there is nobody to hear it.
func (n *Notifier) tell(state string) bool {
	_, err := n.send(state)
	n.mu.Lock()
	first := err != nil && !n.failing
	n.failing = err != nil
	n.mu.Unlock()
	if first {
		what, _, _ := strings.Cut(state, "=")
		n.log.Warn("the service manager cannot be told", "message", what, "err", err)
	}
	return err == nil
}
