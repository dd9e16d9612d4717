package storage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestOpenRefuses(t *testing.T) {
	cases := []struct {
		name  string
		spoil func(b *bed)
		is    error
		says  string
	}{
		{"no leaf", func(b *bed) { b.options.Leaf = "" }, nil, "is missing"},
		{"leaf with a dot", func(b *bed) { b.options.Leaf = "a.b" }, nil, `contains '.'`},
		{"source into nowhere", func(b *bed) { b.options.Sources["x"] = "C" }, nil, "stream C, which is not there"},
		{"source with our prefix", func(b *bed) { b.options.Sources["_gap"] = "A" }, nil, `begins with "_"`},
		{"stream twice", func(b *bed) { b.options.Streams = append(b.options.Streams, StreamConfig{Name: "A"}) }, nil, "there twice"},
		{"stream too small", func(b *bed) { b.options.Streams[0].MaxBytes = 100 }, nil, "max_bytes"},
		{"unknown policy", func(b *bed) { b.options.Streams[0].WhenFull = "explode" }, nil, "when_full"},
		{"newer format", func(b *bed) {
			home := filepath.Join(b.dir, "store")
			if err := errors.Join(os.MkdirAll(home, 0o700), os.WriteFile(filepath.Join(home, "format"), []byte("7\n"), 0o600)); err != nil {
				b.t.Fatal(err)
			}
		}, ErrFormat, "version 7, this program knows up to 2"},
		{"in use", func(b *bed) {
			other, err := Open(b.options)
			if err != nil {
				b.t.Fatal(err)
			}
			b.t.Cleanup(func() { _ = other.Close(context.Background()) })
		}, ErrLocked, "stop it first"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			b := newBed(t)
			c.spoil(b)
			s, err := Open(b.options)
			if err == nil {
				_ = s.Close(context.Background())
				t.Fatalf("Open succeeded, want an error with %q", c.says)
			}
			if c.is != nil && !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("Open: %v, want %v with %q", err, c.is, c.says)
			}
		})
	}
}

func TestOpenVolatile(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "holdfast")
	if err != nil {
		t.Skip("no /dev/shm: a file system in memory is needed")
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	b := newBed(t)
	b.options.Dir = dir
	b.options.AllowVolatile = false
	if _, err := Open(b.options); !errors.Is(err, ErrVolatile) {
		t.Fatalf("Open on memory: %v, want ErrVolatile", err)
	}
	b.options.AllowVolatile = true
	b.open()
}

func TestLockEndsWithTheStore(t *testing.T) {
	b := newBed(t)
	for range 3 {
		s := b.open()
		if err := s.Close(b.ctx()); err != nil {
			t.Fatal(err)
		}
	}
	b.s = nil
}

// TestEpochRises opens without ever attaching: an ID may have been made all the same.
func TestEpochRises(t *testing.T) {
	b := newBed(t)
	var id StoreID
	for n := uint64(1); n <= 4; n++ {
		s := b.open()
		if n == 1 {
			id = s.ID()
		}
		if s.Epoch() != n || s.ID() != id || len(id) != 10 {
			t.Fatalf("start %d: epoch %d of store %q, want %d of %q", n, s.Epoch(), s.ID(), n, id)
		}
		b.crash()
	}
}

// TestIdentityDamaged loses the files that say who the store is: IDs must never come twice, and what can be known of the past stays known.
func TestIdentityDamaged(t *testing.T) {
	type files []string
	both := func(name string) files { return files{name, name + ".bak"} }
	cases := []struct {
		name    string
		gone    files
		damaged files
		same    bool // still the same store
		knows   bool // knows what it was
	}{
		{"nothing", nil, nil, true, true},
		{"one copy of the epoch", nil, files{"epoch"}, true, true},
		{"other copy of the epoch", files{"epoch.bak"}, nil, true, true},
		{"one copy of the identity", nil, files{"identity.bak"}, true, true},
		{"epoch damaged", nil, both("epoch"), false, true},
		{"epoch gone", both("epoch"), nil, false, true},
		{"identity damaged", nil, both("identity"), false, true},
		{"identity gone", both("identity"), nil, false, true},
		{"both", append(both("epoch"), both("identity")...), nil, false, false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			b := newBed(t)
			old := b.open().ID()
			b.crash()
			b.open()
			b.crash()
			for _, f := range c.gone {
				if err := os.Remove(filepath.Join(b.dir, "store", f)); err != nil {
					t.Fatal(err)
				}
			}
			for _, f := range c.damaged {
				spoil(t, filepath.Join(b.dir, "store", f))
			}
			s := b.open()
			if c.same && (s.ID() != old || s.Epoch() != 3) {
				t.Errorf("store %q epoch %d, want %q epoch 3", s.ID(), s.Epoch(), old)
			}
			if !c.same && s.ID() == old {
				t.Errorf("store %q epoch %d: IDs may come twice", s.ID(), s.Epoch())
			}
			if s.Knows(old) != c.knows || !s.Knows(s.ID()) || s.Knows("ffffffffff") {
				t.Errorf("Knows(%q) = %v, want %v", old, s.Knows(old), c.knows)
			}
		})
	}
}

// spoil flips a byte in the middle of a file.
func spoil(t *testing.T, path string) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	raw[len(raw)/2] ^= 0x10
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestAdopt(t *testing.T) {
	b := newBed(t)
	s := b.open()
	if s.Knows("0123456789") {
		t.Fatal("knows a store it never was")
	}
	if err := s.Adopt("0123456789"); err != nil {
		t.Fatal(err)
	}
	b.crash()
	if s = b.open(); !s.Knows("0123456789") {
		t.Error("does not know after a restart what it has adopted")
	}
}

