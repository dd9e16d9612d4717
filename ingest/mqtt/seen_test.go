package mqtt

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/holdfast-edge/holdfast/storage"
)

// loadMarks opens a slot file and returns its marks.
func loadMarks(t *testing.T, f *slotFile, epoch, seq uint64) (map[int]mark, error) {
	t.Helper()
	marks := map[int]mark{}
	err := f.load(epoch, seq, func(slot int, m mark) { marks[slot] = m })
	if f.f == nil {
		t.Fatalf("the file is not open: %v", err)
	}
	return marks, err
}

func TestSlotFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "slots")
	open := func() *slotFile { return newSlotFile(path, 8, "owner") }
	f := open()
	if marks, err := loadMarks(t, f, 0, 0); err != nil || len(marks) != 0 {
		t.Fatalf("a first load = %v, %v", marks, err)
	}
	put := func(f *slotFile, slot int, epoch, seq uint64) {
		t.Helper()
		if err := f.put(slot, mark{nr: uint32(slot), digest: digest{byte(slot)}}, storage.ID{Epoch: epoch, Seq: seq}); err != nil {
			t.Fatal(err)
		}
	}
	put(f, 1, 1, 9)
	put(f, 2, 2, 10)
	put(f, 3, 2, 11) // not committed
	put(f, 4, 3, 1)  // nor this
	put(f, 5, 1, 99)
	if err := f.clear(5); err != nil {
		t.Fatal(err)
	}
	again := func(want ...int) {
		t.Helper()
		f := open()
		marks, err := loadMarks(t, f, 2, 10)
		if err != nil {
			t.Fatal(err)
		}
		var got []int
		for i := range 8 {
			if m, ok := marks[i]; ok {
				got = append(got, i)
				if m.nr != uint32(i) || m.digest != (digest{byte(i)}) {
					t.Errorf("mark of slot %d = %+v", i, m)
				}
			}
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("marks in slots %v, want %v", got, want)
		}
		if err := f.close(); err != nil {
			t.Fatal(err)
		}
	}
	again(1, 2)
	// What was not committed is gone for good, also when later epochs have more records.
	f = open()
	if marks, _ := loadMarks(t, f, 9, 99); len(marks) != 2 {
		t.Errorf("%d marks, want 2", len(marks))
	}
	// A torn or moved mark is no mark.
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data[2*slotSize+20] ^= 1
	copy(data[6*slotSize:7*slotSize], data[1*slotSize:2*slotSize])
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	again(1)
	// A new salt empties the file.
	if _, err := loadMarks(t, f, 9, 9); err != nil {
		t.Fatal(err)
	}
	if err := f.empty(); err != nil {
		t.Fatal(err)
	}
	put(f, 7, 1, 1)
	again(7)
}

func TestSlotFileDamage(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(data []byte) []byte
	}{
		{"empty", func([]byte) []byte { return nil }},
		{"cut off", func(d []byte) []byte { return d[:len(d)-1] }},
		{"too long", func(d []byte) []byte { return append(d, 0) }},
		{"magic", func(d []byte) []byte { d[0]++; return d }},
		{"owner", func(d []byte) []byte { d[9]++; return d }},
		{"header", func(d []byte) []byte { d[20]++; return d }},
		{"zeros", func(d []byte) []byte { clear(d); return d }},
		{"of another", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "slots")
			f := newSlotFile(path, 8, "owner")
			if _, err := loadMarks(t, f, 0, 0); err != nil {
				t.Fatal(err)
			}
			if err := f.put(1, mark{}, storage.ID{Epoch: 1, Seq: 1}); err != nil {
				t.Fatal(err)
			}
			owner := "owner"
			if tt.change == nil {
				owner = "other"
			} else {
				data, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, tt.change(data), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			f = newSlotFile(path, 8, owner)
			if marks, err := loadMarks(t, f, 5, 5); !errors.Is(err, errFresh) || len(marks) != 0 {
				t.Errorf("load = %v, %v, want errFresh", marks, err)
			}
			if err := f.put(2, mark{nr: 2}, storage.ID{Epoch: 1, Seq: 1}); err != nil {
				t.Fatal(err)
			}
			if marks, err := loadMarks(t, newSlotFile(path, 8, owner), 5, 5); err != nil || len(marks) != 1 {
				t.Errorf("load of the new file = %v, %v", marks, err)
			}
		})
	}
}

