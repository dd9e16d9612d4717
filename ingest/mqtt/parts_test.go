package mqtt

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/eclipse/paho.mqtt.golang/packets"

	"github.com/holdfast-edge/holdfast/storage"
)

func TestFilters(t *testing.T) {
	for _, tt := range []struct {
		filter, topic string
		want          bool
	}{
		{"a/b", "a/b", true}, {"a/b", "a/c", false}, {"a/b", "a", false}, {"a", "a/b", false},
		{"#", "a/b", true}, {"#", "/", true}, {"#", "$SYS/x", false}, {"+/x", "$SYS/x", false}, {"$SYS/#", "$SYS/x", true},
		{"a/#", "a", true}, {"a/#", "a/", true}, {"a/#", "ab", false}, {"+", "a", true}, {"+", "a/b", false}, {"+", "/a", false},
		{"/+", "/a", true}, {"+/+", "/a", true}, {"a/+/c", "a//c", true}, {"a/+", "a/", true}, {"a/+", "a", false},
	} {
		if got := matches(tt.filter, tt.topic); got != tt.want {
			t.Errorf("matches(%q, %q) = %v", tt.filter, tt.topic, got)
		}
	}
	for _, tt := range []struct {
		a, b string
		want bool
	}{
		{"#", "a/#", true}, {"a/#", "#", false}, {"a/#", "a", true}, {"a/+", "a/b", true}, {"a/b", "a/+", false}, {"+/b", "a/b", true},
		{"+/#", "a/b/c", true}, {"+", "a/b", false}, {"a", "a", true}, {"#", "$x", false}, {"a/+", "a/#", false}, {"a/b/#", "a", false},
	} {
		if got := covers(tt.a, tt.b); got != tt.want {
			t.Errorf("covers(%q, %q) = %v", tt.a, tt.b, got)
		}
	}
}

func TestQueue(t *testing.T) {
	q := newQueue(10 * (overhead + 1))
	m := func(payload string) message { return message{payload: []byte(payload)} }
	for i := range 10 {
		if !q.push(m(string(rune('a' + i)))) {
			t.Fatalf("message %d does not fit", i)
		}
	}
	if q.push(m("x")) {
		t.Error("an eleventh message fits")
	}
	if got := q.take(3, 1<<20); len(got) != 3 || string(got[2].payload) != "c" || q.roomy() {
		t.Errorf("take = %d messages, roomy %v", len(got), q.roomy())
	}
	if got := q.take(100, 2*(overhead+1)); len(got) != 2 || string(got[0].payload) != "d" || !q.roomy() {
		t.Errorf("take by bytes = %d messages, roomy %v", len(got), q.roomy())
	}
	if got := q.take(100, 1); len(got) != 1 {
		t.Errorf("take with little room = %d messages, want one", len(got))
	}
	q.take(100, 1<<20)
	if n, bytes := q.load(); n != 0 || bytes != 0 {
		t.Errorf("load of an empty queue = %d, %d", n, bytes)
	}
	if big := m(strings.Repeat("x", 1<<20)); !q.push(big) {
		t.Error("a large message does not fit into an empty queue")
	}
	q.take(1, 1)
	want := 0
	for i := range 40_000 { // push more than is taken, so that the head moves
		q.max = 1 << 30
		if !q.push(message{index: uint64(i)}) {
			t.Fatal("no room")
		}
		if i%2 == 1 {
			for _, got := range q.take(1, 1) {
				if got.index != uint64(want) {
					t.Fatalf("took %d, want %d", got.index, want)
				}
				want++
			}
		}
	}
	if n, _ := q.load(); n != 20_000 {
		t.Errorf("%d wait, want 20000", n)
	}
	for want = n(q); q.push(message{}); want++ {
	}
	if want != maxQueued {
		t.Errorf("%d messages fit, want %d", want, maxQueued)
	}
}

