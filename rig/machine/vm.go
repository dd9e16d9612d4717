package machine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-edge/holdfast/rig/poll"
)

// kernelPackage is the Debian package that depends on the newest kernel for virtual machines.
const kernelPackage = "linux-image-cloud-amd64"

// modules are what the kernel needs to see the disk and the network, in the order of loading.
var modules = []string{"virtio_ring", "virtio", "virtio_pci_legacy_dev", "virtio_pci_modern_dev", "virtio_pci", "virtio_blk", "failover", "net_failover", "virtio_net"}

// VMAvailable tells why no virtual machine would start here, or nil.
func VMAvailable() error {
	for program, pkg := range map[string]string{"qemu-system-x86_64": "qemu-system-x86", "dpkg-deb": "dpkg", "apt-get": "apt"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("%w: %s is not installed (Debian: %s)", ErrAbsent, program, pkg)
		}
	}
	if _, err := os.Stat("/bin/busybox"); err != nil {
		return fmt.Errorf("%w: busybox is not installed (Debian: busybox-static)", ErrAbsent)
	}
	return nil
}

// Kernel is a kernel of this machine's Debian, unpacked.
type Kernel struct {
	Image   string            // file of the kernel itself
	modules map[string]string // name -> file
}

// FetchKernel downloads the kernel into dir, about 30 MB.
func FetchKernel(ctx context.Context, dir string) (*Kernel, error) {
	out, err := exec.CommandContext(ctx, "apt-cache", "depends", kernelPackage).Output()
	if err != nil {
		return nil, fmt.Errorf("look up %s: %w", kernelPackage, err)
	}
	_, name, ok := strings.Cut(string(out), "Depends: ")
	name, _, _ = strings.Cut(name, "\n")
	if !ok || name == "" {
		return nil, fmt.Errorf("look up %s: no kernel in %q", kernelPackage, out)
	}
	get := exec.CommandContext(ctx, "apt-get", "-qq", "download", name)
	get.Dir = dir
	if out, err := get.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("download %s: %w\n%s", name, err, out)
	}
	debs, err := filepath.Glob(filepath.Join(dir, "linux-image-*.deb"))
	if err != nil || len(debs) == 0 {
		return nil, fmt.Errorf("download %s: no package arrived in %s", name, dir)
	}
	if out, err := exec.CommandContext(ctx, "dpkg-deb", "-x", debs[0], dir).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("unpack %s: %w\n%s", debs[0], err, out)
	}
	k := &Kernel{modules: map[string]string{}}
	images, err := filepath.Glob(filepath.Join(dir, "boot/vmlinuz-*"))
	if err != nil || len(images) == 0 {
		return nil, fmt.Errorf("unpack %s: no kernel in it", debs[0])
	}
	k.Image = images[0]
	return k, filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if name, ok := strings.CutSuffix(filepath.Base(path), ".ko"); ok {
			k.modules[name] = path
		}
		return err
	})
}

// Host is what the guest calls this machine's loopback.
const Host = "10.0.2.2"

// bring makes the disk and the network of the guest usable, and says on the console which of its disks is the data's.
const bring = `#!/bin/busybox sh
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sys /sys
for m in %s; do /bin/busybox insmod /modules/$m.ko || echo "guest: no module $m"; done
/bin/busybox ip link set lo up
/bin/busybox ip addr add 127.0.0.1/8 dev lo
/bin/busybox ip addr add 10.0.2.15/24 dev eth0
/bin/busybox ip link set eth0 up
/bin/busybox ip route add default via 10.0.2.2
/bin/busybox mount -t ext4 -o noatime /dev/vda /data && echo "guest: the data disk is mounted"
%s
echo "guest: the end"
/bin/busybox poweroff -f
`

