package device

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// rawMode switches echo and line editing off, so that nothing is done to the bytes before a reader has set its own mode.
func rawMode(f *os.File) error {
	t, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err != nil {
		return fmt.Errorf("read the mode of %s: %w", f.Name(), err)
	}
	t.Iflag, t.Oflag, t.Lflag = 0, 0, 0
	t.Cc[unix.VMIN], t.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(int(f.Fd()), unix.TCSETS, t); err != nil {
		return fmt.Errorf("set the mode of %s: %w", f.Name(), err)
	}
	return nil
}
