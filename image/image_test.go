package image

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/rig/machine"
	"github.com/holdfast-edge/holdfast/rig/poll"
)

var boardKind = flag.String("board", "", "machine that starts the image in most tests: virt, amd64 or raspi3; empty: the image is not started")

const boardConfig = `leaf: {name: pump-07, data: /var/lib/holdfast}
hub: {urls: ["nats://pump-07:secret@HUB"]}
storage: {budget: 400MiB, reserve_free: 64MiB, journal: {size: 16MiB}, key: "credential:store.key"}
streams:
  - {name: SENSORS, max_bytes: 64MiB}
sources:
  - {name: meter, into: SENSORS, serial: {port: /dev/holdfast/serial-ABC123-if00, baud: 115200}, frame: line}
`

const storeKey = "0123456789abcdefghijklmnopqrstuv"

// provisioning is a good file.
const provisioning = `# the pump at the river
config = holdfast.yaml
secret.store.key = key.txt
wifi = Plant
wifi_password = no-one-knows
open = tcp/1883 from 10.0.2.0/24
`

// provision lays a good provisioning file on the card.
func (c *card) provision(hub string) {
	c.put("holdfast.yaml", strings.Replace(boardConfig, "HUB", hub, 1))
	c.put("key.txt", storeKey)
	c.put("holdfast.txt", strings.ReplaceAll(provisioning, "\n", "\r\n")) // as an editor on Windows writes it
}

