package main

import (
	"encoding/json"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/cmd/holdfast/status"
	"github.com/holdfast-edge/holdfast/leaf"
	"github.com/holdfast-edge/holdfast/rig/poll"
	"github.com/holdfast-edge/holdfast/rig/port"
)

// looping is a gateway whose store crashes it.
type looping struct {
	*inside
	poison string
}

func newLooping(t *testing.T) looping {
	t.Helper()
	dir := t.TempDir()
	ports, err := port.Pick(1)
	if err != nil {
		t.Fatal(err)
	}
	l := looping{inside: &inside{t: t, config: filepath.Join(dir, "holdfast.yaml"), data: filepath.Join(dir, "data"), nats: fmt.Sprintf("127.0.0.1:%d", ports[0])}}
	l.poison = filepath.Join(l.data, "store", "poison")
	l.write("streams: [{name: S, max_bytes: 64MiB, forward: {mode: none}}]\nsources:\n  - {name: calc, into: S, append: {}}\n")
	return l
}

// start starts the daemon, which crashes if its store has the poison.
func (l looping) start(env ...string) *daemon {
	return startDaemon(l.t, "", l.config, l.data, append(env, crashOn+"="+l.poison)...)
}

// put stores n records.
func (l looping) put(d *daemon, n int) {
	l.t.Helper()
	d.until(40*time.Second, "running", running)
	nc := l.dial()
	defer nc.Close()
	for i := range n {
		reply, err := nc.Request(leaf.AppendSubject("calc"), []byte(fmt.Sprint(i)), 20*time.Second)
		if err != nil || !strings.Contains(string(reply.Data), `"stored":true`) {
			l.t.Fatalf("append %d: %v, %v", i, reply, err)
		}
	}
}

// crashed waits for the daemon to crash.
func (l looping) crashed(d *daemon) {
	l.t.Helper()
	select {
	case <-d.done:
	case <-time.After(time.Minute):
		l.t.Fatalf("the daemon did not crash:\n%s", tailOf(d.logged(), 4000))
	}
	if code := d.cmd.ProcessState.ExitCode(); code != 2 || !strings.Contains(d.logged(), "a planted bug") {
		l.t.Fatalf("the daemon ended with %d, want a panic:\n%s", code, tailOf(d.logged(), 4000))
	}
}

// agedStarts lets the crashes before have begun long ago: what the daemon waits for by the clock.
func (l looping) agedStarts() {
	l.t.Helper()
	for _, name := range []string{"starts", "starts.bak"} {
		path := filepath.Join(l.data, name)
		raw, err := os.ReadFile(path)
		if err != nil {
			l.t.Fatal(err)
		}
		body, trailer, _ := strings.Cut(string(raw), "\n")
		generation, _, _ := strings.Cut(strings.TrimPrefix(trailer, "#"), " ")
		var state map[string]any
		if err := json.Unmarshal([]byte(body), &state); err != nil {
			l.t.Fatal(err)
		}
		state["first"] = -time.Hour
		older, err := json.Marshal(state)
		if err != nil {
			l.t.Fatal(err)
		}
		sealed := fmt.Sprintf("%s\n#%s ", older, generation)
		sealed += fmt.Sprintf("%08x\n", crc32.Checksum([]byte(sealed), crc32.MakeTable(crc32.Castagnoli)))
		if err := os.WriteFile(path, []byte(sealed), 0o600); err != nil {
			l.t.Fatal(err)
		}
	}
}

// TestCrashLoop starts a daemon on a store that crashes it. The sixth start captures in a new store, and says in status and doctor where the old one is; that
// can be read, repaired and put back, and has every record. Kills in between change nothing.
func TestCrashLoop(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: starts a daemon a dozen times, not done with -short")
	}
	t.Parallel()
	l := newLooping(t)
	d := l.start()
	l.put(d, 30)
	first, _ := d.status()
	d.stop()
	if err := os.WriteFile(l.poison, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for n := range 6 {
		if n == 3 { // a kill by hand is no crash
			d := l.start()
			poll.Until(t, time.Minute, func() bool { return strings.Contains(d.logged(), "the run before this one crashed") }, "a start")
			d.kill()
		}
		l.crashed(l.start())
	}
	if code, out, _ := cli("doctor", "-config", l.config); code != exitFailed || !strings.Contains(strings.Join(strings.Fields(out), " "), "5 starts in a row have crashed: panic: a planted bug") {
		t.Errorf("doctor = %d: %s", code, out)
	}
	if code, _, errs := cli("status", "-config", l.config); code != exitFailed || !strings.Contains(errs, "5 starts in a row have crashed: panic: a planted bug") {
		t.Errorf("status without a daemon = %d: %s", code, errs)
	}
	if _, err := os.Stat(filepath.Join(l.data, "aside")); err == nil {
		t.Fatal("set aside within minutes")
	}
	l.agedStarts()
	d = l.start()
	l.put(d, 20)
	aside := filepath.Join(l.data, "aside", "1")
	r, _ := d.status()
	if r.Store == first.Store || r.Streams[0].Stored != 20 || len(r.Aside) != 1 || r.Aside[0].Dir != aside || !strings.Contains(r.Aside[0].Why, "a planted bug") {
		t.Errorf("status = %+v", r)
	}
	if f := r.Verdict.Findings; len(f) == 0 || f[0].Severity != status.Problem || !strings.Contains(f[0].What, aside) {
		t.Errorf("findings = %+v, want a problem that names %s", f, aside)
	}
	if code, out, _ := cli("doctor", "-config", l.config); code != exitFailed || !strings.Contains(strings.Join(strings.Fields(out), ""), aside) {
		t.Errorf("doctor = %d: %s", code, out)
	}
	d.stop()

	// As docs/OPERATIONS.md says: read it, mend it, put it back.
	if err := os.Remove(filepath.Join(aside, "store", "poison")); err != nil {
		t.Fatal(err)
	}
	if code, out, errs := cli("repair", aside); code != exitDone {
		t.Errorf("repair = %d: %s%s", code, out, errs)
	}
	file := filepath.Join(t.TempDir(), "old.parcel")
	if code, out, errs := cli("backup", "-data", aside, file); code != exitDone || !strings.Contains(out, first.Store) {
		t.Errorf("backup = %d: %s%s", code, out, errs)
	}
	for _, folder := range []string{"jetstream", "store"} {
		for _, move := range [][2]string{{filepath.Join(l.data, folder), filepath.Join(l.data, "new-"+folder)}, {filepath.Join(aside, folder), filepath.Join(l.data, folder)}} {
			if err := os.Rename(move[0], move[1]); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.RemoveAll(aside); err != nil {
		t.Fatal(err)
	}
	d = l.start()
	d.until(40*time.Second, "the old records are there", func(r status.Report) bool {
		return r.Store == first.Store && r.Streams[0].Stored == 30 && len(r.Aside) == 0 && r.Streams[0].Records >= 30
	})
	d.stop()
}
