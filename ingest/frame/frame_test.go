package frame

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestFrames(t *testing.T) {
	const g = "$GPGGA,123519,4807.038,N,01131.000,E,1,08,0.9,545.4,M,46.9,M,,*47"
	const ais = "!AIVDM,1,1,,B,177KQJ5000G?tO`K>RA1wUbN0TKH,0*5C"
	const tag = `\g:1-2-1234*5A\`
	line := Config{Type: TypeLine, TrimNUL: true}
	raw := Config{Type: TypeLine}
	short := Config{Type: TypeLine, TrimNUL: true, MaxBytes: 8}
	crlf := Config{Type: TypeDelimiter, Delimiter: `\r\n`}
	semi := Config{Type: TypeDelimiter, Delimiter: ";", MaxBytes: 4}
	aab := Config{Type: TypeDelimiter, Delimiter: "aab", MaxBytes: 6, Include: true}
	sentence := Config{Type: TypeNMEA}
	bare := Config{Type: TypeNMEA, Checksum: ChecksumOptional}
	for _, tc := range []struct {
		name string
		cfg  Config
		in   string
		want []string
	}{
		{"line: LF", line, "a\nb\n", []string{"a", "b"}},
		{"line: CR LF and empty lines", line, "\r\na\r\n\r\n\n\rb\r\n", []string{"a", "b"}},
		{"line: blank is data", line, " \n", []string{" "}},
		{"line: half a line at the end", line, "a\nbc", []string{"a", "port closed/2"}},
		{"line: NUL inside stays", line, "a\x00b\n", []string{"a\x00b"}},
		{"line: NULs behind", line, "a\x00\x00\r\x00\nb\n", []string{"a", "noise/2", "noise/1", "b"}},
		{"line: NULs only", line, "\x00\x00\n\x00", []string{"noise/2", "noise/1"}},
		{"line: NULs kept", raw, "\x00a\x00\n", []string{"\x00a\x00"}},
		{"line: high bytes", line, "\xff\x80\n", []string{"\xff\x80"}},
		{"line: at the maximum", short, "12345678\r\n1234567890\r\nx\n", []string{"12345678", "overlong/10", "x"}},
		{"line: NULs in front do not make it overlong", short, strings.Repeat("\x00", 20) + "12345678\n", []string{"noise/20", "12345678"}},
		{"line: NULs behind do not make it overlong", short, "12345678" + strings.Repeat("\x00", 20) + "\n", []string{"12345678", "noise/20"}},
		{"line: NULs inside do", short, "1234" + strings.Repeat("\x00", 20) + "5\n", []string{"overlong/25"}},
		{"line: overlong at the end", short, "123456789", []string{"overlong/9"}},
		{"delimiter: CR LF only", crlf, "a\rb\nc\r\nd\r\n", []string{"a\rb\nc", "d"}},
		{"delimiter: empty frames", semi, ";;a;;b;", []string{"a", "b"}},
		{"delimiter: at the maximum", semi, "1234;12345;a;", []string{"1234", "overlong/5", "a"}},
		{"delimiter: begins again inside itself", aab, "xaaab" + "aaab" + "aab" + "yaab", []string{"xaaab", "aaab", "yaab"}},
		{"delimiter: split over the maximum", aab, "123456aab1234567aabzaab", []string{"123456aab", "overlong/7", "zaab"}},
		{"delimiter: half at the end", semi, "a;bc", []string{"a", "port closed/2"}},
		{"nmea: LF, CR and CR LF", sentence, g + "\n" + g + "\r" + g + "\r\n", []string{g, g, g}},
		{"nmea: small letters in the checksum", sentence, strings.Replace(ais, "5C", "5c", 1) + "\r\n", []string{strings.Replace(ais, "5C", "5c", 1)}},
		{"nmea: one bit wrong", sentence, strings.Replace(g, "4807", "4806", 1) + "\r\n" + g + "\r\n", []string{"bad checksum/65", g}},
		{"nmea: noise around", sentence, "xx" + g + "\r\nyy\r\n\x00" + g + "\r\n", []string{"noise/2", g, "noise/2", "noise/1", g}},
		{"nmea: cut by the next", sentence, "$GPGGA,1235" + g + "\r\n", []string{"truncated/11", g}},
		{"nmea: lead byte only", sentence, "$$!" + g + "\r\n", []string{"truncated/1", "truncated/1", "truncated/1", g}},
		{"nmea: complete without CR LF before the next", sentence, g + ais + "\r\n", []string{g, ais}},
		{"nmea: complete without CR LF at the end", sentence, g, []string{g}},
		{"nmea: half at the end", sentence, g[:30], []string{"port closed/30"}},
		{"nmea: one digit", sentence, g[:len(g)-1] + "\r\n", []string{"bad checksum digits/64"}},
		{"nmea: text behind the checksum", sentence, g + " \r\n", []string{"bad checksum digits/66"}},
		{"nmea: no checksum", sentence, "$GPGGA,1\r\n", []string{"no checksum/8"}},
		{"nmea: no checksum, optional", bare, "$GPGGA,1\r\n" + g + "\r\n$GPGGA,\x80\r\n$GP*00\r\n$GPGGA,1", []string{"$GPGGA,1", g, "bad byte/8", "bad checksum/6", "port closed/8"}},
		{"nmea: nothing but a checksum", sentence, "$*00\r\n$,*2C\r\n", []string{"no sentence address/4", "no sentence address/5"}},
		{"nmea: TAG block", sentence, tag + ais + "\r\n" + g + "\r\n", []string{tag + " " + ais, g}},
		{"nmea: two TAG blocks", sentence, tag + tag + ais + "\r\n", []string{tag + tag + " " + ais}},
		{"nmea: bad TAG block keeps the sentence", sentence, `\g:1-2-1235*5A\` + ais + "\r\n", []string{"bad TAG block/15", ais}},
		{"nmea: bad TAG block before a good one", sentence, `\x*00\` + tag + ais + "\r\n", []string{"bad TAG block/6", tag + " " + ais}},
		{"nmea: stray backslash before a TAG block", sentence, `ab\cd` + tag + ais + "\r\n", []string{"noise/2", "bad TAG block/3", tag + " " + ais}},
		{"nmea: TAG block alone", sentence, tag + "\r\n" + ais + "\r\n", []string{"TAG block without sentence/15", ais}},
		{"nmea: TAG block before noise", sentence, tag + "xy\r\n" + ais + "\r\n", []string{"bad TAG block/17", ais}},
		{"nmea: TAG block without end", sentence, `\g:1-2` + "\r\n" + ais + "\r\n", []string{"bad TAG block/6", ais}},
		{"nmea: TAG block of a bad sentence", sentence, tag + "$GPGGA*00\r\n", []string{"bad checksum/24"}},
		{"nmea: cut by a TAG block", sentence, "$GPGGA,1235" + tag + ais + "\r\n", []string{"truncated/11", tag + " " + ais}},
		{"nmea: complete, then a TAG block", sentence, g + tag + ais + "\r\n", []string{g, tag + " " + ais}},
		{"nmea: at the maximum", sentence, longSentence(256) + "\r\n" + longSentence(257) + "\r\n" + g + "\r\n", []string{longSentence(256), "overlong/257", g}},
		{"nmea: overlong ends with a lead byte", sentence, "$" + strings.Repeat("x", 300) + g + "\r\n", []string{"overlong/301", g}},
		{"nmea: overlong ends with a TAG block", sentence, "$" + strings.Repeat("x", 300) + tag + ais + "\r\n", []string{"overlong/301", tag + " " + ais}},
		{"nmea: overlong with a TAG block at its edge", sentence, "$" + strings.Repeat("x", 248) + tag + ais + "\r\n", []string{"overlong/249", tag + " " + ais}},
		{"nmea: backslashes for ever", sentence, strings.Repeat(`\`, 300) + ais + "\r\n", []string{"bad TAG block/300", ais}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := brief(everySplit(t, tc.cfg, []byte(tc.in))); !reflect.DeepEqual(got, tc.want) {
				t.Errorf("frames of %q\n got %q\nwant %q", tc.in, got, tc.want)
			}
		})
	}
}

// longSentence returns a sentence of n bytes with a right checksum.
func longSentence(n int) string {
	body := "PTEST," + strings.Repeat("x", n-10)
	const hexdigits = "0123456789ABCDEF"
	sum := xor([]byte(body))
	return "$" + body + "*" + string([]byte{hexdigits[sum>>4], hexdigits[sum&15]})
}

// TestEverySentenceCut cuts a good sentence at every byte and flips every bit: never a false frame, and the next one is whole.
func TestEverySentenceCut(t *testing.T) {
	good := strings.TrimSpace(gga)
	cfg := Config{Type: TypeNMEA}
	for i := 1; i < len(good); i++ {
		frames := feed(t, cfg, []byte(good[:i]+gga))
		if n := len(frames); frames[n-1].Reject != "" || string(frames[n-1].Data) != good || n != 2 || frames[0].Reject == "" {
			t.Fatalf("cut at %d: %q", i, brief(frames))
		}
		frames = feed(t, cfg, []byte(good[i:]+"\r\n"+gga))
		if n := len(frames); string(frames[n-1].Data) != good || n != 2 || frames[0].Reject == "" {
			t.Fatalf("from %d on: %q", i, brief(frames))
		}
	}
	for bit := range len(good) * 8 {
		b := []byte(gga)
		b[bit/8] ^= 1 << (bit % 8)
		frames := feed(t, cfg, append(b, gga...))
		for _, f := range frames[:len(frames)-1] {
			if f.Reject == "" && !strings.EqualFold(string(f.Data), good) {
				t.Fatalf("bit %d flipped: accepted %q", bit, f.Data)
			}
		}
		if string(frames[len(frames)-1].Data) != good {
			t.Fatalf("bit %d flipped: %q, the next is lost", bit, brief(frames))
		}
	}
}

func TestFrameTimes(t *testing.T) {
	at := func(s int) time.Time { return epoch.Add(time.Duration(s) * time.Second) }
	for _, tc := range []struct {
		name        string
		cfg         Config
		pieces      []string
		first, last int
	}{
		{"line", Config{Type: TypeLine}, []string{"\n", "a", "b", "\n"}, 1, 2},
		{"delimiter", Config{Type: TypeDelimiter, Delimiter: ";"}, []string{"a", "b", ";"}, 0, 2},
		{"sentence", Config{Type: TypeNMEA}, []string{"x", gga[:20], gga[20 : len(gga)-2], "\r\n"}, 1, 2},
		{"sentence with TAG block", Config{Type: TypeNMEA}, []string{`\g:1-2-1234*5A\`, gga[:20], gga[20:]}, 0, 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var pieces [][]byte
			for _, p := range tc.pieces {
				pieces = append(pieces, []byte(p))
			}
			frames := feed(t, tc.cfg, pieces...)
			f := frames[len(frames)-1]
			if f.Reject != "" || !f.First.Equal(at(tc.first)) || !f.Last.Equal(at(tc.last)) {
				t.Errorf("%q from %s to %s, want %s to %s", brief(frames), f.First, f.Last, at(tc.first), at(tc.last))
			}
		})
	}
}

// TestEndlessNoise feeds megabytes without any terminator: memory stays bounded and the rejects show while it goes on.
func TestEndlessNoise(t *testing.T) {
	for _, tc := range []struct {
		name string
		cfg  Config
		unit string
		want string
	}{
		{"line, letters", Config{Type: TypeLine, TrimNUL: true, MaxBytes: 100}, "x", Overlong},
		{"line, NUL", Config{Type: TypeLine, TrimNUL: true, MaxBytes: 100}, "\x00", Noise},
		{"line, letters and NUL", Config{Type: TypeLine, TrimNUL: true, MaxBytes: 100}, "x\x00", Overlong},
		{"delimiter", Config{Type: TypeDelimiter, Delimiter: "ab", MaxBytes: 100}, "aa", Overlong},
		{"nmea, noise", Config{Type: TypeNMEA}, "x", Noise},
		{"nmea, sentence", Config{Type: TypeNMEA, MaxBytes: 100}, "", Overlong},
		{"nmea, backslashes", Config{Type: TypeNMEA, MaxBytes: 100}, `\`, BadTag},
	} {
		t.Run(tc.name, func(t *testing.T) {
			unit := tc.unit
			in := []byte("\n")
			if unit == "" {
				unit, in = "x", []byte("\n$")
			}
			f, m := open(t, tc.cfg)
			f.Push(in, epoch)
			total := 0
			for range 64 {
				for _, fr := range f.Push([]byte(strings.Repeat(unit, 16<<10/len(unit))), epoch) {
					if fr.Reject != tc.want || len(fr.Data) > 2*100+maxDelimiter+256 {
						t.Fatalf("reject %q of %d bytes with %d kept, want %q", fr.Reject, fr.Size, len(fr.Data), tc.want)
					}
					total += fr.Size
				}
				if held := m.held(); held > 2*chunk {
					t.Fatalf("%d bytes not accounted for yet", held)
				}
			}
			if total < 1<<20-2*chunk {
				t.Errorf("%d bytes rejected of %d", total, 1<<20)
			}
		})
	}
}
