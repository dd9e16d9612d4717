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
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/holdfast-edge/holdfast/rig/poll"
)

// Kind is a machine that an image is started on.
type Kind string

// The machines.
const (
	PC      Kind = "amd64"  // q35, for an image built for amd64
	Virt    Kind = "virt"   // arm64, without a board's peripherals
	RasPi3B Kind = "raspi3" // a Raspberry Pi 3 B; without its firmware stage, which only a real one has
)

// BoardOptions say what an image is started on.
type BoardOptions struct {
	Kind   Kind
	Folder string // with vmlinuz, initrd and, for RasPi3B, the device tree
	Image  string // file of the card, in raw form, or socket of a disk.Network when NBD is set
	NBD    bool
	Dir    string // for the sockets
	Append string // to the kernel's command line
}

// Board is an emulated machine that runs an image. A shell of root listens on a line of its own, apart from the image's console on Virt and PC. Its
// methods are safe for concurrent use.
type Board struct {
	vm    *VM
	dir   string
	shell io.ReadWriteCloser
	out   transcript

	mu   sync.Mutex // serialises commands
	next atomic.Int64
	usb  io.Closer // plugged: the far end of the adapter's line
}

// transcript collects what the shell prints.
type transcript struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

func (s *transcript) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Write(p)
}

func (s *transcript) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}

// BoardAvailable tells why no machine of a kind would start here, or nil.
func BoardAvailable(kind Kind) error {
	program, pkg := "qemu-system-aarch64", "qemu-system-arm"
	if kind == PC {
		program, pkg = "qemu-system-x86_64", "qemu-system-x86"
	}
	if _, err := exec.LookPath(program); err != nil {
		return fmt.Errorf("%w: %s is not installed (Debian: %s)", ErrAbsent, program, pkg)
	}
	return nil
}

// arguments returns the program and its arguments.
func (o BoardOptions) arguments() (program string, args []string) {
	socket := func(id string) []string {
		return []string{"-chardev", "socket,id=" + id + ",path=" + filepath.Join(o.Dir, id) + ",server=on,wait=off"}
	}
	// The shell has a line that no login takes.
	var console, shell string
	args = []string{"-nographic", "-no-reboot", "-nodefaults"}
	switch o.Kind {
	case PC:
		program, console, shell = "qemu-system-x86_64", "ttyS0", "ttyS1"
		args = append(args, "-machine", "q35,accel=tcg", "-cpu", "qemu64", "-smp", "2", "-m", "512")
		args = append(args, "-serial", "stdio")
		args = append(append(args, socket("shell")...), "-serial", "chardev:shell")
	case Virt:
		program, console, shell = "qemu-system-aarch64", "ttyAMA0", "hvc0"
		args = append(args, "-machine", "virt,accel=tcg", "-cpu", "cortex-a53", "-smp", "2", "-m", "512")
		args = append(args, "-serial", "stdio")
		args = append(append(args, socket("shell")...), "-device", "virtio-serial-pci", "-device", "virtconsole,chardev=shell")
	case RasPi3B:
		program, console, shell = "qemu-system-aarch64", "ttyS1", "ttyS1"
		args = append(args, "-machine", "raspi3b,accel=tcg", "-dtb", filepath.Join(o.Folder, "bcm2837-rpi-3-b.dtb"))
		args = append(append(args, socket("shell")...), "-serial", "null", "-serial", "chardev:shell")
	}
	drive := "file=" + o.Image + ",format=raw"
	if o.NBD {
		drive = "driver=nbd,server.type=unix,server.path=" + o.Image
	}
	drive += ",cache=writeback"
	if o.Kind == RasPi3B {
		args = append(args, "-drive", drive+",if=sd")
	} else {
		args = append(args, "-drive", drive+",if=none,id=card", "-device", "virtio-blk-pci,drive=card",
			"-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net,romfile=", "-device", "qemu-xhci")
	}
	extra := o.Append
	if o.Kind != Virt { // the Raspberry Pi's emulated watchdog bites at once when it is armed, the PC's when the emulator is starved
		extra = "systemd.watchdog_sec=0 " + extra
	}
	// A client of its socket plugs the adapter in, its end pulls it out.
	args = append(append(args, socket("usb")...), "-device", "usb-serial,chardev=usb,serial="+AdapterSerial)
	args = append(args, "-kernel", filepath.Join(o.Folder, "vmlinuz"), "-initrd", filepath.Join(o.Folder, "initrd"), "-append",
		strings.TrimSpace(fmt.Sprintf("console=%s panic=-1 tsc=unstable systemd.debug_shell=%s systemd.mask=serial-getty@%s.service systemd.mask=serial-getty@%s.service "+
			"systemd.ssh_auto=no %s", console, shell, console, shell, extra)))
	return program, args
}

