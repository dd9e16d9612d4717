package image

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/rig/machine"
	"github.com/holdfast-edge/holdfast/rig/poll"
)

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
	out, _ := s.Run(s.t.Context(), "journalctl", "-u", "holdfast", "-u", "device", "-u", "sensor", "-n", "40", "--no-pager") // what there is
	return out
}

// until waits for a script to print want.
func (s site) until(script, want string) {
	s.t.Helper()
	var got string
	if !poll.Wait(s.t.Context(), 2*time.Minute, func() bool { got, _ = s.Run(s.t.Context(), "sh", "-c", script); return strings.Contains(got, want) }) {
		s.t.Fatalf("%s says %q, want %q in it\n%s", script, got, want, s.journal())
	}
}

// shows waits for a property of the service.
func (s site) shows(property, want string) {
	s.t.Helper()
	s.until("systemctl show -p "+property+" --value holdfast | sed 's/^/=/'", "="+want)
}

func (s site) install(file string) {
	s.t.Helper()
	if err := s.Install(file, "/root/holdfast.deb", 0o644); err != nil {
		s.t.Fatal(err)
	}
	s.run("dpkg -i /root/holdfast.deb")
}

func (s site) configure(config string) {
	s.t.Helper()
	if err := os.WriteFile(s.Path("/etc/holdfast/holdfast.yaml"), []byte(config), 0o640); err != nil {
		s.t.Fatal(err)
	}
}

// lines returns the numbers of the newest stored lines of a source, oldest first; none as long as the daemon does not answer.
func (s site) lines(source string, last int) []int {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 2*time.Minute)
	defer cancel()
	out, err := s.Run(ctx, "holdfast", "tail", "-json", "-last", fmt.Sprint(last), "-count", fmt.Sprint(last), "SENSORS")
	if err != nil {
		s.t.Logf("%v: %s", err, out)
		return nil
	}
	var numbers []int
	for line := range strings.Lines(out) {
		var record struct {
			Subject string `json:"subject"`
			Data    []byte `json:"data"`
		}
		if err := json.Unmarshal([]byte(line), &record); err != nil {
			s.t.Fatalf("holdfast tail printed %q: %v", line, err)
		}
		var n int
		if _, err := fmt.Sscanf(string(record.Data), "line %d", &n); err == nil && strings.Contains(record.Subject, "."+source) {
			numbers = append(numbers, n)
		}
	}
	return numbers
}

// partition is a file system in a file of this machine that is the data partition inside.
type partition struct {
	device string // inside
	image  string
}

func (s site) partition(dir string) partition {
	s.t.Helper()
	p := partition{device: "/dev/data", image: filepath.Join(dir, "data")}
	command(s.t, []string{"PATH=/usr/sbin:/sbin:/usr/bin:/bin"}, "sh", "-c", "truncate -s 512M "+p.image+" && mkfs.ext4 -q -F "+p.image)
	loop := strings.TrimSpace(command(s.t, []string{"PATH=/usr/sbin:/sbin:/usr/bin:/bin"}, "losetup", "--find", "--show", p.image))
	s.t.Cleanup(func() { _ = exec.Command("losetup", "--detach", loop).Run() }) // it goes with its last user
	minor, ok := strings.CutPrefix(loop, "/dev/loop")
	if !ok {
		s.t.Fatalf("losetup gave %q", loop)
	}
	s.run("mknod " + p.device + " b 7 " + minor)
	return p
}

const siteConfig = `leaf: {name: pump-07, data: /var/lib/holdfast}
hub: {urls: ["tls://hub.example.com:7422"], credentials: "credential:hub.creds"}
storage: {mount: /var/lib/holdfast, key: "credential:store.key", budget: 128MiB, reserve_free: 16MiB, journal: {size: 16MiB}}
streams: [{name: SENSORS, max_bytes: 64MiB}]
sources:
  - {name: meter, into: SENSORS, serial: {port: /dev/meter}, frame: line}
  - {name: devices, into: SENSORS, mqttserver: {listen: "127.0.0.1:1883", anonymous: true, access: [{publish: ["site/#"]}]}}
`

// siteDropIn gives the service its credentials, one of them encrypted, and little patience.
const siteDropIn = `mkdir -p /etc/systemd/system/holdfast.service.d
echo not-really >/root/hub.creds
head -c 32 /dev/urandom | base64 | systemd-creds encrypt --with-key=host --name=store.key - /etc/holdfast/store.key.cred
printf '[Service]\nLoadCredential=hub.creds:/root/hub.creds\nLoadCredentialEncrypted=store.key:/etc/holdfast/store.key.cred\nWatchdogSec=6s\n' >/etc/systemd/system/holdfast.service.d/site.conf
systemctl daemon-reload`

