package blocks

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

func TestWalkAgreesWithTheServer(t *testing.T) {
	b := newBed(t)
	b.start()
	b.fill(3000, 100, jetstream.NoCompression)
	s, err := b.js.Stream(b.ctx(), "S")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.DeleteMsg(b.ctx(), 1500); err != nil {
		t.Fatal(err)
	}
	if err := s.SecureDeleteMsg(b.ctx(), 1600); err != nil {
		t.Fatal(err)
	}
	if err := s.Purge(b.ctx(), jetstream.WithPurgeSequence(501)); err != nil {
		t.Fatal(err)
	}
	if err := s.Purge(b.ctx(), jetstream.WithPurgeSubject("data.leaf.S.a7")); err != nil {
		t.Fatal(err)
	}
	want := b.state()
	b.stop()
	var seen []uint64
	r, err := b.stream().Walk(func(m Message) error {
		if i := m.Seq - 1; m.Subject != fmt.Sprintf("data.leaf.S.a%d", i%10) || m.Data[0] != byte('a'+i%26) || len(m.Data) != 100 ||
			!bytes.Contains(m.Header, fmt.Appendf(nil, "leaf.0123456789.a.1.%d\r\n", m.Seq)) {
			t.Fatalf("message %d reads %q %q %q", m.Seq, m.Subject, m.Header, m.Data)
		}
		seen = append(seen, m.Seq)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.Messages != want.Msgs || r.Damaged() || !r.Index.Fresh || r.Index.First != want.FirstSeq || r.Index.Last != want.LastSeq || r.Index.Messages != want.Msgs {
		t.Errorf("Walk = %d messages, %+v, blocks %+v, the server says %+v", r.Messages, r.Index, r.Blocks, want)
	}
	if r.Live[0].First != want.FirstSeq || r.Live[len(r.Live)-1].Last != want.LastSeq || r.Live.Has(1500) || r.Live.Has(1600) || r.Live.Has(1508) {
		t.Errorf("Walk says that %v are there, the server %+v", r.Live, want)
	}
	if slices.Contains(seen, 1600) {
		t.Error("Walk gave a message that was overwritten")
	}
}

func TestWalkCompressed(t *testing.T) {
	b := newBed(t)
	b.start()
	b.fill(30_000, 500, jetstream.S2Compression)
	want := b.state()
	b.stop()
	r := b.walk()
	if r.Messages != want.Msgs || r.Damaged() || len(r.Blocks) < 2 || r.Blocks[0].Bytes > 4<<20 {
		t.Errorf("Walk = %d messages in %+v, the server says %d", r.Messages, r.Blocks, want.Msgs)
	}
}

// damages are ways in which bytes of a block go bad. At is a place in the middle of a record's data, record its beginning.
var damages = []struct {
	name string
	do   func(b []byte, record, size int)
	lost int // records at most; -1: the next ones too
}{
	{"bit in the data", func(b []byte, at, _ int) { b[at+100] ^= 0x20 }, 0},
	{"byte in the data", func(b []byte, at, _ int) { b[at+100] ^= 0x5a }, 1},
	{"bit of the length", func(b []byte, at, _ int) { b[at+1] ^= 1 }, 0},
	{"length and headers flag", func(b []byte, at, _ int) { b[at+3] ^= 0xff }, 0},
	{"length of a hundred records", func(b []byte, at, size int) { binary.LittleEndian.PutUint32(b[at:], uint32(100*size)|headerMark) }, 0},
	{"bit of the sequence", func(b []byte, at, _ int) { b[at+6] ^= 4 }, 0},
	{"length of the subject", func(b []byte, at, _ int) { b[at+20] ^= 0x3c }, 0},
	{"length of the headers", func(b []byte, at, _ int) { b[at+22+len("data.leaf.S.a0")] ^= 0x3c }, 0},
	{"the whole head", func(b []byte, at, _ int) { copy(b[at:at+22], bytes.Repeat([]byte{0xee}, 22)) }, 1},
	{"two in a row, the second by its length", func(b []byte, at, size int) { b[at+100] ^= 0x5a; b[at+size+1] ^= 0x55 }, 1},
	{"a page of zeros", func(b []byte, at, _ int) { clear(b[at : at+4096]) }, 20},
	{"a page of 0xff", func(b []byte, at, _ int) { copy(b[at:], bytes.Repeat([]byte{0xff}, 4096)) }, 20},
	{"a page of another place", func(b []byte, at, _ int) { copy(b[at:at+4096], b[at/2:]) }, 20},
	{"data that looks like records", func(b []byte, at, size int) { copy(b[at+30:], b[at+size:at+2*size-40]) }, 2},
}

// TestMendGivesBackWhatIsBehindDamage is the row "1 byte in the middle of the first 8 MB block" and its like: half of the records of a block are behind the
// damaged one, and the server loses all of them.
func TestMendGivesBackWhatIsBehindDamage(t *testing.T) {
	const records, behind, salvaged = 40_000, 17_886, 17_800
	whole := newBed(t)
	whole.start()
	whole.fill(records, 200, jetstream.NoCompression)
	whole.stop()
	bad := int(whole.walk().Blocks[0].Last) - behind
	first, err := os.ReadFile(whole.stream().BlockPath(1))
	if err != nil || bad < 1 {
		t.Fatal(bad, err)
	}
	at, size := place(t, first, bad)
	for _, d := range damages {
		t.Run(d.name, func(t *testing.T) {
			b := newBed(t)
			if err := os.CopyFS(b.dir, os.DirFS(whole.dir)); err != nil {
				t.Fatal(err)
			}
			image := bytes.Clone(first)
			d.do(image, at, size)
			if err := os.WriteFile(b.stream().BlockPath(1), image, 0o600); err != nil {
				t.Fatal(err)
			}
			r := b.walk()
			lost := records - int(r.Messages)
			if lost > behind-salvaged {
				t.Errorf("%d of the %d behind the damaged one are lost", lost, behind)
			}
			if !r.Damaged() || lost > d.lost || lost == 0 != (len(r.Blocks[0].Damage) == 0) {
				t.Fatalf("%d lost, want at most %d; %+v", lost, d.lost, r.Blocks[0])
			}
			if d.lost > 0 {
				damage := r.Blocks[0].Damage[0]
				if damage.After > uint64(bad-1) || damage.Before < uint64(bad+1) || int(damage.Before-damage.After) > d.lost+1 {
					t.Errorf("damage = %+v, the record was %d", damage, bad)
				}
			}
			after, mended, err := b.stream().Mend(b.hands())
			if err != nil || len(mended) != 1 || mended[0].Number != 1 || after.Messages != r.Messages {
				t.Fatalf("Mend = %+v, %+v, %v", after, mended, err)
			}
			if kept, err := os.ReadFile(mended[0].Aside); err != nil || !bytes.Equal(kept, image) {
				t.Errorf("the block as it was is not kept: %v", err)
			}
			if again := b.walk(); again.Damaged() || again.Messages != r.Messages {
				t.Errorf("after Mend: %d messages, %+v", again.Messages, again.Blocks[0])
			}
			b.start()
			if st := b.state(); int(st.Msgs) != records-lost || st.LastSeq != records {
				t.Errorf("after Mend the server says %+v, want %d messages", st, records-lost)
			}
		})
	}
}

// place returns where the n-th record of a block begins, and its size.
func place(t *testing.T, block []byte, n int) (at, size int) {
	t.Helper()
	sc := &scanner{hash: newHash("S-1")}
	if _, err := sc.block(block, func(p int, r record) error {
		if r.Seq == uint64(n) {
			at, size = p, r.size
		}
		return nil
	}); err != nil || size == 0 {
		t.Fatalf("record %d is not in the block: %v", n, err)
	}
	return at, size
}

// TestServerLosesWhatIsBehindDamage shows what Mend is for.
func TestServerLosesWhatIsBehindDamage(t *testing.T) {
	b := newBed(t)
	b.start()
	b.fill(2000, 200, jetstream.NoCompression)
	b.stop()
	path := b.stream().BlockPath(1)
	block, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	at, _ := place(t, block, 1000)
	block[at+100] ^= 0x5a
	if err := errors.Join(os.WriteFile(path, block, 0o600), os.Remove(filepath.Join(filepath.Dir(path), indexName))); err != nil {
		t.Fatal(err)
	}
	b.start()
	if st := b.state(); st.Msgs > 1100 {
		t.Errorf("the server has %d of 2000 records: Mend is not needed any more", st.Msgs)
	}
}

func TestMendAtTheEnd(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(path string, b []byte) error
	}{
		{"cut short", func(path string, b []byte) error { return os.Truncate(path, int64(len(b)-1000)) }},
		{"empty", func(path string, _ []byte) error { return os.Truncate(path, 0) }},
		{"gone", func(path string, _ []byte) error { return os.Remove(path) }},
		{"a directory", func(path string, _ []byte) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) }},
		{"zeros", func(path string, b []byte) error { return os.WriteFile(path, make([]byte, len(b)), 0o600) }},
		{"zeros behind", func(path string, b []byte) error { return os.WriteFile(path, append(b, make([]byte, 5000)...), 0o600) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBed(t)
			b.start()
			b.fill(500, 100, jetstream.NoCompression)
			b.stop()
			path := b.stream().BlockPath(1)
			raw, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := tt.do(path, raw); err != nil {
				t.Fatal(err)
			}
			r := b.walk()
			if _, _, err := b.stream().Mend(b.hands()); err != nil {
				t.Fatal(err)
			}
			b.start()
			if st := b.state(); st.Msgs != r.Messages {
				t.Errorf("the server has %d messages, Walk said %d", st.Msgs, r.Messages)
			}
		})
	}
}

