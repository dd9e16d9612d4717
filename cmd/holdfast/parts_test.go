package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-edge/holdfast/configs"
)

// TestNewSources builds a source of each kind, as the example configures them.
func TestNewSources(t *testing.T) {
	file := filepath.Join(t.TempDir(), "holdfast.yaml")
	if err := os.WriteFile(file, configs.Example, 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, faults, err := configs.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range faults { // the example's budget may be more than the disk of this machine
		if !strings.HasPrefix(f.Path, "storage.") {
			t.Fatalf("the example has faults:\n%s", configs.Format(faults))
		}
	}
	entries, err := newSources(cfg, nil, nil, newLateConn(), nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if e.Source == nil {
			t.Fatalf("a source of stream %s is missing", e.Stream)
		}
		names = append(names, e.Source.Name())
	}
	if got := strings.Join(names, " "); got != "gps zigbee devices dust meters panel rejects" {
		t.Errorf("sources %s, want gps zigbee devices dust meters panel rejects", got)
	}
}
