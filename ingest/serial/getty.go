package serial

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/holdfast-edge/holdfast/ingest"
)

// logins are programs that offer a login on a serial line. They do not keep others from opening it, and take half of what comes.
var logins = []string{"agetty", "getty", "mgetty", "login", "systemd-getty"}

// checkLogin returns a *fault when a login runs on the device: it is the controlling terminal of the login, which everybody may see,
// while the files that a process has open are for root only.
func checkLogin(proc, path, node string) error {
	info, err := os.Stat(node)
	if err != nil {
		return nil // the next step finds out
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	files, err := filepath.Glob(filepath.Join(proc, "[0-9]*/stat"))
	if err != nil {
		return nil
	}
	for _, f := range files {
		stat, err := os.ReadFile(f)
		if err != nil {
			continue // it ended
		}
		comm, tty := readStat(string(stat))
		if tty != uint64(st.Rdev) || !slices.Contains(logins, comm) {
			continue
		}
		name := filepath.Base(node)
		return &fault{ingest.Busy, fmt.Sprintf("%s is used by a login: %s (pid %s)", path, comm, filepath.Base(filepath.Dir(f))),
			fmt.Sprintf("systemctl disable --now serial-getty@%s.service, and take console=%s from the kernel's command line", name, name)}
	}
	return nil
}

// readStat takes the name and the controlling terminal from a line of /proc/pid/stat, as proc_pid_stat(5) describes it.
func readStat(line string) (comm string, tty uint64) {
	open, end := strings.IndexByte(line, '('), strings.LastIndexByte(line, ')')
	if open < 0 || end < open {
		return "", 0
	}
	fields := strings.Fields(line[end+1:])
	if len(fields) < 5 {
		return "", 0
	}
	n, err := strconv.ParseInt(fields[4], 10, 64)
	if err != nil {
		return "", 0
	}
	// Minor number in bits 31-20 and 7-0, major number in bits 15-8.
	d := uint32(n)
	return line[open+1 : end], unix.Mkdev(d>>8&0xff, d>>20<<8|d&0xff)
}
