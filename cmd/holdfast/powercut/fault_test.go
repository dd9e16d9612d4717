package powercut

import (
	"bufio"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sys/unix"

	forwardhub "github.com/holdfast-edge/holdfast/forward/hub"
)

// bootIDFile is where the kernel says which boot this is.
const bootIDFile = "/proc/sys/kernel/random/boot_id"

// anotherBoot makes this process see a kernel boot of its own. The process must be in a mount namespace of its own. Of the mounts that it inherited, it lets
// go of those of other disks, which their owners could not unmount otherwise.
func anotherBoot(data string) error {
	own, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return err
	}
	if parents, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", os.Getppid())); err != nil || parents == own {
		return errors.Join(err, errors.New("this process shares its mounts with its parent"))
	}
	if err := leaveOtherDisks(data); err != nil {
		return err
	}
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails: see crypto/rand
	text := fmt.Sprintf("%x-%x-%x-%x-%x\n", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
	f, err := os.CreateTemp("", "boot_id")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }() // the bind mount keeps it alive
	if _, err := f.WriteString(text); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := f.Close(); err != nil {
		return err
	}
	return unix.Mount(f.Name(), bootIDFile, "", unix.MS_BIND, "")
}

// leaveOtherDisks detaches every loop and FUSE mount of this namespace that is not below the disk that holds data.
func leaveOtherDisks(data string) error {
	f, err := os.Open("/proc/self/mounts")
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // read only
	own := filepath.Dir(data)
	var others []string
	for lines := bufio.NewScanner(f); lines.Scan(); {
		field := strings.Fields(lines.Text())
		if len(field) < 3 || !strings.HasPrefix(field[0], "/dev/loop") && !strings.HasPrefix(field[2], "fuse.rigdisk") {
			continue
		}
		if field[1] != own {
			others = append(others, field[1])
		}
	}
	for _, dir := range others {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("unmount %s: %w", dir, err)
		}
	}
	return nil
}

// forbidSync makes every syncfs of this process, in all its threads, answer 0 without being made: a leaf whose sync call was removed. See seccomp(2).
func forbidSync() error {
	const (
		load   = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		answer = unix.BPF_RET | unix.BPF_K
	)
	filter := []unix.SockFilter{
		{Code: load, K: 0}, // seccomp_data.nr
		{Code: equal, K: unix.SYS_SYNCFS, Jt: 0, Jf: 1},
		{Code: answer, K: unix.SECCOMP_RET_ERRNO},
		{Code: answer, K: unix.SECCOMP_RET_ALLOW},
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return fmt.Errorf("seccomp: %w", errno)
	}
	return nil
}

// blindConsumer is the sourcing consumer of a leaf that does not ask what the hub holds.
func blindConsumer(name, stream string) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable:        forwardhub.Consumer(name, stream),
		DeliverSubject: forwardhub.DeliverSubject(name, stream),
		FilterSubjects: []string{forwardhub.Filter(name, stream)},
		AckPolicy:      jetstream.AckFlowControlPolicy,
		FlowControl:    true,
		IdleHeartbeat:  heartbeat,
		MaxDeliver:     -1,
		MaxAckPending:  1000,
		MemoryStorage:  true,
		DeliverPolicy:  jetstream.DeliverAllPolicy,
	}
}
