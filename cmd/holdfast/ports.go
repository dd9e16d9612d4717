package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/holdfast-edge/holdfast/configs"
	"github.com/holdfast-edge/holdfast/ingest/serial"
)

func portsCommand(_ context.Context, args []string, std stdio) error {
	fs := flags("ports", "", "Lists the serial ports of this machine without opening any, with the names that stay the same when a device is plugged in elsewhere or the machine restarts.", std)
	asJSON := fs.Bool("json", false, "print JSON")
	if _, err := parse(fs, args, 0); err != nil {
		return err
	}
	ports, err := serial.Ports()
	if err != nil {
		return fmt.Errorf("list serial ports: %w", err)
	}
	if *asJSON {
		if ports == nil {
			ports = []serial.Port{}
		}
		enc := json.NewEncoder(std.out)
		enc.SetIndent("", "  ")
		return enc.Encode(ports)
	}
	if len(ports) == 0 {
		_, err := fmt.Fprintln(std.out, "no serial port found")
		return err
	}
	tw := tabwriter.NewWriter(std.out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tw, "DEVICE\tUSE THIS NAME\tWHAT IT IS\tUSED BY")
	for _, p := range ports {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\n", p.Device, stableName(p), describe(p), serial.Users(p.Device))
	}
	return tw.Flush()
}

// stableName is the name of a port to write into a configuration.
func stableName(p serial.Port) string {
	switch {
	case len(p.Links) > 0:
		return p.Links[0]
	case p.Serial != "":
		return p.Selector()
	}
	return p.Device
}

// portHints says which configured ports may be other devices tomorrow.
func portHints(cfg configs.Config) []string {
	var hints []string
	for i, s := range cfg.Sources {
		port, key := "", "serial.port"
		switch {
		case s.Serial != nil:
			port = s.Serial.Port
		case s.Modbus != nil:
			port, key = s.Modbus.Bus.Port, "modbus.bus.port"
		}
		if advice := serial.Advice(port); advice != "" {
			hints = append(hints, fmt.Sprintf("sources[%d].%s: %s", i, key, advice))
		}
	}
	return hints
}

// describe says what a port is.
func describe(p serial.Port) string {
	var words []string
	for _, w := range []string{p.Name, p.Driver} {
		if w != "" {
			words = append(words, w)
		}
	}
	if p.Vendor != "" {
		words = append(words, "usb "+p.Vendor+":"+p.Product)
	}
	if p.Serial != "" {
		words = append(words, "serial number "+p.Serial)
	}
	if len(words) == 0 {
		return "serial port"
	}
	return strings.Join(words, ", ")
}
