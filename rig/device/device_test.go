package device

import (
	"bufio"
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

func TestSentencesAreValidAndDiffer(t *testing.T) {
	var log Sentences
	seen := map[string]bool{}
	for i := range 20000 {
		s := log.Next()
		if seen[s] {
			t.Fatalf("sentence %d comes twice: %s", i, s)
		}
		seen[s] = true
		body, sum, ok := strings.Cut(strings.TrimPrefix(s, "$"), "*")
		x := byte(0)
		for j := range len(body) {
			x ^= body[j]
		}
		if !ok || fmt.Sprintf("%02X", x) != sum || len(s) > 80 {
			t.Fatalf("sentence %d is not NMEA: %s", i, s)
		}
	}
}

func TestGPSSendsWhatItSaysItSent(t *testing.T) {
	g, err := NewGPS(filepath.Join(t.TempDir(), "gps"), 0)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- g.Run(context.Background(), &Sentences{}, 40) }()
	lines := bufio.NewReader(g.slave)
	for i := range 40 {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if sent := g.Sent(); line != sent[i]+"\r\n" {
			t.Fatalf("line %d = %q, want %q", i, line, sent[i])
		}
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := g.Unplug(); err != nil {
		t.Fatal(err)
	}
}