// TestOldEpochFile puts back the files of an earlier start, as a restored backup of the card's other half would.
func TestOldEpochFile(t *testing.T) {
	b := newBed(t)
	b.start()
	b.add("a1", 1, 2)
	b.stop()
	old := map[string][]byte{}
	for _, f := range []string{"epoch", "epoch.bak"} {
		raw, err := os.ReadFile(filepath.Join(b.dir, "store", f))
		if err != nil {
			t.Fatal(err)
		}
		old[f] = raw
	}
	for range 3 {
		b.start()
		b.add("a1", 1, 2)
		b.stop()
	}
	for f, raw := range old {
		if err := os.WriteFile(filepath.Join(b.dir, "store", f), raw, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b.start()
	if b.s.Epoch() != 5 {
		t.Errorf("epoch %d, want 5: above all in the stream", b.s.Epoch())
	}
	b.add("a1", 1, 2)
	seen := map[ID]bool{}
	for _, k := range b.read("A") {
		if seen[k.ID] {
			t.Errorf("ID %v came twice", k.ID)
		}
		seen[k.ID] = true
	}
}

// TestForeignRecordsAreAdopted loses all files of our own but not the streams.
func TestForeignRecordsAreAdopted(t *testing.T) {
	b := newBed(t)
	old := b.start().ID()
	b.add("a1", 1, 3)
	b.stop()
	if err := os.RemoveAll(filepath.Join(b.dir, "store")); err != nil {
		t.Fatal(err)
	}
	s := b.start()
	if s.ID() == old || !s.Knows(old) {
		t.Errorf("store %q, knows %q: %v", s.ID(), old, s.Knows(old))
	}
	if epoch, seq := s.Last("a1"); epoch != 1 || seq != 3 {
		t.Errorf("Last(a1) = %d, %d, want 1, 3", epoch, seq)
	}
	b.expect("A", "a1 1", "a1 2", "a1 3")
	// Whose they were is said once. Later records of ours are above, and ours alone are told of.
	told := func(want string) {
		t.Helper()
		var newest string
		for _, k := range b.read("A") {
			if k.Source == EpochSource {
				newest = k.Data
			}
		}
		if _, last, _ := strings.Cut(newest, `"last":`); last != want+"}" {
			t.Errorf("epoch record %s, want the last to be %s", newest, want)
		}
	}
	told(`{"a1":{"epoch":1,"seq":3,"store":"` + string(old) + `"}}`)
	b.stop()
	b.start()
	told(`{}`)
	b.add("a1", 1, 2)
	b.stop()
	epoch := b.start().Epoch()
	told(fmt.Sprintf(`{"a1":{"epoch":%d,"seq":2}}`, epoch-1))
}

// TestForeignRecordsOfOneFile loses who the store is, and nothing else: what the journal and the account tell of belongs to another store from then on.
func TestForeignRecordsOfOneFile(t *testing.T) {
	b := newBed(t)
	old := b.start().ID()
	b.add("a1", 1, 3)
	b.stop()
	for _, f := range []string{"identity", "identity.bak"} {
		if err := os.Remove(filepath.Join(b.dir, "store", f)); err != nil {
			t.Fatal(err)
		}
	}
	if s := b.start(); s.ID() == old || s.Epoch() < 2 {
		t.Fatalf("store %s, epoch %d, want another store above epoch 1", s.ID(), s.Epoch())
	}
	all := b.read("A")
	newest := all[len(all)-1]
	if newest.Source != EpochSource || strings.Contains(newest.Data, `"a1"`) {
		t.Errorf("the newest record is %v %s, want an epoch record that does not call the old store's records its own", newest.ID, newest.Data)
	}
}

func TestEpochRecords(t *testing.T) {
	b := newBed(t)
	b.start()
	b.add("a1", 1, 5)
	b.add("a2", 1, 2)
	b.stop()
	s := b.start()
	if epoch, seq := s.Last("a1"); epoch != 1 || seq != 5 {
		t.Errorf("Last(a1) = %d, %d, want 1, 5", epoch, seq)
	}
	if epoch, seq := s.Last("b1"); epoch != 0 || seq != 0 {
		t.Errorf("Last(b1) = %d, %d, want none", epoch, seq)
	}
	b.add("a1", 1, 1)
	var bodies []string
	for _, k := range b.read("A") {
		if k.Source == EpochSource {
			bodies = append(bodies, k.Data)
		}
	}
	if len(bodies) != 2 || !strings.HasPrefix(bodies[0], `{"epoch":1,"boot":"`) || !strings.HasPrefix(bodies[1], `{"epoch":2,"previous":1,"boot":"`) {
		t.Fatalf("epoch records %q", bodies)
	}
	if want := `"last":{"a1":{"epoch":1,"seq":5},"a2":{"epoch":1,"seq":2}}}`; !strings.HasSuffix(bodies[1], want) {
		t.Errorf("epoch record %s, want it to end with %s", bodies[1], want)
	}
	all := b.read("A")
	if all[0].Source != EpochSource || all[8].Source != EpochSource || all[8].Epoch != 2 {
		t.Errorf("epoch records are not the first of their epochs: %v", all)
	}
	ids := map[ID]bool{}
	for _, k := range append(all, b.read("B")...) {
		if ids[k.ID] {
			t.Errorf("ID %v came twice", k.ID)
		}
		ids[k.ID] = true
	}
}
