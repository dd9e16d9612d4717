package seen

import (
	"path/filepath"
	"testing"

	"github.com/holdfast-edge/holdfast/storage"
)

func TestRingSlotsAreUsedAgain(t *testing.T) {
	const slots = 1 << 14
	path := filepath.Join(t.TempDir(), "ring")
	newRing := func(path string) *Ring {
		return NewRing(NewFile(path, slots, ""), len(Digest{}), func(_ *File, err error) { t.Error(err) })
	}
	r := newRing(path)
	if err := r.Load(0, 0, nil); err != nil {
		t.Fatal(err)
	}
	at := func(i int) Digest { return DigestOf([]byte("a"), []byte{byte(i), byte(i >> 8)}) }
	for i := range slots + 5 {
		slot, m := r.Place(at(i))
		r.Note(slot, m, storage.ID{Epoch: 1, Seq: uint64(i + 1)})
		r.Store(slot, m)
	}
	check := func(r *Ring) {
		t.Helper()
		if r.Find(at(5)) || !r.Find(at(6)) || !r.Find(at(slots+4)) || len(r.known) != slots-1 {
			t.Errorf("%d are known; the oldest %v, %v, the newest %v", len(r.known), r.Find(at(5)), r.Find(at(6)), r.Find(at(slots+4)))
		}
	}
	check(r)
	again := newRing(path)
	if err := again.Load(1, 1<<40, nil); err != nil {
		t.Fatal(err)
	}
	check(again)
	if slot, _ := again.Place(at(-1)); slot != r.slot+1 {
		t.Errorf("next slot after a restart = %d, want %d", slot, r.slot+1)
	}
}

func TestRingKeys(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ring")
	open := func() *Ring {
		r := NewRing(NewFile(path, 16, ""), 1, func(_ *File, err error) { t.Error(err) })
		if err := r.Load(1, 100, nil); err != nil {
			t.Fatal(err)
		}
		return r
	}
	r := open()
	keep := func(d Digest, seq uint64) {
		slot, m := r.Place(d)
		r.Note(slot, m, storage.ID{Epoch: 1, Seq: seq})
		r.Store(slot, m)
	}
	a, b, other := Digest{1, 1}, Digest{1, 2}, Digest{2, 1}
	keep(a, 1)
	keep(other, 2)
	if !r.Find(a) || r.Find(b) || !r.Find(other) {
		t.Errorf("found %v, %v, %v", r.Find(a), r.Find(b), r.Find(other))
	}
	r.Forget(b) // a new message under the key of a
	keep(b, 101)
	if r.Find(a) || !r.Find(b) {
		t.Errorf("after another with its key: found %v, %v", r.Find(a), r.Find(b))
	}
	if again := open(); again.Find(a) || again.Find(b) || !again.Find(other) {
		t.Error("after a restart that did not commit it, either is found, or the other is not")
	}
	r = open()
	keep(a, 3)
	keep(b, 4) // nobody made a void: the later one counts
	if again := open(); again.Find(a) || !again.Find(b) || again.Len() != 2 {
		t.Errorf("after a restart: found %v, %v of %d", again.Find(a), again.Find(b), again.Len())
	}
}