// live takes a gateway through its life: installed, configured, started without a network and without its data partition, reloaded, stopped in its tracks, hung,
// started by a device, upgraded while it captures, removed and purged.
func live(t *testing.T, root, older, newer string) {
	// Its login would be one on /dev/pts/0 to whoever looks for logins on this machine, as tests beside this one do.
	if err := os.Symlink("/dev/null", filepath.Join(root, "etc/systemd/system/console-getty.service")); err != nil {
		t.Fatal(err)
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
	s.configure(siteConfig)
	s.run(siteDropIn)
	s.startWithoutPartition()
	s.looksRight()
	s.reload()
	s.restartedWhenHung()
	s.startedByDevice()
	s.upgrade(newer)
	s.removedAndPurged(newer)
}

// startWithoutPartition starts the daemon before its data partition is mounted: it says so, is not ready, and captures as soon as it is.
func (s site) startWithoutPartition() {
	s.t.Helper()
	s.run("systemctl start --no-block holdfast")
	s.shows("StatusText", "NOTHING IS CAPTURED: the data partition is not in its place: nothing is mounted at /var/lib/holdfast")
	if state := s.run("systemctl is-active holdfast || true"); state != "activating" {
		s.t.Errorf("without its data partition the service is %q, want activating", state)
	}
	if out := s.run("holdfast status 2>&1 || true; ls -A /var/lib/holdfast"); !strings.Contains(out, "nothing is captured") || strings.Contains(out, "\nstore") {
		s.t.Errorf("status without the data partition: %s", out)
	}
	p := s.partition(filepath.Dir(s.Path("/")))
	s.run("mount " + p.device + " /var/lib/holdfast")
	s.shows("StatusText", "Your data is safe")
	s.shows("ActiveState", "active")
}

// looksRight checks what a start without a network has come to.
func (s site) looksRight() {
	s.t.Helper()
	if data := s.run("cat /proc/$(systemctl show -p MainPID --value holdfast)/environ | tr '\\0' '\\n' | grep CREDENTIALS"); data == "" {
		s.t.Error("the service has no credentials directory")
	}
	s.run("test -s /var/lib/holdfast/store/key") // the store is encrypted, so the encrypted credential has arrived
	s.until("holdfast status || true", "meter")
	level := s.run("systemd-analyze security --no-pager holdfast")
	keep(s.t, "security.txt", level)
	if !lowExposure(level) {
		s.t.Errorf("%s, want at most 2.0", level)
	}
	keep(s.t, "boot.svg", s.run("systemd-analyze plot"))
	keep(s.t, "boot.txt", s.run("systemd-analyze time; systemd-analyze critical-chain --no-pager holdfast.service"))
	if fields := s.run("journalctl -u holdfast -o json HOLDFAST_LEAF=pump-07 | head -1"); !strings.Contains(fields, `"HOLDFAST_EPOCH":"1"`) {
		s.t.Errorf("the journal has no fields of ours: %s", fields)
	}
}

// reload changes the configuration of the running daemon by systemctl.
func (s site) reload() {
	s.t.Helper()
	pid := s.run("systemctl show -p MainPID --value holdfast")
	s.configure(strings.Replace(siteConfig, "max_bytes: 64MiB", "max_bytes: 48MiB", 1))
	s.run("systemctl reload holdfast")
	s.until("holdfast status -json | tr -d ' \\n'", `"max_bytes":50331648`)
	if now := s.run("systemctl show -p MainPID --value holdfast; systemctl is-active holdfast"); now != pid+"\nactive" {
		s.t.Errorf("after a reload %q, want the process %s as before", now, pid)
	}
}

// restartedWhenHung stops the process in its tracks, and then lets its disk hang: the watchdog restarts it both times.
func (s site) restartedWhenHung() {
	s.t.Helper()
	if n := s.run("systemctl show -p NRestarts --value holdfast"); n != "0" {
		s.run("systemctl reset-failed holdfast || true") // the start on the fresh partition, which was root's
	}
	before := s.restarts()
	s.run("kill -STOP $(systemctl show -p MainPID --value holdfast)")
	s.until("journalctl -u holdfast --no-pager | grep -c 'Watchdog timeout' || true", "1")
	s.shows("NRestarts", fmt.Sprint(before+1))
	s.shows("StatusText", "Your data is safe")
	s.run("fsfreeze -f /var/lib/holdfast")
	hung := poll.Wait(s.t.Context(), 2*time.Minute, func() bool {
		out, _ := s.Run(s.t.Context(), "sh", "-c", "journalctl -u holdfast --no-pager | grep -c 'Watchdog timeout' || true")
		return strings.TrimSpace(out) == "2"
	})
	s.run("fsfreeze -u /var/lib/holdfast")
	if !hung {
		s.t.Errorf("the watchdog does not see a daemon whose disk hangs\n%s", s.journal())
		return
	}
	s.shows("NRestarts", fmt.Sprint(before+2))
	s.shows("StatusText", "Your data is safe")
	s.shows("ActiveState", "active")
}

func (s site) restarts() (n int) {
	s.t.Helper()
	if _, err := fmt.Sscan(s.run("systemctl show -p NRestarts --value holdfast"), &n); err != nil {
		s.t.Fatal(err)
	}
	return n
}

// startedByDevice gives the MQTT port to systemd: a device that connects starts the daemon.
func (s site) startedByDevice() {
	s.t.Helper()
	s.run(`systemctl stop holdfast
		sed 's/^ListenStream=.*/ListenStream=127.0.0.1:1883/' /usr/share/doc/holdfast/examples/holdfast-mqtt.socket >/etc/systemd/system/holdfast-mqtt.socket
		systemctl daemon-reload; systemctl start holdfast-mqtt.socket`)
	if state := s.run("systemctl is-active holdfast || true"); state != "inactive" {
		s.t.Errorf("before a device connects the service is %q", state)
	}
	s.run("systemd-run --unit=sensor --setenv=" + sensorRole + "=127.0.0.1:1883 /usr/local/bin/device")
	s.shows("ActiveState", "active")
	poll.Until(s.t, 2*time.Minute, func() bool { return len(s.lines("devices", 20)) > 5 }, "records of the device that started the daemon")
}

// upgrade installs a newer package while two devices send and a backlog waits for the hub. Nothing is lost, and no connection is refused.
func (s site) upgrade(newer string) {
	s.t.Helper()
	began := map[string]int{} // what a disk that hung took before does not count: a serial line cannot be told to wait
	for _, source := range []string{"meter", "devices"} {
		poll.Until(s.t, 2*time.Minute, func() bool {
			l := s.lines(source, 50)
			if len(l) > 0 {
				began[source] = l[len(l)-1]
			}
			return len(l) > 0
		}, "lines of %s", source)
	}
	poll.Until(s.t, 2*time.Minute, func() bool { l := s.lines("meter", 50); return len(l) > 0 && l[len(l)-1] > began["meter"]+150 }, "a backlog")
	config := s.run("cat /etc/holdfast/holdfast.yaml")
	epoch := s.run(`holdfast status -json | tr -d ' \n' | grep -o '"epoch":[0-9]*' | head -1`)
	installed := time.Now()
	s.install(newer)
	s.shows("ActiveState", "active")
	var n int
	if _, err := fmt.Sscanf(epoch, `"epoch":%d`, &n); err != nil {
		s.t.Fatalf("epoch %q: %v", epoch, err)
	}
	s.until("holdfast status -json | tr -d ' \\n'", fmt.Sprintf(`"epoch":%d,`, n+1))
	s.t.Logf("capturing again %v after dpkg -i began", time.Since(installed).Round(10*time.Millisecond))
	newest := 0
	if l := s.lines("devices", 50); len(l) > 0 {
		newest = l[len(l)-1]
	}
	poll.Until(s.t, 2*time.Minute, func() bool { l := s.lines("devices", 50); return len(l) > 0 && l[len(l)-1] > newest+50 }, "lines come in after the upgrade")
	for _, source := range []string{"meter", "devices"} {
		all := slices.DeleteFunc(s.lines(source, 2000), func(n int) bool { return n < began[source] })
		for i := 1; i < len(all); i++ {
			if all[i] != all[i-1]+1 {
				s.t.Errorf("%s: line %d is followed by line %d", source, all[i-1], all[i])
			}
		}
		if len(all) < 100 {
			s.t.Errorf("%s: %d lines", source, len(all))
		}
	}
	if state := s.run("systemctl is-active sensor || true"); state != "active" {
		s.t.Errorf("the device was refused: %s", s.journal())
	}
	if now := s.run("cat /etc/holdfast/holdfast.yaml"); now != config {
		s.t.Errorf("the upgrade changed the configuration:\n%s", now)
	}
}

// removedAndPurged: removal keeps data and configuration, a purge keeps a data partition, and takes a plain folder.
func (s site) removedAndPurged(newer string) {
	s.t.Helper()
	s.run("systemctl stop sensor holdfast-mqtt.socket; rm /etc/systemd/system/holdfast-mqtt.socket; systemctl daemon-reload")
	s.run("dpkg -r holdfast")
	s.run("test -d /var/lib/holdfast/jetstream && test -e /etc/holdfast/holdfast.yaml && ! pgrep -x holdfast")
	s.run("dpkg -P holdfast && test -d /var/lib/holdfast/jetstream && umount /var/lib/holdfast")
	s.install(newer)
	s.run("mkdir -p /var/lib/holdfast && touch /var/lib/holdfast/x; dpkg -P holdfast; ! test -e /var/lib/holdfast && ! test -e /etc/holdfast/holdfast.yaml")
}

func lowExposure(text string) bool {
	score := regexp.MustCompile(`([0-9.]+) (OK|MEDIUM|SAFE|PERFECT)`).FindStringSubmatch(text)
	var level float64
	if score == nil {
		return false
	}
	_, err := fmt.Sscanf(score[1], "%f", &level)
	return err == nil && level <= 2.0
}
