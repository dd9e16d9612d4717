package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	independent "github.com/simonvetter/modbus"

	"github.com/holdfast-edge/holdfast/configs"
	"github.com/holdfast-edge/holdfast/rig/device"
	"github.com/holdfast-edge/holdfast/rig/port"
)

// probed runs the command and returns its exit code and what it wrote.
func probed(t *testing.T, args ...string) (code int, out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	code = execute(t.Context(), append([]string{"probe"}, args...), stdio{out: &o, err: &e})
	return code, o.String(), e.String()
}

// TestProbeThenRun listens to a receiver, and puts what the probe suggests into a configuration: it is a sound one.
func TestProbeThenRun(t *testing.T) {
	dir := t.TempDir()
	gps, err := device.NewGPS(filepath.Join(dir, "gps"), 4800)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- gps.Run(ctx, &device.Sentences{}, 0) }()
	t.Cleanup(func() { cancel(); closing(t, gps.Unplug()) })
	capture := filepath.Join(dir, "capture.jsonl")
	code, out, errs := probed(t, "-baud", "4800", "-for", "1s", "-capture", capture, gps.Path)
	if code != exitDone || !strings.Contains(out, "frame nmea (certain") || !strings.Contains(out, "  $GP") {
		t.Fatalf("probe ended with %d: %s%s", code, out, errs)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("the receiver ended with %v", err)
	}
	code, again, errs := probed(t, "-replay", capture)
	if code != exitDone || strings.ReplaceAll(again, "PORT", gps.Path) != out {
		t.Errorf("the replay ended with %d: %s%s\nthe probe said %s", code, again, errs, out)
	}
	_, source, _ := strings.Cut(out, "sources:\n")
	source = strings.NewReplacer("NAME", "gps", "STREAM", "SENSORS", "# decode", "decode").Replace(source)
	config := fmt.Sprintf("leaf: {name: pump-07, data: %q}\nstorage: {budget: 64MiB, reserve_free: 0, allow_volatile: true}\n"+
		"streams:\n  - {name: SENSORS, max_bytes: 32MiB, forward: {mode: none}}\nsources:\n%s", filepath.Join(dir, "data"), source)
	if faults := configs.Check([]byte(config)); len(faults) > 0 {
		t.Errorf("what the probe suggests has faults:\n%s\n%s", configs.Format(faults), config)
	}
}

func TestProbeRefuses(t *testing.T) {
	silent, err := device.NewGPS(filepath.Join(t.TempDir(), "silent"), 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closing(t, silent.Unplug()) })
	broken := filepath.Join(t.TempDir(), "broken")
	closing(t, os.WriteFile(broken, []byte("no capture\n"), 0o600))
	for _, tc := range []struct {
		args []string
		code int
		want string
	}{
		{nil, exitUsage, "give a port"},
		{[]string{"/dev/x", "-replay", "y"}, exitUsage, "give a port"},
		{[]string{"ttyUSB0"}, exitUsage, "neither an absolute path"},
		{[]string{"-baud", "3", "/dev/x"}, exitUsage, "-baud 3"},
		{[]string{"-send", `\q`, "/dev/x"}, exitUsage, "unknown escape"},
		{[]string{"/dev/serial/by-id/none"}, exitFailed, "is not there"},
		{[]string{"-replay", broken}, exitFailed, "give a file that probe -capture wrote"},
		{[]string{"-for", "20ms", silent.Path}, exitFailed, "nothing was heard"},
		{[]string{"modbus"}, exitUsage, "give a port"},
		{[]string{"modbus", "-units", "9-1", "/dev/x"}, exitUsage, "no range"},
		{[]string{"modbus", "-parity", "loud", "/dev/x"}, exitUsage, "parity"},
		{[]string{"modbus", "here"}, exitUsage, "no host and port"},
		{[]string{"modbus", "/dev/serial/by-id/none"}, exitFailed, "is not there"},
		{[]string{"modbus", "-timeout", "20ms", "-units", "1-3", silent.Path}, exitFailed, "no device answers"},
	} {
		code, out, errs := probed(t, tc.args...)
		if code != tc.code || !strings.Contains(out+errs, tc.want) {
			t.Errorf("probe %q ended with %d: %s%s; want %d: %s", tc.args, code, out, errs, tc.code, tc.want)
		}
	}
}

// registers is a device of an implementation of Modbus that is not ours.
type registers struct{}

func (registers) HandleCoils(*independent.CoilsRequest) ([]bool, error) {
	return nil, independent.ErrIllegalFunction
}

func (registers) HandleDiscreteInputs(r *independent.DiscreteInputsRequest) ([]bool, error) {
	return make([]bool, r.Quantity), nil
}

func (registers) HandleHoldingRegisters(r *independent.HoldingRegistersRequest) ([]uint16, error) {
	if r.UnitId != 7 {
		return nil, independent.ErrGWTargetFailedToRespond
	}
	return append([]uint16{0x4366, 0x8000, 0x4142}, make([]uint16, r.Quantity)...)[:r.Quantity], nil
}

func (registers) HandleInputRegisters(*independent.InputRegistersRequest) ([]uint16, error) {
	return nil, independent.ErrIllegalDataAddress
}

func TestProbeModbus(t *testing.T) {
	ports, err := port.Pick(1)
	if err != nil {
		t.Fatal(err)
	}
	addr := fmt.Sprintf("127.0.0.1:%d", ports[0])
	s, err := independent.NewServer(&independent.ServerConfiguration{URL: "tcp://" + addr, MaxClients: 5}, registers{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closing(t, s.Stop()) })
	for _, tc := range []struct {
		args []string
		code int
		want []string
	}{
		{[]string{"-units", "5-8"}, exitDone, []string{"unit 7 answers", "-unit N"}},
		{[]string{"-unit", "7", "-count", "3"}, exitDone, []string{"40001", "4366", "230.5", "17254", "40003", "AB"}},
		{[]string{"-unit", "7", "-table", "discrete", "-count", "2"}, exitDone, []string{"10002"}},
		{[]string{"-unit", "7", "-table", "input"}, exitFailed, []string{"illegal data address"}},
	} {
		code, out, errs := probed(t, append(append([]string{"modbus"}, tc.args...), addr)...)
		if code != tc.code {
			t.Errorf("probe modbus %q ended with %d: %s%s", tc.args, code, out, errs)
		}
		for _, want := range tc.want {
			if !strings.Contains(out+errs, want) {
				t.Errorf("probe modbus %q: %s%s\nwant %q", tc.args, out, errs, want)
			}
		}
		if strings.Contains(out, "unit 5") {
			t.Errorf("a device that the gateway says is not there was found: %s", out)
		}
	}
}
