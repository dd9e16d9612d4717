package modbus

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/ingest"
)

// fieldCase is one trouble that somebody had in the field: a line of testdata/cases.jsonl.
type fieldCase struct {
	ID    string `json:"id"`
	Ref   string `json:"ref"`
	Input string `json:"input"` // what happens in words, or hex: and hexadecimal digits
	Want  string `json:"want"`
}

func fieldCases(t *testing.T) map[string]fieldCase {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", "cases.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }() // only read
	out := map[string]fieldCase{}
	for sc := bufio.NewScanner(f); sc.Scan(); {
		var c fieldCase
		if err := json.Unmarshal(sc.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		out[c.ID] = c
	}
	return out
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(strings.TrimPrefix(s, "hex:"), " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// caseInput returns the bytes of a field case.
func caseInput(t *testing.T, id string) []byte {
	t.Helper()
	c, ok := fieldCases(t)[id]
	if !ok || !strings.HasPrefix(c.Input, "hex:") {
		t.Fatalf("no bytes for %s", id)
	}
	return unhex(t, c.Input)
}

// TestEveryFieldCaseIsTested makes sure that each case has a test with its number in the name.
func TestEveryFieldCaseIsTested(t *testing.T) {
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	tested := map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`func Test(ING)(\d{3})`).FindAllSubmatch(text, -1) {
			tested[string(m[1])+"-"+string(m[2])] = true
		}
	}
	for id, c := range fieldCases(t) {
		if !tested[id] {
			t.Errorf("%s has no test: %s", id, c.Want)
		}
	}
}

// tenths are registers that hold a thousand and their address, so that a value tells where it was read.
func tenths() map[int]uint16 {
	m := map[int]uint16{}
	for i := range 200 {
		m[i] = uint16(1000 + i)
	}
	return m
}

func TestING060LateReply(t *testing.T) {
	s := newSlave(t, map[byte]*unit{1: {holding: tenths(), delays: []time.Duration{shortTimeout * 3 / 2}}})
	r := start(t, quick(lineConfig(newCable(s).link, newDevice("m", 1, 50*time.Millisecond, newField("a", 0, nil), newField("b", 10, nil), newField("c", 20, nil)))))
	for _, rec := range r.want("m", 3) {
		for name, want := range map[string]any{"a": num("1000"), "b": num("1010"), "c": num("1020")} {
			if f := rec.Fields[name]; f.Quality == Good && f.Value != want {
				t.Errorf("%s = %v, want %v", name, f.Value, want)
			}
		}
	}
	if st := r.Stats(); st.Late == 0 || st.Silent == 0 {
		t.Errorf("stats %+v, want a request without reply and a late one", st)
	}
}

// scanned pushes bytes into a scan for a request, whole, and returns the data unit found.
func scanned(q request, echo, input []byte) (scan, []byte, *Exception) {
	s := scan{req: q, echo: echo}
	pdu, exc := s.push(input)
	return s, pdu, exc
}

func TestING061ForeignUnit(t *testing.T) {
	q := readRequest(1, TableHolding, 10, 1)
	s, pdu, _ := scanned(q, nil, caseInput(t, "ING-061"))
	if pdu == nil || binary.BigEndian.Uint16(pdu[2:]) != 1010 || s.foreign != 1 {
		t.Errorf("found % x and %d foreign frames, want 1010 and 1", pdu, s.foreign)
	}
	// The same on a line, where the foreign frame comes first and the reply later.
	foreign := request{9, []byte{3, 2, 0x10, 0x92}}.frame()
	sl := newSlave(t, map[byte]*unit{1: {holding: tenths(), before: foreign}})
	r := start(t, lineConfig(newCable(sl).link, newDevice("m", 1, 20*time.Millisecond, newField("b", 10, nil))))
	r.wantField("m", "b", Good, num("1010"))
	if st := r.Stats(); st.Foreign == 0 {
		t.Errorf("stats %+v, want foreign frames", st)
	}
}

