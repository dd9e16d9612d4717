// Package broker runs MQTT brokers on the loopback, and publishes to them, for tests and the demo: Mosquitto as a child process
// that can be killed, and the MQTT listener of a nats-server in this process.
package broker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-edge/holdfast/rig/poll"
	"github.com/holdfast-edge/holdfast/rig/port"
)

// ErrAbsent means that Mosquitto is not installed on this machine (Debian: package mosquitto).
var ErrAbsent = errors.New("mosquitto is not installed: apt install mosquitto")

// Limits of starting and stopping a broker.
const (
	startTimeout = 15 * time.Second
	stopTimeout  = 10 * time.Second
)

// Options say how Mosquitto is configured. The zero value is a broker in memory that lets everybody in and queues without limit.
type Options struct {
	Dir         string            // configuration and data, kept by Close; empty: a temporary one that Close removes
	Persistence bool              // keep sessions and messages on disk, saved at each change
	Users       map[string]string // passwords by user; empty: anybody
	ACL         string            // lines of an ACL file
	Cert, Key   string            // PEM files of a TLS listener; empty: plain TCP
	ClientCA    string            // PEM file of the CA that clients need a certificate of; empty: none needed
	Config      string            // further lines
	Log         io.Writer         // the broker's log; nil: dropped
}

// Mosquitto is a broker process. It is not safe for concurrent use.
type Mosquitto struct {
	opts   Options
	path   string // of the executable
	dir    string
	ownDir bool
	port   int

	cmd  *exec.Cmd     // nil while it is down
	done chan struct{} // closed when cmd has been waited for
	log  *logWriter
}

// Find returns the path of the executable or ErrAbsent.
func Find() (string, error) {
	for _, name := range []string{"mosquitto", "/usr/sbin/mosquitto", "/usr/local/sbin/mosquitto"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", ErrAbsent
}

// Start starts Mosquitto and returns when it accepts connections.
func Start(opts Options) (*Mosquitto, error) {
	path, err := Find()
	if err != nil {
		return nil, err
	}
	ports, err := port.Pick(1)
	if err != nil {
		return nil, err
	}
	b := &Mosquitto{opts: opts, path: path, dir: opts.Dir, port: ports[0], log: &logWriter{to: opts.Log}}
	if b.dir == "" {
		b.ownDir = true
		if b.dir, err = os.MkdirTemp("", "mosquitto-"); err != nil {
			return nil, fmt.Errorf("start mosquitto: %w", err)
		}
	}
	if err := b.write(); err != nil {
		return nil, errors.Join(fmt.Errorf("configure mosquitto: %w", err), b.Close())
	}
	if err := b.Restart(); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

// write writes the broker's files.
func (b *Mosquitto) write() error {
	lines := []string{
		fmt.Sprintf("listener %d 127.0.0.1", b.port),
		"max_queued_messages 0",
		"allow_anonymous " + strconv.FormatBool(len(b.opts.Users) == 0),
		"log_dest stderr",
	}
	if os.Geteuid() == 0 {
		lines = append(lines, "user root") // or it gives up its rights to the directory
	}
	if b.opts.Persistence {
		lines = append(lines, "persistence true", "persistence_location "+b.dir+"/", "autosave_on_changes true", "autosave_interval 1")
	}
	if b.opts.Cert != "" {
		lines = append(lines, "certfile "+b.opts.Cert, "keyfile "+b.opts.Key)
	}
	if b.opts.ClientCA != "" {
		lines = append(lines, "cafile "+b.opts.ClientCA, "require_certificate true")
	}
	if b.opts.ACL != "" {
		file := filepath.Join(b.dir, "acl")
		if err := os.WriteFile(file, []byte(b.opts.ACL+"\n"), 0o600); err != nil {
			return err
		}
		lines = append(lines, "acl_file "+file)
	}
	if len(b.opts.Users) > 0 {
		file := filepath.Join(b.dir, "users")
		var text strings.Builder
		for user, password := range b.opts.Users {
			fmt.Fprintf(&text, "%s:%s\n", user, password)
		}
		if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
			return err
		}
		if out, err := exec.Command("mosquitto_passwd", "-U", file).CombinedOutput(); err != nil {
			return fmt.Errorf("hash passwords: %w: %s", err, out)
		}
		lines = append(lines, "password_file "+file)
	}
	lines = append(lines, b.opts.Config)
	return os.WriteFile(filepath.Join(b.dir, "mosquitto.conf"), []byte(strings.Join(lines, "\n")+"\n"), 0o600)
}

// Addr returns host and port of the listener. They stay the same over restarts.
func (b *Mosquitto) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(b.port)) }

// URL returns the address as clients are configured with it.
func (b *Mosquitto) URL() string {
	if b.opts.Cert != "" {
		return "tls://" + b.Addr()
	}
	return "tcp://" + b.Addr()
}

// Restart starts a broker that is down, on the same port and directory, and returns when it accepts connections.
func (b *Mosquitto) Restart() error {
	if b.cmd != nil {
		return errors.New("restart mosquitto: it is running")
	}
	cmd := exec.Command(b.path, "-c", filepath.Join(b.dir, "mosquitto.conf"))
	cmd.Stderr, cmd.Stdout = b.log, b.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // a killed test leaves no broker behind
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start mosquitto: %w", err)
	}
	b.cmd, b.done = cmd, make(chan struct{})
	go func(done chan struct{}) { // ends with the process, and stop waits for it
		defer close(done)
		_ = cmd.Wait() // how it ended shows in its log
	}(b.done)
	up := poll.Wait(context.Background(), startTimeout, func() bool {
		c, err := net.DialTimeout("tcp", b.Addr(), time.Second)
		if err != nil {
			return b.ended()
		}
		_ = c.Close() // it only showed that the port is open
		return true
	})
	if !up || b.ended() {
		b.stop(syscall.SIGKILL)
		return fmt.Errorf("start mosquitto on %s: it does not accept connections; its log ends with: %s", b.Addr(), b.log.tail())
	}
	return nil
}

func (b *Mosquitto) ended() bool {
	select {
	case <-b.done:
		return true
	default:
		return false
	}
}

// Kill ends the broker like a crash: by SIGKILL.
func (b *Mosquitto) Kill() { b.stop(syscall.SIGKILL) }

// Stop ends the broker like a shutdown: it saves its state.
func (b *Mosquitto) Stop() { b.stop(syscall.SIGTERM) }

func (b *Mosquitto) stop(sig syscall.Signal) {
	if b.cmd == nil {
		return
	}
	_ = b.cmd.Process.Signal(sig) // it may have ended already
	select {
	case <-b.done:
	case <-time.After(stopTimeout):
		_ = b.cmd.Process.Kill() // as above
		<-b.done
	}
	b.cmd = nil
}

// Close stops the broker and removes its temporary directory.
func (b *Mosquitto) Close() error {
	b.Stop()
	if b.ownDir {
		return os.RemoveAll(b.dir)
	}
	return nil
}

// logWriter keeps the end of the broker's log.
type logWriter struct {
	to io.Writer

	mu   sync.Mutex // guards the field below
	last []byte
}

func (w *logWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = append(w.last, p...)
	if n := len(w.last); n > 2000 {
		w.last = w.last[n-1000:]
	}
	if w.to != nil {
		_, _ = w.to.Write(p) // a log that cannot be written must not stop the broker
	}
	return len(p), nil
}

func (w *logWriter) tail() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return string(w.last)
}
