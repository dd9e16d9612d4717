package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// childCommand is the first argument of a child process.
const childCommand = "rig-hub-node"

// readyLine is what a child process prints when it accepts connections.
const readyLine = "ready\n"

// Main runs a hub node and returns its exit code when the process was started by a Cluster for that; else ran is false. A main
// function or TestMain of an executable that uses Options.Processes begins with it:
//
//	if code, ran := hub.Main(os.Args); ran {
//		os.Exit(code)
//	}
func Main(args []string) (code int, ran bool) {
	if len(args) != 3 || args[1] != childCommand {
		return 0, false
	}
	if err := child(args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1, true
	}
	return 0, true
}

// child runs a node until the parent closes standard input, as it does by dying.
func child(path string) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read node: %w", err)
	}
	var s spec
	if err := json.Unmarshal(raw, &s); err != nil {
		return fmt.Errorf("read node %s: %w", path, err)
	}
	n, err := launchServer(s, os.Stderr)
	if err != nil {
		return err
	}
	if err := n.wait(startTimeout); err != nil {
		return err
	}
	if _, err := io.WriteString(os.Stdout, readyLine); err != nil {
		return fmt.Errorf("report to parent: %w", err)
	}
	_, _ = io.Copy(io.Discard, os.Stdin) // any end of input means stop
	return n.stop(context.Background())
}

// inProcess is a server in this process.
type inProcess struct{ srv *server.Server }

func launchServer(s spec, log io.Writer) (*inProcess, error) {
	o, err := s.options()
	if err != nil {
		return nil, err
	}
	srv, err := server.NewServer(o)
	if err != nil {
		return nil, fmt.Errorf("hub node: %w", err)
	}
	srv.SetLoggerV2(&logger{w: log, name: o.ServerName}, false, false, false)
	srv.Start()
	return &inProcess{srv: srv}, nil
}

func (n *inProcess) kill() error { return n.stop(context.Background()) }

func (n *inProcess) stop(context.Context) error {
	n.srv.Shutdown()
	n.srv.WaitForShutdown()
	return nil
}

func (n *inProcess) wait(timeout time.Duration) error {
	if !n.srv.ReadyForConnections(timeout) {
		return fmt.Errorf("%s accepts no connections after %v", n.srv.Name(), timeout)
	}
	return nil
}

func (n *inProcess) server() *server.Server { return n.srv }

func (n *inProcess) signal(os.Signal) error {
	return errors.New("a hub node in this process takes no signals: start the hub with Processes")
}

// process is a server in a child process.
type process struct {
	cmd   *exec.Cmd
	stdin io.Closer
	ready chan struct{} // closed when the child accepts connections
	ended chan struct{} // closed when the child has ended and been waited for
}

func launchChild(path string, s spec, log io.Writer) (*process, error) {
	raw, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("hub node: %w", err)
	}
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		return nil, fmt.Errorf("hub node: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("hub node: %w", err)
	}
	n := &process{cmd: exec.Command(self, childCommand, path), ready: make(chan struct{}), ended: make(chan struct{})}
	n.cmd.Stderr = log
	n.cmd.Stdout = &readyWriter{ready: n.ready}
	if n.stdin, err = n.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("hub node: %w", err)
	}
	if err := n.cmd.Start(); err != nil {
		return nil, fmt.Errorf("hub node: %w", err)
	}
	go func() {
		_ = n.cmd.Wait() // killed more often than not
		close(n.ended)
	}()
	return n, nil
}

func (n *process) kill() error {
	err := n.cmd.Process.Kill()
	<-n.ended
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

func (n *process) stop(ctx context.Context) error {
	_ = n.stdin.Close() // a child that has died is stopped, too
	select {
	case <-n.ended:
		return nil
	case <-ctx.Done():
		return errors.Join(ctx.Err(), n.kill())
	}
}

func (n *process) wait(timeout time.Duration) error {
	t := time.NewTimer(timeout)
	defer t.Stop()
	select {
	case <-n.ready:
		return nil
	case <-n.ended:
		return fmt.Errorf("child process ended: %v; was hub.Main called at the start of its main function?", n.cmd.ProcessState)
	case <-t.C:
		return fmt.Errorf("child process accepts no connections after %v", timeout)
	}
}

func (n *process) server() *server.Server { return nil }

func (n *process) signal(sig os.Signal) error {
	if sig == syscall.SIGKILL {
		return n.kill()
	}
	return n.cmd.Process.Signal(sig)
}

// readyWriter waits for readyLine. What else a child prints is dropped.
type readyWriter struct {
	once  sync.Once
	ready chan struct{}
	line  []byte
}

func (w *readyWriter) Write(p []byte) (int, error) {
	if len(w.line) < len(readyLine) {
		w.line = append(w.line, p...)
	}
	if len(w.line) >= len(readyLine) && string(w.line[:len(readyLine)]) == readyLine {
		w.once.Do(func() { close(w.ready) })
	}
	return len(p), nil
}

// logger writes a server's log as lines.
type logger struct {
	w    io.Writer
	name string
}

var _ server.Logger = (*logger)(nil)

func (l *logger) line(level, format string, v ...any) {
	_, _ = fmt.Fprintf(l.w, "%s %s [%s] %s\n", time.Now().Format("15:04:05.000"), l.name, level, fmt.Sprintf(format, v...)) // a log has no reader to report to
}

func (l *logger) Noticef(format string, v ...any) { l.line("INF", format, v...) }
func (l *logger) Warnf(format string, v ...any)   { l.line("WRN", format, v...) }
func (l *logger) Fatalf(format string, v ...any)  { l.line("FTL", format, v...) }
func (l *logger) Errorf(format string, v ...any)  { l.line("ERR", format, v...) }
func (l *logger) Debugf(format string, v ...any)  { l.line("DBG", format, v...) }
func (l *logger) Tracef(format string, v ...any)  { l.line("TRC", format, v...) }
