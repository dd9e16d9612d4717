package powercut

import (
	"bufio"
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

// ownMounts makes sure that this process is in a mount namespace of its own. Of the mounts that it inherited, it lets go of those of other disks, which
// their owners could not unmount otherwise.
func ownMounts(data string) error {
	own, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return err
	}
	if parents, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", os.Getppid())); err != nil || parents == own {
		return errors.Join(err, errors.New("this process shares its mounts with its parent"))
	}
	return leaveOtherDisks(data)
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

// forbidSync makes every syncfs and fdatasync of this process, in all its threads, answer 0 without being made: a leaf whose sync calls were removed. See
// seccomp(2).
func forbidSync() error {
	const (
		load   = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		answer = unix.BPF_RET | unix.BPF_K
	)
	filter := []unix.SockFilter{
		{Code: load, K: 0}, // seccomp_data.nr
		{Code: equal, K: unix.SYS_SYNCFS, Jt: 1, Jf: 0},
		{Code: equal, K: unix.SYS_FDATASYNC, Jt: 0, Jf: 1},
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