func n(q *queue) int {
	n, _ := q.load()
	return n
}

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
		if bytes.Equal(data, before) != (err == nil && len(marks) == 1) && !bytes.Equal(data[32:64], before[32:64]) && len(marks) == 1 {
			t.Errorf("a changed mark counts: %v, %v", marks, err)
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

func TestSessionFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "session")
	f, err := openSession(path)
	if err != nil || f.last.Client != "" {
		t.Fatalf("openSession of nothing = %+v, %v", f, err)
	}
	s := session{Broker: "b", Client: "c", Filters: []string{"x", "line\nbreak"}}
	if err := errors.Join(f.save(session{Broker: "b", Client: "c"}), f.save(s), f.save(s)); err != nil {
		t.Fatal(err)
	}
	check := func() {
		t.Helper()
		f, err := openSession(path)
		if err != nil || !f.last.equal(s) {
			t.Errorf("openSession = %+v, %v, want %+v", f.last, err, s)
		}
	}
	check()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(text, []byte("{")); n != 2 {
		t.Errorf("%d lines, want 2: what did not change is not written", n)
	}
	// A line that a power cut tore does no harm, nor does one that is written behind it.
	if err := os.WriteFile(path, append(text, `{"broker":"b","cli`...), 0o600); err != nil {
		t.Fatal(err)
	}
	check()
	f, err = openSession(path)
	if err != nil {
		t.Fatal(err)
	}
	s.Filters = []string{"y"}
	if err := f.save(s); err != nil {
		t.Fatal(err)
	}
	check()
	if err := os.WriteFile(path, append(bytes.Repeat([]byte("x\n"), maxSessionFile), mustRead(t, path)...), 0o600); err != nil {
		t.Fatal(err)
	}
	check()
	if text := mustRead(t, path); len(text) > 1000 {
		t.Errorf("the file still has %d bytes", len(text))
	}
	check()
}

func mustRead(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// fixed is a connection whose other side has sent certain bytes.
type fixed struct {
	net.Conn
	r io.Reader
}

func (f fixed) Read(p []byte) (int, error)       { return f.r.Read(p) }
func (f fixed) Write(p []byte) (int, error)      { return len(p), nil }
func (f fixed) SetWriteDeadline(time.Time) error { return nil }

// FuzzGuard reads any bytes through a guard: the result must be the same however they are split, and what the library makes
// of it must not panic or take much memory.
func FuzzGuard(f *testing.F) {
	f.Add([]byte{0x20, 2, 1, 0, 0x90, 3, 0, 1, 1, 0x32, 8, 0, 1, 'a', 0, 7, 'x', 'y', 'z', 0xd0, 0})
	f.Add(append([]byte{0x32, 0xd0, 0x0f, 0, 1, 'a', 0, 1}, make([]byte, 2100)...))
	f.Add(append([]byte{0x30, 0xd0, 0x0f, 0xff, 0xff}, make([]byte, 3000)...))
	f.Add([]byte{0x90, 5, 0, 1, 1, 1, 1})
	f.Add([]byte{0x30, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, data []byte) {
		const limit = 500
		whole := newGuard(fixed{r: bytes.NewReader(data)}, limit, time.Second, func() {})
		a, errA := io.ReadAll(whole)
		split := newGuard(fixed{r: iotest.OneByteReader(bytes.NewReader(data))}, limit, time.Second, func() {})
		b, errB := io.ReadAll(split)
		if !bytes.Equal(a, b) || (errA == nil) != (errB == nil) {
			t.Fatalf("whole: % x, %v\nsplit: % x, %v", a, errA, b, errB)
		}
		if len(a) > len(data) {
			t.Fatalf("%d bytes became %d", len(data), len(a))
		}
		r := bytes.NewReader(a)
		for published := uint64(0); ; {
			p, err := packets.ReadPacket(r)
			if err != nil {
				return
			}
			if m, ok := p.(*packets.PublishPacket); ok {
				if len(m.Payload) > limit {
					t.Fatalf("a payload of %d bytes came through", len(m.Payload))
				}
				if n := whole.oversize(published); n > 0 && (n <= limit || len(m.Payload) > 0) {
					t.Fatalf("message %d: %d bytes cut off, %d left", published, n, len(m.Payload))
				}
				published++
			}
		}
	})
}
