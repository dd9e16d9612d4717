package forward

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/holdfast-edge/holdfast/rig/poll"
	"github.com/holdfast-edge/holdfast/storage"
)

// TestDamageIsToldBeforeItIsPassedOver: bytes of stored, not yet forwarded records go bad behind an index that is whole, once in the data, once in the
// lengths, and once when the server has the stream open. The server would pass over these records, or all behind them, without a word. The hub gets all
// others, in order, and gap records.
func TestDamageIsToldBeforeItIsPassedOver(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("runs a hub of three nodes")
	}
	s := newSite(t)
	s.wire.Cut()
	dir := t.TempDir()
	g := s.start("g1", dir)
	g.append(1000, "S", "M")
	id := func(g *gateway, source string, seq uint64) string {
		return storage.ID{Leaf: g.name, Store: g.store.ID(), Source: source, Epoch: g.store.Epoch(), Seq: seq}.String()
	}
	gone := []string{id(g, "s", 250), id(g, "m", 250)}
	g.close()
	harm(t, dir, "S", "S 250", func(b []byte) { b[0] ^= 0x7e })
	harm(t, dir, "M", "M 250", func(b []byte) { b[0] ^= 0x7e; b[len("M 250")+8+1] ^= 0x55 }) // and the length of the next record
	g = s.start("g1", dir)
	g.append(100, "S", "M")
	gone = append(gone, id(g, "s", 1), id(g, "s", 2))
	harm(t, dir, "S", fmt.Sprintf("s.%d.1\r\n", g.store.Epoch()), func(b []byte) { copy(b, "############################") })
	harm(t, dir, "S", fmt.Sprintf("s.%d.2\r\n", g.store.Epoch()), func(b []byte) { clear(b[:20]) })
	for stream, want := range s.want {
		s.want[stream] = slices.DeleteFunc(want, func(id string) bool { return slices.Contains(gone, id) })
	}
	s.check(s.wire.Restore())
	poll.Until(t, patient, func() bool {
		lost := map[string]uint64{}
		for _, st := range g.store.Streams() {
			lost[st.Name] = st.Dropped[storage.GapDamage]
		}
		return lost["S"] == 3 && lost["M"] == 1
	}, "the losses are counted")
	g.expectSystemRecords("S")
	g.expectSystemRecords("M")
	s.await(patient, "FIELD", "g1_M")
	if len(g.store.Alarms()) == 0 {
		t.Error("no alarm")
	}
}

// harm changes bytes of a stream's newest block, from where a text stands on.
func harm(t *testing.T, dir, stream, text string, change func([]byte)) {
	t.Helper()
	var names []string
	var raw []byte
	at := -1
	poll.Until(t, patient, func() bool { // what is in the journal comes into the stream a moment later
		var err error
		if names, err = filepath.Glob(filepath.Join(dir, "jetstream", "CAPTURE", "streams", stream, "msgs", "*.blk")); err != nil || len(names) == 0 {
			return false
		}
		if raw, err = os.ReadFile(names[len(names)-1]); err == nil {
			at = bytes.Index(raw, []byte(text))
		}
		return at >= 0
	}, "%q in a block of stream %s", text, stream)
	part := raw[at:min(at+64, len(raw))]
	change(part)
	f, err := os.OpenFile(names[len(names)-1], os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(part, int64(at)); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}
