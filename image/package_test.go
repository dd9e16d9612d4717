package image

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/holdfast-edge/holdfast/rig/device"
	"github.com/holdfast-edge/holdfast/rig/machine"
)

// What the test binary is inside the machine: a serial device that sends numbered lines through a link, or an MQTT device that publishes numbers to a port.
const (
	deviceRole = "HOLDFAST_IMAGE_DEVICE"
	sensorRole = "HOLDFAST_IMAGE_SENSOR"
)

func TestMain(m *testing.M) {
	for role, run := range map[string]func(string) error{deviceRole: sendLines, sensorRole: publishNumbers} {
		if where := os.Getenv(role); where != "" {
			if err := run(where); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			os.Exit(0)
		}
	}
	code := m.Run()
	_ = os.RemoveAll(built.dir) // a temporary directory
	os.Exit(code)
}

// publishNumbers publishes a number every 20 ms for ever, each until it is acknowledged. It ends when a connection is refused.
func publishNumbers(port string) error {
	ctx := context.Background()
	conn, err := net.Dial("tcp", port)
	if err != nil {
		return fmt.Errorf("nobody listens: %w", err)
	}
	if err := conn.Close(); err != nil {
		return err
	}
	s, err := device.NewSensor(ctx, "tcp://"+port, "numbers")
	if err != nil {
		return err
	}
	tick := time.NewTicker(20 * time.Millisecond)
	for n := 1; ; n++ {
		if err := s.Publish(ctx, "site/numbers", 1, []string{fmt.Sprintf("line %d", n)}); err != nil {
			return err
		}
		<-tick.C
	}
}

// sendLines makes a serial line with a link to it and sends 50 numbered lines a second for ever.
func sendLines(link string) error {
	master, slave, err := pty.Open()
	if err != nil {
		return err
	}
	if err := errors.Join(os.Chmod(slave.Name(), 0o666), os.Symlink(slave.Name(), link)); err != nil {
		return err
	}
	// Raw: what nobody reads yet waits in the line, as in a converter's buffer, and no echo comes back.
	if err := exec.Command("stty", "-F", slave.Name(), "raw", "-echo").Run(); err != nil {
		return err
	}
	tick := time.NewTicker(20 * time.Millisecond)
	for n := 1; ; n++ {
		// A line stays exclusive until its last user closes it. A real one has no other user than the daemon.
		if err := unix.IoctlSetInt(int(slave.Fd()), unix.TIOCNXCL, 0); err != nil {
			return err
		}
		if _, err := fmt.Fprintf(master, "line %d\n", n); err != nil {
			return err
		}
		<-tick.C
	}
}

// pack makes the package of this machine's architecture under a version and returns its path. The binary lies in dist.
func pack(t *testing.T, dist, version string) string {
	t.Helper()
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skip("SKIPPED: dpkg-deb is not installed")
	}
	command(t, []string{"DIST=" + dist, "VERSION=" + version, "COMPRESSION=gzip", "HERE=" + filepath.Join(dist, linuxBinary)}, "scripts/deb", "amd64")
	return filepath.Join(dist, "holdfast_"+version+"_amd64.deb")
}

// linuxBinary is the name of the daemon for this machine in dist.
const linuxBinary = "holdfast-linux-amd64"

// built is the daemon's binary, which is built once.
var built struct {
	once sync.Once
	dir  string
	err  error
}

// program returns the daemon's binary as a release has it, on the file system of temporary directories.
func program(t *testing.T) string {
	t.Helper()
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "holdfast-image"); built.err == nil {
			built.err = compile(filepath.Join(built.dir, "holdfast"))
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return filepath.Join(built.dir, "holdfast")
}

// compile builds the daemon for this machine as a release does.
func compile(to string) error {
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", to, "./cmd/holdfast")
	cmd.Dir = ".."
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH=amd64")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the daemon: %w\n%s", err, out)
	}
	return nil
}