func FuzzSlotFile(f *testing.F) {
	f.Add([]byte(slotMagic), uint8(3))
	f.Fuzz(func(t *testing.T, noise []byte, at uint8) {
		path := filepath.Join(t.TempDir(), "slots")
		s := newSlotFile(path, 8, "owner")
		if _, err := loadMarks(t, s, 0, 0); err != nil {
			t.Fatal(err)
		}
		if err := s.put(1, mark{nr: 7}, storage.ID{Epoch: 1, Seq: 1}); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		before := bytes.Clone(data)
		copy(data[int(at)%len(data):], noise)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		marks, err := loadMarks(t, newSlotFile(path, 8, "owner"), 9, 9)
		_, found := marks[1]
		if changed := !bytes.Equal(data[slotSize:2*slotSize], before[slotSize:2*slotSize]); found && changed || err == nil && !found && !changed {
			t.Errorf("mark changed: %v, found: %v, %v", changed, found, err)
		}
	})
}

func TestMarksAreVoid(t *testing.T) {
	d := &delivered{log: nopLog(), file: newSlotFile(filepath.Join(t.TempDir(), "delivered"), packetSlots, "o")}
	if err := d.load(0, 0); err != nil {
		t.Fatal(err)
	}
	x, y := digestOf("a", []byte("x")), digestOf("a", []byte("y"))
	stored := func(packet uint16, dg digest) mark {
		m := d.handle(0, packet, dg)
		d.note(0, packet, m, storage.ID{Epoch: 1, Seq: 1})
		d.store(0, packet, m)
		return m
	}
	want := func(what string, packet uint16, dg digest, found bool) {
		t.Helper()
		if _, ok := d.find(d.session, packet, dg); ok != found {
			t.Errorf("%s: find = %v, want %v", what, ok, found)
		}
	}
	first := stored(1, x)
	want("stored", 1, x, true)
	want("other content", 1, y, false)
	want("other packet id", 2, x, false)
	d.confirm(0, 1, first.nr+1)
	want("another one confirmed", 1, x, true)
	second := d.handle(0, 1, y)
	want("packet id used again", 1, x, false)
	want("noted and not stored", 1, y, false)
	d.store(0, 1, second)
	d.confirm(0, 1, first.nr)
	want("only the first confirmed", 1, y, true)
	d.confirm(0, 1, second.nr)
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
	again := &delivered{log: nopLog(), file: newSlotFile(d.file.path, packetSlots, "o")}
	if err := again.load(9, 9); err != nil || len(again.marks) != 0 {
		t.Errorf("after a restart %d marks, %v, want none", len(again.marks), err)
	}
}

func TestRetainedSlotsAreUsedAgain(t *testing.T) {
	r := &retained{log: nopLog(), file: newSlotFile(filepath.Join(t.TempDir(), "retained"), retainedSlots, "")}
	if err := r.load(0, 0); err != nil {
		t.Fatal(err)
	}
	at := func(i int) digest { return digestOf("a", []byte{byte(i), byte(i >> 8)}) }
	for i := range retainedSlots + 5 {
		slot, m := r.place(at(i))
		r.note(slot, m, storage.ID{Epoch: 1, Seq: uint64(i + 1)})
		r.store(slot, m)
	}
	check := func(r *retained) {
		t.Helper()
		if r.find(at(5)) || !r.find(at(6)) || !r.find(at(retainedSlots+4)) || len(r.known) != retainedSlots-1 {
			t.Errorf("%d are known; the oldest %v, %v, the newest %v", len(r.known), r.find(at(5)), r.find(at(6)), r.find(at(retainedSlots+4)))
		}
	}
	check(r)
	again := &retained{log: nopLog(), file: newSlotFile(r.file.path, retainedSlots, "")}
	if err := again.load(1, 1<<40); err != nil {
		t.Fatal(err)
	}
	check(again)
	if slot, _ := again.place(at(-1)); slot != r.slot+1 {
		t.Errorf("next slot after a restart = %d, want %d", slot, r.slot+1)
	}
}
