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
		return NewRing(NewFile(path, slots, ""), func(_ *File, err error) { t.Error(err) })
	}
	r := newRing(path)
	if err := r.Load(0, 0); err != nil {
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
	if err := again.Load(1, 1<<40); err != nil {
		t.Fatal(err)
	}
	check(again)
	if slot, _ := again.Place(at(-1)); slot != r.slot+1 {
		t.Errorf("next slot after a restart = %d, want %d", slot, r.slot+1)
	}
}