// keep leaves a result where a person finds it after the tests: dist/report.
func keep(t *testing.T, name, text string) {
	t.Helper()
	dir := filepath.Join("..", "dist", "report")
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644)); err != nil {
		t.Error(err)
	}
}

// command runs a command in the repository's root.
func command(t *testing.T, env []string, args ...string) string {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = ".."
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

var suite = flag.String("suite", machine.Suite, "Debian release that TestPackage lives on")

// TestPackage builds the package twice, which gives the same bytes, looks at it, and takes a gateway through its life with it.
func TestPackage(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the package and boots a machine")
	}
	dist, again, dir := t.TempDir(), t.TempDir(), t.TempDir()
	away := machine.Available()
	var root string
	var making sync.WaitGroup // waits for a mirror, while this machine compiles
	if away == nil {
		making.Go(func() { root, away = machine.MakeRoot(t.Context(), *suite, dir) })
	}
	defer making.Wait()
	for _, err := range []error{os.Link(program(t), filepath.Join(dist, linuxBinary)), compile(filepath.Join(again, linuxBinary))} {
		if err != nil {
			t.Fatal(err)
		}
	}
	older := pack(t, dist, "0.1.0")
	t.Run("reproducible", func(t *testing.T) {
		first, err := os.ReadFile(older)
		if err != nil {
			t.Fatal(err)
		}
		second, err := os.ReadFile(pack(t, again, "0.1.0"))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(first, second) {
			t.Error("two builds of one commit differ")
		}
	})
	t.Run("clean", func(t *testing.T) { lookAt(t, older) })
	t.Run("life", func(t *testing.T) {
		making.Wait()
		if away != nil {
			t.Skipf("SKIPPED: no Debian to boot (is a mirror in reach?): %v", away)
		}
		live(t, root, older, pack(t, dist, "0.2.0"))
	})
}

// lookAt checks what is in the package, and what lintian and man say.
func lookAt(t *testing.T, file string) {
	if _, err := exec.LookPath("lintian"); err != nil {
		t.Skip("SKIPPED: lintian is not installed")
	}
	out, err := exec.Command("lintian", "--allow-root", "--fail-on", "error,warning", file).CombinedOutput()
	if err != nil || bytes.Contains(out, []byte("E: ")) || bytes.Contains(out, []byte("W: ")) {
		t.Fatalf("lintian: %v\n%s", err, out)
	}
	keep(t, "lintian.txt", string(out)+"no errors, no warnings\n")
	list := command(t, nil, "dpkg-deb", "-c", file)
	for _, path := range []string{"usr/bin/holdfast", "usr/share/doc/holdfast/examples/holdfast-mqtt.socket", "usr/share/holdfast/systemd-252.conf", "usr/lib/systemd/system/holdfast.service", "usr/lib/sysusers.d/holdfast.conf",
		"usr/lib/udev/rules.d/61-holdfast.rules", "usr/lib/modules-load.d/holdfast.conf", "etc/holdfast/holdfast.yaml", "usr/share/man/man8/holdfast.8.gz", "usr/share/man/man5/holdfast.yaml.5.gz"} {
		if !strings.Contains(list, "./"+path+"\n") {
			t.Errorf("the package lacks %s", path)
		}
	}
	for _, page := range []string{"usr/share/man/man8/holdfast.8.gz", "usr/share/man/man5/holdfast.yaml.5.gz"} {
		root := t.TempDir()
		command(t, nil, "dpkg-deb", "-x", file, root)
		if _, err := exec.LookPath("man"); err != nil {
			t.Log("SKIPPED: man is not installed, the pages are not rendered")
			break
		}
		cmd := exec.Command("man", "--warnings", "-l", filepath.Join(root, page))
		cmd.Env = append(os.Environ(), "LC_ALL=C", "MANWIDTH=80")
		var warnings bytes.Buffer
		cmd.Stderr = &warnings
		if out, err := cmd.Output(); err != nil || warnings.Len() > 0 || !bytes.Contains(out, []byte("holdfast")) {
			t.Errorf("man %s: %v\n%s", page, err, warnings.String())
		}
	}
}
