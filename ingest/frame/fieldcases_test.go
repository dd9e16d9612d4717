package frame

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
	"time"
)

// TestFieldCasesOfDevices runs the field cases of all framers but lines and sentences.
func TestFieldCasesOfDevices(t *testing.T) {
	const part1 = "!AIVDM,2,1,3,B,55P5TL01VIaAL@7WKO@mBplU@<PDhh000000001S;AJ::4A80?4i@E53,0*3E"
	const part2 = "!AIVDM,2,2,3,B,1@0000000000000,2*55"
	const single = "!AIVDM,1,1,,A,177KQJ5000G?tO`K>RA1wUbN0TKH,0*5F"
	whole := strings.TrimSuffix(telegram, "\r\n")
	ais := Config{Type: TypeAIS, Checksum: ChecksumRequired}
	p1 := Config{Type: TypeDSMR}
	zero := raw("424d001c00000000000000000000000000000000000000000000000097000142")
	air := raw("424d001c0007000c000f0007000c000f04b00154003c000800030001970002d7")
	for _, tc := range []struct {
		id, name string
		cfg      Config
		want     []string // as brief writes them
	}{
		{"ING-018", "bytes above 7F stay", Config{Type: TypeSTXETX}, []string{raw("ff80c32800")}},
		{"ING-022", "bad escape costs one message", Config{Type: TypeSLIP}, []string{"bad escape/4", raw("0708")}},
		{"ING-023", "both escapes", Config{Type: TypeSLIP}, []string{raw("01c0db02")}},
		{"ING-024", "stray byte before the first delimiter", Config{Type: TypeCOBS}, []string{"bad code/1", raw("11220033")}},
		{"ING-025", "254 bytes without a zero", Config{Type: TypeCOBS}, []string{run(1, 254)}},
		{"ING-026", "escaped flag and escape", Config{Type: TypeHDLC}, []string{raw("7e7d")}},
		{"ING-032", "empty second part", ais, []string{"!AIVDM,2,1,0,A,177KQJ5000G?tO`K>RA1wUbN0TKH,0*6C\r\n!AIVDM,2,2,0,A,,0*16"}},
		{"ING-033", "part one of none", ais, []string{"bad fields/27", "!AIVDM,1,1,,B,177KQJ5000G?tO`K>RA1wUbN0TKH,0*5C"}},
		{"ING-034", "another message between the parts", ais, []string{single, part1 + "\r\n" + part2}},
		{"ING-036", "TAG block before a part", ais, []string{"incomplete/50"}},
		{"ING-037", "good telegram", p1, []string{whole}},
		{"ING-038", "one character wrong", p1, []string{"bad checksum/117"}},
		{"ING-040", "footer and header lost", p1, []string{"truncated/70", whole}},
		{"ING-041", "begins in the middle", p1, []string{"noise/26", whole}},
		{"ING-043", "7E1 read as 8N1", Config{Type: TypeLine, Parity: ParityEven}, []string{`/ISk5\2X`}},
		{"ING-044", "block check character", Config{Type: TypeSTXETX, BCC: BCCXOR}, []string{"1-0:1.8.0(000123.456*kWh)\r\n!\r\n"}},
		{"ING-044", "block check character of a meter", Config{Type: TypeIEC}, []string{"1-0:1.8.0(000123.456*kWh)\r\n!\r\n"}},
		{"ING-045", "good file", Config{Type: TypeSML}, []string{raw("76050000000162006200726301017601")}},
		{"ING-046", "end lost", Config{Type: TypeSML}, []string{"truncated/20", raw("76050000000162006200726301017601")}},
		{"ING-050", "checksum ends like the next begins", Config{Type: TypePMS}, []string{"noise/2", zero, zero}},
		{"ING-052", "noise at the start", Config{Type: TypePMS}, []string{"noise/9", air}},
		{"ING-053", "one wrong word", Config{Type: TypePMS}, []string{"bad checksum/32", air}},
		{"ING-057", "two blocks", Config{Type: TypeVEDirect}, []string{
			"\r\nV\t26499\r\nSOC\t958\r\nChecksum\t~", "\r\nH1\t-106769\r\nH2\t-4419\r\nChecksum\t\x11"}},
		{"ING-058", "last character of the CRC missing", Config{Type: TypeSDI12}, []string{"bad checksum/8", "0+3.14OqZ", "0-0.5+12.3Iw_"}},
		{"ING-059", "bytes that are no text in front", Config{Type: TypeSDI12, TrimNUL: true, Checksum: ChecksumOptional}, []string{
			"noise/1", "noise/1", "1+0.10555-16.6187+0.24371"}},
	} {
		t.Run(tc.id+" "+tc.name, func(t *testing.T) {
			in := fieldCase(t, tc.id)
			if got := brief(everySplit(t, tc.cfg, in)); !reflect.DeepEqual(got, tc.want) {
				t.Errorf("frames of %q\n got %q\nwant %q", in, got, tc.want)
			}
		})
	}
}

