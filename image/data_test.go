package image

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// dataDisk is a disk with the image's partitions, small ones, and a root of a gateway beside it.
type dataDisk struct {
	t    *testing.T
	file string
	root string
}

func newDataDisk(t *testing.T) *dataDisk {
	t.Helper()
	if testing.Short() {
		t.Skip("mounts disks")
	}
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED, NOT TESTED: mounting disks takes root")
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		t.Skip("SKIPPED, NOT TESTED: no loop devices")
	}
	for _, need := range []string{"/sbin/sfdisk", "/sbin/mkfs.ext4", "/usr/bin/partx"} {
		if _, err := os.Stat(need); err != nil {
			t.Skipf("SKIPPED, NOT TESTED: %v", err)
		}
	}
	dir := t.TempDir()
	d := &dataDisk{t: t, file: filepath.Join(dir, "disk"), root: filepath.Join(dir, "root")}
	for _, folder := range []string{"run/holdfast", "etc/holdfast", "var/lib/systemd/timesync"} {
		if err := os.MkdirAll(filepath.Join(d.root, folder), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(d.root, "etc/machine-id"), []byte("0123456789abcdef0123456789abcdef\n"), 0o444); err != nil {
		t.Fatal(err)
	}
	d.sh(`truncate -s 256M "$DISK"; truncate -s 64M "$DISK.data"; mkfs.ext4 -q -F -b 4096 "$DISK.data"
		printf 'label: dos\nstart=1MiB, size=1MiB, type=c\nsize=1MiB\nsize=1MiB\nstart=4MiB, size=64MiB\n' | sfdisk --quiet "$DISK"
		dd if="$DISK.data" of="$DISK" bs=1M seek=4 conv=notrunc,sparse status=none`)
	return d
}

