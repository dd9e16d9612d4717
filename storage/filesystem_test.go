package storage

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"
)

func TestFileSystemCheck(t *testing.T) {
	cases := []struct {
		name string
		fs   FileSystem
		want string // part of the message; empty: accepted
	}{
		{"ext4", FileSystem{Type: "ext4"}, ""},
		{"f2fs", FileSystem{Type: "f2fs"}, ""},
		{"btrfs", FileSystem{Type: "btrfs"}, ""},
		{"xfs", FileSystem{Type: "xfs"}, ""},
		{"ext4 without barriers", FileSystem{Type: "ext4", NoBarrier: true}, "nobarrier"},
		{"ext2 has no journal", FileSystem{Type: "ext2"}, "is on ext2"},
		{"tmpfs", FileSystem{Type: "tmpfs"}, "which is memory"},
		{"overlay", FileSystem{Type: "overlay"}, "volume or partition"},
		{"nfs", FileSystem{Type: "nfs4"}, "is on nfs4"},
		{"vfat", FileSystem{Type: "vfat"}, "is on vfat"},
		{"fuse", FileSystem{Type: "fuse.sshfs"}, "is on fuse.sshfs"},
		{"unknown", FileSystem{Type: "0xABC"}, "is on 0xABC"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			err := c.fs.check("/data")
			if c.want == "" {
				if err != nil {
					t.Fatalf("check: %v, want accepted", err)
				}
				return
			}
			if !errors.Is(err, ErrVolatile) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "allow_volatile") {
				t.Errorf("check: %v, want ErrVolatile with %q and the way out", err, c.want)
			}
		})
	}
}

func TestMountOf(t *testing.T) {
	const table = `22 27 0:20 / /sys rw,nosuid shared:7 - sysfs sysfs rw
27 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro
90 27 179:3 / /var/lib/holdfast rw,noatime - ext4 /dev/mmcblk0p3 rw,nobarrier,data=ordered
91 27 0:44 /sub /mnt rw - btrfs /dev/sdb rw
broken line
`
	typ, options, found := mountOf(strings.NewReader(table), 179, 3)
	if !found || typ != "ext4" || !strings.Contains(strings.Join(options, " "), "nobarrier") {
		t.Errorf("mountOf(179:3) = %q, %v, %v", typ, options, found)
	}
	if typ, _, _ := mountOf(strings.NewReader(table), 0, 44); typ != "btrfs" {
		t.Errorf("mountOf(0:44) = %q", typ)
	}
	if _, _, found := mountOf(strings.NewReader(table), 9, 9); found {
		t.Error("mountOf found a device that is not there")
	}
}

func TestFileSystemOfRealDirectories(t *testing.T) {
	fsys, err := fileSystemOf(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if fsys.Type == "" || fsys.TotalBytes <= 0 || fsys.FreeBytes <= 0 || fsys.FreeBytes > fsys.TotalBytes {
		t.Errorf("fileSystemOf(temp) = %+v", fsys)
	}
	if shm, err := os.Stat("/dev/shm"); err == nil && shm.IsDir() {
		fsys, err := fileSystemOf("/dev/shm")
		if err != nil || fsys.Type != "tmpfs" || !errors.Is(fsys.check("/dev/shm"), ErrVolatile) {
			t.Errorf("fileSystemOf(/dev/shm) = %+v, %v, want tmpfs, refused", fsys, err)
		}
	}
	if _, err := fileSystemOf("/absent/directory"); err == nil {
		t.Error("fileSystemOf an absent directory succeeded")
	}
}

func TestFreeOn(t *testing.T) {
	free, inodes, err := freeOn(t.TempDir())
	if err != nil || free <= 0 || inodes == 0 {
		t.Errorf("freeOn(temp) = %d, %d, %v", free, inodes, err)
	}
	if _, _, err := freeOn("/absent/directory"); err == nil {
		t.Error("freeOn an absent directory succeeded")
	}
}

func TestKernelFacts(t *testing.T) {
	a, err := kernelBootID()
	if err != nil || len(a) != 36 {
		t.Fatalf("kernelBootID = %q, %v", a, err)
	}
	if b, _ := kernelBootID(); a != b {
		t.Errorf("the boot id changed from %q to %q", a, b)
	}
	first := sinceBoot()
	if first <= 0 || sinceBoot() < first || first > 100*365*24*time.Hour {
		t.Errorf("sinceBoot = %v", first)
	}
}
