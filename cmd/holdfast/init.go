package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"

	"github.com/holdfast-edge/holdfast/configs"
	"github.com/holdfast-edge/holdfast/ingest/serial"
)

func initCommand(_ context.Context, args []string, std stdio) error {
	fs := flags("init", "", "Writes a first configuration: one stream, and a source for every serial port found, to be edited. An existing file is never overwritten, unless it is as the Debian package brought it.", std)
	path := fs.String("config", defaultConfig, "file to write; - prints it")
	name := fs.String("leaf", "", "name of this gateway, unique in the fleet; the host name when left out")
	data := fs.String("data", "/var/lib/holdfast", "data directory")
	hub := fs.String("hub", "", "leaf-node address of the hub, such as tls://hub.example.com:7422; none: nothing is forwarded")
	if _, err := parse(fs, args, 0); err != nil {
		return err
	}
	if *name == "" {
		host, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("find a name for this gateway: %w; give one with -leaf", err)
		}
		*name = leafName(host)
	}
	ports, err := serial.Ports()
	if err != nil {
		return fmt.Errorf("list serial ports: %w", err)
	}
	text := firstConfig(*name, *data, *hub, ports)
	if faults := configs.Check([]byte(text)); len(faults) > 0 {
		_, err := io.WriteString(std.err, configs.Format(faults))
		return exitError{exitConfig, errors.Join(err, errSaid)}
	}
	if *path == "-" {
		_, err := fmt.Fprint(std.out, text)
		return err
	}
	create := os.O_EXCL
	if untouched(*path) {
		create = os.O_TRUNC
	}
	f, err := os.OpenFile(*path, os.O_WRONLY|os.O_CREATE|create, 0o640) // the hub's address may hold a password
	if errors.Is(err, os.ErrExist) {
		return fmt.Errorf("%s exists already and is left as it is; write elsewhere with -config", *path)
	}
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", *path, err)
	}
	_, err = fmt.Fprintf(std.out, "wrote %s; edit its sources, then `holdfast check -config %s`\n", *path, *path)
	return err
}

// packaged is the configuration as the Debian package brings it, beside the copy in /etc that a person edits.
const packaged = "/usr/share/holdfast/holdfast.yaml"

// untouched tells whether the file at path is the one that the Debian package brought, so that nobody loses anything by its being replaced.
func untouched(path string) bool {
	brought, err := os.ReadFile(packaged)
	if err != nil {
		return false // not installed by the package
	}
	is, err := os.ReadFile(path)
	return err == nil && bytes.Equal(is, brought)
}

// leafName makes a legal leaf name of a host name.
func leafName(host string) string {
	host, _, _ = strings.Cut(host, ".")
	host = strings.Trim(regexp.MustCompile(`[^A-Za-z0-9_-]+`).ReplaceAllString(host, "-"), "-_")
	if host == "" {
		return "gateway"
	}
	return host[:min(len(host), 32)]
}

func firstConfig(name, data, hub string, ports []serial.Port) string {
	var b strings.Builder
	fmt.Fprintf(&b, "leaf:\n  name: %s\n  data: %s\n", name, data)
	if hub != "" {
		fmt.Fprintf(&b, "hub:\n  urls: [%q]\n  # credentials: /etc/holdfast/hub.creds\n", hub)
	}
	b.WriteString("streams:\n  - name: SENSORS\n    max_bytes: 1GiB\n    when_full: drop-oldest\n")
	if hub == "" {
		b.WriteString("    forward: {mode: none}\n")
	}
	b.WriteString("sources:")
	if len(ports) == 0 {
		b.WriteString(" []\n")
	} else {
		b.WriteString("\n")
	}
	for i, p := range ports {
		fmt.Fprintf(&b, "  # %s\n  - name: serial%d\n    into: SENSORS\n    serial: {port: %s, baud: 9600}\n    frame: line\n", describe(p), i+1, stableName(p))
	}
	b.WriteString("  # - name: sensors\n  #   into: SENSORS\n  #   mqtt: {broker: \"tcp://127.0.0.1:1883\", topics: [\"sensors/#\"], qos: 1}\n")
	return b.String()
}
