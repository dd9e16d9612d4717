package storage

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-edge/holdfast/storage/blocks"
)

// filled makes a stopped store whose stream A holds n records of 200 bytes in several blocks, and B three.
func filled(t testing.TB, n uint64) *bed {
	t.Helper()
	b := newBed(t)
	b.options.Streams[0].MaxBytes = 24 << 20 // the server makes blocks of 4 MiB then
	b.start()
	const group = 1000
	for first := uint64(1); first <= n; first += group {
		var recs []Record
		for i := first; i < first+group && i <= n; i++ {
			recs = append(recs, Record{Stream: "A", Source: "a1", Seq: i, Data: fmt.Appendf(bytes.Repeat([]byte("x"), 150), "%d", i)})
		}
		if err := b.s.Append(b.ctx(), recs...); err != nil {
			t.Fatal(err)
		}
	}
	b.add("b1", 1, 3)
	b.stop()
	return b
}

// copyBed returns a bed on a copy of the directory of another.
func copyBed(t testing.TB, from *bed) *bed {
	t.Helper()
	b := newBed(t)
	b.options.Streams = slices.Clone(from.options.Streams)
	if err := os.CopyFS(b.dir, os.DirFS(from.dir)); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bed) blocks(stream string) blocks.Stream {
	return blocks.Stream{Dir: filepath.Join(b.dir, "jetstream", account, "streams", stream), Name: stream}
}

// block returns the path of the i-th block of a stream, from 1.
func (b *bed) block(stream string, i int) string {
	b.t.Helper()
	r, err := b.blocks(stream).Walk(nil)
	if err != nil || len(r.Blocks) < i {
		b.t.Fatalf("stream %s has %d blocks, want %d: %v", stream, len(r.Blocks), i, err)
	}
	return b.blocks(stream).BlockPath(r.Blocks[i-1].Number)
}

// rot changes a file's bytes.
func rot(t testing.TB, path string, change func(b []byte) []byte) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, change(raw), 0o600); err != nil {
		t.Fatal(err)
	}
}

// flipAt returns a change of one byte in the middle of the record that holds a number as its data, more than one bit of it.
func flipAt(n int) func([]byte) []byte {
	return func(b []byte) []byte {
		at := bytes.Index(b, fmt.Appendf(bytes.Repeat([]byte("x"), 150), "%d", n))
		b[at+75] ^= 0x5a
		return b
	}
}

func (b *bed) check() CheckReport {
	b.t.Helper()
	r, err := Check(b.dir, "")
	if err != nil {
		b.t.Fatal(err)
	}
	return r
}

func (r CheckReport) of(stream string) StreamCheck {
	for _, st := range r.Streams {
		if st.Name == stream {
			return st
		}
	}
	return StreamCheck{}
}

func TestCheckCleanStore(t *testing.T) {
	b := filled(t, 3000)
	r := b.check()
	if a := r.of("A"); !r.Clean() || r.Leaf != "leaf" || a.Messages != 3001 || len(a.Lost) != 0 || r.of("B").Messages != 4 {
		t.Errorf("Check = %+v", r)
	}
	if len(r.Findings) > 0 {
		t.Errorf("findings on a clean store: %+v", r.Findings)
	}
	b.start()
	if _, err := Check(b.dir, ""); !errors.Is(err, ErrLocked) {
		t.Errorf("Check beside a daemon = %v, want ErrLocked", err)
	}
	b.kill()
	if r := b.check(); !r.Clean() {
		t.Errorf("Check after a kill = %+v", r.Findings)
	}
	if _, err := Check(filepath.Join(b.dir, "none"), ""); err == nil {
		t.Error("Check of no directory succeeded")
	}
	rot(t, filepath.Join(b.dir, "store", "format"), func([]byte) []byte { return []byte("99\n") })
	if _, err := Check(b.dir, ""); !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), "version 99") {
		t.Errorf("Check of a newer format = %v", err)
	}
}

