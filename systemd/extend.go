package systemd

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Limits of a start that asks for more time.
const (
	extendEvery = 10 * time.Second
	extendBy    = time.Minute
	extendMost  = time.Hour // a start that works for longer than this hangs
)

// MoreTime asks the service manager to wait for a minute from now on before it calls a start or a stop too slow, if it has waited for as long as the unit says.
func (n *Notifier) MoreTime() { n.tell(fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", extendBy.Microseconds())) }

// Extend asks for more time again and again until ctx ends, as long as the process works: it has used the processor or the disk since the last time. So a
// start that reads gigabytes from a slow card may take as long as it needs, up to an hour, and one that is stuck is ended.
func (n *Notifier) Extend(ctx context.Context) {
	tick := time.NewTicker(extendEvery)
	defer tick.Stop()
	began, before := time.Now(), n.work()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := n.work()
		if now != before && time.Since(began) < extendMost {
			n.MoreTime()
		}
		before = now
	}
}

// effort is what the process has used of the machine.
type effort struct {
	processor time.Duration // to a tenth of a second: a process that only waits uses a little
	disk      int64         // blocks
}

// usedSoFar asks the kernel for the effort of this process: getrusage(2).
func usedSoFar() effort {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return effort{}
	}
	used := time.Duration(u.Utime.Nano() + u.Stime.Nano())
	return effort{used.Truncate(100 * time.Millisecond), int64(u.Inblock) + int64(u.Oublock)}
}
