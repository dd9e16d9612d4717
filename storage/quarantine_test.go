package storage

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
)

// TestQuarantineIsEncrypted sets a record aside in an encrypted store. Nothing of it can be read without the key; with it Repair gives it back.
func TestQuarantineIsEncrypted(t *testing.T) {
	for _, encrypted := range []bool{true, false} {
		b := newBed(t)
		if encrypted {
			b.options.Key = keyFile(t, rightKey)
		}
		s := b.start()
		b.alter("A", func(c *jetstream.StreamConfig) { c.MaxMsgSize = 400 })
		big := b.record("a1", 1)
		big.Data = []byte(strings.Repeat("secret reading ", 50))
		if err := s.Append(b.ctx(), big); err != nil {
			t.Fatal(err)
		}
		poll(t, "a gap record tells of it", func() bool { return s.Streams()[0].Dropped[GapRefused] == 1 })
		b.stop()
		raw, err := os.ReadFile(filepath.Join(b.dir, "store", "quarantine", "A"))
		if err != nil {
			t.Fatal(err)
		}
		for _, word := range []string{".a1", "maximum", "c2VjcmV0IHJlYWRpbmcg"} { // source, behind a dot, which base64 has not; base64 of the data
			if bytes.Contains(raw, []byte(word)) == encrypted {
				t.Errorf("encrypted %v: the file has %q or not: %.200s", encrypted, word, raw)
			}
		}
		r, err := Repair(b.dir, b.options.Key, true)
		if err != nil || len(r.Quarantined) != 1 || !bytes.Equal(r.Quarantined[0].Data, big.Data) || r.Quarantined[0].Stream != "A" {
			t.Errorf("encrypted %v: Repair gives back %+v, %v", encrypted, r.Quarantined, err)
		}
	}
}
