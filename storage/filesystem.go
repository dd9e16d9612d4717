package storage

import (
	"bufio"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrVolatile means that the data directory is on a file system that cannot keep the promise of Append. Its message names the type and the remedy.
var ErrVolatile = errors.New("file system does not keep acknowledged data through a power cut")

// FileSystem says what the data directory is on and how full that is.
type FileSystem struct {
	Type       string // as the kernel names it, such as ext4; 0x<magic> if unknown
	TotalBytes int64
	FreeBytes  int64  // what an unprivileged process may still write
	Inodes     uint64 // 0: the file system makes them as needed
	FreeInodes uint64
	NoBarrier  bool // mounted so that a sync does not reach the medium
	ReadOnly   bool // mounted so, or made so by the kernel after an error
}

// fsMagic names file systems by the number that statfs(2) gives. Those that matter or that people meet on gateways are listed.
var fsMagic = map[uint32]string{
	0xEF53:     "ext4", // ext2 and ext3 too; the mount table tells them apart
	0xF2F52010: "f2fs",
	0x9123683E: "btrfs",
	0x58465342: "xfs",
	0x01021994: "tmpfs",
	0x858458F6: "ramfs",
	0x794C7630: "overlay",
	0x6969:     "nfs",
	0x4D44:     "vfat",
	0x2011BAB0: "exfat",
	0x65735546: "fuse",
	0xFF534D42: "cifs",
	0xFE534D42: "smb2",
	0x73717368: "squashfs",
	0x72B6:     "jffs2",
	0x24051905: "ubifs",
	0x2FC12FC1: "zfs",
	0x01021997: "9p",
}

// supportedFS are those on which a syncfs makes JetStream's files durable, measured or by their documentation.
var supportedFS = []string{"ext4", "f2fs", "btrfs", "xfs"}

// fileSystemOf describes the file system that dir is on.
func fileSystemOf(dir string) (FileSystem, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return FileSystem{}, fmt.Errorf("look at the file system of %s: %w", dir, err)
	}
	unit := uint64(st.Frsize)
	if unit == 0 {
		unit = uint64(st.Bsize)
	}
	magic := uint32(st.Type)
	fsys := FileSystem{
		Type:       fsMagic[magic],
		TotalBytes: clampInt64(uint64(st.Blocks), unit),
		FreeBytes:  clampInt64(uint64(st.Bavail), unit),
		Inodes:     uint64(st.Files),
		FreeInodes: uint64(st.Ffree),
		ReadOnly:   st.Flags&unix.ST_RDONLY != 0,
	}
	if fsys.Type == "" {
		fsys.Type = fmt.Sprintf("0x%X", magic)
	}
	var inode unix.Stat_t
	if err := unix.Stat(dir, &inode); err != nil {
		return FileSystem{}, fmt.Errorf("look at the file system of %s: %w", dir, err)
	}
	table, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return fsys, nil // without /proc the magic number has to do
	}
	defer func() { _ = table.Close() }() // read only
	dev := uint64(inode.Dev)
	if typ, options, found := mountOf(table, unix.Major(dev), unix.Minor(dev)); found {
		fsys.Type = typ
		fsys.NoBarrier = slices.Contains(options, "nobarrier") || slices.Contains(options, "barrier=0")
		fsys.ReadOnly = fsys.ReadOnly || slices.Contains(options, "ro") || slices.Contains(options, "emergency_ro") // ext4's, since Linux 6.15
	}
	return fsys, nil
}

// readOnly says so, with the remedy, if nothing can be written to the file system of dir any more; nil if that is not so.
func readOnly(dir string) error {
	fsys, err := fileSystemOf(dir)
	if err != nil || !fsys.ReadOnly {
		return nil // another error says what is wrong
	}
	return fmt.Errorf("the file system of %s is read-only, as the kernel makes it after an error on it: its log (dmesg) has the cause; "+
		"unmount it, check it with fsck, mount it again, and replace the card or disk if that comes again: %w", dir, unix.EROFS)
}

