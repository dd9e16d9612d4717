package modbus

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// golden frames: checksums computed by other means than ours.
var goldenFrames = []string{
	"01 03 00 00 00 0a c5 cd", "11 03 00 6b 00 03 76 87", "fe 04 00 03 00 01 d5 c5", "fe 04 02 01 90 ac d8",
	"01 03 04 43 66 80 00 6e 68", "01 83 02 c0 f1", "01 03 02 03 f2 39 31", "01 03 00 0a 00 01 a4 08",
}

func TestGoldenChecksums(t *testing.T) {
	if crc := crc16([]byte("123456789")); crc != 0x4b37 {
		t.Errorf("crc16(123456789) = %04x, want 4b37", crc)
	}
	for _, g := range goldenFrames {
		if p := unhex(t, g); !intact(p) {
			t.Errorf("%s is not intact", g)
		} else if f := (request{p[0], p[1 : len(p)-2]}).frame(); !bytes.Equal(f, p) {
			t.Errorf("frame() = % x, want %s", f, g)
		}
	}
}

func TestGoldenRequests(t *testing.T) {
	for _, tt := range []struct {
		name string
		req  request
		want string
	}{
		{"ten holding registers", readRequest(1, TableHolding, 0, 10), "01 03 00 00 00 0a c5 cd"},
		{"three holding registers", readRequest(0x11, TableHolding, 0x6b, 3), "11 03 00 6b 00 03 76 87"},
		{"one input register", readRequest(0xfe, TableInput, 3, 1), "fe 04 00 03 00 01 d5 c5"},
		{"coils", readRequest(1, TableCoil, 0x13, 0x25), "01 01 00 13 00 25"},
		{"discrete inputs", readRequest(1, TableDiscrete, 0xc4, 0x16), "01 02 00 c4 00 16"},
		{"one register", registersRequest(1, 1, []uint16{3}, false), "01 06 00 01 00 03"},
		{"one register as a list", registersRequest(1, 1, []uint16{3}, true), "01 10 00 01 00 01 02 00 03"},
		{"registers", registersRequest(1, 1, []uint16{0x000a, 0x0102}, false), "01 10 00 01 00 02 04 00 0a 01 02"},
		{"coil on", coilsRequest(1, 0xac, []bool{true}, false), "01 05 00 ac ff 00"},
		{"coil off", coilsRequest(1, 0xac, []bool{false}, false), "01 05 00 ac 00 00"},
		{"coils", coilsRequest(1, 0x13, []bool{true, false, true, true, false, false, true, true, true, false}, false), "01 0f 00 13 00 0a 02 cd 01"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			want := unhex(t, tt.want)
			if got := tt.req.frame(); !bytes.HasPrefix(got, want) || !intact(got) || len(got) > len(want)+2 {
				t.Errorf("% x, want %s", got, tt.want)
			}
		})
	}
}

// outcome is what a scan made of its input.
type outcome struct {
	pdu            string
	exc            byte
	foreign, stray int
	noise          int
	echoed         bool
}

// scanPieces scans input in pieces of the lengths given, the rest at once, to the end.
func scanPieces(q request, echo, input []byte, lengths ...int) outcome {
	s := scan{req: q, echo: echo}
	pdu, exc := []byte(nil), (*Exception)(nil)
	for pdu == nil && len(input) > 0 {
		n := len(input)
		if len(lengths) > 0 {
			n, lengths = min(lengths[0], n), lengths[1:]
		}
		pdu, exc = s.push(input[:n])
		input = input[n:]
	}
	if pdu == nil {
		pdu, exc = s.end()
	}
	o := outcome{pdu: hex.EncodeToString(pdu), foreign: s.foreign, stray: s.stray, noise: s.noise, echoed: s.echoed}
	if exc != nil {
		o.exc = exc.Code
	}
	return o
}

func ones(n int) []int { return slices.Repeat([]int{1}, n) }

func TestScan(t *testing.T) {
	q := readRequest(1, TableHolding, 10, 1)
	const reply, foreign, echo, exc = "01030203f23931", "0903021092d5e8", "0103000a0001a408", "018302c0f1"
	longer := hex.EncodeToString(request{1, []byte{3, 4, 0, 1, 0, 2}}.frame())
	other := hex.EncodeToString(readRequest(7, TableInput, 5, 9).frame())
	for _, tt := range []struct {
		name  string
		input string
		want  outcome
	}{
		{"reply", reply, outcome{pdu: "030203f2"}},
		{"exception", exc, outcome{pdu: "8302", exc: 2}},
		{"nothing", "", outcome{}},
		{"noise in front", "00ff" + reply, outcome{pdu: "030203f2", noise: 2}},
		{"noise that begins like a long frame", "0703f0" + reply, outcome{pdu: "030203f2", noise: 3}},
		{"its own beginning in front", "010302" + reply, outcome{pdu: "030203f2", noise: 3}},
		{"only a part", reply[:10], outcome{noise: 5}},
		{"wrong checksum", reply[:12] + "32", outcome{noise: 7}},
		{"foreign frame", foreign + reply, outcome{pdu: "030203f2", foreign: 1}},
		{"foreign frame only", foreign, outcome{foreign: 1}},
		{"reply to a longer request", longer + reply, outcome{pdu: "030203f2", stray: 1}},
		{"echo", echo + reply, outcome{pdu: "030203f2", echoed: true}},
		{"echo only", echo, outcome{echoed: true}},
		{"half an echo", echo[:8], outcome{noise: 4}},
		{"request of another master", other + foreign + reply, outcome{pdu: "030203f2", foreign: 2}},
		{"zeros", strings.Repeat("00", 64), outcome{noise: 64}},
		{"ones", strings.Repeat("ff", 64), outcome{noise: 64}},
		{"two replies", reply + reply, outcome{pdu: "030203f2"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := unhex(t, tt.input)
			whole := scanPieces(q, q.frame(), in)
			if whole != tt.want {
				t.Errorf("scan found %+v, want %+v", whole, tt.want)
			}
			for i := range in {
				if o := scanPieces(q, q.frame(), in, i); o != whole {
					t.Errorf("split at %d: %+v, want %+v", i, o, whole)
				}
			}
			if o := scanPieces(q, q.frame(), in, ones(len(in))...); o != whole {
				t.Errorf("byte by byte: %+v, want %+v", o, whole)
			}
		})
	}
}

