package image

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/holdfast-edge/holdfast/rig/machine"
	"github.com/holdfast-edge/holdfast/rig/poll"
)

// deviceRole makes the test binary, inside the machine, a serial device that sends numbered lines.
const deviceRole = "HOLDFAST_IMAGE_DEVICE"

func TestMain(m *testing.M) {
	if link := os.Getenv(deviceRole); link != "" {
		if err := sendLines(link); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	code := m.Run()
	_ = os.RemoveAll(built.dir) // a temporary directory
	os.Exit(code)
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

// build makes the package of this machine's architecture under a version and returns its path.
func build(t *testing.T, version string) string {
	t.Helper()
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skip("SKIPPED: dpkg-deb is not installed")
	}
	dist := t.TempDir()
	if err := os.Link(program(t), filepath.Join(dist, "holdfast-linux-amd64")); err != nil {
		t.Fatal(err)
	}
	command(t, []string{"DIST=" + dist, "VERSION=" + version, "COMPRESSION=gzip"}, "scripts/deb", "amd64")
	return filepath.Join(dist, "holdfast_"+version+"_amd64.deb")
}

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

func compile(to string) error {
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", to, "./cmd/holdfast")
	cmd.Dir = ".."
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH=amd64")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the daemon: %w\n%s", err, out)
	}
	return nil
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

func TestPackageIsReproducible(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the package twice")
	}
	first, err := os.ReadFile(build(t, "0.1.0"))
	if err != nil {
		t.Fatal(err)
	}
	second, err := os.ReadFile(build(t, "0.1.0"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first, second) {
		t.Error("two packages of one commit differ")
	}
	again := filepath.Join(t.TempDir(), "holdfast")
	if err := compile(again); err != nil {
		t.Fatal(err)
	}
	one, err := os.ReadFile(program(t))
	if err != nil {
		t.Fatal(err)
	}
	if other, err := os.ReadFile(again); err != nil || !bytes.Equal(one, other) {
		t.Errorf("two builds of one commit differ: %v", err)
	}
}

func TestPackageIsClean(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the package")
	}
	file := build(t, "0.1.0")
	if _, err := exec.LookPath("lintian"); err != nil {
		t.Skip("SKIPPED: lintian is not installed")
	}
	out, err := exec.Command("lintian", "--allow-root", "--fail-on", "error,warning", file).CombinedOutput()
	if err != nil || bytes.Contains(out, []byte("E: ")) || bytes.Contains(out, []byte("W: ")) {
		t.Errorf("lintian: %v\n%s", err, out)
	}
	list := command(t, nil, "dpkg-deb", "-c", file)
	for _, path := range []string{"usr/bin/holdfast", "usr/lib/systemd/system/holdfast.service", "usr/lib/sysusers.d/holdfast.conf",
		"usr/lib/udev/rules.d/60-holdfast.rules", "usr/lib/modules-load.d/holdfast.conf", "etc/holdfast/holdfast.yaml", "usr/share/man/man8/holdfast.8.gz", "usr/share/man/man5/holdfast.yaml.5.gz"} {
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

// site is a machine with the package on it.
type site struct {
	*machine.Machine
	t *testing.T
}

// run runs a shell script inside and wants it to succeed.
func (s site) run(script string) string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 2*time.Minute)
	defer cancel()
	out, err := s.Run(ctx, "sh", "-c", script)
	if err != nil {
		s.t.Fatalf("%v\n%s\n%s", err, out, s.journal())
	}
	return strings.TrimSpace(out)
}

// journal explains a failure.
func (s site) journal() string {
	out, _ := s.Run(s.t.Context(), "journalctl", "-u", "holdfast", "-u", "device", "-n", "40", "--no-pager") // what there is
	return out
}

// until waits for a script to print want.
func (s site) until(script, want string) {
	s.t.Helper()
	var got string
	if !poll.Wait(s.t.Context(), time.Minute, func() bool { got, _ = s.Run(s.t.Context(), "sh", "-c", script); return strings.Contains(got, want) }) {
		s.t.Fatalf("%s says %q, want %q in it\n%s", script, got, want, s.journal())
	}
}

func (s site) install(file string) {
	s.t.Helper()
	if err := s.Install(file, "/root/holdfast.deb", 0o644); err != nil {
		s.t.Fatal(err)
	}
	s.run("dpkg -i /root/holdfast.deb")
}

// lines returns the numbers of the newest stored lines, oldest first.
func (s site) lines(last int) []int {
	s.t.Helper()
	var numbers []int
	for line := range strings.Lines(s.run(fmt.Sprintf("holdfast tail -json -last %d -count %d SENSORS", last, last))) {
		var record struct {
			Subject string `json:"subject"`
			Data    []byte `json:"data"`
		}
		if err := json.Unmarshal([]byte(line), &record); err != nil {
			s.t.Fatalf("holdfast tail printed %q: %v", line, err)
		}
		var n int
		if _, err := fmt.Sscanf(string(record.Data), "line %d", &n); err == nil {
			numbers = append(numbers, n)
		}
	}
	return numbers
}

const siteConfig = `leaf: {name: pump-07, data: /var/lib/holdfast}
hub: {urls: ["tls://hub.example.com:7422"], credentials: "credential:hub.creds"}
streams: [{name: SENSORS, max_bytes: 64MiB}]
sources: [{name: meter, into: SENSORS, serial: {port: /dev/meter}, frame: line}]
`