func TestING062Echo(t *testing.T) {
	q := readRequest(1, TableHolding, 10, 1)
	s, pdu, _ := scanned(q, q.frame(), caseInput(t, "ING-062"))
	if pdu == nil || binary.BigEndian.Uint16(pdu[2:]) != 77 || !s.echoed {
		t.Errorf("found % x, echoed %v, want 77 and an echo", pdu, s.echoed)
	}
}

func TestING063Exception(t *testing.T) {
	q := readRequest(1, TableHolding, 10, 1)
	if _, pdu, exc := scanned(q, nil, caseInput(t, "ING-063")); pdu == nil || exc == nil || exc.Error() != "exception 2: illegal data address" {
		t.Fatalf("found % x, %v, want illegal data address", pdu, exc)
	}
	s := newSlave(t, map[byte]*unit{1: {exception: 2}})
	c := lineConfig(newCable(s).link, newDevice("m", 1, time.Hour, newField("b", 10, nil)))
	c.Bus.Timeout = 5 * time.Second
	r := start(t, c)
	began := time.Now()
	rec := r.want("m", 1)[0]
	if f := rec.Fields["b"]; f.Quality != Refused || f.Detail != "exception 2: illegal data address" || f.Value != nil {
		t.Errorf("field %+v, want refused with the reason", f)
	}
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("it took %s", took)
	}
	if n := len(s.asked(1)); n != 1 {
		t.Errorf("device was asked %d times, want once", n)
	}
	until(t, "state refused", func() bool { return r.State().Kind == ingest.Refused })
	if st := r.State(); !strings.Contains(st.Cause, "m (unit 1) refuses b: exception 2") || st.Remedy == "" {
		t.Errorf("state %+v, want it to name device, field and reason", st)
	}
}

// decoded decodes the data of a reply as one field.
func decoded(t testing.TB, f Field, data []byte) value {
	t.Helper()
	p, key, problem, _ := newPoint(f, newDevice("d", 1, time.Second))
	if problem != "" {
		t.Fatalf("field %+v: %s %s", f, key, problem)
	}
	return p.decode(data, 0)
}

func ofType(kind, order string) Field {
	return newField("x", 0, func(f *Field) { f.Type, f.Order = kind, order })
}

func TestING064FloatOrder(t *testing.T) {
	in := caseInput(t, "ING-064")
	if v := decoded(t, ofType("f32", "CDAB"), in[3:7]); v.text != "230.5" {
		t.Errorf("CDAB = %s, want 230.5", v.text)
	}
	if v := decoded(t, ofType("f32", "ABCD"), in[3:7]); !strings.HasPrefix(v.text, "-2.4") || !strings.HasSuffix(v.text, "e-41") {
		t.Errorf("ABCD = %s, want -2.4e-41", v.text)
	}
}

func TestING066Swap64(t *testing.T) {
	in := caseInput(t, "ING-066")[3:11]
	seen := map[string]bool{}
	for _, tt := range []struct{ name, want string }{{"HGFEDCBA", "81985529216486895"}, {"GHEFCDAB", ""}, {"BADCFEHG", ""}, {"ABCDEFGH", ""}} {
		v := decoded(t, ofType("u64", tt.name), in)
		if tt.want != "" && v.text != tt.want {
			t.Errorf("%s = %s, want %s", tt.name, v.text, tt.want)
		}
		if seen[v.text] {
			t.Errorf("%s = %s as another order", tt.name, v.text)
		}
		seen[v.text] = true
	}
}

func TestING067OffByOne(t *testing.T) {
	in := caseInput(t, "ING-067")
	s := newSlave(t, map[byte]*unit{1: {holding: map[int]uint16{}}})
	for i := range 4 {
		s.units[1].holding[i] = binary.BigEndian.Uint16(in[2*i:])
	}
	least, most := 100.0, 300.0
	volts := func(name string, address int) Field {
		return newField(name, address, func(f *Field) { f.Type, f.Min, f.Max = "f32", &least, &most })
	}
	zero := newDevice("zero", 1, time.Hour, volts("a", 0), volts("b", 2), volts("wrong", 1))
	one := newDevice("one", 1, time.Hour, volts("a", 1), volts("b", 3))
	one.AddressBase = 1
	r := start(t, lineConfig(newCable(s).link, zero, one))
	for _, device := range []string{"zero", "one"} {
		rec := r.want(device, 1)[0]
		if rec.Fields["a"].Value != num("230.5") || rec.Fields["b"].Value != num("200") {
			t.Errorf("%s: %+v, want 230.5 and 200", device, rec.Fields)
		}
	}
	if f := r.want("zero", 1)[0].Fields["wrong"]; f.Quality != OutOfRange || f.Value == nil || f.Raw != "80004348" {
		t.Errorf("wrong = %+v, want out of range, with value and raw", f)
	}
}