// TestScanTakesNoDamagedReply flips every bit and cuts at every byte.
func TestScanTakesNoDamagedReply(t *testing.T) {
	q := readRequest(1, TableHolding, 0, 2)
	reply := unhex(t, "01 03 04 43 66 80 00 6e 68")
	for i := range 8 * len(reply) {
		damaged := slices.Clone(reply)
		damaged[i/8] ^= 1 << (i % 8)
		if o := scanPieces(q, q.frame(), damaged); o.pdu != "" {
			t.Errorf("bit %d flipped: took %s", i, o.pdu)
		}
	}
	for n := range reply {
		if o := scanPieces(q, q.frame(), reply[:n]); o.pdu != "" || o.noise != n {
			t.Errorf("cut to %d bytes: %+v", n, o)
		}
	}
}

func TestScanKeepsLittle(t *testing.T) {
	s := scan{req: readRequest(1, TableHolding, 0, 125)}
	for range 1000 {
		if pdu, _ := s.push(bytes.Repeat([]byte{1, 3, 0xfa}, 40)); pdu != nil {
			t.Fatalf("took % x", pdu)
		}
	}
	if len(s.buf) > 4*maxHeld {
		t.Errorf("scan holds %d bytes", len(s.buf))
	}
}

func FuzzScan(f *testing.F) {
	for _, g := range goldenFrames {
		f.Add(unhex(f, g), byte(1), byte(3), uint16(1), uint8(3))
		f.Add(append(unhex(f, "00 09 03 02 10 92 d5 e8"), unhex(f, g)...), byte(1), byte(3), uint16(2), uint8(2))
	}
	f.Add(unhex(f, "01 06 00 01 00 03 98 0b 01 06 00 01 00 03 98 0b"), byte(1), byte(6), uint16(3), uint8(9))
	f.Add(unhex(f, "01 10 00 01 00 02 10 08"), byte(1), byte(16), uint16(2), uint8(4))
	f.Fuzz(func(t *testing.T, in []byte, unit, fn byte, count uint16, cut uint8) {
		if len(in) > 2048 {
			t.Skip("longer than what comes at once")
		}
		q := readRequest(unit, TableHolding, 10, 1+int(count%125))
		q.pdu[0] = max(fn%7, 1)
		if fn > 16 {
			q = registersRequest(unit, 1, make([]uint16, 1+count%100), true)
		}
		whole := scanPieces(q, q.frame(), in)
		if o := scanPieces(q, q.frame(), in, int(cut)); o != whole {
			t.Fatalf("split at %d: %+v, whole %+v", cut, o, whole)
		}
		if o := scanPieces(q, q.frame(), in, ones(len(in))...); o != whole {
			t.Fatalf("byte by byte: %+v, whole %+v", o, whole)
		}
		if whole.pdu == "" {
			return
		}
		body := unhex(t, whole.pdu)
		if !bytes.Contains(in, request{unit, body}.frame()) {
			t.Fatalf("took %s, which is not in the input with its checksum", whole.pdu)
		}
		if ok, exc := q.accept(body); !ok || (exc != nil) != (whole.exc != 0 || len(body) == 2 && body[1] == 0) {
			t.Fatalf("took %s, which is no reply to % x", whole.pdu, q.pdu)
		}
	})
}

func FuzzEnvelope(f *testing.F) {
	f.Add(unhex(f, "00 01 00 00 00 05 01 03 02 03 e8 00 02 00 00 00 05 01 03 02 03 f2"), uint8(5), uint16(2))
	f.Add(unhex(f, "00 01 00 01 00 05 01 03 02 03 e8"), uint8(5), uint16(1))
	f.Fuzz(func(t *testing.T, in []byte, cut uint8, id uint16) {
		take := func(pieces ...[]byte) (pdu []byte, failed bool) {
			w := tcpWire{meter: &meter{}}
			for _, p := range pieces {
				w.buf = append(w.buf, p...)
				_, pdu, err := w.next(id)
				if pdu != nil || err != nil {
					return bytes.Clone(pdu), err != nil
				}
			}
			return nil, false
		}
		pdu, failed := take(in)
		at := min(int(cut), len(in))
		again, failedToo := take(in[:at], in[at:])
		if !bytes.Equal(pdu, again) || failed != failedToo {
			t.Fatalf("split at %d: % x %v, whole % x %v", at, again, failedToo, pdu, failed)
		}
		if pdu != nil && (len(pdu) > maxPDU || !bytes.Contains(in, binary.BigEndian.AppendUint16(nil, id))) {
			t.Fatalf("took % x, which is too long or of another transaction", pdu)
		}
	})
}

func TestStatsAreCopies(t *testing.T) {
	var m meter
	m.count(func(s *Stats) { s.count(&Exception{2}) })
	first := m.read()
	m.count(func(s *Stats) { s.count(&Exception{2}) })
	if second := m.read(); reflect.DeepEqual(first, second) || first.Exceptions[2] != 1 || second.Exceptions[2] != 2 {
		t.Errorf("stats %+v, then %+v", first, second)
	}
}
