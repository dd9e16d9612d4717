package serial

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/holdfast-edge/holdfast/ingest"
	"github.com/holdfast-edge/holdfast/ingest/frame"
	"github.com/holdfast-edge/holdfast/rig/poll"
)

// usb adds a USB port to the files of a machine.
func usb(files map[string]string, name, at, vendor, product, serial, iface string) map[string]string {
	dev := "sys/devices/usb1/" + at
	tty := dev + "/" + at + ":1." + iface + "/" + name
	files[dev+"/idVendor"], files[dev+"/idProduct"] = vendor, product
	if serial != "" {
		files[dev+"/serial"] = serial
	}
	files[dev+"/"+at+":1."+iface+"/bInterfaceNumber"] = "0" + iface
	files[tty+"/tty/"+name+"/device"] = "->../../../" + name
	files["sys/class/tty/"+name] = "->../../" + strings.TrimPrefix(tty, "sys/") + "/tty/" + name
	return files
}

// fourPorts is a machine with two adapters of one kind, and one with two ports and no serial number.
func fourPorts(t *testing.T) string {
	files := usb(map[string]string{}, "ttyUSB0", "1-1", "0403", "6001", "A50285BI", "0")
	usb(files, "ttyUSB1", "1-2", "0403", "6001", "B1", "0")
	usb(files, "ttyUSB2", "1-3", "10c4", "ea70", "", "0")
	usb(files, "ttyUSB3", "1-3", "10c4", "ea70", "", "1")
	for _, n := range []string{"0", "1", "2", "3"} {
		files["dev/ttyUSB"+n] = ""
	}
	files["dev/serial/by-id/usb-FTDI_A50285BI-if00-port0"] = "->../../ttyUSB0"
	return machine(t, files)
}

func TestLocateUSBPort(t *testing.T) {
	root := fourPorts(t)
	for _, tc := range []struct {
		port, node    string
		kind          ingest.Kind
		cause, remedy string
	}{
		{port: "0403:6001:A50285BI", node: "ttyUSB0"},
		{port: "0403:6001:B1", node: "ttyUSB1"},
		{port: "0403:6001:B1:00", node: "ttyUSB1"},
		{port: "10C4:EA70::1", node: "ttyUSB3"},
		{port: "10c4:ea70::00", node: "ttyUSB2"},
		{port: "0403:6001", kind: ingest.Refused, cause: "/dev/ttyUSB0 and /dev/ttyUSB1", remedy: "serial number"},
		{port: "10c4:ea70", kind: ingest.Refused, cause: "/dev/ttyUSB2 and /dev/ttyUSB3", remedy: "by-path"},
		{port: "0403:6001:C9", kind: ingest.Waiting, cause: "no USB port 0403:6001:C9", remedy: "0403:6001:A50285BI:00"},
		{port: "dead:beef", kind: ingest.Waiting, cause: "no USB port", remedy: "and more"},
	} {
		t.Run(tc.port, func(t *testing.T) {
			node, err := locateIn(root, tc.port)
			var f *fault
			switch {
			case tc.node != "":
				if err != nil || node != filepath.Join(root, "dev", tc.node) {
					t.Errorf("locate = %q, %v, want %s", node, err, tc.node)
				}
			case !errors.As(err, &f) || f.kind != tc.kind || !strings.Contains(f.cause, tc.cause) || !strings.Contains(f.remedy, tc.remedy):
				t.Errorf("locate = %q, %+v, want %v: %s", node, err, tc.kind, tc.cause)
			}
		})
	}
}

