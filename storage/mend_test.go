package storage

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// gaps returns the gap records of a stream.
func (b *bed) gaps(stream string) []GapRecord {
	b.t.Helper()
	st, err := b.js.Stream(b.ctx(), stream)
	if err != nil {
		b.t.Fatal(err)
	}
	var all []GapRecord
	m, err := st.GetLastMsgForSubject(b.ctx(), DataSubject("leaf", stream, GapSource))
	if err != nil {
		return nil
	}
	g, err := ParseGap(m.Data)
	if err != nil {
		b.t.Fatal(err)
	}
	return append(all, g)
}

// count returns how many captured records the server has in a stream, and fails if one comes twice or out of order.
func (b *bed) count(stream string) int {
	b.t.Helper()
	n := 0
	var last uint64
	h, err := holdStream(b.ctx(), b.js, stream)
	if err != nil {
		b.t.Fatal(err)
	}
	if err := h.scan(b.ctx(), 1, func(r heldRecord) error {
		if b.options.Sources[r.ID.Source] == "" {
			return nil
		}
		if r.ID.Seq <= last {
			return fmt.Errorf("record %d behind %d", r.ID.Seq, last)
		}
		last = r.ID.Seq
		n++
		return nil
	}); err != nil {
		b.t.Fatal(err)
	}
	return n
}

// balanced fails unless the account of a stream adds up, with so many lost to damage.
func (b *bed) balanced(stream string, stored, damaged uint64) {
	b.t.Helper()
	for _, st := range b.s.Streams() {
		if st.Name != stream {
			continue
		}
		if st.Stored != stored || st.Dropped[GapDamage] != damaged || st.Stored != st.Forwarded+st.Waiting+damaged {
			b.t.Errorf("stream %s: stored %d, forwarded %d, waiting %d, dropped %v; want %d stored and %d damaged", stream, st.Stored, st.Forwarded, st.Waiting, st.Dropped, stored, damaged)
		}
	}
}

func nothingForwarded(string) (Position, bool) { return 0, false }

// rots are ways in which a stream's blocks go bad while the machine is off, with how many records of 20,000 may be lost.
var rots = []struct {
	name string
	do   func(b *bed) error
	lost [2]int
}{
	{"a byte in the middle of the first block", func(b *bed) error { rot(b.t, b.block("A", 1), flipAt(5_000)); return nil }, [2]int{1, 1}},
	{"a bit in the middle of the first block", func(b *bed) error {
		rot(b.t, b.block("A", 1), func(raw []byte) []byte { i := bytes.Index(raw, []byte("xx4000")); raw[i] ^= 1; return raw })
		return nil
	}, [2]int{0, 0}},
	{"a byte in the middle of the last block", func(b *bed) error { rot(b.t, b.block("A", 2), flipAt(19_000)); return nil }, [2]int{1, 1}},
	{"a page of zeros", func(b *bed) error {
		rot(b.t, b.block("A", 1), func(raw []byte) []byte { clear(raw[2<<20 : 2<<20+4096]); return raw })
		return nil
	}, [2]int{10, 20}},
	{"the last block cut by 1000 bytes", func(b *bed) error {
		rot(b.t, b.block("A", 2), func(raw []byte) []byte { return raw[:len(raw)-1000] })
		return nil
	}, [2]int{1, 5}},
	{"the first block cut in half", func(b *bed) error {
		rot(b.t, b.block("A", 1), func(raw []byte) []byte { return raw[:len(raw)/2] })
		return nil
	}, [2]int{5_000, 8_000}},
	{"the first block gone", func(b *bed) error { return os.Remove(b.block("A", 1)) }, [2]int{11_000, 15_000}},
	{"the first block empty", func(b *bed) error { return os.Truncate(b.block("A", 1), 0) }, [2]int{11_000, 15_000}},
	{"the first block a directory", func(b *bed) error {
		p := b.block("A", 1)
		return errors.Join(os.Remove(p), os.Mkdir(p, 0o700))
	}, [2]int{11_000, 15_000}},
}

