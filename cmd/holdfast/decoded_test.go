package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/cmd/holdfast/status"
	"github.com/holdfast-edge/holdfast/ingest/convert"
	"github.com/holdfast-edge/holdfast/rig/device"
)

// TestDecodedRecords runs a daemon over a receiver: every sentence is stored as it was and as values, and what the configuration drops is
// counted. The account holds, also over the drops.
func TestDecodedRecords(t *testing.T) {
	dir := t.TempDir()
	gps, err := device.NewGPS(filepath.Join(dir, "gps"), 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closing(t, gps.Unplug()) })
	data, file := filepath.Join(dir, "data"), filepath.Join(dir, "holdfast.yaml")
	config := fmt.Sprintf(`leaf: {name: pump-07, data: %q}
storage: {budget: 1GiB, reserve_free: 0, allow_volatile: true}
streams:
  - {name: SENSORS, max_bytes: 256MiB, forward: {mode: none}}
sources:
  - name: gps
    into: SENSORS
    serial: {port: %q, baud: 4800}
    frame: nmea
    decode: nmea
    transform: {drop: value.type == "GSV", tail: lower(value.type)}
`, data, gps.Path)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	d := startDaemon(t, "", file, data)
	d.until(20*time.Second, "capturing", running)
	const n = 40
	if err := gps.Run(t.Context(), &device.Sentences{}, n); err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, s := range gps.Sent() {
		if !strings.HasPrefix(s[3:], "GSV") {
			want = append(want, s)
		}
	}
	drops := n - len(want)
	if drops == 0 {
		t.Fatal("the receiver sent nothing that is dropped")
	}
	d.until(20*time.Second, "all stored or dropped", func(r status.Report) bool {
		return storedBy(r, "gps") == 2*len(want) && len(r.Sources) == 1 && r.Sources[0].Rejected[convert.ReasonDropped] == uint64(drops)
	})

	var out, errs bytes.Buffer
	code := execute(t.Context(), []string{"tail", "-config", file, "-last", "1000", "-count", strconv.Itoa(1 + 2*len(want)), "-json"}, stdio{out: &out, err: &errs})
	if code != exitDone {
		t.Fatalf("tail ended with %d: %s", code, &errs)
	}
	var raw []string
	decoded := 0
	for line := range strings.Lines(out.String()) {
		var r tailRecord
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		switch tail, isGPS := strings.CutPrefix(r.Subject, "data.pump-07.SENSORS.gps"); {
		case !isGPS: // the epoch record
		case tail == "":
			raw = append(raw, string(r.Data))
		default:
			decoded++
			var v struct{ Type string }
			if err := json.Unmarshal(r.Data, &v); err != nil || tail != "."+strings.ToLower(v.Type) || r.Header[convert.HeaderDecoded] != "nmea" {
				t.Errorf("decoded record %s %v %s, %v", r.Subject, r.Header, r.Data, err)
			}
		}
	}
	if strings.Join(raw, "\n") != strings.Join(want, "\n") || decoded != len(want) {
		t.Errorf("stored %d sentences and %d decoded, want %d of each, as sent", len(raw), decoded, len(want))
	}
	d.stop()
}
