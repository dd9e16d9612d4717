package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/cmd/holdfast/status"
	fleet "github.com/holdfast-edge/holdfast/forward/hub"
	"github.com/holdfast-edge/holdfast/rig/device"
	"github.com/holdfast-edge/holdfast/rig/hub"
	"github.com/holdfast-edge/holdfast/rig/poll"
	"github.com/holdfast-edge/holdfast/rig/port"
)

// must runs a command line that is to end with code 0, and returns its output.
func must(t *testing.T, args ...string) string {
	t.Helper()
	code, out, log := cli(args...)
	if code != exitDone {
		t.Fatalf("holdfast %q = %d\n%s%s", args, code, out, log)
	}
	return out
}

// writtenHub is a hub that hub init could have written, at free ports, and its servers.
func writtenHub(t *testing.T, auth fleet.Auth) (fleetFile string, h *hub.Files) {
	t.Helper()
	ports, err := port.Pick(12)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "hub")
	site := fleet.Site{Auth: auth}
	var files []string
	for i := range 3 {
		site.Nodes = append(site.Nodes, fleet.Node{Host: "127.0.0.1", Client: ports[i], Cluster: ports[3+i], Leaf: ports[6+i], Monitor: ports[9+i]})
		files = append(files, filepath.Join(dir, fmt.Sprintf("hub%d", i+1), "nats-server.conf"))
	}
	if err := site.Create(dir); err != nil {
		t.Fatal(err)
	}
	if h, err = hub.StartFiles(nil, files...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return filepath.Join(dir, fleet.FleetFile), h
}

