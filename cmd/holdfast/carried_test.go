package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/cmd/holdfast/status"
	"github.com/holdfast-edge/holdfast/storage"
)

// TestStoreCommands runs check --store, repair, backup, restore and export against a real daemon's directory, as a person at a shell does.
func TestStoreCommands(t *testing.T) {
	dir := t.TempDir()
	data, file := filepath.Join(dir, "data"), filepath.Join(dir, "holdfast.yaml")
	config := fmt.Sprintf(`leaf: {name: pump-07, data: %q}
storage: {budget: 1GiB, reserve_free: 0, allow_volatile: true}
streams:
  - {name: SENSORS, max_bytes: 256MiB}
sources:
  - {name: local, into: SENSORS, append: {}}
`, data)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(code int, want string, args ...string) string {
		t.Helper()
		var out, errs bytes.Buffer
		got := execute(t.Context(), args, stdio{out: &out, err: &errs})
		if text := out.String() + errs.String(); got != code || !strings.Contains(text, want) {
			t.Fatalf("%q ended with %d: %s; want %d: %s", args, got, text, code, want)
		}
		return out.String()
	}
	d := startDaemon(t, "", file, data)
	d.until(20*time.Second, "capturing", func(status.Report) bool { return true })
	run(exitStore, "stop it first", "check", "-store", file)
	run(exitStore, "stop the daemon first", "repair", data)
	run(exitUsage, "--to", "export", "-config", file)
	backup := filepath.Join(dir, "b")
	run(exitDone, "1 records", "backup", "-config", file, backup)
	run(exitDone, "part 1, 1 records", "export", "-config", file, "-to", dir)
	run(exitDone, "nothing waits", "export", "-config", file, "-to", dir)
	run(exitDone, "part 2, 1 records", "export", "-config", file, "-again", "-to", dir)
	d.stop()
	run(exitDone, "nothing is damaged", "check", "-store", file)
	run(exitDone, "nothing is damaged", "repair", "-config", file)

	found, err := filepath.Glob(filepath.Join(data, "jetstream", "CAPTURE", "streams", "SENSORS", "msgs", "*.blk"))
	if err != nil || len(found) != 1 {
		t.Fatalf("blocks %v, %v", found, err)
	}
	raw, err := os.ReadFile(found[0])
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(raw, []byte(`"epoch":`))
	raw[at] ^= 1
	if err := os.WriteFile(found[0], raw, 0o600); err != nil {
		t.Fatal(err)
	}
	var r storage.CheckReport
	if err := json.Unmarshal([]byte(run(exitStore, "", "check", "-store", "-json", data)), &r); err != nil || len(r.Findings) == 0 || r.Leaf != "pump-07" {
		t.Errorf("check --store --json = %+v, %v", r, err)
	}
	run(exitDone, "nothing was changed", "repair", "-dry-run", data)
	run(exitStore, "checksum proves", "check", "-store", data)
	run(exitDone, "as it was: store/damaged/SENSORS-", "repair", data)
	run(exitDone, "nothing is damaged", "check", "-store", data)

	run(exitUsage, "where to", "restore", backup)
	run(exitStore, "move its store away", "restore", "-data", data, backup)
	fresh := filepath.Join(dir, "fresh")
	run(exitDone, "gateway pump-07", "restore", "-data", fresh, backup)
	run(exitDone, "nothing is damaged", "check", "-store", fresh)
	run(exitDone, "gateway pump-07", "backup", "-data", data, filepath.Join(dir, "b2"))
	run(exitUsage, "--hub", "import", backup)
	run(exitFailed, "holdfast restore", "import", "-hub", "nats-leaf://127.0.0.1:1", backup)
}
