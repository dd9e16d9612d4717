package serial

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// machine makes a root directory with files, and links where the content begins with "->".
func machine(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if target, ok := strings.CutPrefix(content, "->"); ok {
			err = os.Symlink(target, path)
		} else {
			err = os.WriteFile(path, []byte(content+"\n"), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestPortsIn(t *testing.T) {
	root := machine(t, map[string]string{
		// A USB adapter: class/tty/ttyUSB0 -> devices/usb1/1-1/1-1:1.0/ttyUSB0/tty/ttyUSB0.
		"sys/devices/usb1/1-1/idVendor":                           "0403",
		"sys/devices/usb1/1-1/idProduct":                          "6001",
		"sys/devices/usb1/1-1/serial":                             "A50285BI",
		"sys/devices/usb1/1-1/manufacturer":                       "FTDI",
		"sys/devices/usb1/1-1/product":                            "FT232R USB UART",
		"sys/devices/usb1/1-1/1-1:1.0/ttyUSB0/port_number":        "0",
		"sys/devices/usb1/1-1/1-1:1.0/ttyUSB0/driver":             "->../../../../../bus/usb-serial/drivers/ftdi_sio",
		"sys/devices/usb1/1-1/1-1:1.0/ttyUSB0/tty/ttyUSB0/device": "->../../../ttyUSB0",
		"sys/class/tty/ttyUSB0":                                   "->../../devices/usb1/1-1/1-1:1.0/ttyUSB0/tty/ttyUSB0",
		"dev/serial/by-id/usb-FTDI_FT232R_USB_UART_A50285BI-if00": "->../../ttyUSB0",
		"dev/serial/by-path/platform-3f980000.usb-usb-0:1.2:1.0":  "->../../ttyUSB0",
		"dev/ttyUSB0": "a port that must not be opened",
		// A UART of the board.
		"sys/devices/soc/3f201000.serial/driver":             "->../../../bus/amba/drivers/uart-pl011",
		"sys/devices/soc/3f201000.serial/tty/ttyAMA0/type":   "32",
		"sys/devices/soc/3f201000.serial/tty/ttyAMA0/device": "->../../../3f201000.serial",
		"sys/class/tty/ttyAMA0":                              "->../../devices/soc/3f201000.serial/tty/ttyAMA0",
		// A number kept by the driver for a UART that is not there.
		"sys/devices/platform/serial8250/tty/ttyS3/type":   "0",
		"sys/devices/platform/serial8250/tty/ttyS3/device": "->../../../serial8250",
		"sys/class/tty/ttyS3":                              "->../../devices/platform/serial8250/tty/ttyS3",
		// A virtual console.
		"sys/devices/virtual/tty/tty1/dev": "4:1",
		"sys/class/tty/tty1":               "->../../devices/virtual/tty/tty1",
	})
	if err := os.Chmod(filepath.Join(root, "dev/ttyUSB0"), 0); err != nil {
		t.Fatal(err)
	}
	got, err := PortsIn(root)
	if err != nil {
		t.Fatal(err)
	}
	want := []Port{
		{Device: "/dev/ttyAMA0", Driver: "uart-pl011"},
		{Device: "/dev/ttyUSB0", Driver: "ftdi_sio", Vendor: "0403", Product: "6001", Serial: "A50285BI", Name: "FTDI FT232R USB UART",
			Links: []string{"/dev/serial/by-id/usb-FTDI_FT232R_USB_UART_A50285BI-if00", "/dev/serial/by-path/platform-3f980000.usb-usb-0:1.2:1.0"}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("PortsIn() = %+v\nwant %+v", got, want)
	}
}

func TestPortsInWithoutSys(t *testing.T) {
	if got, err := PortsIn(t.TempDir()); err == nil {
		t.Errorf("PortsIn() of a machine without /sys = %+v, want an error", got)
	}
}

// TestPortsLeavesLineAlone lists the ports of this machine while one is in use.
func TestPortsLeavesLineAlone(t *testing.T) {
	t.Run("ING-004", func(t *testing.T) {
		p := newPlug(t)
		cfg := p.config()
		cfg.Baud = 115200
		opened(t, cfg)
		if _, err := Ports(); err != nil {
			t.Fatal(err)
		}
		if got := p.speed(); got != 115200 {
			t.Errorf("the line runs at %d baud after the listing, want 115200", got)
		}
	})
}