// TestUSBPortUnderAnotherName plugs a device out and in again as another node: the selector finds it, and by the serial number only it.
func TestUSBPortUnderAnotherName(t *testing.T) {
	root := fourPorts(t)
	p := newPlug(t)
	node := func(name string) string { return filepath.Join(root, "dev", name) }
	wire := func(name string) {
		t.Helper()
		if err := os.Remove(node(name)); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(p.node, node(name)); err != nil {
			t.Fatal(err)
		}
	}
	wire("ttyUSB1")
	cfg := p.config()
	cfg.Port = "0403:6001:B1"
	s, log := newSource(t, cfg, lines)
	s.open = func(c Config) (device, error) { return openIn(root, c) }
	r := &run{Source: s, log: log}
	r.begin(t)
	r.becomes(t, ingest.Running)
	p.send("one\n")
	r.wants(t, "one")
	p.out()
	if err := os.Remove(filepath.Join(root, "sys/class/tty/ttyUSB1")); err != nil {
		t.Fatal(err)
	}
	if st := r.becomes(t, ingest.Waiting); st.Remedy == "" {
		t.Errorf("State() = %+v, want a remedy", st)
	}
	p.in()
	again := fourPorts(t) // the same device elsewhere
	if err := os.Rename(filepath.Join(root, "sys"), filepath.Join(root, "old")); err != nil {
		t.Fatal(err)
	}
	wire("ttyUSB1")
	if err := os.Rename(filepath.Join(again, "sys"), filepath.Join(root, "sys")); err != nil {
		t.Fatal(err)
	}
	r.becomes(t, ingest.Running)
	p.send("two\n")
	r.wants(t, "one", "two")
}

func TestAdvice(t *testing.T) {
	root := fourPorts(t)
	for port, want := range map[string]string{
		"/dev/ttyUSB0":        "/dev/serial/by-id/usb-FTDI_A50285BI-if00-port0",
		"/dev/ttyUSB3":        "10c4:ea70::01",
		"/dev/ttyACM7":        "another device",
		"/dev/ttyAMA0":        "",
		"/dev/serial/by-id/x": "",
		"0403:6001":           "",
	} {
		if got := adviceIn(root, port); (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("advice for %s = %q, want %q in it", port, got, want)
		}
	}
	s, log := newSource(t, (&plug{link: "/dev/ttyUSB77"}).config(), frame.Config{Type: frame.TypeLine})
	if !strings.Contains(log.String(), "another device") {
		t.Errorf("%s was not warned about: %s", s.cfg.Port, log)
	}
}

// TestLoginOnThePort puts a login on the line, as a getty does: the source says so, with its remedy, and opens the port when the login is gone.
func TestLoginOnThePort(t *testing.T) {
	p := newPlug(t)
	script := filepath.Join(t.TempDir(), "agetty")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nwhile read -r line; do :; done\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(p.node, os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(script)
	cmd.Stdin, cmd.Stdout = slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = slave.Close()
	ended := false
	end := func() {
		if !ended {
			ended = true
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}
	t.Cleanup(end)
	poll.Until(t, patience, func() bool { return checkLogin("/proc", p.link, p.node) != nil }, "the login to be seen")
	r := start(t, p.config(), lines)
	st := r.becomes(t, ingest.Busy)
	if !strings.Contains(st.Cause, "agetty (pid ") || !strings.Contains(st.Remedy, "serial-getty@"+filepath.Base(p.node)) {
		t.Errorf("State() = %+v, want the login and how to end it", st)
	}
	end()
	// The end of a session hangs its line up, as pulling the plug would.
	p.out()
	p.in()
	r.becomes(t, ingest.Running)
}

func TestReadStat(t *testing.T) {
	for line, want := range map[string]struct {
		comm string
		tty  uint64
	}{
		"812 (agetty) S 1 812 812 34816 812 4194560": {"agetty", 34816}, // 136:0
		"9 (a) b (c)) S 1 9 9 1025 9 0":              {"a) b (c)", 4<<8 | 1},
		"9 (x) S":                                    {"", 0},
		"":                                           {"", 0},
	} {
		if comm, tty := readStat(line); comm != want.comm || tty != want.tty {
			t.Errorf("readStat(%q) = %q, %d, want %q, %d", line, comm, tty, want.comm, want.tty)
		}
	}
}