// freeOn returns what may still be written to the file system of dir: bytes, and files (the largest number if it makes inodes as needed).
func freeOn(dir string) (bytes int64, inodes uint64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, 0, fmt.Errorf("look at the free space of %s: %w", dir, err)
	}
	unit := uint64(st.Frsize)
	if unit == 0 {
		unit = uint64(st.Bsize)
	}
	inodes = math.MaxUint64
	if st.Files > 0 {
		inodes = uint64(st.Ffree)
	}
	return clampInt64(uint64(st.Bavail), unit), inodes, nil
}

// clampInt64 multiplies without running over: some network file systems claim absurd sizes.
func clampInt64(blocks, unit uint64) int64 {
	if unit > 0 && blocks > math.MaxInt64/unit {
		return math.MaxInt64
	}
	return int64(blocks * unit)
}

// mountOf finds the type and the options of a device in the mount table, in the form of /proc/self/mountinfo (proc_pid_mountinfo(5)).
func mountOf(table interface{ Read([]byte) (int, error) }, major, minor uint32) (typ string, options []string, found bool) {
	dev := strconv.FormatUint(uint64(major), 10) + ":" + strconv.FormatUint(uint64(minor), 10)
	lines := bufio.NewScanner(table)
	lines.Buffer(nil, 1<<20) // overlay mounts have very long lines
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		dash := slices.Index(f, "-")
		if len(f) < 6 || f[2] != dev || dash < 0 || dash+3 >= len(f) {
			continue
		}
		// The last mount of a device wins; they share the type, and its options that matter here belong to the device.
		typ, found = f[dash+1], true
		options = append(strings.Split(f[dash+3], ","), strings.Split(f[5], ",")...)
	}
	return typ, options, found
}

// sourceOf finds what is mounted with a device's number in the mount table; empty if nothing is.
func sourceOf(table interface{ Read([]byte) (int, error) }, dev uint64) (source string) {
	number := strconv.FormatUint(uint64(unix.Major(dev)), 10) + ":" + strconv.FormatUint(uint64(unix.Minor(dev)), 10)
	lines := bufio.NewScanner(table)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if dash := slices.Index(f, "-"); len(f) > 5 && f[2] == number && dash >= 0 && dash+2 < len(f) {
			source = f[dash+2]
		}
	}
	return source
}

// check returns ErrVolatile, wrapped in a sentence that says what to do, unless acknowledged data survives a power cut on this file system.
func (f FileSystem) check(dir string) error {
	switch {
	case slices.Contains(supportedFS, f.Type) && !f.NoBarrier:
		return nil
	case f.NoBarrier:
		return fmt.Errorf("%s is on %s mounted without barriers: remove nobarrier (barrier=0) from its mount options, or set allow_volatile if losing the last records is acceptable: %w", dir, f.Type, ErrVolatile)
	case f.Type == "tmpfs" || f.Type == "ramfs":
		return fmt.Errorf("%s is on %s, which is memory: move the data directory to a disk or card with ext4, f2fs, btrfs or xfs, or set allow_volatile if losing everything at power-off is acceptable: %w", dir, f.Type, ErrVolatile)
	case f.Type == "overlay":
		return fmt.Errorf("%s is on overlay, as in a container or a read-only root: mount a volume or partition with ext4, f2fs, btrfs or xfs there, or set allow_volatile if losing records is acceptable: %w", dir, ErrVolatile)
	}
	return fmt.Errorf("%s is on %s: move the data directory to a local ext4, f2fs, btrfs or xfs, or set allow_volatile if losing records is acceptable: %w", dir, f.Type, ErrVolatile)
}

// sinceBoot returns the time since the machine's start, suspends included: CLOCK_BOOTTIME of clock_gettime(2). Zero if the kernel does not say.
func sinceBoot() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}
