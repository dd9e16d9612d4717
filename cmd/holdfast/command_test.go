package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/holdfast-edge/holdfast/ingest"
	"github.com/holdfast-edge/holdfast/ingest/command"
)

// valve is a device on a serial line that notes what it is told, and answers unless it is mute.
type valve struct {
	path          string
	master, slave *os.File
}

func newValve(t *testing.T) *valve {
	t.Helper()
	master, slave, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	v := &valve{path: filepath.Join(t.TempDir(), "valve"), master: master, slave: slave}
	t.Cleanup(func() { closing(t, slave.Close()); closing(t, master.Close()) })
	closing(t, os.Symlink(slave.Name(), v.path))
	return v
}

// hear reads one order.
func (v *valve) hear(t *testing.T) string {
	t.Helper()
	var got []byte
	b := make([]byte, 1)
	closing(t, v.master.SetReadDeadline(time.Now().Add(20*time.Second)))
	for {
		if _, err := v.master.Read(b); err != nil {
			t.Fatalf("the valve heard %q, then %v", got, err)
		}
		if b[0] == '\r' {
			return string(got)
		}
		got = append(got, b[0])
	}
}

// TestCommandThroughTheDaemon sends commands to a device behind a running daemon, one of which is in hand when the daemon is killed: that
// one's outcome is unknown, the device hears each once, and every outcome is a record of the source.
func TestCommandThroughTheDaemon(t *testing.T) {
	dir := t.TempDir()
	v := newValve(t)
	data, file := filepath.Join(dir, "data"), filepath.Join(dir, "holdfast.yaml")
	config := fmt.Sprintf(`leaf: {name: pump-07, data: %q}
storage: {budget: 1GiB, reserve_free: 0, allow_volatile: true}
streams:
  - {name: SENSORS, max_bytes: 256MiB, forward: {mode: none}}
sources:
  - name: valve
    into: SENSORS
    serial: {port: %q, command: {end: "\\r", reply: message, prefix: OK}}
    frame: line
`, data, v.path)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	d := startDaemon(t, "", file, data)
	d.until(20*time.Second, "capturing", running)
	order := func(args ...string) (int, string) {
		var out, errs bytes.Buffer
		code := execute(t.Context(), append([]string{"command", "-config", file}, args...), stdio{out: &out, err: &errs})
		return code, out.String() + errs.String()
	}
	heard := make(chan string, 2)
	go func() {
		heard <- v.hear(t)
		_, _ = io.WriteString(v.master, "OK open\n") // what is missing shows in the outcome
	}()
	if code, text := order("valve", "OPEN"); code != exitDone || text != "done\nOK open\n" {
		t.Errorf("command ended with %d: %s", code, text)
	}
	if got := <-heard; got != "OPEN" {
		t.Errorf("the valve heard %q", got)
	}
	for _, tc := range []struct {
		args []string
		code int
		text string
	}{
		{[]string{"valve", ""}, exitFailed, "refused: the command is empty"},
		{[]string{"valves", "x"}, exitFailed, `"valves" is not configured; commands go to: valve`},
		{[]string{"valve"}, exitUsage, "give a source"},
		{[]string{"-e", "valve", `\q`}, exitUsage, "unknown escape"},
		{[]string{"-timeout", "3h", "valve", "x"}, exitFailed, "no duration up to"},
	} {
		if code, text := order(tc.args...); code != tc.code || !strings.Contains(text, tc.text) {
			t.Errorf("command %q ended with %d: %s; want %d: %s", tc.args, code, text, tc.code, tc.text)
		}
	}
	code, id := order("-no-wait", "-timeout", "1m", "valve", "CLOSE")
	if code != exitDone {
		t.Fatalf("command ended with %d: %s", code, id)
	}
	if got := v.hear(t); got != "CLOSE" {
		t.Errorf("the valve heard %q", got)
	}
	d.kill()

	d = startDaemon(t, "", file, data)
	d.until(20*time.Second, "capturing", running)
	go func() {
		heard <- v.hear(t)
		_, _ = io.WriteString(v.master, "OK half\n")
	}()
	if code, text := order("-json", "valve", "HALF"); code != exitDone || !strings.Contains(text, `"state":"done"`) {
		t.Errorf("command ended with %d: %s", code, text)
	}
	if got := <-heard; got != "HALF" {
		t.Errorf("the valve heard %q after the kill, want HALF alone", got)
	}

	var out, errs bytes.Buffer
	if code := execute(t.Context(), []string{"tail", "-config", file, "-last", "100", "-count", "8", "-json"}, stdio{out: &out, err: &errs}); code != exitDone {
		t.Fatalf("tail ended with %d: %s", code, &errs)
	}
	var states []string
	for line := range strings.Lines(out.String()) {
		var r tailRecord
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(r.Subject, ".valve."+command.TailOutcome) {
			continue
		}
		var o command.Outcome
		if err := json.Unmarshal(r.Data, &o); err != nil || r.Header[command.HeaderCommand] != o.Command {
			t.Fatalf("outcome %s %v: %v", r.Data, r.Header, err)
		}
		if o.State == ingest.OutcomeUnknown && o.Command != strings.TrimSpace(id) {
			t.Errorf("command %s is unknown, want %s", o.Command, id)
		}
		states = append(states, o.State)
	}
	if got := strings.Join(states, " "); got != "done refused unknown done" {
		t.Errorf("outcomes %s", got)
	}
	d.stop()
}
