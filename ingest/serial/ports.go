package serial

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Port is a serial port of this machine.
type Port struct {
	Device string   `json:"device"`           // device file, such as /dev/ttyUSB0; its number may be another after the next plug or boot
	Links  []string `json:"links,omitempty"`  // links below /dev/serial that lead to it, by-id first: these stay the same
	Driver string   `json:"driver,omitempty"` // kernel driver; empty if unknown

	// Of a USB device: identity in four hexadecimal digits, serial number, and name in words. All empty otherwise; the serial
	// number is empty, or equal on all devices, with many cheap adapters: then a by-path link is the one to configure.
	Vendor    string `json:"vendor,omitempty"`
	Product   string `json:"product,omitempty"`
	Serial    string `json:"serial,omitempty"`
	Interface string `json:"interface,omitempty"` // which of the device's ports it is, two hexadecimal digits
	Name      string `json:"name,omitempty"`
}

// Ports lists the serial ports of this machine by reading /sys/class/tty and the links below /dev/serial. It opens no port:
// that would reset the line of somebody who uses it.
func Ports() ([]Port, error) { return PortsIn("/") }

// PortsIn is Ports for a machine whose /sys and /dev lie below root. Paths in its answer are those without root.
func PortsIn(root string) ([]Port, error) {
	class := filepath.Join(root, "sys/class/tty")
	entries, err := os.ReadDir(class)
	if err != nil {
		return nil, fmt.Errorf("list serial ports: %w", err)
	}
	links, err := portLinks(root)
	if err != nil {
		return nil, fmt.Errorf("list serial ports: %w", err)
	}
	var out []Port
	for _, e := range entries {
		dir := filepath.Join(class, e.Name())
		hardware, err := filepath.EvalSymlinks(filepath.Join(dir, "device"))
		if err != nil || attribute(dir, "type") == "0" {
			continue // a console or pseudo-terminal, or a number that the driver keeps for a port that is not there
		}
		p := Port{Device: "/dev/" + e.Name(), Links: links[e.Name()]}
		if d, err := os.Readlink(filepath.Join(hardware, "driver")); err == nil {
			p.Driver = filepath.Base(d)
		}
		p.usb(hardware)
		out = append(out, p)
	}
	return out, nil
}

// usb fills in what the USB device says that hardware is a part of.
func (p *Port) usb(hardware string) {
	for dir := hardware; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if n := attribute(dir, "bInterfaceNumber"); p.Interface == "" {
			p.Interface = n
		}
		if p.Vendor = attribute(dir, "idVendor"); p.Vendor == "" {
			continue
		}
		p.Product, p.Serial = attribute(dir, "idProduct"), attribute(dir, "serial")
		p.Name = strings.TrimSpace(attribute(dir, "manufacturer") + " " + attribute(dir, "product"))
		return
	}
}

// attribute reads a file of /sys; empty if there is none.
func attribute(dir, name string) string {
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// portLinks returns the links below /dev/serial by the device they lead to.
func portLinks(root string) (map[string][]string, error) {
	out := map[string][]string{}
	for _, kind := range []string{"by-id", "by-path"} {
		dir := "/dev/serial/" + kind
		entries, err := os.ReadDir(filepath.Join(root, dir))
		if errors.Is(err, fs.ErrNotExist) {
			continue // no USB port is plugged in
		}
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			target, err := os.Readlink(filepath.Join(root, dir, e.Name()))
			if err != nil {
				continue // unplugged just now
			}
			name := filepath.Base(target)
			out[name] = append(out[name], dir+"/"+e.Name())
		}
	}
	for _, l := range out {
		slices.Sort(l)
	}
	return out, nil
}
