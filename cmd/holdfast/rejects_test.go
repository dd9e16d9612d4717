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

	"github.com/holdfast-edge/holdfast/cmd/holdfast/status"
	"github.com/holdfast-edge/holdfast/ingest/reject"
)

// TestRejectsAreKept sends bytes that are no sentence, and a line that the stream can never take: both are counted by their source, and
// stored as samples with the reason. The account balances after a restart, too.
func TestRejectsAreKept(t *testing.T) {
	dir := t.TempDir()
	v := newValve(t)
	data, file := filepath.Join(dir, "data"), filepath.Join(dir, "holdfast.yaml")
	config := fmt.Sprintf(`leaf: {name: pump-07, data: %q}
storage: {budget: 1GiB, reserve_free: 0, allow_volatile: true}
streams:
  - {name: SENSORS, max_bytes: 256MiB, max_msg_size: 1KiB, forward: {mode: none}}
  - {name: REJECTS, max_bytes: 16MiB, forward: {mode: none}}
sources:
  - {name: rejects, into: REJECTS, rejects: {}}
  - {name: gps, into: SENSORS, serial: {port: %q}, frame: {type: nmea, max_bytes: 4KiB}}
`, data, v.path)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	d := startDaemon(t, "", file, data)
	d.until(20*time.Second, "capturing", running)
	long := "$GPTXT," + strings.Repeat("x", 2000)
	sum := byte(0)
	for i := 1; i < len(long); i++ {
		sum ^= long[i]
	}
	for _, s := range []string{"$GPGGA,1*00\r\n", fmt.Sprintf("%s*%02X\r\n", long, sum)} {
		if _, err := io.WriteString(v.master, s); err != nil {
			t.Fatal(err)
		}
	}
	d.until(20*time.Second, "two samples stored", func(r status.Report) bool { return storedBy(r, "rejects") == 2 })
	d.until(20*time.Second, "two rejects counted", func(r status.Report) bool {
		for _, s := range r.Sources {
			if s.Name == "gps" {
				return s.Rejected["bad checksum"] == 1 && s.Rejected["invalid"] == 1
			}
		}
		return false
	})
	var out, errs bytes.Buffer
	if code := execute(t.Context(), []string{"tail", "-config", file, "-last", "9", "-count", "3", "-json", "REJECTS"}, stdio{out: &out, err: &errs}); code != exitDone {
		t.Fatalf("tail ended with %d: %s", code, &errs)
	}
	var got []string
	for line := range strings.Lines(out.String()) {
		var r tailRecord
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		if r.Subject == "data.pump-07.REJECTS.rejects.gps" {
			got = append(got, fmt.Sprintf("%s %s %d", r.Header[reject.HeaderReason][:7], r.Header[reject.HeaderSize], len(r.Data)))
		}
	}
	if want := fmt.Sprintf("bad che 11 11, invalid %d 512", len(long)+3); strings.Join(got, ", ") != want {
		t.Errorf("samples %q, want %q", got, want)
	}
	d.stop()
	d = startDaemon(t, "", file, data)
	d.until(20*time.Second, "the account to balance after a restart", func(r status.Report) bool {
		for _, s := range r.Sources {
			if s.Name == "gps" {
				return s.Received == 2 && s.Stored == 0 && s.Rejected[status.BeforeStart] == 2 && len(s.Rejected) == 1
			}
		}
		return false
	})
	d.stop()
}