// TestPackage takes a gateway through its life: installed, configured, started without a network, reloaded, hung, stopped in its tracks,
// given credentials, upgraded while it captures, removed and purged.
func TestPackage(t *testing.T) {
	if testing.Short() {
		t.Skip("boots a machine")
	}
	if err := machine.Available(); err != nil {
		t.Skipf("SKIPPED: %v", err)
	}
	older, newer := build(t, "0.1.0"), build(t, "0.2.0")
	root, err := machine.MakeRoot(t.Context(), t.TempDir())
	if err != nil {
		t.Skipf("SKIPPED: no Debian to boot (is a mirror in reach?): %v", err)
	}
	m, err := machine.Boot(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	s := site{m, t}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Install(self, "/usr/local/bin/device", 0o755); err != nil {
		t.Fatal(err)
	}
	s.run("systemd-run --unit=device --setenv=" + deviceRole + "=/dev/meter /usr/local/bin/device")

	s.install(older)
	if state := s.run("systemctl is-enabled holdfast; systemctl is-active holdfast || true"); state != "enabled\ninactive" {
		t.Errorf("before the configuration is complete the service is %q, want enabled and inactive", state)
	}
	if out := s.run("holdfast init -leaf pump-07 && holdfast check && stat -c %a:%U:%G /etc/holdfast/holdfast.yaml"); !strings.HasSuffix(out, "640:root:holdfast") {
		t.Errorf("init in the place of the package's file: %q", out)
	}
	if err := os.WriteFile(m.Path("/etc/holdfast/holdfast.yaml"), []byte(siteConfig), 0o640); err != nil {
		t.Fatal(err)
	}
	s.run(`mkdir -p /etc/systemd/system/holdfast.service.d
		printf '[Service]\nLoadCredential=hub.creds:/root/hub.creds\nWatchdogSec=6s\n' >/etc/systemd/system/holdfast.service.d/site.conf
		echo not-really >/root/hub.creds; systemctl daemon-reload; systemctl start holdfast`)
	s.until("systemctl show -p StatusText --value holdfast", "safe")
	if data := s.run("cat /proc/$(systemctl show -p MainPID --value holdfast)/environ | tr '\\0' '\\n' | grep CREDENTIALS"); data == "" {
		t.Error("the service has no credentials directory")
	}
	s.until("holdfast status || true", "meter")
	if level := s.run("systemd-analyze security holdfast | tail -1"); !lowExposure(level) {
		t.Errorf("%s, want at most 2.0", level)
	}
	if fields := s.run("journalctl -u holdfast -o json HOLDFAST_LEAF=pump-07 | head -1"); !strings.Contains(fields, `"HOLDFAST_EPOCH":"1"`) {
		t.Errorf("the journal has no fields of ours: %s", fields)
	}

	restarts := func() string { return s.run("systemctl show -p NRestarts --value holdfast") }
	if restarts() != "0" {
		t.Errorf("%s restarts before anything happened", restarts())
	}
	s.run("kill -STOP $(systemctl show -p MainPID --value holdfast)")
	s.until("systemctl show -p NRestarts --value holdfast", "1")
	s.until("systemctl is-active holdfast", "active")

	s.until("holdfast tail -last 1 -count 1 SENSORS", "line")
	s.install(newer)
	upgraded := time.Now()
	s.until("systemctl is-active holdfast", "active")
	after := s.run("cat /proc/uptime")
	s.until("holdfast status -json | tr -d ' \\n'", `"epoch":3`)
	t.Logf("capturing again %v after the upgrade, up %s", time.Since(upgraded).Round(10*time.Millisecond), after)
	poll.Until(t, time.Minute, func() bool { n := s.lines(1); return len(n) == 1 && n[0] > 200 }, "lines come in after the upgrade")
	all := s.lines(200)
	for i := 1; i < len(all); i++ {
		if all[i] != all[i-1]+1 {
			t.Errorf("line %d is followed by line %d", all[i-1], all[i])
		}
	}
	if config := s.run("cat /etc/holdfast/holdfast.yaml"); config != strings.TrimSpace(siteConfig) {
		t.Errorf("the upgrade changed the configuration:\n%s", config)
	}

	s.run("dpkg -r holdfast")
	s.run("test -d /var/lib/holdfast/jetstream && test -e /etc/holdfast/holdfast.yaml && ! pgrep -x holdfast")
	s.run("mkdir /root/kept && mv /var/lib/holdfast/* /root/kept && mount -t tmpfs data /var/lib/holdfast && mv /root/kept/* /var/lib/holdfast")
	s.run("dpkg -P holdfast && test -d /var/lib/holdfast/jetstream && umount /var/lib/holdfast")
	s.install(newer)
	s.run("touch /var/lib/holdfast/x 2>/dev/null || { mkdir -p /var/lib/holdfast && touch /var/lib/holdfast/x; }; dpkg -P holdfast; ! test -e /var/lib/holdfast && ! test -e /etc/holdfast/holdfast.yaml")
}

func lowExposure(line string) bool {
	score := regexp.MustCompile(`([0-9.]+) (OK|MEDIUM|SAFE|PERFECT)`).FindStringSubmatch(line)
	var level float64
	if score == nil {
		return false
	}
	_, err := fmt.Sscanf(score[1], "%f", &level)
	return err == nil && level <= 2.0
}