// edit replaces a text in a file that must have it.
func edit(t *testing.T, path, old, with string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(data), old) {
		t.Fatalf("%s has no %q:\n%s", path, old, data)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(data), old, with, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestHubInTenMinutes follows docs/HUB.md with the commands alone: from a hub as written to a gateway's records at the hub, and to the end of it.
func TestHubInTenMinutes(t *testing.T) {
	t.Parallel()
	for _, auth := range []fleet.Auth{fleet.ByJWT, fleet.ByConfig} {
		t.Run(string(auth), func(t *testing.T) {
			file, _ := writtenHub(t, auth)
			edit(t, file, "leaves: []", "leaves:\n  - {name: pump-07, streams: [{name: SENSORS}, {name: EVENTS, mode: mirror}]}\n  - {name: pump-08}\n")
			if out := must(t, "hub", "plan", "-fleet", file); !strings.Contains(out, "create stream SENSORS: sources pump-07/SENSORS pump-08/SENSORS") {
				t.Errorf("plan of an empty hub:\n%s", out)
			}
			if code, _, log := cli("hub", "audit", "-fleet", file); code != exitFailed || !strings.Contains(log, "audit hub stream SENSORS: the hub does not have it") {
				t.Errorf("audit of a hub without streams = %d: %s", code, log)
			}
			must(t, "hub", "apply", "-fleet", file)
			if out := must(t, "hub", "plan", "-fleet", file); out != "keep stream HOLDFAST_KEEP\nkeep stream SENSORS\nkeep stream pump-07_EVENTS\n" {
				t.Errorf("plan after apply:\n%s", out)
			}
			must(t, "hub", "enrol", "-fleet", file, "pump-07")
			if code, _, log := cli("hub", "enrol", "-fleet", file, "pump-99"); code != exitFailed || !strings.Contains(log, "not in the fleet file") {
				t.Errorf("enrol of a leaf that is not in the fleet file = %d: %s", code, log)
			}
			if auth == fleet.ByConfig {
				must(t, "hub", "reload", "-fleet", file)
			}

			dir := t.TempDir()
			creds := filepath.Join(dir, "hub.creds")
			data, err := os.ReadFile(filepath.Join(filepath.Dir(file), fleet.LeavesDir, "pump-07.creds"))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(creds, data, 0o600); err != nil {
				t.Fatal(err)
			}
			gps, err := device.NewGPS(filepath.Join(dir, "gps"), 0)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { closing(t, gps.Unplug()) })
			config, store := filepath.Join(dir, "holdfast.yaml"), filepath.Join(dir, "data")
			must(t, "init", "-config", config, "-data", store, "-enrolment", creds)
			text, err := os.ReadFile(config)
			if err != nil {
				t.Fatal(err)
			}
			head, _, _ := strings.Cut(string(text), "sources:")
			head += fmt.Sprintf("sources:\n  - {name: gps, into: SENSORS, serial: {port: %q, baud: 9600}, frame: nmea}\nstorage: {budget: 4GiB, reserve_free: 0, allow_volatile: true}\n", gps.Path)
			if err := os.WriteFile(config, []byte(head), 0o600); err != nil {
				t.Fatal(err)
			}
			must(t, "check", config)
			other := filepath.Join(dir, "other.yaml")
			if err := os.WriteFile(other, []byte(strings.Replace(head, "name: pump-07", "name: pump-08", 1)), 0o600); err != nil {
				t.Fatal(err)
			}
			if code, _, log := cli("check", other); code != exitDone || !strings.Contains(log, creds+" was made for leaf pump-07, and this leaf is pump-08") {
				t.Errorf("check with the credentials of another leaf = %d: %s", code, log)
			}
			d := startDaemon(t, "", config, store)
			s := &site{t: t, dir: dir, gps: gps, daemon: d}
			var log device.Sentences
			s.talk(&log, 25)
			d.until(time.Minute, "everything at the hub", func(r status.Report) bool {
				return r.Link.State == "up" && r.Verdict.Waiting == 0 && storedBy(r, "gps") == 25
			})

			out := must(t, "hub", "list", "-fleet", file)
			if rows := strings.Split(out, "\n"); len(rows) < 4 || !strings.Contains(rows[1], "pump-07  connected     SENSORS  SENSORS") || !strings.Contains(rows[3], "not enrolled") {
				t.Errorf("list:\n%s", out)
			}
			if out = must(t, "hub", "audit", "-fleet", file, "-all"); !strings.Contains(out, "gps") || !strings.Contains(out, "0 missing, 0 double") {
				t.Errorf("audit:\n%s", out)
			}
			if code, _, log := cli("hub", "audit", "-fleet", file, "-leaf", "pump-70"); code != exitFailed || !strings.Contains(log, "no record of leaf pump-70") {
				t.Errorf("audit of a leaf that is not there = %d: %s", code, log)
			}
			if st, err := adminOf(t, file, auth).Stream(t.Context(), "SENSORS"); err != nil || st.DeleteMsg(t.Context(), 10) != nil {
				t.Errorf("take a record away at the hub: %v", err)
			}
			var code int
			noticed := func() bool { // a replica may be behind with the deletion for a moment
				code, out, _ = cli("hub", "audit", "-fleet", file, "-leaf", "pump-07")
				return code == exitFailed && strings.Contains(out, "1 missing without a word")
			}
			if !poll.Wait(t.Context(), 30*time.Second, noticed) {
				t.Errorf("audit with a record less = %d:\n%s", code, out)
			}

			if out := must(t, "hub", "revoke", "-fleet", file, "pump-07"); !strings.Contains(out, "no longer source pump-07/SENSORS, which is revoked") ||
				!strings.Contains(out, "delete consumer up_pump-07_SENSORS of stream HOLDFAST_KEEP: leaf pump-07 is revoked") {
				t.Errorf("revoke:\n%s", out)
			}
			if auth == fleet.ByConfig {
				must(t, "hub", "reload", "-fleet", file)
			}
			begun := time.Now()
			d.until(time.Minute, "a revoked gateway is cut off", func(r status.Report) bool { return r.Link.State == "refused" })
			t.Logf("cut off after %v", time.Since(begun).Round(time.Millisecond))
			s.talk(&log, 5)
			if r, ok := d.status(); !ok || storedBy(r, "gps") < 25 {
				t.Errorf("a revoked gateway does not capture: %+v", r)
			}
			settled := func() bool { // a server lists what is gone for a moment
				out = must(t, "hub", "apply", "-fleet", file)
				return !strings.Contains(out, "revoked")
			}
			if !poll.Wait(t.Context(), 30*time.Second, settled) {
				t.Errorf("apply after the revocation:\n%s", out)
			}
			js := adminOf(t, file, auth)
			st, err := js.Stream(t.Context(), "SENSORS")
			if err != nil || st.CachedInfo().State.Msgs < 24 {
				t.Errorf("the hub's records of a revoked leaf: %+v, %v", st.CachedInfo().State, err)
			}
		})
	}
}

func adminOf(t *testing.T, file string, auth fleet.Auth) jetstream.JetStream {
	t.Helper()
	dir := filepath.Dir(file)
	path := fleet.Secret(dir, fleet.AdminFile)
	option := nats.UserCredentials(path)
	if auth == fleet.ByConfig {
		var err error
		if option, err = nats.NkeyOptionFromSeed(path); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, urls, _ := strings.Cut(string(text), "servers: [")
	urls, _, _ = strings.Cut(urls, "]")
	nc, err := nats.Connect(strings.NewReplacer(`"`, "", " ", "").Replace(urls), option, nats.RootCAs(filepath.Join(dir, fleet.AuthorityFile)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}
