// Package machine boots a small Debian in a container of its own, systemd and all, for tests of the unit and the package: mmdebstrap makes
// the root, systemd-nspawn boots it, commands go in through its namespaces. It needs root.
package machine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-edge/holdfast/rig/poll"
)

// Suite is the Debian release that is the reference system.
const Suite = "trixie"

// ErrAbsent means that this machine cannot boot another; the text says what is missing.
var ErrAbsent = errors.New("no machine can be booted here")

// Limits of a boot and of an orderly end.
const (
	bootTimeout = 3 * time.Minute
	stopTimeout = 30 * time.Second
)

// Available tells why Boot would not work here, or nil.
func Available() error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("%w: it takes root", ErrAbsent)
	}
	for _, program := range []string{"mmdebstrap", "systemd-nspawn", "nsenter"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("%w: %s is not installed", ErrAbsent, program)
		}
	}
	return nil
}

// MakeRoot makes a minimal Debian of a release with systemd in dir/root from the mirror that this machine uses, once: what is there is kept. About 15 s
// and 300 MB.
func MakeRoot(ctx context.Context, suite, dir string, packages ...string) (root string, err error) {
	root = filepath.Join(dir, "root")
	if _, err := os.Stat(filepath.Join(root, "usr/bin/systemctl")); err == nil {
		return root, nil
	}
	packages = append([]string{"systemd", "systemd-sysv", "dbus", "udev"}, packages...)
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, "mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", "--include="+strings.Join(packages, ","), suite, root)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("make a Debian %s in %s: %w\n%s", suite, root, err, out.String())
	}
	return root, nil
}

// Machine is a booted container. Its methods are not safe for concurrent use.
type Machine struct {
	root   string
	name   string
	cmd    *exec.Cmd
	done   chan struct{} // closed when cmd has been waited for
	leader int           // process id of its systemd
	log    *os.File
}

// Boot boots the Debian in root, without a network, and returns when systemd has started everything. What fails to start is for the caller
// to see: Run("systemctl", "--failed").
func Boot(ctx context.Context, root string) (*Machine, error) {
	if err := Available(); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(filepath.Dir(root), "console.log"))
	if err != nil {
		return nil, err
	}
	m := &Machine{root: root, name: "holdfast-" + strconv.Itoa(os.Getpid()), done: make(chan struct{}), log: log}
	m.cmd = exec.Command("systemd-nspawn", "--quiet", "--keep-unit", "--register=no", "--private-network", "--machine="+m.name,
		"-D", root, "--boot", "systemd.unit=multi-user.target")
	// The container gets version 2 of the control groups, also where this machine mixes both.
	m.cmd.Env = append(os.Environ(), "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1", "SYSTEMD_NSPAWN_LOCK=0")
	m.cmd.Stdout, m.cmd.Stderr = log, log
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := m.cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("boot %s: %w", root, err), log.Close())
	}
	go func() { _ = m.cmd.Wait(); close(m.done) }() // how it ended is in the log
	ctx, cancel := context.WithTimeout(ctx, bootTimeout)
	defer cancel()
	up := poll.Wait(ctx, bootTimeout, func() bool {
		if m.ended() {
			return true
		}
		if m.leader == 0 {
			m.leader = m.child()
		}
		if m.leader == 0 {
			return false
		}
		state, _ := m.Run(ctx, "systemctl", "is-system-running") // fails while it is starting
		state = strings.TrimSpace(state)
		return state == "running" || state == "degraded"
	})
	if !up || m.ended() {
		return nil, errors.Join(fmt.Errorf("boot %s: it did not come up within %v:\n%s", root, bootTimeout, m.Console()), m.Close())
	}
	return m, nil
}

func (m *Machine) ended() bool {
	select {
	case <-m.done:
		return true
	default:
		return false
	}
}

// child finds the container's systemd, the child of nspawn. 0: not there yet.
func (m *Machine) child() int {
	pid := strconv.Itoa(m.cmd.Process.Pid)
	b, err := os.ReadFile(filepath.Join("/proc", pid, "task", pid, "children"))
	if err != nil {
		return 0
	}
	for _, field := range strings.Fields(string(b)) {
		comm, err := os.ReadFile(filepath.Join("/proc", field, "comm"))
		if err != nil || strings.TrimSpace(string(comm)) != "systemd" {
			continue
		}
		if n, err := strconv.Atoi(field); err == nil {
			return n
		}
	}
	return 0
}

// Run runs a command as root inside and returns what it printed on both outputs.
func (m *Machine) Run(ctx context.Context, command ...string) (string, error) {
	args := append([]string{"-t", strconv.Itoa(m.leader), "-a", "--"}, command...)
	cmd := exec.CommandContext(ctx, "nsenter", args...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w", strings.Join(command, " "), err)
	}
	return string(out), err
}

// Path returns where a file of the machine lies outside.
func (m *Machine) Path(inside string) string { return filepath.Join(m.root, inside) }

// Console returns the end of what the machine wrote to its console.
func (m *Machine) Console() string {
	b, err := os.ReadFile(m.log.Name())
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-4096):])
}

// Close shuts the machine down and removes what the container manager left in the control groups.
func (m *Machine) Close() error {
	if m.leader != 0 && !m.ended() {
		_ = syscall.Kill(m.leader, syscall.Signal(34+4)) // SIGRTMIN+4: power off, see systemd(1)
	}
	select {
	case <-m.done:
	case <-time.After(stopTimeout):
		_ = m.cmd.Process.Kill()
		<-m.done
	}
	for _, group := range []string{"payload", "supervisor"} { // systemd-nspawn with --keep-unit leaves them
		dir := filepath.Join("/sys/fs/cgroup/unified", group)
		_ = os.Remove(dir)
	}
	return m.log.Close()
}

// Install copies a file into the machine.
func (m *Machine) Install(from, inside string, mode os.FileMode) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }() // only read
	out, err := os.OpenFile(m.Path(inside), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
