package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestDoctor(t *testing.T) {
	dir := t.TempDir()
	write := func(sources string) string {
		file := filepath.Join(dir, "holdfast.yaml")
		text := "leaf: {name: pump-07, data: " + dir + "}\nstorage: {budget: 64MiB, reserve_free: 0, allow_volatile: true}\nstreams:\n  - {name: SENSORS, max_bytes: 16MiB}\nsources:\n" + sources
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	doctor := func(file string, flags ...string) (string, int) {
		var out, errs bytes.Buffer
		code := execute(context.Background(), append([]string{"doctor", "-config", file}, flags...), stdio{out: &out, err: &errs})
		return out.String() + errs.String(), code
	}
	file := write("  - {name: zigbee, into: SENSORS, mqtt: {broker: \"tcp://127.0.0.1:1\", topics: [\"a\"]}}\n" +
		"  - {name: devices, into: SENSORS, mqttserver: {listen: \"127.0.0.1:1883\", anonymous: true, access: [{publish: [\"#\"]}]}}\n")
	text, code := doctor(file)
	if code != exitFailed || !strings.Contains(text, "failure  source zigbee: broker reached") || !strings.Contains(text, "nothing listens on 127.0.0.1:1") ||
		!strings.Contains(text, "warning  source devices: anonymous") {
		t.Errorf("doctor ended with %d and said\n%s", code, text)
	}
	text, code = doctor(file, "-json")
	var all []diagnosis
	if err := json.Unmarshal([]byte(text), &all); err != nil || code != exitFailed || len(all) != 2 || all[0].About != "source zigbee" {
		t.Errorf("doctor -json ended with %d, %v and said\n%s", code, err, text)
	}
	file = write("  - {name: gps, into: SENSORS, serial: {port: /dev/ttyS9}, frame: nmea}\n")
	if text, code = doctor(file); code != exitDone || !strings.Contains(text, "nothing to look at") {
		t.Errorf("doctor ended with %d and said\n%s", code, text)
	}
	text = "apps: {tls: {cert: nothing.pem, key: nothing.key}}\n"
	file = write("  - {name: gps, into: SENSORS, serial: {port: /dev/ttyS9}, frame: nmea}\n" + text)
	if text, code = doctor(file); code != exitFailed || !strings.Contains(text, "failure  apps.tls: certificate") || !strings.Contains(text, "nothing.pem") {
		t.Errorf("doctor ended with %d and said\n%s", code, text)
	}
	var out, errs bytes.Buffer
	if code := execute(context.Background(), []string{"check", file}, stdio{out: &out, err: &errs}); code != exitDone || !strings.Contains(errs.String(), "warning: apps.tls: ") {
		t.Errorf("check ended with %d and said\n%s%s", code, out.String(), errs.String())
	}
}
