package serial

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/holdfast-edge/holdfast/ingest"
)

// errno drops the path from an error that is told with a path of its own.
func errno(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// absent explains a port that is not there.
func absent(path string, err error) *fault {
	if errors.Is(err, fs.ErrPermission) {
		return &fault{ingest.Denied, fmt.Sprintf("%s cannot be looked up: %v", path, errno(err)), "let the daemon's user search the directories above it"}
	}
	remedy := "plug the device in and switch it on"
	if there := neighbours(path); there != "" {
		remedy += "; there is at present: " + there
	}
	return &fault{ingest.Waiting, fmt.Sprintf("%s is not there: %v", path, errno(err)), remedy}
}

// neighbours names up to three other ports in the directory of links that path is in.
func neighbours(path string) string {
	dir := filepath.Dir(path)
	if base := filepath.Base(dir); base != "by-id" && base != "by-path" {
		return ""
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return ""
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if len(names) > 3 {
		names = append(names[:3], "and more")
	}
	return strings.Join(names, ", ")
}

// openFault explains an error of opening a port.
func openFault(path, node string, err error) *fault {
	switch {
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return denied(path, node)
	case errors.Is(err, unix.EBUSY):
		cause := path + " is used by another process"
		if who := holders(node); who != "" {
			cause = path + " is used by " + who
		}
		return &fault{ingest.Busy, cause, "stop what uses it (fuser -v " + node + "), or give the two sources different ports; " +
			`ModemManager lets go after about 10s and is kept away by the udev rule ENV{ID_MM_DEVICE_IGNORE}="1"`}
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENXIO), errors.Is(err, unix.ENODEV), errors.Is(err, unix.EIO):
		return absent(path, err)
	}
	return &fault{ingest.Refused, fmt.Sprintf("%s cannot be opened: %v", path, errno(err)), "check that it is a serial port"}
}

// denied explains which rights are missing, and how to get them.
func denied(path, node string) *fault {
	cause := fmt.Sprintf("%s may not be opened by the daemon", path)
	remedy := "give the daemon's user read and write access to it"
	info, err := os.Stat(node)
	if err != nil {
		return &fault{ingest.Denied, cause, remedy}
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return &fault{ingest.Denied, cause, remedy}
	}
	owner, group, me := strconv.Itoa(int(st.Uid)), strconv.Itoa(int(st.Gid)), strconv.Itoa(os.Geteuid())
	if u, err := user.LookupId(owner); err == nil {
		owner = u.Username
	}
	if g, err := user.LookupGroupId(group); err == nil {
		group = g.Name
	}
	if u, err := user.LookupId(me); err == nil {
		me = u.Username
	}
	cause = fmt.Sprintf("%s belongs to %s:%s with mode %04o and may not be opened by %s", path, owner, group, info.Mode().Perm(), me)
	if info.Mode().Perm()&0o060 == 0o060 && st.Gid != 0 {
		remedy = fmt.Sprintf("add %s to the group %s (usermod -aG %s %s) and restart the daemon", me, group, group, me)
	} else {
		remedy = `give it to a group by a udev rule (GROUP="dialout", MODE="0660") that the daemon's user is in`
	}
	return &fault{ingest.Denied, cause, remedy}
}

// Users names the programs that have a device file open, as far as we may see that; empty if none. Root sees all; a login is seen by
// everybody.
func Users(device string) string {
	node, err := filepath.EvalSymlinks(device)
	if err != nil {
		return ""
	}
	who := holders(node)
	var login *fault
	if who == "" && errors.As(checkLogin("/proc", device, node), &login) {
		return "a login"
	}
	return who
}

// holders names the processes that have the device open, as far as /proc shows them to us.
func holders(node string) string {
	links, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return ""
	}
	var out []string
	for _, l := range links {
		if target, err := os.Readlink(l); err != nil || target != node {
			continue
		}
		pid := strings.Split(l, "/")[2]
		name := "this daemon"
		if pid != strconv.Itoa(os.Getpid()) {
			comm, err := os.ReadFile("/proc/" + pid + "/comm")
			if err != nil {
				continue
			}
			name = strings.TrimSpace(string(comm)) + " (pid " + pid + ")"
		}
		if !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return strings.Join(out, ", ")
}
