package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/cmd/holdfast/demo"
	"github.com/holdfast-edge/holdfast/cmd/holdfast/status"
	"github.com/holdfast-edge/holdfast/ingest/serial"
	"github.com/holdfast-edge/holdfast/rig/device"
)

// cli runs a command line in this process.
func cli(args ...string) (code int, out, log string) {
	var stdout, stderr bytes.Buffer
	code = execute(context.Background(), args, stdio{out: &stdout, err: &stderr})
	return code, stdout.String(), stderr.String()
}

func TestExitCodes(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := write("good.yaml", "leaf: {name: a, data: "+filepath.Join(dir, "data")+"}\nstorage: {budget: 1GiB}\nstreams: [{name: S, max_bytes: 64MiB, forward: none}]\nsources: []\n")
	bad := write("bad.yaml", "leaf: {nam: a}\nstreams: [{name: S, max_bytes: lots}]\nsources: [{name: x, into: T}]\n")
	fleet := write("fleet.yaml", "leaves: [{name: a, password: x, streams: [{name: S}]}]\n")
	badFleet := write("badfleet.yaml", "leaves: [{name: a.b}]\n")
	for _, tt := range []struct {
		name string
		args []string
		code int
		out  string // a part of standard output
		err  string // a part of standard error
	}{
		{"nothing", nil, exitUsage, "usage: holdfast", ""},
		{"help", []string{"help"}, exitDone, "status", ""},
		{"no such command", []string{"stauts"}, exitUsage, "", `no command "stauts"`},
		{"no such flag", []string{"check", "-x"}, exitUsage, "", "flag provided but not defined"},
		{"too many words", []string{"version", "x"}, exitUsage, "", `what is "x" for?`},
		{"help of a command", []string{"status", "-h"}, exitDone, "", "usage: holdfast status"},
		{"version", []string{"version"}, exitDone, "holdfast ", ""},
		{"check good", []string{"check", good}, exitDone, "no faults found", ""},
		{"check bad", []string{"check", bad}, exitConfig, "did you mean name?", ""},
		{"check bad, all faults", []string{"check", "-config", bad}, exitConfig, `there is no stream "T"`, ""},
		{"check nothing", []string{"check", filepath.Join(dir, "none.yaml")}, exitConfig, "", "no such file"},
		{"check as JSON", []string{"check", "-json", bad}, exitConfig, `"Remedy"`, ""},
		{"run bad", []string{"run", "-config", bad}, exitConfig, "", "bad.yaml:1: leaf.nam"},
		{"status without a daemon", []string{"status", "-config", good}, exitFailed, "", "no daemon answers"},
		{"tail without a daemon", []string{"tail", "-config", good}, exitFailed, "", "no daemon answers"},
		{"tail of no stream", []string{"tail", "-config", good, "X"}, exitUsage, "", "the configuration has S"},
		{"adopt nothing", []string{"adopt", "-config", good}, exitUsage, "", "adopt which store?"},
		{"adopt what is no store", []string{"adopt", "-config", good, "pump-07"}, exitUsage, "", "adopt which store?"},
		{"adopt without a daemon", []string{"adopt", "-config", good, "0123456789"}, exitFailed, "", "no daemon answers"},
		{"ports", []string{"ports", "-json"}, exitDone, "[", ""},
		{"hub alone", []string{"hub"}, exitUsage, "", "audit"},
		{"hub what", []string{"hub", "destroy"}, exitUsage, "", "want init, plan"},
		{"hub users", []string{"hub", "users", "-fleet", fleet}, exitDone, `"$JS.a.API.CONSUMER.RESET.>"`, ""},
		{"hub users as JSON", []string{"hub", "users", "-json", "-fleet", fleet}, exitDone, `"Publish"`, ""},
		{"hub plan bad", []string{"hub", "plan", "-fleet", badFleet}, exitConfig, "", `"a.b" is not a name`},
		{"hub plan without a hub", []string{"hub", "plan", "-fleet", fleet, "-server", "nats://127.0.0.1:1"}, exitFailed, "", "connect to the hub"},
		{"hub init where", []string{"hub", "init"}, exitUsage, "", "which folder"},
		{"hub init of what", []string{"hub", "init", dir}, exitUsage, "", "-local"},
		{"hub init over something", []string{"hub", "init", "-local", dir}, exitFailed, "", "is not empty"},
		{"hub init of two", []string{"hub", "init", "-hosts", "a,b", filepath.Join(dir, "two")}, exitFailed, "", "2 nodes"},
		{"enrol nobody", []string{"hub", "enrol", "-fleet", fleet}, exitUsage, "", "which leaf"},
		{"enrol without a hub of ours", []string{"hub", "enrol", "-fleet", fleet, "a"}, exitFailed, "", "not made by `holdfast hub init`"},
		{"revoke who is not there", []string{"hub", "revoke", "-fleet", fleet, "a"}, exitFailed, "", "is not enrolled here"},
		{"hub apply without a hub", []string{"hub", "apply", "-fleet", fleet, "-server", "nats://127.0.0.1:1"}, exitFailed, "", "connect to the hub"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			code, out, log := cli(tt.args...)
			if code != tt.code || !strings.Contains(out, tt.out) || !strings.Contains(log, tt.err) {
				t.Errorf("holdfast %q = %d, want %d\noutput, want %q: %s\nlog, want %q: %s", tt.args, code, tt.code, tt.out, out, tt.err, log)
			}
		})
	}
}

