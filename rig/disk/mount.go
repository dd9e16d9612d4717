package disk

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// releaseTimeout bounds the wait for a file system that still has open files to be let go.
const releaseTimeout = 10 * time.Second

// othersTimeout bounds the wait for processes that began in a mount namespace of their own while the file system was mounted: they let go of it when they come
// to run, which takes its time on a busy machine.
const othersTimeout = time.Minute

// Mount is an ext4 image mounted through a loop device.
type Mount struct {
	Dir    string // where its files are
	Device string // /dev/loopN

	backing string // what the kernel calls the file behind the device
	guard   *guard // nil once dismissed
}

// Available returns nil when this machine can run the rig, else what is missing: root, /dev/fuse, loop devices or mkfs.ext4.
func Available() error {
	if os.Geteuid() != 0 {
		return errors.New("the disk rig needs root")
	}
	for _, dev := range []string{"/dev/fuse", "/dev/loop-control"} {
		f, err := os.OpenFile(dev, os.O_RDWR, 0)
		if err != nil {
			return fmt.Errorf("the disk rig needs %s: %w", dev, err)
		}
		_ = f.Close() // nothing was done with it
	}
	_, err := mkfs()
	return err
}

// mkfs finds mkfs.ext4, which a plain user's PATH may not list.
func mkfs() (string, error) {
	for _, name := range []string{"mkfs.ext4", "/usr/sbin/mkfs.ext4", "/sbin/mkfs.ext4"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errors.New("the disk rig needs mkfs.ext4 (package e2fsprogs)")
}

// Format makes an empty ext4 on an existing image or device. Everything is written at once, so that nothing trickles in later.
func Format(image string) error {
	tool, err := mkfs()
	if err != nil {
		return err
	}
	out, err := exec.Command(tool, "-q", "-F", "-b", "4096", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0", image).CombinedOutput()
	if err != nil {
		return fmt.Errorf("mkfs.ext4 %s: %w: %s", image, err, bytes.TrimSpace(out))
	}
	return nil
}

// Create makes an image of size bytes, written in full so that later writes allocate nothing below it, and formats it.
func Create(image string, size int64) (err error) {
	f, err := os.Create(image)
	if err != nil {
		return err
	}
	zero := make([]byte, 1<<20)
	for off := int64(0); off < size && err == nil; off += int64(len(zero)) {
		_, err = f.WriteAt(zero[:min(int64(len(zero)), size-off)], off)
	}
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("create image %s: %w", image, err)
	}
	return Format(image)
}

// Open mounts an ext4 image on dir, which it makes if needed. The kernel replays the file system's journal, as it does after a power cut. Close unmounts it;
// if the program dies before, a guard does.
func Open(image, dir string) (*Mount, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	loop, err := attachLoop(image)
	if err != nil {
		return nil, fmt.Errorf("loop device for %s: %w", image, err)
	}
	defer func() { _ = loop.Close() }() // the mount holds the device from here on; without one it is let go at once
	if err := unix.Mount(loop.Name(), dir, "ext4", unix.MS_NOATIME, ""); err != nil {
		return nil, fmt.Errorf("mount %s on %s: %w", image, dir, err)
	}
	m := &Mount{Dir: dir, Device: loop.Name()}
	m.backing = m.behind()
	if m.guard, err = startGuard(dir); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// behind returns the file behind the loop device, "" when there is none any more.
func (m *Mount) behind() string {
	name, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(m.Device), "loop/backing_file"))
	if err != nil {
		return ""
	}
	return string(name)
}

// attachLoop binds image to a free loop device that frees itself when its last user closes it.
func attachLoop(image string) (*os.File, error) {
	backing, err := os.OpenFile(image, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = backing.Close() }() // the loop device holds its own reference
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = control.Close() }() // nothing was written
	for range 100 {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("find a free one: %w", err)
		}
		loop, err := os.OpenFile("/dev/loop"+strconv.Itoa(n), os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		cfg := unix.LoopConfig{Fd: uint32(backing.Fd()), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR}}
		copy(cfg.Info.File_name[:len(cfg.Info.File_name)-1], image)
		err = unix.IoctlLoopConfigure(int(loop.Fd()), &cfg)
		if err == nil {
			return loop, nil
		}
		_ = loop.Close() // not ours
		if !errors.Is(err, unix.EBUSY) {
			return nil, fmt.Errorf("configure /dev/loop%d: %w", n, err)
		}
	}
	return nil, errors.New("another program takes every free one first")
}

// Close unmounts and waits until the loop device is free. Files still open in it after 10 seconds are an error; it is then detached all the same.
func (m *Mount) Close() error {
	if m.guard != nil {
		m.guard.dismiss()
		m.guard = nil
	}
	deadline := time.Now().Add(releaseTimeout)
	err := unix.Unmount(m.Dir, 0)
	for errors.Is(err, unix.EBUSY) && time.Now().Before(deadline) {
		time.Sleep(20 * time.Millisecond)
		err = unix.Unmount(m.Dir, 0)
	}
	if err != nil {
		err = fmt.Errorf("unmount %s: %w", m.Dir, err)
		if derr := unix.Unmount(m.Dir, unix.MNT_DETACH); derr != nil {
			return errors.Join(err, derr)
		}
		return err
	}
	deadline = time.Now().Add(othersTimeout)
	for m.behind() == m.backing {
		if time.Now().After(deadline) {
			return fmt.Errorf("%s is still in use after its unmount", m.Device)
		}
		time.Sleep(5 * time.Millisecond)
	}
	return nil
}

// Stats returns what the block device below the file system has counted so far: see block/stat in the kernel's documentation.
func (m *Mount) Stats() (Stats, error) {
	path := filepath.Join("/sys/block", filepath.Base(m.Device), "stat")
	raw, err := os.ReadFile(path)
	if err != nil {
		return Stats{}, err
	}
	const writes, sectors, flushes = 4, 6, 15
	fields := strings.Fields(string(raw))
	if len(fields) <= flushes {
		return Stats{}, fmt.Errorf("%s has %d fields: this kernel does not count flushes", path, len(fields))
	}
	var n [3]int64
	for i, at := range []int{writes, sectors, flushes} {
		if n[i], err = strconv.ParseInt(fields[at], 10, 64); err != nil {
			return Stats{}, fmt.Errorf("%s: %w", path, err)
		}
	}
	return Stats{Writes: n[0], Bytes: n[1] * sectorSize, Flushes: n[2]}, nil
}
