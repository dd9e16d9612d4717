package configs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/ingest/frame"
	"github.com/holdfast-edge/holdfast/ingest/mqtt"
	"github.com/holdfast-edge/holdfast/ingest/serial"
)

// TestBroken holds what is said about every configuration in testdata/broken against its golden file.
func TestBroken(t *testing.T) {
	files, err := filepath.Glob("testdata/broken/*.yaml")
	if err != nil || len(files) < 25 {
		t.Fatalf("found %d broken configurations, %v, want at least 25", len(files), err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		t.Run(name, func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			_, faults := parse(data, bench())
			if len(faults) == 0 {
				t.Fatal("no fault found")
			}
			for i := range faults {
				faults[i].File = filepath.Base(file)
				if faults[i].Remedy == "" || faults[i].Line < 1 {
					t.Errorf("fault %+v lacks a remedy or a line", faults[i])
				}
			}
			text := Format(faults)
			if strings.Contains(text, "hunter2") {
				t.Errorf("a secret is shown:\n%s", text)
			}
			golden(t, strings.TrimSuffix(file, ".yaml")+".golden", text)
		})
	}
}

// TestLoad reads a configuration with every section, as the README shows one.
func TestLoad(t *testing.T) {
	file := filepath.Join(t.TempDir(), "holdfast.yaml")
	if err := os.WriteFile(file, []byte(`
leaf: {name: pump-07, data: store, nats: "127.0.0.1:4222"}
hub: {urls: ["tls://hub.example.com:7422"], credentials: hub.creds}
storage: {budget: 40MiB, reserve_free: 1MiB, commit: {max_records: 100, max_delay: 20ms}}
streams:
  - {name: SENSORS, max_bytes: 20MiB, keep_forwarded: 7d, when_full: refuse, forward: {mode: mirror}}
sources:
  - {name: gps, into: SENSORS, serial: {port: /dev/serial/by-id/usb-u-blox, baud: 4800}, frame: nmea}
  - {name: zigbee, into: SENSORS, mqtt: {broker: "tcp://127.0.0.1:1883", topics: ["zigbee2mqtt/#"], password_file: /etc/pw, user: me}}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	got, faults, err := Load(file)
	if err != nil || len(faults) > 0 {
		t.Fatalf("Load = %v\n%s", err, Format(faults))
	}
	want := Defaults()
	want.Leaf.Name, want.Leaf.Data, want.Leaf.NATS = "pump-07", filepath.Join(filepath.Dir(file), "store"), "127.0.0.1:4222"
	want.Hub.URLs, want.Hub.Credentials = []string{"tls://hub.example.com:7422"}, filepath.Join(filepath.Dir(file), "hub.creds")
	want.Storage.Budget, want.Storage.ReserveFree = 40<<20, 1<<20
	want.Storage.Commit.MaxRecords, want.Storage.Commit.MaxDelay = 100, 20*time.Millisecond
	want.Streams = []Stream{*build(func(s *Stream) {
		s.Name, s.MaxBytes, s.KeepForwarded, s.WhenFull, s.Forward.Mode = "SENSORS", 20<<20, 7*24*time.Hour, "refuse", "mirror"
	})}
	want.Sources = []Source{
		{
			Name: "gps", Into: "SENSORS",
			Serial: build(func(c *serial.Config) { c.Port, c.Baud = "/dev/serial/by-id/usb-u-blox", 4800 }),
			Frame:  build(func(c *frame.Config) { c.Type = "nmea" }),
			Keep:   "both",
		},
		{
			Name: "zigbee", Into: "SENSORS", Keep: "both",
			MQTT: build(func(c *mqtt.Config) {
				c.Broker, c.Topics, c.PasswordFile, c.User = "tcp://127.0.0.1:1883", []string{"zigbee2mqtt/#"}, "/etc/pw", "me"
			}),
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("Load =\n%s\nwant\n%s", write(got, false), write(want, false))
	}
}

// TestReadmeExample keeps the configuration that the README shows free of faults.
func TestReadmeExample(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, found := strings.Cut(string(readme), "```yaml\n")
	text, _, ended := strings.Cut(text, "```\n")
	if !found || !ended {
		t.Fatal("README.md has no configuration")
	}
	cfg, faults := parse([]byte(text), bench())
	if len(faults) > 0 || len(cfg.Sources) != 2 {
		t.Errorf("the README's configuration has %d sources and faults:\n%s", len(cfg.Sources), Format(faults))
	}
}

func TestLoadMissing(t *testing.T) {
	_, faults, err := Load(filepath.Join(t.TempDir(), "holdfast.yaml"))
	if !errors.Is(err, fs.ErrNotExist) || faults != nil || !strings.HasPrefix(err.Error(), "read configuration: open ") {
		t.Errorf("Load of a missing file = %v, %v, want an error that it does not exist", faults, err)
	}
}

func TestLoadNamesTheFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "broken.yaml")
	if err := os.WriteFile(file, []byte("leaf: {nmae: a}\nstreams: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, faults, err := Load(file)
	if err != nil || len(faults) != 1 || !strings.HasPrefix(Format(faults), file+":1: leaf.nmae: unknown key\n") {
		t.Errorf("Load = %v, %s, want one fault that begins with the file", err, Format(faults))
	}
}

// TestDevicesTwice resolves links as they are on a machine.
func TestDevicesTwice(t *testing.T) {
	dir := t.TempDir()
	device, link := filepath.Join(dir, "ttyUSB0"), filepath.Join(dir, "by-id")
	if err := os.WriteFile(device, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(device, link); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, a, b string
		want       int
	}{
		{"two devices", device, filepath.Join(dir, "ttyUSB1"), 0},
		{"a device and a link to it", device, link, 1},
		{"one absent device twice", dir + "/absent", dir + "/./absent", 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := example()
			second := *cfg.Sources[0].Serial
			cfg.Sources[0].Serial.Port, second.Port = tt.a, tt.b
			cfg.Sources[1] = Source{Name: "other", Into: "SENSORS", Serial: &second, Frame: cfg.Sources[0].Frame}
			var got []string
			check{cfg: &cfg, system: machine(), fault: func(path, _, _ string) { got = append(got, path) }}.devices()
			if len(got) != tt.want || tt.want == 1 && got[0] != "sources[1].serial.port" {
				t.Errorf("faults at %v, want %d", got, tt.want)
			}
		})
	}
}

func TestDiskSize(t *testing.T) {
	dir := t.TempDir()
	there, below := diskSize(dir), diskSize(filepath.Join(dir, "not", "yet"))
	if there <= 0 || below != there {
		t.Errorf("diskSize = %d, for a folder below it that is not there yet %d, want the same", there, below)
	}
}

func TestAbout(t *testing.T) {
	for n, want := range map[int64]string{0: "0B", 1023: "1023B", 1 << 10: "1KiB", 1<<20 - 1: "1023.99KiB", 3 << 29: "1.5GiB", 1<<63 - 1: "8388608TiB"} {
		if got := about(n); got != want {
			t.Errorf("about(%d) = %s, want %s", n, got, want)
		}
	}
}

// FuzzLoad: no text makes it panic, faults have lines, and a configuration without faults says the same after it was written and read again.
func FuzzLoad(f *testing.F) {
	files, err := filepath.Glob("testdata/broken/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range append(files, "holdfast.yaml") {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		cfg, faults := parse(data, bench())
		for _, fault := range faults {
			if fault.Line < 1 || fault.Problem == "" {
				t.Errorf("fault %+v has no line or no problem", fault)
			}
		}
		if len(faults) > 0 {
			return
		}
		text := write(cfg, false)
		again, faults := parse([]byte(text), bench())
		if len(faults) > 0 || !reflect.DeepEqual(again, cfg) {
			t.Errorf("read\n%s\nwritten as\n%s\nfaults:\n%s", data, text, Format(faults))
		}
	})
}

// TestCredentialNames shows where a file that systemd hands over is looked for, in the service and in a command run by hand.
func TestCredentialNames(t *testing.T) {
	file := filepath.Join(t.TempDir(), "holdfast.yaml")
	text := "leaf: {name: a, data: /var/lib/holdfast}\nhub: {urls: [\"tls://h:7422\"], credentials: \"credential:hub.creds\", tls: {ca: ca.pem}}\n" +
		"streams: [{name: S}]\nsources: []\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for given, want := range map[string]string{"/run/cred/x": "/run/cred/x/hub.creds", "": "/run/credentials/holdfast.service/hub.creds"} {
		t.Setenv("CREDENTIALS_DIRECTORY", given)
		cfg, faults, err := Load(file)
		if err != nil || len(faults) > 0 {
			t.Fatal(err, faults)
		}
		if cfg.Hub.Credentials != want || cfg.Hub.TLS.CA != filepath.Join(filepath.Dir(file), "ca.pem") {
			t.Errorf("with %q: credentials %q, CA %q; want %q and a file beside the configuration", given, cfg.Hub.Credentials, cfg.Hub.TLS.CA, want)
		}
	}
}
