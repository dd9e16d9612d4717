package serial

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/holdfast-edge/holdfast/ingest"
)

// selectorForm is vid:pid[:serial][:interface] of a USB port.
var selectorForm = regexp.MustCompile(`^([0-9A-Fa-f]{4}):([0-9A-Fa-f]{4})(?::([^:/]*))?(?::([0-9A-Fa-f]{1,2}))?$`)

// bareForm is a device file whose number depends on what is plugged in first.
var bareForm = regexp.MustCompile(`^/dev/tty(USB|ACM|XRUSB|CH343USB|CH9344USB)[0-9]+$`)

// selector names a USB port by what its device says of itself. Empty parts fit any.
type selector struct{ vendor, product, serial, iface string }

// parseSelector reads a selector; ok is false if port is none.
func parseSelector(port string) (s selector, ok bool) {
	m := selectorForm.FindStringSubmatch(port)
	if m == nil {
		return s, false
	}
	s = selector{strings.ToLower(m[1]), strings.ToLower(m[2]), m[3], strings.ToLower(m[4])}
	if len(s.iface) == 1 {
		s.iface = "0" + s.iface
	}
	return s, true
}

func (s selector) fits(p Port) bool {
	return p.Vendor == s.vendor && p.Product == s.product && (s.serial == "" || p.Serial == s.serial) && (s.iface == "" || p.Interface == s.iface)
}

// CheckPort says what is wrong with a port as it is configured, and what to write; both are empty for a sound one.
func CheckPort(port string) (problem, remedy string) {
	_, usb := parseSelector(port)
	switch {
	case port == "":
		return "is missing", "give the device file; holdfast ports shows the names that stay the same"
	case !usb && !filepath.IsAbs(port):
		return fmt.Sprintf("%q is neither an absolute path nor a USB port", port),
			"give the device file with its directory, such as /dev/serial/by-id/usb-..., or vid:pid[:serial][:interface] such as 0403:6001:A50285BI"
	}
	return "", ""
}

// Locate returns the device file that a configured port leads to at present, links followed. The error says why there is none.
func Locate(port string) (string, error) { return locateIn("/", port) }

// locateIn is Locate for a machine whose files lie below root, as in PortsIn. Its errors are a *fault.
func locateIn(root, port string) (string, error) {
	s, usb := parseSelector(port)
	if !usb {
		node, err := filepath.EvalSymlinks(port)
		if err != nil {
			return "", absent(port, err)
		}
		return node, nil
	}
	all, err := PortsIn(root)
	if err != nil {
		return "", &fault{ingest.Waiting, fmt.Sprintf("USB port %s cannot be looked for: %v", port, err), "mount /sys, or give the device file"}
	}
	var found, others []string
	for _, p := range all {
		switch {
		case s.fits(p):
			found = append(found, p.Device)
		case p.Vendor != "":
			others = append(others, p.Selector())
		}
	}
	switch len(found) {
	case 0:
		remedy := "plug the device in and switch it on"
		if len(others) > 3 {
			others = append(others[:3], "and more")
		}
		if len(others) > 0 {
			remedy += "; there is at present: " + strings.Join(others, ", ")
		}
		return "", &fault{ingest.Waiting, fmt.Sprintf("there is no USB port %s", port), remedy}
	case 1:
		node, err := filepath.EvalSymlinks(filepath.Join(root, found[0]))
		if err != nil {
			return "", absent(found[0], err)
		}
		return node, nil
	}
	return "", &fault{ingest.Refused, fmt.Sprintf("%s fits %s", port, strings.Join(found, " and ")),
		"add the serial number or the interface, or give a link below /dev/serial/by-path if the devices have no numbers of their own; holdfast ports shows them"}
}

// Selector returns vid:pid[:serial][:interface] of a USB port, with all that is known; not for other ports.
func (p Port) Selector() string {
	s := p.Vendor + ":" + p.Product
	if p.Serial != "" || p.Interface != "" {
		s += ":" + p.Serial
	}
	if p.Interface != "" {
		s += ":" + p.Interface
	}
	return s
}

// Advice says why a configured port may be another device tomorrow, and what to write instead; empty when it stays the same.
func Advice(port string) string { return adviceIn("/", port) }

func adviceIn(root, port string) string {
	if !bareForm.MatchString(port) {
		return ""
	}
	text := port + " may be another device after the next plug or boot"
	all, err := PortsIn(root)
	if err != nil {
		return text
	}
	for _, p := range all {
		if p.Device != port {
			continue
		}
		if len(p.Links) > 0 {
			return text + "; write " + p.Links[0]
		}
		if p.Vendor != "" {
			return text + "; write " + p.Selector()
		}
	}
	return text
}
