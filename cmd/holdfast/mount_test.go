package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/cmd/holdfast/status"
)

// ext4On makes an image with a file system and returns how to mount it.
func ext4On(t *testing.T, at string) func(options string) {
	t.Helper()
	image := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, 256<<20); err != nil {
		t.Fatal(err)
	}
	mount := func(options string) {
		t.Helper()
		if out, err := exec.Command("mount", "-o", "loop,"+options, image, at).CombinedOutput(); err != nil {
			t.Skipf("SKIPPED: a data partition needs mkfs.ext4, root and a loop device: %v: %s", err, out)
		}
	}
	if out, err := exec.Command("mkfs.ext4", "-q", "-F", image).CombinedOutput(); err != nil {
		t.Skipf("SKIPPED: a data partition needs mkfs.ext4: %v: %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("umount", "-l", at).Run() })
	return mount
}

// notices collects what a daemon tells the service manager, until something comes.
func notices(t *testing.T, conn *net.UnixConn, until string, within time.Duration) (all []string) {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(within)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4096)
	for {
		n, err := conn.Read(buf)
		if err != nil {
			t.Fatalf("no %s within %v: %v; but %q", until, within, err, all)
		}
		all = append(all, string(buf[:n]))
		if strings.Contains(all[len(all)-1], until) {
			return all
		}
	}
}

// TestDataPartitionMissing starts the daemon where its data partition is not mounted, then mounted read-only as after an error, then as it should be. Until
// then it is not READY, writes nothing into the folder in its place, and says why to the service manager, in status and doctor; then it captures.
func TestDataPartitionMissing(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: makes and mounts a file system, not done with -short")
	}
	t.Parallel()
	dir := t.TempDir()
	at, config := filepath.Join(dir, "data"), filepath.Join(dir, "holdfast.yaml")
	makeDir(t, at)
	mount := ext4On(t, at)
	text := fmt.Sprintf("leaf: {name: gw1, data: %q}\nstorage: {mount: %q, budget: 128MiB, reserve_free: 0, journal: {size: 4MiB}}\nstreams: [{name: S, max_bytes: 64MiB}]\nsources:\n  - {name: calc, into: S, append: {}}\n", filepath.Join(at, "store"), at)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	socket, conn := notifySocket(t)
	d := startDaemon(t, "", config, filepath.Join(at, "store"), "NOTIFY_SOCKET="+socket)
	said := notices(t, conn, "EXTEND_TIMEOUT_USEC=", 40*time.Second)
	if !strings.Contains(strings.Join(said, "\n"), "STATUS=NOTHING IS CAPTURED: the data partition is not in its place: nothing is mounted at "+at) {
		t.Errorf("said %q", said)
	}
	for _, command := range []string{"status", "doctor"} {
		if code, out, errs := cli(command, "-config", config); code != exitFailed || !strings.Contains(strings.Join(strings.Fields(out+errs), " "), "nothing is mounted at "+at) {
			t.Errorf("%s = %d: %s%s", command, code, out, errs)
		}
	}
	d.stop() // while it waits
	d = startDaemon(t, "", config, filepath.Join(at, "store"), "NOTIFY_SOCKET="+socket)
	mount("ro")
	said = append(said, notices(t, conn, "is read-only", 40*time.Second)...)
	if out, err := exec.Command("umount", at).CombinedOutput(); err != nil {
		t.Fatalf("umount: %v: %s", err, out)
	}
	said = append(said, notices(t, conn, "nothing is mounted", 40*time.Second)...)
	if there, err := os.ReadDir(at); err != nil || len(there) > 0 {
		t.Errorf("in the place of the partition: %v, %v, want nothing", there, err)
	}
	if text := strings.Join(said, "\n"); strings.Contains(text, "READY=1") {
		t.Errorf("said READY without its partition: %s", text)
	}
	mount("rw")
	said = notices(t, conn, "READY=1", time.Minute)
	if !strings.Contains(strings.Join(said, "\n"), "STATUS=Your data is safe") { // it may come before
		notices(t, conn, "STATUS=Your data is safe", time.Minute)
	}
	d.until(time.Minute, "capturing", func(r status.Report) bool { return running(r) && r.Verdict.Safe })
	d.stop()
	notices(t, conn, "STOPPING=1", 20*time.Second)
}

// TestMountIsNoFaultOfTheConfiguration: limits above the size of the root file system are right as long as the data partition is missing.
func TestMountIsNoFaultOfTheConfiguration(t *testing.T) {
	file := filepath.Join(t.TempDir(), "holdfast.yaml")
	for text, want := range map[string]string{
		"leaf: {name: gw1, data: /var/lib/nowhere/store}\nstorage: {mount: /var/lib/nowhere, budget: 9000TiB}\n": "",
		"leaf: {name: gw1, data: /srv/store}\nstorage: {mount: /var/lib/nowhere}\n":                              "does not lie below",
		"leaf: {name: gw1, data: /srv/store}\nstorage: {mount: srv}\n":                                           "absolute",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		code, out, errs := cli("check", file)
		if (code == exitDone) != (want == "") || !strings.Contains(out+errs, want) {
			t.Errorf("check of %q = %d: %s%s, want %q", text, code, out, errs, want)
		}
	}
}
