package disk

import (
	"fmt"
	"io"
	"os/exec"
	"syscall"
)

// guard unmounts a directory when this process is gone without having done so: killed, or ended by the timeout of its tests. It is a shell in a session of
// its own, so that what ends this process's group does not end it, and it waits for the end of its input.
type guard struct {
	cmd *exec.Cmd
	in  io.WriteCloser
}

func startGuard(dir string) (*guard, error) {
	g := &guard{cmd: exec.Command("sh", "-c", `trap '' INT TERM HUP; read -r _; umount -l "$0"`, dir)}
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	var err error
	if g.in, err = g.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := g.cmd.Start(); err != nil {
		return nil, fmt.Errorf("guard %s: %w", dir, err)
	}
	return g, nil
}

// dismiss ends the guard, and returns when it can unmount nothing any more.
func (g *guard) dismiss() {
	_ = g.cmd.Process.Kill() // before its input ends
	_ = g.cmd.Wait()         // killed, as meant
	_ = g.in.Close()         // Wait has closed it
}