func TestING068NotAvailable(t *testing.T) {
	in := caseInput(t, "ING-068")[3:]
	nan := func(kind string, codes ...string) Field {
		return newField("x", 0, func(f *Field) { f.Type, f.NaN = kind, codes })
	}
	for _, tt := range []struct {
		name  string
		field Field
		data  []byte
		want  string // empty: not available
	}{
		{"u16", nan("u16", "0xffff"), in[0:2], ""},
		{"i16 in digits", nan("i16", "-32768"), in[2:4], ""},
		{"i16 as a pattern", nan("i16", "0x8000"), in[2:4], ""},
		{"u32", nan("u32", "0xffffffff"), in[4:8], ""},
		{"u32 that is a reading", nan("u32", "0xffffffff"), []byte{0, 0, 0xff, 0xff}, "65535"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := decoded(t, tt.field, tt.data)
			if v.text != tt.want || (v.quality == NotAvailable) != (tt.want == "") {
				t.Errorf("%q, %s, want %q", v.text, v.quality, tt.want)
			}
		})
	}
	if _, key, problem, _ := newPoint(nan("u32", "0xffff"), newDevice("d", 1, time.Second)); key != "nan" {
		t.Errorf("a code of 16 bits for 32: %s %s, want a fault of nan", key, problem)
	}
}

func TestING070LateTransaction(t *testing.T) {
	in := caseInput(t, "ING-070")
	s := newSource(t, quick(netConfig(ModeTCP, "127.0.0.1:1", newDevice("m", 1, 10*time.Millisecond, newField("b", 10, nil)))))
	opened := 0
	s.open = func(context.Context, Bus) (port, *trouble) {
		opened++
		p := newScripted(func(n int, _ []byte) [][]byte {
			switch n {
			case 1: // not answered in time
				return nil
			case 2:
				return [][]byte{in}
			}
			reply := append([]byte(nil), in[11:]...)
			reply[1] = byte(n)
			return [][]byte{reply}
		})
		return p, nil
	}
	r := startSource(t, s)
	r.wantField("m", "b", Good, num("1010"))
	for _, rec := range r.records("m") {
		if f := rec.Fields["b"]; f.Quality == Good && f.Value != num("1010") {
			t.Errorf("b = %v, want 1010", f.Value)
		}
	}
	r.stop()
	if st := r.Stats(); st.Late != 1 || opened != 1 {
		t.Errorf("stats %+v, opened %d times, want one late reply and one connection", st, opened)
	}
}

func TestING072CloseFails(t *testing.T) {
	sl := newSlave(t, map[byte]*unit{1: {holding: tenths()}})
	c := newCable(sl)
	s := newSource(t, lineConfig(c.link, newDevice("m", 1, 20*time.Millisecond, newField("b", 10, nil))))
	opened := 0
	s.open = func(ctx context.Context, b Bus) (port, *trouble) {
		if opened++; opened == 1 {
			p := newScripted(nil)
			p.writeErr, p.closeErr = syscall.EIO, syscall.ENODEV
			return p, nil
		}
		return openPort(ctx, b)
	}
	r := startSource(t, s)
	r.wantField("m", "b", Good, num("1010"))
	if first := r.records("m")[0]; first.Fields["b"].Quality != Offline || !strings.Contains(first.Fields["b"].Detail, "was lost: input/output error") {
		t.Errorf("first record %+v, want offline with the cause", first)
	}
}