func TestHelpFitsATerminal(t *testing.T) {
	lines := func(name, text string) {
		all := strings.Split(strings.TrimRight(text, "\n"), "\n")
		if len(all) > 24 {
			t.Errorf("%s: %d lines, want at most 24:\n%s", name, len(all), text)
		}
		for _, l := range all {
			if len([]rune(strings.ReplaceAll(l, "\t", "        "))) > 80 {
				t.Errorf("%s: longer than 80 characters: %q", name, l)
			}
		}
	}
	_, out, _ := cli("help")
	lines("help", out)
	for _, c := range commands() {
		_, _, log := cli(c.name, "-h")
		lines(c.name, log)
	}
}

// fullDisk is an output that takes nothing.
type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

func TestResultThatCannotBeWritten(t *testing.T) {
	var stderr bytes.Buffer
	if code := execute(context.Background(), []string{"version"}, stdio{out: fullDisk{}, err: &stderr}); code != exitFailed {
		t.Errorf("version on a full disk = %d, want %d", code, exitFailed)
	}
	if !strings.Contains(stderr.String(), "no space left") {
		t.Errorf("the log does not tell why: %q", stderr.String())
	}
}

func TestInit(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "holdfast.yaml")
	for _, hub := range []string{"", "tls://hub.example.com:7422"} {
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
		if code, out, log := cli("init", "-config", path, "-leaf", "pump-07", "-data", filepath.Join(dir, "data"), "-hub", hub); code != exitDone {
			t.Fatalf("init = %d: %s%s", code, out, log)
		}
		if code, out, log := cli("check", path); code != exitDone {
			t.Errorf("check of what init wrote for hub %q = %d: %s%s", hub, code, out, log)
		}
	}
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	code, _, log := cli("init", "-config", path, "-leaf", "other")
	if after, err := os.ReadFile(path); err != nil || code != exitFailed || !bytes.Equal(before, after) || !strings.Contains(log, "exists already") {
		t.Errorf("init over an existing file = %d (%v): %s", code, err, log)
	}
	text := firstConfig("a", dir, firstHub{}, []serial.Port{{Device: "/dev/ttyUSB0", Links: []string{"/dev/serial/by-id/usb-x"}, Name: "GPS"}})
	if !strings.Contains(text, "port: /dev/serial/by-id/usb-x") || strings.Contains(text, "ttyUSB0") {
		t.Errorf("the port is not named by its lasting name:\n%s", text)
	}
}