func TestIndexDamaged(t *testing.T) {
	b := newBed(t)
	b.start()
	b.fill(100, 100, jetstream.NoCompression)
	b.stop()
	path := filepath.Join(b.stream().Dir, messageDir, indexName)
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, do := range map[string]func() error{
		"flipped":     func() error { c := bytes.Clone(raw); c[5] ^= 1; return os.WriteFile(path, c, 0o600) },
		"empty":       func() error { return os.WriteFile(path, nil, 0o600) },
		"missing":     func() error { return os.Remove(path) },
		"a directory": func() error { return os.Mkdir(path, 0o700) },
	} {
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
		if name == "missing" {
			if err := os.WriteFile(path, raw, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := do(); err != nil {
			t.Fatal(err)
		}
		if r := b.walk(); r.Damaged() || r.Messages != 100 || r.Index.Fresh || r.Index.Present == (r.Index.Problem == "") {
			t.Errorf("%s: Walk = %d messages, %+v", name, r.Messages, r.Index)
		}
	}
}

func TestNoStream(t *testing.T) {
	s := Stream{Dir: filepath.Join(t.TempDir(), "none"), Name: "S"}
	if r, err := s.Walk(nil); err != nil || r.Messages != 0 || r.Damaged() {
		t.Errorf("Walk of no stream = %+v, %v", r, err)
	}
	if err := os.MkdirAll(filepath.Join(s.Dir, messageDir), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(s.BlockPath(1), nil, 0o600), os.WriteFile(filepath.Join(s.Dir, messageDir, "1.key"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Walk(nil); !errors.Is(err, ErrEncrypted) || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Walk of encrypted blocks = %v, want ErrEncrypted", err)
	}
}

func TestRuns(t *testing.T) {
	var r Runs
	for _, seq := range []uint64{5, 6, 7, 10, 9, 1, 20, 8, 6} {
		r.add(seq)
	}
	if want := (Runs{{1, 1}, {5, 10}, {20, 20}}); !slices.Equal(r, want) || r.Count() != 8 {
		t.Errorf("runs = %v, want %v", r, want)
	}
	if got, want := r.Without(Runs{{6, 7}, {10, 30}}), (Runs{{1, 1}, {5, 5}, {8, 9}}); !slices.Equal(got, want) {
		t.Errorf("Without = %v, want %v", got, want)
	}
	if got, want := (Runs{{1, 100}}).Without(Runs{{0, 10}, {50, 60}}), (Runs{{11, 49}, {61, 100}}); !slices.Equal(got, want) {
		t.Errorf("Without = %v, want %v", got, want)
	}
}

// FuzzScan: whatever is in a block, the scanner ends, and what it gives is within the block.
func FuzzScan(f *testing.F) {
	s := Stream{Name: "S"}
	f.Add(s.deletion(1, 7))
	f.Add(append(s.deletion(1, 7), make([]byte, 100)...))
	f.Add([]byte("cmp\x01\x80\x80"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if plain, err := decompress(b); err == nil {
			b = plain
		}
		sc := &scanner{hash: newHash("S-1")}
		end := 0
		damage, err := sc.block(b, func(at int, r record) error {
			if at < end || at+r.size > len(b) {
				t.Errorf("record at %d of %d bytes, in front %d", at, r.size, end)
			}
			end = at + r.size
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range damage {
			if d.Bytes < 1 || d.Offset+d.Bytes > len(b) {
				t.Errorf("damage %+v in %d bytes", d, len(b))
			}
		}
	})
}

// TestServerTakesWhatAWriterWrites: with holes in the sequences, over several blocks, and goes on behind.
func TestServerTakesWhatAWriterWrites(t *testing.T) {
	b := newBed(t)
	b.start()
	b.fill(1, 10, jetstream.NoCompression)
	b.stop()
	w, err := b.stream().NewWriter()
	if err != nil {
		t.Fatal(err)
	}
	const n, first = 10_000, 1 << 40
	seq := uint64(first)
	for i := range n {
		if seq++; i%1000 == 0 {
			seq += 1 << 21
		}
		if err := w.Write(Message{Seq: seq, Time: time.Now().UnixNano(), Subject: "data.x", Header: []byte("NATS/1.0\r\nNats-Msg-Id: x\r\n\r\n"), Data: fmt.Appendf(make([]byte, 1000), "%d", i)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), w.Write(Message{Seq: seq, Subject: "data.x"})); err == nil {
		t.Error("a sequence that does not grow was taken")
	}
	if r := b.walk(); r.Damaged() || r.Messages != n || len(r.Blocks) < 2 {
		t.Fatalf("Walk of what was written = %d messages, %+v", r.Messages, r.Blocks)
	}
	b.start()
	if st := b.state(); st.Msgs != n || st.LastSeq != seq || st.FirstSeq != first+1<<21+1 {
		t.Errorf("the server says %+v", st)
	}
	s, err := b.js.Stream(b.ctx(), "S")
	if err != nil {
		t.Fatal(err)
	}
	m, err := s.GetMsg(b.ctx(), seq)
	if err != nil || string(m.Data[1000:]) != fmt.Sprint(n-1) || m.Header.Get("Nats-Msg-Id") != "x" {
		t.Errorf("the last message is %v, %v", m, err)
	}
	if ack, err := b.js.Publish(b.ctx(), "data.x", nil); err != nil || ack.Sequence != seq+1 {
		t.Errorf("Publish = %+v, %v", ack, err)
	}
}
