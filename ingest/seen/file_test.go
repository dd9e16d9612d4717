package seen

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
func loadMarks(t *testing.T, f *File, epoch, seq uint64, journal ...storage.Mark) (map[int]Mark, error) {
	t.Helper()
	marks := map[int]Mark{}
	err := f.Load(epoch, seq, journal, func(slot int, m Mark) { marks[slot] = m })
	if f.f == nil {
		t.Fatalf("the file is not open: %v", err)
	}
	return marks, err
}

func TestSlotFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "slots")
	open := func() *File { return NewFile(path, 8, "owner") }
	f := open()
	if marks, err := loadMarks(t, f, 0, 0); err != nil || len(marks) != 0 {
		t.Fatalf("a first load = %v, %v", marks, err)
	}
	put := func(f *File, slot int, epoch, seq uint64) {
		t.Helper()
		if err := f.Put(slot, Mark{Nr: uint32(slot), Digest: Digest{byte(slot)}}, storage.ID{Epoch: epoch, Seq: seq}); err != nil {
			t.Fatal(err)
		}
	}
	put(f, 1, 1, 9)
	put(f, 2, 2, 10)
	put(f, 3, 2, 11) // not committed
	put(f, 4, 3, 1)  // nor this
	put(f, 5, 1, 99)
	if err := f.Clear(5); err != nil {
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
				if m.Nr != uint32(i) || m.Digest != (Digest{byte(i)}) {
					t.Errorf("mark of slot %d = %+v", i, m)
				}
			}
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("marks in slots %v, want %v", got, want)
		}
		if err := f.Close(); err != nil {
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
	if err := f.Empty(); err != nil {
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
			f := NewFile(path, 8, "owner")
			if _, err := loadMarks(t, f, 0, 0); err != nil {
				t.Fatal(err)
			}
			if err := f.Put(1, Mark{}, storage.ID{Epoch: 1, Seq: 1}); err != nil {
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
			f = NewFile(path, 8, owner)
			if marks, err := loadMarks(t, f, 5, 5); !errors.Is(err, ErrFresh) || len(marks) != 0 {
				t.Errorf("load = %v, %v, want ErrFresh", marks, err)
			}
			if err := f.Put(2, Mark{Nr: 2}, storage.ID{Epoch: 1, Seq: 1}); err != nil {
				t.Fatal(err)
			}
			if marks, err := loadMarks(t, NewFile(path, 8, owner), 5, 5); err != nil || len(marks) != 1 {
				t.Errorf("load of the new file = %v, %v", marks, err)
			}
		})
	}
}

func FuzzSlotFile(f *testing.F) {
	f.Add([]byte(slotMagic), uint8(3))
	f.Fuzz(func(t *testing.T, noise []byte, at uint8) {
		path := filepath.Join(t.TempDir(), "slots")
		s := NewFile(path, 8, "owner")
		if _, err := loadMarks(t, s, 0, 0); err != nil {
			t.Fatal(err)
		}
		if err := s.Put(1, Mark{Nr: 7}, storage.ID{Epoch: 1, Seq: 1}); err != nil {
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
		marks, err := loadMarks(t, NewFile(path, 8, "owner"), 9, 9)
		_, found := marks[1]
		if changed := !bytes.Equal(data[slotSize:2*slotSize], before[slotSize:2*slotSize]); found && changed || err == nil && !found && !changed {
			t.Errorf("mark changed: %v, found: %v, %v", changed, found, err)
		}
	})
}

// TestSlotFileAfterPowerCut brings back from the journal what had not been written back, and nothing that is known to be void or newer.
func TestSlotFileAfterPowerCut(t *testing.T) {
	path := filepath.Join(t.TempDir(), "slots")
	open := func() *File { return NewFile(path, 8, "owner") }
	mark := func(slot int, n uint64) Mark { return Mark{Nr: uint32(n), Digest: Digest{byte(slot), byte(n)}} }
	f := open()
	if _, err := loadMarks(t, f, 0, 0); err != nil {
		t.Fatal(err)
	}
	var journal []storage.Mark
	noted := func(f *File, slot int, seq uint64) {
		t.Helper()
		if err := f.Put(slot, mark(slot, seq), storage.ID{Epoch: 1, Seq: seq}); err != nil {
			t.Fatal(err)
		}
		b := append([]byte("rsalt and other things that a mark has"[:24]), f.Encode(slot, mark(slot, seq))...) // behind another file's
		journal = append(journal, storage.Mark{Epoch: 1, Seq: seq, Data: b})
	}
	noted(f, 6, 1)
	if err := f.Empty(); err != nil { // a new session: what was in the old one means nothing
		t.Fatal(err)
	}
	noted(f, 1, 2)
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	noted(f, 1, 3) // the packet id is used again
	noted(f, 2, 4)
	noted(f, 3, 5)
	noted(f, 4, 6)
	if err := f.Clear(3); err != nil { // confirmed
		t.Fatal(err)
	}
	after, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	journal = append(journal, storage.Mark{Epoch: 1, Seq: 9, Data: []byte{'s'}}, storage.Mark{Epoch: 1, Seq: 9, Data: f.Encode(1, mark(1, 9))})
	for _, test := range []struct {
		name string
		file []byte
		want map[int]Mark
	}{
		// A confirmation that was not written back is lost with the rest, which the rules for marks allow for.
		{"nothing was written back", before, map[int]Mark{1: mark(1, 3), 2: mark(2, 4), 3: mark(3, 5), 4: mark(4, 6)}},
		{"everything was", after, map[int]Mark{1: mark(1, 3), 2: mark(2, 4), 4: mark(4, 6)}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if err := os.WriteFile(path, test.file, 0o600); err != nil {
				t.Fatal(err)
			}
			for _, given := range [][]storage.Mark{journal, nil} { // what was brought back is in the file
				f := open()
				got, err := loadMarks(t, f, 1, 6, given...)
				if err != nil || !reflect.DeepEqual(got, test.want) {
					t.Errorf("marks %v, %v, want %v", got, err, test.want)
				}
				if err := f.Close(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}
