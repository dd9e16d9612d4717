package storage

// What the kernel says of its clock and its boot. Tests with another clock replace this file: see rig/wallclock.

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// timesyncMark is made by systemd-timesyncd when it has set the clock, and is gone after a reboot: systemd-timesyncd.service(8).
	timesyncMark = "/run/systemd/timesync/synchronized"
	// staUnsync is STA_UNSYNC of adjtimex(2).
	staUnsync = 0x0040
	// maxClockError is the error, in microseconds, from which the kernel itself calls a clock unsynchronised: NTP_PHASE_LIMIT, 16 s.
	maxClockError = 16_000_000
)

// kernelClock asks adjtimex(2), which reads only and needs no rights.
func kernelClock() ClockState {
	var tx unix.Timex
	if _, err := unix.Adjtimex(&tx); err != nil {
		return ClockUnknown
	}
	if tx.Status&staUnsync != 0 || tx.Maxerror >= maxClockError {
		return ClockUnsynced
	}
	return ClockSynced
}

// kernelBootID returns the id that the kernel drew at its start: as long as it is the same, what was written is still in its page cache.
func kernelBootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the kernel's boot id: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}
