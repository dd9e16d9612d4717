package image

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// gatewayRoot is the root of a gateway for the provisioning script alone: no machine is started.
type gatewayRoot struct {
	t    *testing.T
	root string
}

func newGatewayRoot(t *testing.T) gatewayRoot {
	t.Helper()
	if testing.Short() {
		t.Skip("builds the daemon")
	}
	for _, need := range []string{"bash", "systemd-creds"} {
		if _, err := exec.LookPath(need); err != nil {
			t.Skipf("SKIPPED, NOT TESTED: %s is not installed", need)
		}
	}
	g := gatewayRoot{t, t.TempDir()}
	for _, dir := range []string{"boot/firmware", "data/system", "run/holdfast", "etc/holdfast"} {
		if err := os.MkdirAll(g.path(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return g
}

func (g gatewayRoot) path(name string) string { return filepath.Join(g.root, name) }

func (g gatewayRoot) lay(files map[string]string) {
	g.t.Helper()
	for name, text := range files {
		if err := os.WriteFile(g.path("boot/firmware/"+name), []byte(text), 0o600); err != nil {
			g.t.Fatal(err)
		}
	}
}

func (g gatewayRoot) read(name string) string {
	b, err := os.ReadFile(g.path(name))
	if err != nil {
		return "" // absent
	}
	return string(b)
}

// provision runs the script, and then the one that sets the machine up; the error is of the first that failed.
func (g gatewayRoot) provision() (string, error) {
	out, failed := "", error(nil)
	for _, name := range []string{"provision", "apply"} {
		script, err := filepath.Abs("pi/root/usr/lib/holdfast/" + name)
		if err != nil {
			g.t.Fatal(err)
		}
		cmd := exec.Command("bash", script)
		cmd.Env = append(os.Environ(), "HOLDFAST_ROOT="+g.root, "PATH="+filepath.Dir(program(g.t))+":"+os.Getenv("PATH"))
		said, err := cmd.CombinedOutput()
		out += string(said)
		if failed == nil {
			failed = err
		}
	}
	return out, failed
}

const ownConfig = `leaf: {name: pump-07, data: /var/lib/holdfast}
hub: {urls: ["tls://hub.example.com:7422"], credentials: "credential:hub.creds"}
streams: [{name: SENSORS, max_bytes: 64MiB}]
sources: [{name: meter, into: SENSORS, serial: {port: /dev/meter}, frame: line}]
`

// TestProvisionFaults: a file with faults changes nothing, and each is named with its line.
func TestProvisionFaults(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		files map[string]string
		want  []string
	}{
		{"nothing", nil, []string{"FAULT not-provisioned"}},
		{"key", map[string]string{"holdfast.txt": "# a pump\n\nhbu = x\n"}, []string{"line 3: unknown key \"hbu\""}},
		{"form", map[string]string{"holdfast.txt": "name pump-07\n"}, []string{"line 1: want \"key = value\""}},
		{"twice", map[string]string{"holdfast.txt": "name = a\nname = b\n"}, []string{"line 2: \"name\" was said before, in line 1"}},
		{"empty", map[string]string{"holdfast.txt": "name =\n"}, []string{"line 1: \"name\" is empty"}},
		{"name", map[string]string{"holdfast.txt": "name = pump 07\n"}, []string{"line 1: name: want at most 32"}},
		{"elsewhere", map[string]string{"holdfast.txt": "config = ../../etc/passwd\n"}, []string{"line 1: \"../../etc/passwd\" is not the name of a file beside"}},
		{"absent", map[string]string{"holdfast.txt": "enrolment = pump.enrolment\n"}, []string{"line 1: there is no file \"pump.enrolment\""}},
		{"port", map[string]string{"holdfast.txt": "name = a\nopen = tcp/70000\nopen = 22; flush ruleset\n"}, []string{"line 2: want \"open", "line 3: want \"open"}},
		{"SSH", map[string]string{"holdfast.txt": "ssh_key = command=\"x\" ssh-rsa A\n"}, []string{"line 1: want the line of a public key"}},
		{"radio", map[string]string{"holdfast.txt": "name = a\nwifi_password = 12345678\nwifi_country = Germany\n"}, []string{"line 2: wifi_password without wifi", "line 3: wifi_country"}},
		{"address", map[string]string{"holdfast.txt": "name = a\naddress = 192.168.1.20\n"}, []string{"line 2: address: want one with the network's length"}},
		{"both", map[string]string{"holdfast.txt": "name = a\nconfig = c.yaml\n", "c.yaml": ownConfig}, []string{"name beside config"}},
		{"configuration", map[string]string{"holdfast.txt": "config = c.yaml\n", "c.yaml": strings.Replace(ownConfig, "streams", "steams", 1)}, []string{"steams"}},
		{"enrolment", map[string]string{"holdfast.txt": "enrolment = e\n", "e": "no enrolment\n"}, []string{"enrolment"}},
		{"address of the hub", map[string]string{"holdfast.txt": "name = a\nhub = example.com\n"}, []string{"hub"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			g := newGatewayRoot(t)
			g.lay(c.files)
			out, err := g.provision()
			if err == nil {
				t.Fatalf("provision succeeds:\n%s", out)
			}
			report := g.read("boot/firmware/holdfast-error.txt")
			for _, want := range c.want {
				if !strings.Contains(out, want) || c.files != nil && !strings.Contains(report, want) {
					t.Errorf("want %q on the console and in the report; the console:\n%s\nthe report:\n%s", want, out, report)
				}
			}
			if g.read("etc/holdfast/holdfast.yaml") != "" || g.read("data/system/site") != "" {
				t.Error("something of a file with faults is in use")
			}
			for name, text := range c.files {
				if g.read("boot/firmware/"+name) != text {
					t.Errorf("%s was changed", name)
				}
			}
		})
	}
}

// TestProvisionTakes: a good file is in use, its secrets are encrypted and gone from the boot partition, and a later one says only what is to change.
func TestProvisionTakes(t *testing.T) {
	t.Parallel()
	g := newGatewayRoot(t)
	g.lay(map[string]string{"c.yaml": ownConfig, "p.creds": "a very secret thing",
		"holdfast.txt": "\xef\xbb\xbfconfig = c.yaml\r\nsecret.hub.creds = p.creds\r\nwifi = Plant = 1 \r\nwifi_password = pass = word\r\nopen = tcp/1883 from 10.0.0.0/8\r\nopen = udp/514\r\nssh_key = ssh-ed25519 AAAA me"})
	if out, err := g.provision(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	want := func(name, text string) {
		t.Helper()
		if got := g.read(name); !strings.Contains(got, text) {
			t.Errorf("%s is %q, want %q in it", name, got, text)
		}
	}
	want("etc/holdfast/holdfast.yaml", ownConfig)
	want("run/NetworkManager/system-connections/wifi.nmconnection", "ssid=Plant = 1\n[wifi-security]\nkey-mgmt=wpa-psk\npsk=pass = word\n")
	want("run/holdfast/open.nft", "add rule inet filter input tcp dport 22 accept\nadd rule inet filter input ip saddr 10.0.0.0/8 tcp dport 1883 accept\nadd rule inet filter input udp dport 514 accept\n")
	want("run/holdfast/ssh/authorized_keys", "ssh-ed25519 AAAA me")
	want("run/holdfast/ssh/host_key", "PRIVATE KEY")
	want("boot/firmware/holdfast-taken.txt", "wifi = Plant = 1")
	if _, err := os.Stat(g.path("run/credstore.encrypted/hub.creds")); err != nil {
		t.Errorf("the daemon's secret: %v", err)
	}
	for _, gone := range []string{"holdfast.txt", "c.yaml", "p.creds"} {
		if g.read("boot/firmware/"+gone) != "" {
			t.Errorf("%s is still on the boot partition", gone)
		}
	}
	clear := exec.Command("grep", "-rlE", "very secret|pass = word", g.path("boot"), g.path("data"))
	if out, _ := clear.Output(); len(out) > 0 { // grep fails when it finds nothing
		t.Errorf("in clear: %s", out)
	}

	g.lay(map[string]string{"holdfast.txt": "open = tcp/8883\n"})
	if out, err := g.provision(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	want("run/holdfast/open.nft", "tcp dport 8883 accept")
	want("run/NetworkManager/system-connections/wifi.nmconnection", "psk=pass = word")
	want("etc/holdfast/holdfast.yaml", ownConfig)

	// A later start, with a fault in the file: what was told before is in use.
	if err := os.RemoveAll(g.path("run/NetworkManager")); err != nil {
		t.Fatal(err)
	}
	g.lay(map[string]string{"holdfast.txt": "opne = tcp/1\n"})
	if out, err := g.provision(); err == nil || !strings.Contains(out, "FAULT provisioning-wrong") {
		t.Errorf("%v\n%s", err, out)
	}
	want("run/NetworkManager/system-connections/wifi.nmconnection", "psk=pass = word")
	want("run/holdfast/open.nft", "tcp dport 8883 accept")

	g.lay(map[string]string{"holdfast.txt": "reset = yes\nname = pump-08\nhub = tls://hub.example.com:7422\n"})
	if out, err := g.provision(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	want("etc/holdfast/holdfast.yaml", "name: pump-08")
	want("etc/hostname", "pump-08")
	if open := g.read("run/holdfast/open.nft"); open != "" {
		t.Errorf("after a reset is open: %s", open)
	}
}
