package mqtt

import (
	"path/filepath"
	"testing"

	"github.com/holdfast-edge/holdfast/ingest/seen"
	"github.com/holdfast-edge/holdfast/storage"
)

func TestMarksAreVoid(t *testing.T) {
	d := &delivered{log: nopLog(), file: seen.NewFile(filepath.Join(t.TempDir(), "delivered"), packetSlots, "o")}
	if err := d.load(0, 0, nil); err != nil {
		t.Fatal(err)
	}
	x, y := seen.DigestOf([]byte("a"), []byte("x")), seen.DigestOf([]byte("a"), []byte("y"))
	stored := func(packet uint16, dg seen.Digest) seen.Mark {
		m := d.handle(0, packet, dg)
		d.note(0, packet, m, storage.ID{Epoch: 1, Seq: 1})
		d.store(0, packet, m)
		return m
	}
	want := func(what string, packet uint16, dg seen.Digest, found bool) {
		t.Helper()
		if _, ok := d.find(d.session, packet, dg); ok != found {
			t.Errorf("%s: find = %v, want %v", what, ok, found)
		}
	}
	first := stored(1, x)
	want("stored", 1, x, true)
	want("other content", 1, y, false)
	want("other packet id", 2, x, false)
	d.confirm(0, 1, first.Nr+1)
	want("another one confirmed", 1, x, true)
	second := d.handle(0, 1, y)
	want("packet id used again", 1, x, false)
	want("noted and not stored", 1, y, false)
	d.store(0, 1, second)
	d.confirm(0, 1, first.Nr)
	want("only the first confirmed", 1, y, true)
	d.confirm(0, 1, second.Nr)
	want("confirmed", 1, y, false)

	stored(9, x)
	for range packetWindow - 2 {
		d.handle(0, 5, y)
	}
	want("within the window", 9, x, true)
	d.handle(0, 5, y)
	want("a whole round of packet ids later", 9, x, false)

	stored(10, x)
	d.begin()
	want("after a new session", 10, x, false)
	d.store(0, 10, first)
	want("of the session before", 10, x, false)
	if _, ok := d.find(0, 10, x); ok {
		t.Error("find for the session before = true")
	}
	again := &delivered{log: nopLog(), file: seen.NewFile(d.file.Path(), packetSlots, "o")}
	if err := again.load(9, 9, nil); err != nil || len(again.marks) != 0 {
		t.Errorf("after a restart %d marks, %v, want none", len(again.marks), err)
	}
}
