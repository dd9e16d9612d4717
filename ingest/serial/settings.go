package serial

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/holdfast-edge/holdfast/ingest"
)

// What flow may be.
const (
	FlowNone    = "none"
	FlowRTSCTS  = "rtscts"  // the lines RTS and CTS stop the sender
	FlowXONXOFF = "xonxoff" // the characters XOFF and XON stop the sender
)

// What dtr and rts may be.
const (
	LineAuto = "auto" // as the driver does: on while the port is open
	LineOn   = "on"
	LineOff  = "off"
)

// complete sets what go.bug.st/serial leaves aside: flow control, what becomes of DTR and RTS at a close, and the two lines themselves.
// What the port cannot do is refused by name.
func (t *tty) complete(cfg Config) error {
	err := t.control(func(fd int) error {
		mode, err := unix.IoctlGetTermios(fd, unix.TCGETS2)
		if err != nil {
			return err
		}
		mode.Cflag &^= unix.CRTSCTS | unix.HUPCL
		mode.Iflag &^= unix.IXON | unix.IXOFF | unix.IXANY
		switch cfg.Flow {
		case FlowRTSCTS:
			mode.Cflag |= unix.CRTSCTS
		case FlowXONXOFF:
			mode.Iflag |= unix.IXON | unix.IXOFF
			mode.Cc[unix.VSTART], mode.Cc[unix.VSTOP] = 0x11, 0x13
		}
		if cfg.HangUp {
			mode.Cflag |= unix.HUPCL
		}
		want := *mode
		if err := unix.IoctlSetTermios(fd, unix.TCSETS2, mode); err != nil {
			return err
		}
		if mode, err = unix.IoctlGetTermios(fd, unix.TCGETS2); err != nil {
			return err
		}
		return kept(cfg, want, *mode)
	})
	if err != nil {
		return err
	}
	for _, line := range []struct {
		name, want string
		bit        int
	}{{"dtr", cfg.DTR, unix.TIOCM_DTR}, {"rts", cfg.RTS, unix.TIOCM_RTS}} {
		if line.want == LineAuto || line.want == "" {
			continue
		}
		request := uint(unix.TIOCMBIS)
		if line.want == LineOff {
			request = unix.TIOCMBIC
		}
		if err := t.control(func(fd int) error { return unix.IoctlSetPointerInt(fd, request, line.bit) }); err != nil {
			return &fault{ingest.Refused, fmt.Sprintf("%s cannot set %s %s: %v", cfg.Port, line.name, line.want, err),
				"leave " + line.name + " at auto: the port has no such line"}
		}
	}
	return nil
}

// kept compares what was asked of a driver with what it took: some drop what they cannot do without an error.
func kept(cfg Config, want, got unix.Termios) error {
	if want.Cflag&unix.CRTSCTS != got.Cflag&unix.CRTSCTS || want.Iflag&(unix.IXON|unix.IXOFF) != got.Iflag&(unix.IXON|unix.IXOFF) {
		return &fault{ingest.Refused, fmt.Sprintf("the driver of %s has no flow control %s", cfg.Port, cfg.Flow),
			"use flow: none, and keep commands short; or use an adapter whose driver has it"}
	}
	return nil
}

// Queued returns how many bytes were written and not sent yet. Adapters may hold some more.
func (t *tty) Queued() (n int, err error) {
	err = t.control(func(fd int) error {
		n, err = unix.IoctlGetInt(fd, unix.TIOCOUTQ)
		return err
	})
	return n, err
}

// Discard drops what was written and not sent yet.
func (t *tty) Discard() error {
	return t.control(func(fd int) error { return unix.IoctlSetInt(fd, unix.TCFLSH, unix.TCOFLUSH) })
}

// isFault tells whether an error explains itself.
func isFault(err error) bool {
	var f *fault
	return errors.As(err, &f)
}