// Root returns a root in memory that brings up disk (mounted at /data), loopback and network (10.0.2.15), and then runs a shell script.
// The caller adds what the script needs.
func (k *Kernel) Root(script string) (Initramfs, error) {
	root := Initramfs{"/init": fmt.Appendf(nil, bring, strings.Join(modules, " "), script)}
	if err := root.Add("/bin/busybox", "/bin/busybox"); err != nil {
		return nil, err
	}
	for _, m := range modules {
		if k.modules[m] == "" {
			continue // built in
		}
		if err := root.Add("/modules/"+m+".ko", k.modules[m]); err != nil {
			return nil, err
		}
	}
	return root, nil
}

// VMOptions say what a virtual machine consists of.
type VMOptions struct {
	Kernel, Initrd string // files
	Disk           string // socket of a disk.Network
	Serial         string // socket that this package makes and the guest has as /dev/ttyS1; empty: none
}

// VM is a running virtual machine, emulated in software: amd64, one processor, 256 MiB. Its methods are safe for concurrent use.
type VM struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when cmd has been waited for

	mu      sync.Mutex // guards the field below
	console bytes.Buffer
}

// Write takes what the guest prints on its console.
func (v *VM) Write(p []byte) (int, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.console.Write(p)
}

// Console returns what the guest has printed so far.
func (v *VM) Console() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.console.String()
}

// StartVM switches a machine on. It returns at once; what the guest does is on its console.
func StartVM(o VMOptions) (*VM, error) {
	args := []string{"-machine", "q35,accel=tcg", "-cpu", "qemu64", "-smp", "1", "-m", "256", "-nographic", "-no-reboot", "-nodefaults",
		"-kernel", o.Kernel, "-initrd", o.Initrd, "-append", "console=ttyS0 quiet panic=-1 tsc=unstable",
		"-drive", "driver=nbd,server.type=unix,server.path=" + o.Disk + ",if=virtio,cache=writeback",
		"-serial", "stdio"}
	if o.Serial != "" {
		args = append(args, "-chardev", "socket,id=line,path="+o.Serial+",server=on,wait=off", "-serial", "chardev:line")
	}
	args = append(args, "-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net,romfile=")
	v := &VM{cmd: exec.Command("qemu-system-x86_64", args...), done: make(chan struct{})}
	v.cmd.Stdout, v.cmd.Stderr = v, v
	v.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := v.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a virtual machine: %w", err)
	}
	go func() { _ = v.cmd.Wait(); close(v.done) }() // a machine whose power was cut ends by a signal
	return v, nil
}

// WaitFor waits until the console shows text.
func (v *VM) WaitFor(ctx context.Context, timeout time.Duration, text string) error {
	found := poll.Wait(ctx, timeout, func() bool {
		select {
		case <-v.done:
			return true
		default:
			return strings.Contains(v.Console(), text)
		}
	})
	if !found || !strings.Contains(v.Console(), text) {
		console := v.Console()
		return fmt.Errorf("the machine did not say %q within %v; its console ends with\n%s", text, timeout, console[max(0, len(console)-3000):])
	}
	return nil
}

func (v *VM) ended() bool {
	select {
	case <-v.done:
		return true
	default:
		return false
	}
}

// Kill ends the machine at once, as a power cut does. Freeze its disk first.
func (v *VM) Kill() {
	_ = v.cmd.Process.Kill() // it may have ended by itself
	<-v.done
}

// Line is the far end of a machine's serial line.
func Line(ctx context.Context, socket string) (io.ReadWriteCloser, error) {
	var conn net.Conn
	var err error
	if !poll.Wait(ctx, 10*time.Second, func() bool { conn, err = net.Dial("unix", socket); return err == nil }) {
		return nil, errors.Join(fmt.Errorf("reach the machine's serial line at %s", socket), err)
	}
	return conn, nil
}

// Errors returns the lines of the console that tell of a kernel or a file system in trouble.
func (v *VM) Errors() []string {
	var bad []string
	for line := range strings.Lines(v.Console()) {
		if slices.ContainsFunc([]string{"EXT4-fs error", "Kernel panic", "I/O error", "BUG:", "Call Trace", "corrupt"}, func(s string) bool { return strings.Contains(line, s) }) {
			bad = append(bad, strings.TrimSpace(line))
		}
	}
	return bad
}