// AdapterSerial is the serial number of the board's USB serial adapter.
const AdapterSerial = "ABC123"

// StartBoard switches a machine on and returns when its shell answers.
func StartBoard(ctx context.Context, o BoardOptions, patience time.Duration) (*Board, error) {
	for _, name := range []string{"shell", "usb"} {
		_ = os.Remove(filepath.Join(o.Dir, name)) // of a machine before
	}
	program, args := o.arguments()
	b := &Board{dir: o.Dir, vm: &VM{cmd: exec.Command(program, args...), done: make(chan struct{})}}
	b.vm.cmd.Stdout, b.vm.cmd.Stderr = b.vm, b.vm
	b.vm.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := b.vm.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a board: %w", err)
	}
	go func() { _ = b.vm.cmd.Wait(); close(b.vm.done) }() // a machine whose power was cut ends by a signal
	var err error
	if b.shell, err = Line(ctx, filepath.Join(o.Dir, "shell")); err != nil {
		b.vm.Kill()
		return nil, errors.Join(err, errors.New(b.Console()))
	}
	go func() { _, _ = io.Copy(&b.out, b.shell) }() // ends with the line, which Kill closes
	deadline := time.Now().Add(patience)
	for {
		if out, err := b.Run(ctx, 20*time.Second, "echo here"); err == nil && out == "here" {
			return b, nil
		}
		if b.vm.ended() || ctx.Err() != nil || time.Now().After(deadline) {
			b.Kill()
			return nil, fmt.Errorf("the board has no shell within %v; its console ends with\n%s", patience, b.Tail())
		}
	}
}

// Console returns what the board has printed so far.
func (b *Board) Console() string { return b.vm.Console() + b.out.String() }

// Tail returns the end of the console.
func (b *Board) Tail() string {
	c := b.Console()
	return c[max(0, len(c)-4000):]
}

// Kill takes the power away at once.
func (b *Board) Kill() {
	b.vm.Kill()
	_ = b.shell.Close() // its far end is gone
	b.Unplug()
}

// Ended tells whether the machine went off by itself.
func (b *Board) Ended() bool { return b.vm.ended() }

// Errors returns the lines of the console that tell of a kernel or a file system in trouble.
func (b *Board) Errors() []string { return b.vm.Errors() }

var escape = regexp.MustCompile("\x1b\\[[?0-9;]*[A-Za-z]|\x1b[>=]|\r")

// Run runs a shell script as root on the board and returns what it printed, trimmed. The error tells of another exit code than 0, or of no answer.
func (b *Board) Run(ctx context.Context, patience time.Duration, script string) (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.next.Add(1)
	from := len(b.out.String())
	script = strings.ReplaceAll(script, "\t", " ") // the shell would complete words
	// The markers are put together by the shell, so that its echo of the line is not taken for them.
	line := fmt.Sprintf("\x15echo '<<'%d; { %s\n} 2>&1 </dev/null; echo '>>'%d $?\n", n, script, n)
	if _, err := io.WriteString(b.shell, line); err != nil {
		return "", fmt.Errorf("reach the board's shell: %w", err)
	}
	begin, end := fmt.Sprintf("<<%d\n", n), regexp.MustCompile(fmt.Sprintf(`>>%d (\d+)\n`, n))
	var out string
	code := -1
	poll.Wait(ctx, patience, func() bool {
		text := escape.ReplaceAllString(b.out.String()[from:], "")
		i := strings.Index(text, begin)
		if i < 0 {
			return b.vm.ended()
		}
		text = text[i+len(begin):]
		m := end.FindStringSubmatchIndex(text)
		if m == nil {
			return b.vm.ended()
		}
		out = strings.TrimSpace(text[:m[0]])
		code, _ = strconv.Atoi(text[m[2]:m[3]]) // digits
		return true
	})
	switch code {
	case 0:
		return out, nil
	case -1:
		return "", fmt.Errorf("%s: no answer from the board", script)
	}
	return out, fmt.Errorf("%s: exit code %d", script, code)
}

// Plug puts a USB serial adapter into the board and returns the far end of its line, until Unplug.
func (b *Board) Plug(ctx context.Context) (io.ReadWriteCloser, error) {
	line, err := Line(ctx, filepath.Join(b.dir, "usb"))
	if err != nil {
		return nil, err
	}
	b.usb = line
	return line, nil
}

// Unplug pulls it out. Without one it does nothing.
func (b *Board) Unplug() {
	if b.usb != nil {
		_ = b.usb.Close() // the far end may be gone
		b.usb = nil
	}
}