// at is what comes after a silence.
type at struct {
	after time.Duration
	bytes string // empty: a tick
}

// play pushes bytes at their times, as a whole and byte by byte, with a tick between, and wants the same frames.
func play(t *testing.T, cfg Config, script ...at) []Frame {
	t.Helper()
	var all []Frame
	for _, single := range []bool{false, true} {
		f, m := open(t, cfg)
		now := epoch
		in, sum := 0, 0
		var frames []Frame
		for _, s := range script {
			now = now.Add(s.after)
			if s.bytes == "" {
				frames = append(frames, f.Tick(now)...)
			}
			pieces := [][]byte{[]byte(s.bytes)}
			if single {
				pieces = chop([]byte(s.bytes), func() int { return 1 })
			}
			for _, p := range pieces {
				frames = append(frames, f.Push(p, now)...)
				frames = append(frames, f.Tick(now)...)
			}
			in += len(s.bytes)
		}
		frames = append(frames, f.Reset("port closed")...)
		for _, fr := range frames {
			sum += fr.Size
			sound(t, cfg, fr)
		}
		if sum+m.terminators() != in || m.held() != 0 {
			t.Fatalf("%d bytes in, %d in frames, %d terminators, %d held", in, sum, m.terminators(), m.held())
		}
		if single && !reflect.DeepEqual(brief(frames), brief(all)) {
			t.Fatalf("byte by byte %q, as a whole %q", brief(frames), brief(all))
		}
		all = frames
	}
	return all
}