// TestImageProvisioning takes a card from the first start to a gateway that captures: with a provisioning file that is wrong, without one, with a
// good one; then with a serial adapter that is plugged, pulled and plugged again, and after a power cut.
func TestImageProvisioning(t *testing.T) {
	c := newCard(t, machine.Kind(*boardKind), cardSize)
	g := &gateway{t: t}
	g.startHub()

	c.put("holdfast.txt", "name = pump 07\nhbu = tls://hub.example.com:7422\nopen = 1883\nconfig = gone.yaml\n")
	b := c.on()
	b.wantFault("provisioning-wrong", "holdfast.txt, line 2: unknown key")
	b.wantSecure()
	grown := b.run("df -m --output=size /data | tail -1")
	if mib, _ := strconv.Atoi(strings.TrimSpace(grown)); mib < 900 {
		t.Errorf("the data partition has %s MiB on a card of %d", grown, cardSize>>20)
	}
	identity := b.run("cat /etc/machine-id")
	// The same without a file, as a start would see it.
	b.run("mount -t vfat $(blkid -t LABEL=HOLDFAST -o device) /mnt && rm /mnt/holdfast.txt && umount /mnt && rm /run/holdfast/fault/*; systemctl restart holdfast-provision || true")
	b.wantFault("not-provisioned", "has not been told what it is")
	b.off()
	report, _ := c.boot("holdfast-error.txt")
	for _, fault := range []string{"line 2: unknown key", "line 3: want \"open = tcp/1883\"", "line 4: there is no file"} {
		if !strings.Contains(report, fault) {
			t.Errorf("holdfast-error.txt lacks %q:\n%s", fault, report)
		}
	}

	c.provision(strings.Replace(g.wire.Addr(), "127.0.0.1", machine.Host, 1))
	b = c.on()
	if b.state != "running" {
		t.Errorf("the system is %s: %s", b.state, b.run("systemctl --failed --no-legend --plain"))
	}
	b.until("systemctl is-active holdfast", "active")
	if again := b.run("cat /etc/machine-id"); again != identity {
		t.Errorf("the machine was %s and is now %s", identity, again)
	}
	if now := b.run("nft list chain inet filter input"); !strings.Contains(now, "ip saddr 10.0.2.0/24 tcp dport 1883 accept") {
		t.Errorf("the firewall: %s", now)
	}
	b.wantSecretsKept()
	t.Log("provisioned and active")
	captured := func(last int) func() bool {
		return func() bool {
			a, err := g.read("SENSORS", "meter", 0)
			if err != nil {
				t.Logf("read the hub: %v", err)
			}
			return err == nil && a.last > last
		}
	}
	last := b.talkUntil(1, captured(5), "lines of the adapter arrive at the hub")
	b.Unplug()
	b.until("holdfast status || true", "waiting")
	last = b.talkUntil(last+1, captured(last+5), "lines of the adapter arrive at the hub after it was plugged again")
	t.Log(b.run("cat /proc/uptime; systemd-analyze time | head -3; holdfast status || true"))
	b.keepBootChart(c.kind)
	b.Kill()

	for _, gone := range []string{"holdfast.txt", "holdfast.yaml", "key.txt"} {
		if _, is := c.boot(gone); is {
			t.Errorf("%s is still on the boot partition", gone)
		}
	}
	taken, _ := c.boot("holdfast-taken.txt")
	if !strings.Contains(taken, "wifi = Plant") || strings.Contains(taken, "no-one-knows") {
		t.Errorf("holdfast-taken.txt: %s", taken)
	}

	b = c.on() // after the power cut
	b.until("systemctl is-active holdfast", "active")
	last = b.talkUntil(last+1, captured(last+5), "lines of the adapter arrive at the hub after a power cut")
	b.off()
	var account account
	var err error
	poll.Wait(t.Context(), finishPatience, func() bool { // a busy hub
		account, err = g.read("SENSORS", "meter", 0)
		return err == nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d lines sent, at the hub %+v", last, account)
	if account.double > 0 || account.disordered > 0 {
		t.Errorf("the account of the adapter does not balance: %+v", account)
	}
}

// wantFault wants the system to be degraded, and a fault of a name to be said on the console and in the file of that name.
func (b *board) wantFault(name, text string) {
	b.t.Helper()
	if b.state != "degraded" {
		b.t.Errorf("the system is %s, want degraded", b.state)
	}
	if said := b.run("cat /run/holdfast/fault/" + name); !strings.Contains(said, text) {
		b.t.Errorf("fault %s says %q, want %q in it", name, said, text)
	}
	if !strings.Contains(b.Console(), "FAULT "+name) {
		b.t.Errorf("the console does not show FAULT %s", name)
	}
	if issue := b.run("cat /run/issue.d/holdfast.issue"); !strings.Contains(issue, "What to do:") {
		b.t.Errorf("above the login: %q", issue)
	}
	if state, _ := b.Run(b.t.Context(), time.Minute, "systemctl is-active holdfast"); state != "inactive" {
		b.t.Errorf("the daemon is %s", state)
	}
}

// wantSecure looks at what everybody may do to a gateway that has just been flashed.
func (b *board) wantSecure() {
	b.t.Helper()
	if mounts := b.run("findmnt -n -o FSTYPE,OPTIONS /"); !strings.HasPrefix(mounts, "squashfs") || !strings.Contains(mounts, "ro") {
		b.t.Errorf("the system is mounted as %s", mounts)
	}
	if rules := b.run("nft list chain inet filter input"); !strings.Contains(rules, "policy drop") || strings.Contains(rules, "dport 22") {
		b.t.Errorf("the firewall: %s", rules)
	}
	if open := b.run("ss -Hltn | grep -v 127.0.0.1 | grep -v '\\[::1\\]' || true"); open != "" {
		b.t.Errorf("something listens: %s", open)
	}
	if active, _ := b.Run(b.t.Context(), time.Minute, "systemctl is-active ssh ssh.socket"); strings.Contains("\n"+active, "\nactive") {
		b.t.Errorf("SSH is %s", active)
	}
	if passwords := b.run("cut -d: -f1,2 /etc/shadow | grep -v ':[!*]' || true"); passwords != "" {
		b.t.Errorf("accounts with a password: %s", passwords)
	}
	if keys := b.run("find /usr /etc -name 'ssh_host*key' -o -name credential.secret"); keys != "" {
		b.t.Errorf("keys that every card has: %s", keys)
	}
	if journal := b.run("mountpoint -q /var/log/journal && grep -h SystemMaxUse /etc/systemd/journald.conf.d/*"); !strings.Contains(journal, "64M") {
		b.t.Errorf("the journal has the bound %q", journal)
	}
}

// wantSecretsKept looks for what was provisioned in clear on the data partition.
func (b *board) wantSecretsKept() {
	b.t.Helper()
	for _, secret := range []string{storeKey, "no-one-knows"} {
		if found := b.run("grep -rlF " + secret + " /data /etc 2>/dev/null | grep -v '^/data/system/journal' || true"); found != "" {
			b.t.Errorf("%s is in clear in %s", secret, found)
		}
	}
	if wifi := b.run("cat /run/NetworkManager/system-connections/wifi.nmconnection"); !strings.Contains(wifi, "psk=no-one-knows") {
		b.t.Errorf("NetworkManager gets %s", wifi)
	}
	if used := b.run("ls /run/credentials/holdfast.service"); !strings.Contains(used, "store.key") {
		b.t.Errorf("the daemon's credentials: %s", used)
	}
}

// keepBootChart leaves the chart of the start among what was built.
func (b *board) keepBootChart(kind machine.Kind) {
	b.t.Helper()
	chart, err := b.Run(b.t.Context(), 5*time.Minute, "systemd-analyze plot")
	i := strings.Index(chart, "<?xml")
	if err != nil || i < 0 {
		b.t.Logf("no boot chart: %v", err)
		return
	}
	file := filepath.Join("..", "dist", "image", "boot-"+string(kind)+".svg")
	if err := os.WriteFile(file, []byte(chart[i:]), 0o644); err != nil {
		b.t.Error(err)
	}
}

// TestImageDataPartition starts cards whose data partition is missing, holds garbage, is damaged in a place that can be repaired, or is full. Never does a
// system come up that looks well and captures nothing.
func TestImageDataPartition(t *testing.T) {
	c := newCard(t, machine.Kind(*boardKind), cardSize)
	c.provision("192.0.2.1:7422")
	b := c.on()
	b.until("systemctl is-active holdfast", "active")
	b.run("head -c 64M /dev/urandom >/data/other && sync")
	b.off()
	whole := c.file + ".whole"
	c.host("cp", "--sparse=always", c.file, whole)
	data, size := c.partition(4)
	restore := func() { c.host("cp", "--sparse=always", whole, c.file) }

	t.Run("full", func(t *testing.T) {
		c, b := *c, *b
		c.t = t
		b = *c.on()
		b.until("systemctl is-active holdfast", "active")
		b.run("dd if=/dev/zero of=/data/filler bs=1M 2>/dev/null; dd if=/dev/zero of=/data/filler2 bs=4k 2>/dev/null; df /data | tail -1")
		b.off()
		b = *c.on()
		b.until("holdfast status 2>&1 | grep -E 'in the journal|full|disk' && echo named", "named")
		t.Log(b.run("systemctl is-active holdfast; systemctl show -p StatusText --value holdfast; holdfast status 2>&1 || true"))
		b.run("rm /data/filler /data/filler2")
		b.until("holdfast status >/dev/null 2>&1; systemctl show -p StatusText --value holdfast", "safe")
		b.Kill()
	})
	t.Run("damaged", func(t *testing.T) {
		restore()
		c := *c
		c.t = t
		// The superblock and the descriptors behind it are gone; their copies are those that the growth wrote.
		c.host("dd", "if=/dev/zero", "of="+c.file, "bs=4096", fmt.Sprintf("seek=%d", data/4096), "count=2", "conv=notrunc")
		b := c.on()
		b.until("systemctl is-active holdfast", "active")
		if !strings.Contains(b.Console(), "is being repaired") || b.run("ls /data/system/fsck-*.log; stat -c %s /data/other | grep 67108864") == "" {
			t.Errorf("no word of a repair:\n%s", b.Tail())
		}
		b.Kill()
	})
	t.Run("unreadable", func(t *testing.T) {
		restore()
		c := *c
		c.t = t
		c.host("dd", "if=/dev/urandom", "of="+c.file, "bs=1M", fmt.Sprintf("seek=%d", data>>20), fmt.Sprintf("count=%d", size>>20), "conv=notrunc")
		b := c.on()
		b.wantFault("data-unreadable", "holds no ext4 file system")
		b.Kill()
	})
	t.Run("missing", func(t *testing.T) {
		restore()
		c := *c
		c.t = t
		c.host("sfdisk", "--quiet", "--delete", c.file, "4")
		b := c.on()
		b.wantFault("data-missing", "has no data partition")
		b.Kill()
	})
}

// partition returns where a partition of the card lies, in bytes.
func (c *card) partition(number int) (start, size int64) {
	c.t.Helper()
	table := c.host("sfdisk", "--dump", c.file)
	m := regexp.MustCompile(fmt.Sprintf(`%s%d : start= *(\d+), size= *(\d+)`, regexp.QuoteMeta(c.file), number)).FindStringSubmatch(table)
	if m == nil {
		c.t.Fatalf("no partition %d in\n%s", number, table)
	}
	start, _ = strconv.ParseInt(m[1], 10, 64) // digits
	size, _ = strconv.ParseInt(m[2], 10, 64)
	return start * 512, size * 512
}

// publish is a device in the least of words: CONNECT, and a message of QoS 1 whose acknowledgement it prints.
const publish = `bash -c 'exec 3<>/dev/tcp/127.0.0.1/1883
printf "\x10\x0e\x00\x04MQTT\x04\x02\x00\x3c\x00\x02pi" >&3; head -c 4 <&3 >/dev/null
printf "\x32\x0f\x00\x06site/a\x00\x01hello" >&3; head -c 4 <&3 | od -An -tx1'`

// TestImageRaspberryPi starts the image on the one board that can be emulated, and captures from an MQTT device, from one start to the next. Its emulated USB controller
// interrupts for every packet that an idle adapter has nothing for, more often than an emulated processor can answer: an adapter hangs the board.
func TestImageRaspberryPi(t *testing.T) {
	c := newCard(t, machine.RasPi3B, cardSize)
	c.provision("192.0.2.1:7422")
	c.put("holdfast.yaml", strings.Replace(boardConfig, "HUB", "192.0.2.1:7422", 1)+
		`  - {name: local, into: SENSORS, mqttserver: {listen: "127.0.0.1:1883", anonymous: true, access: [{publish: ["site/#"]}]}}
`)
	b := c.on()
	b.until("systemctl is-active holdfast", "active")
	b.until(publish, "40 02 00 01")
	b.until("holdfast tail -last 1 -count 1 SENSORS", "hello")
	t.Log(b.run("cat /proc/uptime; tr -d '\\0' </proc/device-tree/model; echo; lsblk -n -o NAME,SIZE; dmesg | grep -i watchdog || true"))
	b.Kill()
}

// TestImageUserspaceTime prints how long the system takes from the kernel's hand-over to capture, and keeps a chart of it.
func TestImageUserspaceTime(t *testing.T) {
	c := newCard(t, machine.PC, cardSize)
	c.provision("192.0.2.1:7422")
	c.on().off() // the first start grows and provisions
	c.extra = "quiet"
	b := c.on()
	b.until("systemctl is-active holdfast", "active")
	t.Log("this machine's load:", strings.TrimSpace(c.host("cat", "/proc/loadavg")))
	t.Log(b.run(`systemd-analyze time | head -1
		handed=$(systemctl show -p UserspaceTimestampMonotonic --value) ready=$(systemctl show -p ActiveEnterTimestampMonotonic --value holdfast)
		journalctl -b -u holdfast -o short-monotonic --no-pager | grep -m1 'source state changed' | tr -d '[]' |
		awk -v handed=$handed -v ready=$ready '{ printf "from the kernel'"'"'s hand-over to capture: %.1f s; to ready, with the streams up: %.1f s\n", $1 - handed / 1e6, (ready - handed) / 1e6 }'
		systemd-analyze critical-chain holdfast.service --no-pager; systemd-analyze blame --no-pager | head -20`))
	b.keepBootChart(c.kind)
	b.off()
}
