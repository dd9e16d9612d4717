package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/holdfast-edge/holdfast/configs"
	fleet "github.com/holdfast-edge/holdfast/forward/hub"
	"github.com/holdfast-edge/holdfast/ingest/serial"
)

func initCommand(_ context.Context, args []string, std stdio) error {
	fs := flags("init", "", "Writes a first configuration: one stream, and a source for every serial port found, to be edited. An existing file is never overwritten, unless it is as the Debian package brought it.", std)
	path := fs.String("config", defaultConfig, "file to write; - prints it")
	name := fs.String("leaf", "", "name of this gateway, unique in the fleet; the host name when left out")
	data := fs.String("data", "/var/lib/holdfast", "data directory")
	hub := fs.String("hub", "", "leaf-node address of the hub, such as tls://hub.example.com:7422; none: nothing is forwarded")
	enrolment := fs.String("enrolment", "", "`file` that holdfast hub enrol wrote for this gateway; it stays where it is")
	if _, err := parse(fs, args, 0); err != nil {
		return err
	}
	first := firstHub{url: *hub}
	if *enrolment != "" {
		var err error
		if first, err = enrolled(*enrolment); err != nil {
			return fmt.Errorf("read enrolment %s: %w", *enrolment, err)
		}
		if *name != "" && *name != first.Leaf {
			return usageErrorf("the enrolment is of leaf %s, not of %s", first.Leaf, *name)
		}
		*name = first.Leaf
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
	text := firstConfig(*name, *data, first, ports)
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

// firstHub is what the first configuration says of the hub.
type firstHub struct {
	url string // without an enrolment; empty: none
	fleet.Enrolment
	file  string // the enrolment's
	hasCA bool
}

func enrolled(path string) (firstHub, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return firstHub{}, err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return firstHub{}, err
	}
	h := firstHub{file: path}
	h.Enrolment, h.hasCA, err = fleet.ParseEnrolment(data)
	return h, err
}

// write writes the hub section and the streams.
func (h firstHub) write(b *strings.Builder) {
	const first = "  - name: SENSORS\n    max_bytes: 1GiB\n    when_full: drop-oldest\n"
	switch {
	case h.file != "":
		fmt.Fprintf(b, "hub:\n  urls: [%s]\n  domain: %s\n", quoted(h.URLs), h.Domain)
		if h.Commands {
			b.WriteString("  commands: true\n")
		}
		if h.Documents {
			b.WriteString("  documents: true\n")
		}
		kind := "credentials"
		if h.Auth == fleet.ByConfig {
			kind = "nkey"
		}
		fmt.Fprintf(b, "  %s: %q\n", kind, h.file)
		if h.hasCA {
			fmt.Fprintf(b, "  tls: {ca: %q}\n", h.file)
		}
		b.WriteString("streams:\n")
		for _, s := range h.Streams {
			fmt.Fprintf(b, "  - name: %s\n    max_bytes: 1GiB\n    when_full: drop-oldest\n    forward: {mode: %s, hub_stream: %s}\n", s.Name, s.Mode, s.HubStream)
		}
		if len(h.Streams) == 0 {
			b.WriteString(first + "    forward: {mode: none}\n")
		}
	case h.url != "":
		fmt.Fprintf(b, "hub:\n  urls: [%q]\n  # credentials: /etc/holdfast/hub.creds\nstreams:\n%s", h.url, first)
	default:
		b.WriteString("streams:\n" + first + "    forward: {mode: none}\n")
	}
}

// into returns the stream that first sources go into.
func (h firstHub) into() string {
	if len(h.Streams) > 0 {
		return h.Streams[0].Name
	}
	return "SENSORS"
}

func quoted(texts []string) string {
	all := make([]string, 0, len(texts))
	for _, t := range texts {
		all = append(all, fmt.Sprintf("%q", t))
	}
	return strings.Join(all, ", ")
}

func firstConfig(name, data string, hub firstHub, ports []serial.Port) string {
	var b strings.Builder
	fmt.Fprintf(&b, "leaf:\n  name: %s\n  data: %s\n", name, data)
	hub.write(&b)
	b.WriteString("  - name: REJECTS # samples of bytes that no message could be made of\n    max_bytes: 16MiB\n    forward: {mode: none}\n")
	b.WriteString("sources:\n  - {name: rejects, into: REJECTS, rejects: {}}\n")
	for i, p := range ports {
		fmt.Fprintf(&b, "  # %s\n  - name: serial%d\n    into: %s\n    serial: {port: %s, baud: 9600}\n    frame: line\n", describe(p), i+1, hub.into(), stableName(p))
	}
	b.WriteString("  # - name: sensors\n  #   into: SENSORS\n  #   mqtt: {broker: \"tcp://127.0.0.1:1883\", topics: [\"sensors/#\"], qos: 1}\n")
	return b.String()
}