// TestCheckSaysWhatIsLost damages copies of a store in the ways that were measured with the server, and more.
func TestCheckSaysWhatIsLost(t *testing.T) {
	const n = 20_000
	whole := filled(t, n)
	home := func(name string) func(*bed) string {
		return func(b *bed) string { return filepath.Join(b.dir, "store", name) }
	}
	stream := func(name string) func(*bed) string {
		return func(b *bed) string { return filepath.Join(b.blocks("A").Dir, name) }
	}
	block := func(i int) func(*bed) string { return func(b *bed) string { return b.block("A", i) } }
	flip := func(b []byte) []byte { b[len(b)/2] ^= 0x5a; return b }
	empty := func([]byte) []byte { return nil }
	for _, tt := range []struct {
		name   string
		path   func(*bed) string
		change func([]byte) []byte // nil: remove
		lost   [2]uint64           // at least, at most
		behind uint64              // at least
		clean  bool
	}{
		{"nothing", block(1), func(b []byte) []byte { return b }, [2]uint64{}, 0, true},
		{"index missing", stream("msgs/index.db"), nil, [2]uint64{}, 0, true},
		{"index flipped", stream("msgs/index.db"), flip, [2]uint64{}, 0, true},
		{"a byte in the first block", block(1), flipAt(5_000), [2]uint64{1, 1}, 5_000, false},
		{"a byte in the last block", block(2), flipAt(n - 1000), [2]uint64{1, 1}, 900, false},
		{"a page of zeros in the first block", block(1), func(b []byte) []byte { clear(b[2<<20 : 2<<20+4096]); return b }, [2]uint64{10, 20}, 5_000, false},
		{"the first block cut in half", block(1), func(b []byte) []byte { return b[:len(b)/2] }, [2]uint64{5_000, 8_000}, 0, false},
		{"the last block cut by 1000 bytes", block(2), func(b []byte) []byte { return b[:len(b)-1000] }, [2]uint64{3, 5}, 0, false},
		{"the first block gone", block(1), nil, [2]uint64{11_000, 15_000}, 0, false},
		{"the first block empty", block(1), empty, [2]uint64{11_000, 15_000}, 0, false},
		{"meta.inf flipped", stream(serverMeta), flip, [2]uint64{}, 0, false},
		{"meta.sum missing", stream(serverMetaSum), nil, [2]uint64{}, 0, false},
		{"identity flipped", home("identity"), flip, [2]uint64{}, 0, false},
		{"epoch empty", home("epoch"), empty, [2]uint64{}, 0, false},
		{"counters cut", home("counters.bak"), func(b []byte) []byte { return b[:9] }, [2]uint64{}, 0, false},
		{"catalog gone", home("streams"), nil, [2]uint64{}, 0, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := copyBed(t, whole)
			if tt.change == nil {
				if err := os.Remove(tt.path(b)); err != nil {
					t.Fatal(err)
				}
			} else {
				rot(t, tt.path(b), tt.change)
			}
			r := b.check()
			var lost uint64
			for _, l := range r.of("A").Lost {
				lost += l.Count
			}
			if lost < tt.lost[0] || lost > tt.lost[1] || r.of("A").Behind < tt.behind || r.Clean() != tt.clean {
				t.Errorf("lost %d, want %v; behind %d, want %d; clean %v; %+v", lost, tt.lost, r.of("A").Behind, tt.behind, r.Clean(), r.Findings)
			}
			// Without the counters, by the sequences around the damage.
			for _, f := range []string{"counters", "counters.bak"} {
				if err := os.Remove(filepath.Join(b.dir, "store", f)); err != nil {
					t.Fatal(err)
				}
			}
			guess := uint64(0)
			for _, l := range b.check().of("A").Lost {
				guess += l.Count
			}
			if tt.lost[0] > 0 && !strings.HasPrefix(tt.name, "the first block") && guess < lost {
				t.Errorf("without counters %d are said to be lost, it is %d", guess, lost)
			}
		})
	}
}