// sh runs a script on the host; $DISK is the disk's file.
func (d *dataDisk) sh(script string) string {
	d.t.Helper()
	cmd := exec.Command("sh", "-ec", script)
	cmd.Env = append(os.Environ(), "DISK="+d.file, "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
	out, err := cmd.CombinedOutput()
	if err != nil {
		d.t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return strings.TrimSpace(string(out))
}

// up runs the image's script on the disk, and then another, with what was mounted in sight of these two alone.
func (d *dataDisk) up(then string) (string, error) {
	d.t.Helper()
	script, err := filepath.Abs("pi/root/usr/lib/holdfast/data")
	if err != nil {
		d.t.Fatal(err)
	}
	// Not every kernel reads partition tables by itself.
	loop := d.sh(`loop=$(losetup --find --show --partscan "$DISK"); partx --update "$loop" >/dev/null 2>&1 || partx --add "$loop" >/dev/null 2>&1 || true; echo "$loop"`)
	defer d.sh("losetup --detach " + loop)
	if err := os.WriteFile(filepath.Join(d.root, "run/holdfast/disk"), []byte(strings.TrimPrefix(loop, "/dev/")), 0o644); err != nil {
		d.t.Fatal(err)
	}
	// Where nobody makes the partitions' nodes, as in a container without udev, it is done here.
	nodes := `for p in /sys/block/${LOOP#/dev/}/${LOOP#/dev/}p*; do
		[ ! -e "$p/dev" ] || [ -e "/dev/${p##*/}" ] || mknod "/dev/${p##*/}" b $(tr : ' ' <"$p/dev"); done`
	cmd := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c",
		nodes+fmt.Sprintf("\nsh %s || exit 1\ncd $HOLDFAST_ROOT; %s", script, then))
	cmd.Env = append(os.Environ(), "LOOP="+loop, "HOLDFAST_ROOT="+d.root, "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin", "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestDataPartitionComesUp: it grows, partition and file system, keeps what has to last, and is the same at the next start.
func TestDataPartitionComesUp(t *testing.T) {
	d := newDataDisk(t)
	look := `for f in var/lib/holdfast etc/holdfast var/lib/systemd var/log/journal; do mountpoint -q $f || echo $f is not laid; done`
	out, err := d.up(look + "; echo kept >var/lib/holdfast/record; test -d var/lib/systemd/timesync; touch var/lib/systemd/timesync/clock")
	if err != nil || strings.Contains(out, "not laid") || !strings.Contains(out, "grew to the end of the card: 252 MiB") {
		t.Fatalf("first start: %v\n%s", err, out)
	}
	if table := d.sh(`sfdisk --dump "$DISK" | grep "disk4 "`); !strings.Contains(table, "size=      516096") {
		t.Errorf("the partition table: %s", table)
	}
	out, err = d.up(look + "; cat var/lib/holdfast/record data/system/machine-id; ls var/lib/systemd/timesync")
	if err != nil || !strings.Contains(out, "kept\n0123456789abcdef0123456789abcdef\nclock") || strings.Contains(out, "grew") {
		t.Errorf("second start: %v\n%s", err, out)
	}
	wantGrown(t, out)
}

// wantGrown wants the script's last words to be of a file system that has grown with its partition.
func wantGrown(t *testing.T, out string) {
	t.Helper()
	if strings.Contains(out, "Permission denied to resize") {
		t.Skip("SKIPPED, NOT TESTED: growing a mounted file system takes CAP_SYS_RESOURCE, which root does not have here")
	}
	m := regexp.MustCompile(`the data partition is (\d+)M`).FindStringSubmatch(out)
	if m == nil || len(m[1]) < 3 {
		t.Errorf("the file system did not grow:\n%s", out)
	}
}

// TestDataPartitionGrowsAfterACut: the power went away between the partition and the file system.
func TestDataPartitionGrowsAfterACut(t *testing.T) {
	d := newDataDisk(t)
	d.sh(`echo ', +' | sfdisk --quiet -N 4 "$DISK"`)
	out, err := d.up("true")
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	wantGrown(t, out)
}

// TestDataPartitionFaults: whatever is wrong with it is named, and nothing is mounted in its place.
func TestDataPartitionFaults(t *testing.T) {
	for _, c := range []struct{ name, harm, fault, text string }{
		{"missing", `sfdisk --quiet --delete "$DISK" 4`, "data-missing", "has no data partition"},
		{"garbage", `dd if=/dev/urandom of="$DISK" bs=1M seek=4 count=64 conv=notrunc status=none`, "data-unreadable", "holds no ext4 file system"},
		{"another file system", `truncate -s 64M "$DISK.fat" && mkfs.vfat "$DISK.fat" >/dev/null && dd if="$DISK.fat" of="$DISK" bs=1M seek=4 conv=notrunc status=none`, "data-unreadable", "holds no ext4"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDataDisk(t)
			d.t = t
			d.sh(c.harm)
			out, err := d.up("echo came up")
			if err == nil || strings.Contains(out, "came up") || !strings.Contains(out, "FAULT "+c.fault) || !strings.Contains(out, "What to do:") {
				t.Errorf("%v\n%s", err, out)
			}
			if said, err := os.ReadFile(filepath.Join(d.root, "run/holdfast/fault", c.fault)); err != nil || !strings.Contains(string(said), c.text) {
				t.Errorf("the fault's file: %v %s", err, said)
			}
		})
	}
}

// TestDataPartitionIsRepaired: a file system that lost tables is repaired, which is said, and the log of it kept.
func TestDataPartitionIsRepaired(t *testing.T) {
	d := newDataDisk(t)
	if out, err := d.up("for i in $(seq 200); do mkdir -p data/d$i; echo $i >data/d$i/f; done"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	// The group descriptors and the bitmaps behind them, beside a superblock that is whole.
	d.sh(`dd if=/dev/zero of="$DISK" bs=4096 seek=1025 count=1 conv=notrunc status=none`)
	out, err := d.up("ls data/system/fsck-*.log; ls data | wc -l")
	if err != nil || !strings.Contains(out, "is damaged and is being repaired") || !strings.Contains(out, "fsck-") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestDataPartitionWithoutItsSuperblock: one that lost its superblock and the tables behind it is repaired by a copy.
func TestDataPartitionWithoutItsSuperblock(t *testing.T) {
	d := newDataDisk(t)
	d.sh(`mkfs.ext4 -q -F -b 4096 "$DISK.data" 240M; echo ', 240MiB' | sfdisk --quiet -N 4 "$DISK"; dd if="$DISK.data" of="$DISK" bs=1M seek=4 conv=notrunc,sparse status=none`)
	if out, err := d.up("echo kept >data/record"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	d.sh(`dd if=/dev/zero of="$DISK" bs=4096 seek=1024 count=2 conv=notrunc status=none`)
	out, err := d.up("cat data/record data/system/fsck-*.log")
	if err != nil || !strings.Contains(out, "is damaged and is being repaired") || !strings.Contains(out, "kept\n") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestDataPartitionFull: one on which not a folder can be made is a fault.
func TestDataPartitionFull(t *testing.T) {
	d := newDataDisk(t)
	d.sh(`mkfs.ext4 -q -F -b 4096 -N 16 "$DISK.data"; dd if="$DISK.data" of="$DISK" bs=1M seek=4 conv=notrunc status=none`)
	out, err := d.up("echo came up")
	if err == nil || strings.Contains(out, "came up") || !strings.Contains(out, "FAULT data-full") {
		t.Errorf("%v\n%s", err, out)
	}
}