func TestSilence(t *testing.T) {
	const ms = time.Millisecond
	fixed := Config{Type: TypeFixed, Length: 4, Gap: 50 * ms}
	gap := Config{Type: TypeGap, Gap: 20 * ms, MaxBytes: 6}
	meter := samples()[slot(t, "mbus long")].wire
	slow := Config{Type: TypeMBus, Gap: 150 * ms}
	single := "!AIVDM,1,1,,B,177KQJ5000G?tO`K>RA1wUbN0TKH,0*5C\r\n"
	parts := string(fieldCase(t, "ING-035"))
	first, second, _ := strings.Cut(parts, "\r\n")
	ais := Config{Type: TypeAIS}
	joined := string(fieldCase(t, "ING-032"))
	part1, part2, _ := strings.Cut(joined, "\r\n")
	for _, tc := range []struct {
		name   string
		cfg    Config
		script []at
		want   []string
	}{
		{"ING-017 fixed, half a message before", fixed, []at{{0, raw("0304")}, {200 * ms, raw("0102030401020304")}}, []string{"cut off by silence/2", raw("01020304"), raw("01020304")}},
		{"fixed, slow but without a gap", fixed, []at{{0, raw("01")}, {49 * ms, raw("02")}, {49 * ms, raw("0304")}}, []string{raw("01020304")}},
		{"fixed, silence shows by a tick", fixed, []at{{0, raw("0102")}, {50 * ms, ""}, {0, raw("01020304")}}, []string{"cut off by silence/2", raw("01020304")}},
		{"gap", gap, []at{{0, "ab"}, {19 * ms, "c"}, {20 * ms, "d"}, {20 * ms, ""}, {0, "e"}}, []string{"abc", "d", "port closed/1"}},
		{"gap at the maximum", gap, []at{{0, "123456"}, {20 * ms, "1234567"}, {20 * ms, "x"}, {30 * ms, ""}}, []string{"123456", "overlong/7", "x"}},
		{"gap without bytes", gap, []at{{0, ""}, {time.Hour, ""}}, nil},
		{"gap after megabytes", gap, []at{{0, strings.Repeat("x", 100_000)}, {20 * ms, "x"}, {20 * ms, ""}}, []string{"overlong/65542", "overlong/34458", "x"}},
		{"ING-048 mbus with holes", slow, []at{{1100 * ms, meter[:5]}, {60 * ms, meter[5:20]}, {149 * ms, meter[20:]}}, []string{meter}},
		{"mbus, half a telegram before silence", slow, []at{{0, meter[:9]}, {150 * ms, meter}}, []string{"cut off by silence/9", meter}},
		{"mbus, half a telegram swallows none", slow, []at{{0, raw("68f0f068") + raw("1040014116")}, {150 * ms, meter}}, []string{"cut off by silence/4", raw("1040014116"), meter}},
		{"ING-035 ais, parts of two messages", ais, []at{{0, parts}, {9 * time.Second, single}, {time.Second, ""}, {0, single}}, []string{
			strings.TrimSpace(single), "incomplete/76", "incomplete/35", strings.TrimSpace(single)}},
		{"ais, late part", ais, []at{{0, first + "\r\n"}, {11 * time.Second, second}}, []string{"incomplete/76", "incomplete/35"}},
		{"ais, part in time", ais, []at{{0, part1 + "\r\n"}, {9 * time.Second, part2}}, []string{strings.TrimSpace(joined)}},
		{"ais, wrong order", ais, []at{{0, part2}, {time.Second, part1 + "\r\n"}}, []string{strings.TrimSpace(joined)}},
		{"ais, the same part twice", ais, []at{{0, part1 + "\r\n"}, {time.Second, joined}}, []string{"incomplete/48", strings.TrimSpace(joined)}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := brief(play(t, tc.cfg, tc.script...)); !reflect.DeepEqual(got, tc.want) {
				t.Errorf("got %q\nwant %q", got, tc.want)
			}
		})
	}
}

// slot returns the index of a sample.
func slot(t *testing.T, name string) int {
	t.Helper()
	for i, s := range samples() {
		if s.name == name {
			return i
		}
	}
	t.Fatalf("no sample %s", name)
	return 0
}

// TestLineEndsChanged is ING-039: a copy of a telegram whose CR LF became LF says so, and a wrong CRC shows both.
func TestLineEndsChanged(t *testing.T) {
	good := fieldCase(t, "ING-037")
	frames := everySplit(t, Config{Type: TypeDSMR}, bytes.ReplaceAll(good, []byte("\r\n"), []byte("\n")))
	if len(frames) != 1 || frames[0].Reject != LineEnds || !strings.Contains(frames[0].Detail, "CR LF") {
		t.Errorf("ING-039: %+v", frames)
	}
	frames = everySplit(t, Config{Type: TypeDSMR}, fieldCase(t, "ING-038"))
	if len(frames) != 1 || !strings.Contains(frames[0].Detail, "E836") {
		t.Errorf("ING-038: %+v, want a detail with both CRCs", frames)
	}
}

// TestCOBSOfOtherEncoders is the second half of ING-025.
func TestCOBSOfOtherEncoders(t *testing.T) {
	long := "\xff" + run(1, 254)
	for _, tc := range []struct {
		name, wire string
		want       []string
	}{
		{"code 1 behind 254 bytes", long + "\x01\x00", []string{run(1, 254)}},
		{"runs past the delimiter", "\x05abc\x00\x02a\x00", []string{"bad code/4", "a"}},
		{"empty message", "\x01\x00\x00\x02a\x00", []string{"a"}},
	} {
		t.Run("ING-025 "+tc.name, func(t *testing.T) {
			if got := brief(everySplit(t, Config{Type: TypeCOBS}, []byte(tc.wire))); !reflect.DeepEqual(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
