package frame

import (
	"reflect"
	"strings"
	"testing"
)

// smlFile wraps a body, which the caller has escaped and padded.
func smlFile(body string, pad byte) string {
	b := []byte(string(smlStart) + body + string(smlEscape))
	b = append(b, smlEnd, pad)
	sum := crcX25(b)
	return string(append(b, byte(sum), byte(sum>>8)))
}

// withBCC appends the block check character of what is behind the first byte.
func withBCC(s string) string { return s + string([]byte{xor([]byte(s[1:]))}) }

func TestDeviceFrames(t *testing.T) {
	hdlc := Config{Type: TypeHDLC, MaxBytes: 8}
	slip := Config{Type: TypeSLIP, MaxBytes: 4}
	etxBCC := Config{Type: TypeSTXETX, BCC: BCCXOR, MaxBytes: 8}
	iec := Config{Type: TypeIEC}
	unasked := Config{Type: TypeIEC, Checksum: ChecksumOptional}
	p1 := Config{Type: TypeDSMR, Checksum: ChecksumOptional}
	ve := Config{Type: TypeVEDirect}
	sdi := Config{Type: TypeSDI12, TrimNUL: true, Checksum: ChecksumOptional}
	mbus := Config{Type: TypeMBus}
	sml := Config{Type: TypeSML, MaxBytes: 64}
	u8 := Config{Type: TypeLength, LengthType: LengthU8, MaxBytes: 4}
	ais := Config{Type: TypeAIS}
	block := "\r\nV\t26499\r\nSOC\t958\r\nChecksum\t~"
	colon := "\r\nA\tZZ^\r\nChecksum\t:" // its checksum happens to be a colon
	const part1 = "!AIVDM,2,1,0,A,177KQJ5000G?tO`K>RA1wUbN0TKH,0*6C"
	const part2 = "!AIVDM,2,2,0,A,,0*16"
	const tag = `\g:1-2-1234*5A\`
	for _, tc := range []struct {
		name string
		cfg  Config
		in   string
		want []string
	}{
		{"ING-026 one flag between two", hdlc, raw("7e 7d5e7d5df1cd 7e 7d5e7d5df1cd 7e"), []string{"~}", "~}"}},
		{"ING-026 aborted", hdlc, raw("7e 0102 7d 7e 7d5e7d5df1cd 7e"), []string{"aborted/3", "~}"}},
		{"hdlc too short", hdlc, raw("7e 01 7e 7d5e7d5df1cd 7e"), []string{"too short/1", "~}"}},
		{"hdlc end lost", hdlc, raw("7e 7d5e7d5df1cd"), []string{"port closed/6"}},
		{"slip at the maximum", slip, raw("c0 dbdcdbdcdbdcdbdc c0 0102030405 c0 01"), []string{raw("c0c0c0c0"), "overlong/5", "port closed/1"}},
		{"slip escape at the end", slip, raw("01db c0 02 c0"), []string{"bad escape/2", "\x02"}},
		{"stx-etx overlong", etxBCC, withBCC("\x02123456789\x03") + withBCC("\x0212345678\x03"), []string{"overlong/10", "noise/2", "12345678"}},
		{"stx-etx, STX in the data", etxBCC, withBCC("\x02a\x02b\x03"), []string{"a\x02b"}},
		{"stx-etx, half a message before", etxBCC, "\x02ab" + withBCC("\x02cd\x03"), []string{"bad checksum/3", "cd"}},
		{"stx-etx, two that could be one", etxBCC, "\x02\x02" + withBCC("\x02cd\x03"), []string{"truncated/2", "cd"}},
		{"stx-etx empty", etxBCC, withBCC("\x02\x03") + withBCC("\x02a\x03"), []string{"a"}},
		{"stx-etx without BCC, STX begins anew", Config{Type: TypeSTXETX}, "\x02ab\x02cd\x03", []string{"truncated/3", "cd"}},
		{"dle, bad escape", Config{Type: TypeSTXETX, DLE: true}, raw("1002 61 1041 1002 62 1003"), []string{"bad escape/5", "b"}},
		{"dle, STX begins anew", Config{Type: TypeSTXETX, DLE: true}, raw("1002 61 1002 62 1003"), []string{"truncated/3", "b"}},
		{"iec programming mode", iec, withBCC("\x01P0\x02(12345678)\x03"), []string{"P0\x02(12345678)"}},
		{"iec partial block", iec, withBCC("\x021.8.0(1)\r\n\x04") + withBCC("\x022.8.0(2)\r\n\x03"), []string{"1.8.0(1)\r\n", "2.8.0(2)\r\n"}},
		{"iec request", iec, "/?!\r\n/ISk5MT174\r\n", []string{"/?!", "/ISk5MT174"}},
		{"iec identification without letters", iec, "/12345\r\n/ISk5MT174\r\n", []string{"no sentence address/6", "/ISk5MT174"}},
		{"iec unasked, only the identification", unasked, "/ISk5MT174\r\n" + withBCC("\x021.8.0(1)\r\n\x03"), []string{"/ISk5MT174", "1.8.0(1)\r\n"}},
		{"iec unasked, nothing behind the identification", unasked, "/ISk5MT174\r\n", []string{"/ISk5MT174"}},
		{"iec unasked, cut by the next", unasked, "/ISk5MT174\r\n\r\n1.8.0(1)\r\n/ISk5MT174\r\n\r\n1.8.0(1)\r\n!\r\n", []string{"truncated/24", "/ISk5MT174\r\n\r\n1.8.0(1)\r\n!"}},
		{"dsmr without CRC", p1, "/X\r\n\r\n1(2)\r\n!\r\n", []string{"/X\r\n\r\n1(2)\r\n!"}},
		{"dsmr without CRC, wanted", Config{Type: TypeDSMR}, "/X\r\n\r\n1(2)\r\n!\r\n", []string{"no checksum/15"}},
		{"dsmr with a wrong CRC where none is needed", p1, "/X\r\n!0000\r\n", []string{"bad checksum/11"}},
		{"dsmr without CRC, not printable", p1, "/X\x80\r\n!\r\n", []string{"bad byte/8"}},
		{"dsmr digits that are none", p1, "/X\r\n!12G4\r\n/X\r\n!123\r\n/X\r\n!1234567\r\n", []string{"bad checksum digits/11", "bad checksum digits/10", "bad checksum digits/12", "noise/2"}},
		{"dsmr complete without its line end", Config{Type: TypeDSMR}, strings.TrimSuffix(telegram, "\r\n"), []string{strings.TrimSuffix(telegram, "\r\n")}},
		{"dsmr CRC in small letters", Config{Type: TypeDSMR}, strings.Replace(telegram, "E836", "e836", 1), []string{strings.TrimSuffix(strings.Replace(telegram, "E836", "e836", 1), "\r\n")}},
		{"ING-046 escape in the data", sml, smlFile(raw("1b1b1b1b 1b1b1b1b 01010101 aabb0000"), 2), []string{raw("1b1b1b1b 01010101 aabb")}},
		{"sml bad escape", sml, string(smlStart) + raw("1b1b1b1b 02020202") + smlFile("abcd", 0), []string{"bad escape/16", "abcd"}},
		{"sml begins anew at an odd place", sml, string(smlStart) + "abc" + smlFile("abcd", 0), []string{"truncated/11", "abcd"}},
		{"sml without a body", sml, smlFile("", 0) + smlFile("abcd", 3), []string{"bad length/16", "a"}},
		{"sml at the maximum", sml, smlFile(strings.Repeat("x", 64), 0) + smlFile(strings.Repeat("x", 68), 0), []string{strings.Repeat("x", 64), "overlong/76", "noise/8"}},
		{"mbus acknowledgements", mbus, raw("e5 e5 1040014116 e5"), []string{"\xe5", "\xe5", raw("1040014116"), "\xe5"}},
		{"mbus acknowledgement in noise is none", mbus, raw("00 e5 ff 1040014116"), []string{"noise/3", raw("1040014116")}},
		{"mbus without its stop", mbus, raw("1040014117 1040014116"), []string{"no stop byte/5", raw("1040014116")}},
		{"vedirect, a record inside a block", ve, block[:9] + ":A0002000148\n" + block[9:], []string{":A0002000148", block}},
		{"vedirect, a record between blocks", ve, block + ":A0002000148\n" + block, []string{block, ":A0002000148", block}},
		{"vedirect, a bad record costs no block", ve, block[:9] + ":A0002000149\n" + block[9:], []string{"bad checksum/12", block}},
		{"vedirect, a cut record costs no block", ve, block[:9] + ":A000" + block[9:], []string{"truncated/5", block}},
		{"vedirect, colon as checksum", ve, colon + block, []string{colon, block}},
		{"vedirect, cut behind its last TAB", ve, block[:len(block)-1] + block, []string{"bad checksum/29", block}},
		{"sdi12 other answers", sdi, "0\r\n00013\r\n013CAMPBELL_1.2\r\n", []string{"0", "00013", "013CAMPBELL_1.2"}},
		{"sdi12 no address", sdi, "?!\r\n", []string{"no sentence address/2"}},
		{"sdi12 values that are none", sdi, "0+1.2.3\r\n0+\r\n0+1+\r\n0+x\r\n", []string{"bad checksum/7", "bad value/2", "bad value/4", "bad value/3"}},
		{"sdi12 CRC is checked where none is needed", sdi, "0+3.14OqZ\r\n0+3.15OqZ\r\n", []string{"0+3.14OqZ", "bad checksum/9"}},
		{"sdi12 bytes that are no text", sdi, "0+3\x00.14\r\n0+1\r\n", []string{"bad byte/7", "0+1"}},
		{"length zero", u8, "\x00\x00\x01a", []string{"a"}},
		{"length above the maximum", u8, "\x05\x01a", []string{"bad length/1", "a"}},
		{"length that counts less than its header", Config{Type: TypeLength, LengthType: LengthU16LE, IncludesHeader: true}, raw("0100 0300 61"), []string{"bad length/2", "a"}},
		{"length cut", u8, "\x03ab", []string{"port closed/3"}},
		{"good message inside a long false one", u8, "\x04\x01a", []string{"port closed/1", "a"}},
		{"varint of six bytes", Config{Type: TypeLength, LengthType: LengthVarint, MaxBytes: 4}, raw("ffffffffffff 01 61"), []string{"bad length/1", "bad length/1", "bad length/4", "a"}},
		{"ais, other sentences pass", ais, gga + part1 + "\r\n" + gga + part2 + "\r\n", []string{strings.TrimSpace(gga), strings.TrimSpace(gga), part1 + "\r\n" + part2}},
		{"ais, TAG blocks of all parts", ais, tag + part1 + "\r\n" + tag + part2 + "\r\n", []string{tag + tag + " " + part1 + "\r\n" + part2}},
		{"ais, fields that cannot be", ais, checked("!AIVDM,1,1,,A,w,6") + checked("!AIVDM,1,2,,A,w,0") + checked("!AIVDM,2,1,,A,w,0") + checked("!AIVDM,1,1,,A,xX,0"),
			[]string{"bad fields/20", "bad fields/20", "bad fields/20", "bad fields/21"}},
		{"ais, half a group at the end", ais, part1 + "\r\n", []string{"incomplete/48"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := brief(everySplit(t, tc.cfg, []byte(tc.in))); !reflect.DeepEqual(got, tc.want) {
				t.Errorf("frames of %q\n got %q\nwant %q", tc.in, got, tc.want)
			}
		})
	}
}

// checked ends a sentence with its checksum.
func checked(s string) string {
	const hexdigits = "0123456789ABCDEF"
	sum := xor([]byte(s[1:]))
	return s + "*" + string([]byte{hexdigits[sum>>4], hexdigits[sum&15]}) + "\r\n"
}

// TestAISHoldsFewGroups begins more messages than are held: the oldest are given up, and nothing grows.
func TestAISHoldsFewGroups(t *testing.T) {
	var in strings.Builder
	for a := range 26 {
		for seq := range 10 {
			in.WriteString(checked("!A" + string(rune('A'+a)) + "VDM,2,1," + string(rune('0'+seq)) + ",A,w,0"))
		}
	}
	f, m := open(t, Config{Type: TypeAIS})
	if got := len(f.Push([]byte(in.String()), epoch)); got != 260-groupsMax {
		t.Errorf("%d given up, want %d", got, 260-groupsMax)
	}
	if held := m.held(); held > groupsMax*22 {
		t.Errorf("%d bytes held", held)
	}
}