// TestDamagedBlocks: whatever happens to the blocks, with the index or without, what can be read is there, in order and at its place, and a gap
// record tells of the rest as soon as the stream is to be forwarded.
func TestDamagedBlocks(t *testing.T) {
	const n = 20_000
	whole := filled(t, n)
	for i, r := range rots {
		for j, index := range []string{"with", "without"} {
			if testing.Short() && j != i%3 {
				continue // two rows of three, with the index or without
			}
			t.Run(r.name+" "+index+" index", func(t *testing.T) {
				t.Parallel()
				b := copyBed(t, whole)
				if err := r.do(b); err != nil {
					t.Fatal(err)
				}
				if index == "without" {
					if err := os.Remove(filepath.Join(b.blocks("A").Dir, "msgs", "index.db")); err != nil {
						t.Fatal(err)
					}
				}
				b.open()
				if err := b.s.Mend(b.ctx(), nothingForwarded); err != nil {
					t.Fatal(err)
				}
				b.serve()
				b.attach()
				if err := b.s.Verify(b.ctx(), "A", 1); err != nil {
					t.Fatal(err)
				}
				lost := n - b.count("A")
				if lost < r.lost[0] || lost > r.lost[1] {
					t.Errorf("%d lost, want %v", lost, r.lost)
				}
				var told uint64
				for _, g := range b.gaps("A") {
					if g.Reason != GapDamage {
						t.Errorf("gap record %+v", g)
					}
					told += g.Count
				}
				if int(told) != lost {
					t.Errorf("%d lost, the gap record says %d", lost, told)
				}
				b.balanced("A", n, told)
				if len(b.s.Alarms()) == 0 {
					t.Error("no alarm")
				}
				b.add("a1", n+1, n+10)
				if got := b.count("A"); got != n-lost+10 {
					t.Errorf("%d records after ten more, want %d", got, n-lost+10)
				}
				b.stop()
				if r := b.check(); !r.Clean() {
					t.Errorf("damaged afterwards: %+v", r.Findings)
				}
			})
		}
	}
}

// TestDamagedEncryptedBlock: an encrypted block is put right as well as any other, and check reads it with the key.
func TestDamagedEncryptedBlock(t *testing.T) {
	b := newBed(t)
	b.options.Key = keyFile(t, rightKey)
	b.start()
	for first := uint64(1); first <= 3000; first += 1000 {
		b.add("a1", first, first+999)
	}
	b.settle()
	b.stop()
	if r, err := Check(b.dir, ""); err != nil || r.of("A").Skipped == "" {
		t.Errorf("Check without the key = %+v, %v", r.of("A"), err)
	}
	if _, err := Check(b.dir, keyFile(t, wrongKey)); !errors.Is(err, ErrKey) {
		t.Errorf("Check with another key = %v, want ErrKey", err)
	}
	r, err := Check(b.dir, b.options.Key)
	if err != nil || !r.Clean() || r.of("A").Messages != 3001 {
		t.Fatalf("Check = %+v, %v", r, err)
	}
	files := b.blocks("A")
	numbers, err := files.Numbers()
	if err != nil || len(numbers) == 0 {
		t.Fatal(err)
	}
	rot(t, files.BlockPath(numbers[0]), func(raw []byte) []byte { clear(raw[200_000:200_700]); return raw })
	if r, err = Check(b.dir, b.options.Key); err != nil || r.Clean() || r.of("A").Behind < 1000 {
		t.Errorf("Check of the damage = %+v, %v", r.of("A"), err)
	}
	b.open()
	if err := b.s.Mend(b.ctx(), nothingForwarded); err != nil {
		t.Fatal(err)
	}
	b.serve()
	b.attach()
	lost := 3000 - b.count("A")
	if lost < 1 || lost > 8 || len(b.s.Alarms()) == 0 {
		t.Errorf("%d lost, alarms %v", lost, b.s.Alarms())
	}
	b.balanced("A", 3000, uint64(lost))
}
