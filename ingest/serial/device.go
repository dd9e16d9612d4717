package serial

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"go.bug.st/serial"
	"golang.org/x/sys/unix"

	"github.com/holdfast-edge/holdfast/ingest"
)

var parities = map[string]serial.Parity{
	"none": serial.NoParity, "odd": serial.OddParity, "even": serial.EvenParity, "mark": serial.MarkParity, "space": serial.SpaceParity,
}

// device is an open port.
type device interface {
	// Read waits for bytes until the deadline, then fails with os.ErrDeadlineExceeded.
	Read(p []byte) (int, error)
	SetReadDeadline(t time.Time) error
	// Write puts bytes into the output queue, and waits while that is full until the deadline, then fails with
	// os.ErrDeadlineExceeded.
	Write(p []byte) (int, error)
	SetWriteDeadline(t time.Time) error
	// Queued returns how many bytes are in the output queue, and Discard drops them.
	Queued() (int, error)
	Discard() error
	// Gone says why the configured port is no longer the device that is open; nil: it still is.
	Gone() error
	Close() error
}

// fault says why a port cannot be opened.
type fault struct {
	kind          ingest.Kind
	cause, remedy string
}

func (f *fault) Error() string { return f.cause }

// tty is the device of a real port.
//
// go.bug.st/serial sets the line, but no byte goes through it: its Read panics on descriptors above 1023, its Write after Close
// goes to whatever file has the number by then, and a blocked Write survives Close (as of v1.8.0). The line's settings belong to
// the device and not to a descriptor, so the library opens the port a second time, sets it, and closes it again, while the
// bytes go through an *os.File, which has none of these faults.
type tty struct {
	*os.File
	path   string                 // as configured
	locate func() (string, error) // where it leads to at present
}

// open opens and sets the port, for this process alone. Every error is a *fault.
func open(cfg Config) (device, error) { return openIn("/", cfg) }

// openIn is open for a machine whose /sys and /proc lie below root.
func openIn(root string, cfg Config) (device, error) {
	locate := func() (string, error) { return locateIn(root, cfg.Port) }
	node, err := locate()
	if err != nil {
		return nil, err
	}
	if info, err := os.Stat(node); err == nil && info.Mode()&os.ModeCharDevice == 0 {
		return nil, &fault{ingest.Refused, cfg.Port + " is not a device", "set port to a serial port; ls -l /dev/serial/by-id shows them"}
	}
	// O_NONBLOCK keeps the open from waiting for a carrier, O_NOCTTY keeps a break from stopping the daemon.
	f, err := os.OpenFile(node, os.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, openFault(cfg.Port, node, err)
	}
	if err := checkLogin(filepath.Join(root, "proc"), cfg.Port, node); err != nil {
		_ = f.Close() // nothing was written
		return nil, err
	}
	t := &tty{File: f, path: cfg.Port, locate: locate}
	// TIOCEXCL does not hold root back, so a second source or a second daemon is kept away by a lock.
	if err := t.control(func(fd int) error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) }); err != nil {
		_ = f.Close() // before holders are looked for, so that this is none of them
		return nil, openFault(cfg.Port, node, unix.EBUSY)
	}
	if err := t.set(node, cfg); err != nil {
		_ = t.Close() // nothing was written, and why it is of no use is known
		return nil, err
	}
	return t, nil
}

// set sets the line and keeps others from opening it.
func (t *tty) set(node string, cfg Config) error {
	mode := &serial.Mode{BaudRate: cfg.Baud, DataBits: cfg.DataBits, Parity: parities[cfg.Parity]}
	if cfg.StopBits == 2 {
		mode.StopBits = serial.TwoStopBits
	}
	p, err := serial.Open(node, mode)
	if err != nil {
		return t.setFault(node, cfg, err)
	}
	if err := p.Close(); err != nil { // also ends the exclusive use, which is taken again below
		return t.setFault(node, cfg, err)
	}
	if err := t.control(func(fd int) error { return unix.IoctlSetInt(fd, unix.TIOCEXCL, 0) }); err != nil {
		return t.setFault(node, cfg, err)
	}
	if err := t.complete(cfg); isFault(err) {
		return err
	} else if err != nil {
		return t.setFault(node, cfg, err)
	}
	var speed uint32
	if err := t.control(func(fd int) error {
		mode, err := unix.IoctlGetTermios(fd, unix.TCGETS2)
		if err == nil {
			speed = mode.Ospeed
		}
		return err
	}); err != nil {
		return t.setFault(node, cfg, err)
	}
	// Drivers keep the old speed, or the next one they can make, without an error. A receiver bears about 3 %.
	if off := int64(speed) - int64(cfg.Baud); off*off > int64(cfg.Baud)*int64(cfg.Baud)/1000 {
		return &fault{ingest.Refused, fmt.Sprintf("%s runs at %d baud and not at %d", cfg.Port, speed, cfg.Baud),
			"set baud to a speed that the port's driver can make"}
	}
	return nil
}

// Close gives the port back to others. It ends a Read that waits, and may be called by any goroutine.
func (t *tty) Close() error {
	// The flag would outlast us while somebody else holds the device open. An error is usual on a pulled-out one.
	_ = t.control(func(fd int) error { return unix.IoctlSetInt(fd, unix.TIOCNXCL, 0) })
	return t.File.Close()
}

// control runs f on the descriptor without making it a blocking one.
func (t *tty) control(f func(fd int) error) error {
	raw, err := t.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := raw.Control(func(fd uintptr) { inner = f(int(fd)) }); err != nil {
		return err
	}
	return inner
}

// Gone compares what the configured path leads to with what is open: a port can stay readable, and silent, after its device was
// plugged in again as another one.
func (t *tty) Gone() error {
	node, err := t.locate()
	if err != nil {
		return err
	}
	now, err := os.Stat(node)
	if err != nil {
		return fmt.Errorf("%s is gone: %w", t.path, errno(err))
	}
	was, err := t.Stat()
	if err != nil {
		return err
	}
	if !os.SameFile(now, was) {
		return fmt.Errorf("%s leads to another device now", t.path)
	}
	return nil
}

// setFault explains an error of the line's settings.
func (t *tty) setFault(node string, cfg Config, err error) error {
	if gone := t.Gone(); gone != nil {
		return absent(cfg.Port, gone)
	}
	var p *serial.PortError
	if errors.As(err, &p) && (p.Code() == serial.PortBusy || p.Code() == serial.PermissionDenied) {
		return openFault(cfg.Port, node, map[serial.PortErrorCode]unix.Errno{serial.PortBusy: unix.EBUSY, serial.PermissionDenied: unix.EACCES}[p.Code()])
	}
	return &fault{ingest.Refused, fmt.Sprintf("%s does not take %d baud, %d data bits, parity %s, %d stop bits: %v",
		cfg.Port, cfg.Baud, cfg.DataBits, cfg.Parity, cfg.StopBits, err), "check that it is a serial port, and set what its driver supports"}
}