func TestLeafName(t *testing.T) {
	for host, want := range map[string]string{
		"pump-07": "pump-07", "pump-07.example.com": "pump-07", "Pumpe Süd!": "Pumpe-S-d", "": "gateway", "---": "gateway",
		strings.Repeat("x", 40): strings.Repeat("x", 32),
	} {
		if got := leafName(host); got != want {
			t.Errorf("leafName(%q) = %q, want %q", host, got, want)
		}
	}
}

// TestCommandsOnARunningDaemon asks a daemon without a hub by every command that does, and starts a second one on its directory.
func TestCommandsOnARunningDaemon(t *testing.T) {
	dir := t.TempDir()
	gps, err := device.NewGPS(filepath.Join(dir, "gps"), 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closing(t, gps.Unplug()) })
	s := &site{t: t, leaf: "pump-07", dir: dir, gps: gps}
	config := s.write("holdfast.yaml", s.config(""))
	s.start()
	var log device.Sentences
	sent := s.talk(&log, 25)

	code, out, errs := cli("tail", "-config", config, "-last", "5", "-count", "5", "SENSORS")
	if code != exitDone || strings.Count(out, "\n") != 5 || !strings.Contains(out, sent[24]) || !strings.Contains(out, "data.pump-07.SENSORS.gps") {
		t.Errorf("tail = %d: %s%s", code, out, errs)
	}
	code, out, errs = cli("tail", "-json", "-config", config, "-last", "1", "-count", "1", "SENSORS")
	var r tailRecord
	if err := json.Unmarshal([]byte(out), &r); code != exitDone || err != nil || string(r.Data) != sent[24] || r.ID == "" || r.Time == "" {
		t.Errorf("tail -json = %d (%v): %s%s", code, err, out, errs)
	}
	for range 1010 { // more than a stream may have consumers at a time
		if code, out, errs = cli("tail", "-config", config, "-last", "1", "-count", "1", "SENSORS"); code != exitDone {
			t.Fatalf("tail = %d: %s%s", code, out, errs)
		}
	}
	code, out, errs = cli("status", "-json", "-config", config)
	var rep status.Report
	if err := json.Unmarshal([]byte(out), &rep); code != exitDone || err != nil || rep.Leaf != "pump-07" || storedBy(rep, "gps") != 25 || !rep.Verdict.Safe {
		t.Errorf("status -json = %d (%v): %s%s", code, err, out, errs)
	}
	if code, out, errs = cli("status", "-config", config); code != exitDone || !strings.Contains(out, "Your data is safe") {
		t.Errorf("status = %d: %s%s", code, out, errs)
	}
	if code, _, errs = cli("run", "-config", config); code != exitStore || !strings.Contains(errs, "in use by process") {
		t.Errorf("a second daemon on the directory = %d: %s", code, errs)
	}
	s.daemon.stop()
	if code, _, errs = cli("status", "-config", config); code != exitFailed {
		t.Errorf("status after the stop = %d: %s", code, errs)
	}
}

func TestDemo(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: runs a hub, not done with -short")
	}
	t.Parallel()
	binary := filepath.Join(t.TempDir(), "holdfast")
	buildPlain(t, binary)
	var out bytes.Buffer
	balanced, err := demo.Run(context.Background(), demo.Options{
		Holdfast: binary, Out: &out, Before: 2 * time.Second, Outage: 4 * time.Second, After: 2 * time.Second,
	})
	if err != nil || !balanced {
		t.Fatalf("demo = %v, %v\n%s", balanced, err, out.String())
	}
	for _, want := range []string{"CUTTING THE LINK", "captured", "every record is at the hub, once and in order"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the demo does not say %q:\n%s", want, out.String())
		}
	}
}
