package frame

import (
	"bytes"
	"encoding/hex"
	"slices"
	"strings"
	"testing"
)

// telegram is a P1 telegram of our own; its CRC was computed by another program.
const telegram = "/ISk5\\2EXAMPLE-1\r\n\r\n1-3:0.2.8(50)\r\n0-0:1.0.0(260131120000W)\r\n1-0:1.8.1(000123.456*kWh)\r\n1-0:1.7.0(00.321*kW)\r\n!E836\r\n"

// loop is a LOOP packet of our own; its CRC was computed by another program.
var loop = raw("4c4f4f14002f017475b4022dd60205032c017e858c939aa1a8afb6bdc4cbd2d9e0e7eef5fc030a11181f262d343b424950575e656c737a81888f969da4abb2b9c0c7ced5dce3eaf1f8ff060d141b222930373e454c535a61686f767d848b920a0d0769")

// sample is what a device sends for one or more good messages.
type sample struct {
	name   string
	cfg    Config
	wire   string
	want   []string // the messages
	strong bool     // no single wrong bit makes another message of it
	lost   int      // how many messages may be lost behind a cut one, because nothing shows where the next begins
}

// raw decodes hexadecimal digits, which may be grouped.
func raw(digits string) string {
	b, err := hex.DecodeString(strings.ReplaceAll(digits, " ", ""))
	if err != nil {
		panic(err)
	}
	return string(b)
}

// run returns the bytes from first to last.
func run(first, last int) string {
	var b []byte
	for c := first; c <= last; c++ {
		b = append(b, byte(c))
	}
	return string(b)
}

// samples returns the golden messages, all checked against other programs or the standards' own samples.
func samples() []sample {
	gga := strings.TrimSpace(gga)
	part1 := "!AIVDM,2,1,3,B,55P5TL01VIaAL@7WKO@mBplU@<PDhh000000001S;AJ::4A80?4i@E53,0*3E"
	part2 := "!AIVDM,2,2,3,B,1@0000000000000,2*55"
	meter := raw("68 14 14 68 08 05 72 78 56 34 12 24 40 01 07 55 00 00 00 03 13 15 31 00 b0 16")
	values := "1-0:1.8.0(000123.456*kWh)\r\n!\r\n"
	air := raw("424d001c 0007000c000f 0007000c000f 04b0 0154 003c 0008 0003 0001 9700 02d7")
	smlBody := raw("7605000000016200620072630101 7601")
	block := raw("0d0a560932363439390d0a534f43093935380d0a436865636b73756d097e")
	optional := ChecksumOptional
	return []sample{
		{name: "slip", cfg: Config{Type: TypeSLIP}, wire: raw("c0 01 db dc db dd 02 c0"), want: []string{raw("01 c0 db 02")}},
		{name: "cobs", cfg: Config{Type: TypeCOBS}, wire: raw("00 03 11 22 02 33 00"), want: []string{raw("11220033")}},
		{name: "cobs zeros", cfg: Config{Type: TypeCOBS}, wire: raw("00 02 11 01 01 01 00"), want: []string{raw("11000000")}},
		{name: "cobs 255", cfg: Config{Type: TypeCOBS}, wire: "\x00\xff" + run(1, 254) + raw("02 ff 00"), want: []string{run(1, 255)}},
		{name: "hdlc", cfg: Config{Type: TypeHDLC}, wire: raw("7e ff 7d 23 c0 21 7d 21 7d 21 7d 20 7d 24 d1 b5 7e"), want: []string{raw("ff03c02101010004")}, strong: true},
		{name: "hdlc escapes", cfg: Config{Type: TypeHDLC}, wire: raw("7e 7d5e 7d5d f1 cd 7e"), want: []string{"~}"}, strong: true},
		{name: "nmea", cfg: Config{Type: TypeNMEA}, wire: gga + "\r\n", want: []string{gga}, strong: true},
		{name: "ais", cfg: Config{Type: TypeAIS}, wire: "!AIVDM,1,1,,B,177KQJ5000G?tO`K>RA1wUbN0TKH,0*5C\r\n", want: []string{"!AIVDM,1,1,,B,177KQJ5000G?tO`K>RA1wUbN0TKH,0*5C"}, strong: true},
		{name: "ais two parts", cfg: Config{Type: TypeAIS}, wire: part1 + "\r\n" + part2 + "\r\n", want: []string{part1 + "\r\n" + part2}, strong: true},
		{name: "dsmr", cfg: Config{Type: TypeDSMR}, wire: telegram, want: []string{strings.TrimSuffix(telegram, "\r\n")}, strong: true},
		{name: "dsmr without CRC", cfg: Config{Type: TypeDSMR, Checksum: optional}, wire: strings.Replace(telegram, "E836", "", 1), want: []string{strings.TrimSuffix(strings.Replace(telegram, "E836", "", 1), "\r\n")}},
		{name: "sdi12", cfg: Config{Type: TypeSDI12}, wire: "0+3.14OqZ\r\n0-0.5+12.3Iw_\r\n", want: []string{"0+3.14OqZ", "0-0.5+12.3Iw_"}, strong: true, lost: 1},
		{name: "mh-z19", cfg: Config{Type: TypeMHZ}, wire: raw("ff 86 02 60 47 00 00 00 d1"), want: []string{raw("ff8602604700 0000d1")}, strong: true},
		{name: "davis", cfg: Config{Type: TypeDavis}, wire: "\x06" + loop, want: []string{loop}, strong: true},
		{name: "pms5003", cfg: Config{Type: TypePMS}, wire: air, want: []string{air}, strong: true},
		{name: "mbus long", cfg: Config{Type: TypeMBus}, wire: meter, want: []string{meter}, strong: true},
		{name: "mbus short", cfg: Config{Type: TypeMBus}, wire: raw("10 40 01 41 16 10 5b 01 5c 16"), want: []string{raw("1040014116"), raw("105b015c16")}, strong: true},
		{name: "iec block", cfg: Config{Type: TypeIEC}, wire: "\x02" + values + "\x03\x6b", want: []string{values}},
		{name: "iec identification and block", cfg: Config{Type: TypeIEC}, wire: "/ISk5MT174-0001\r\n\x02" + values + "\x03\x6b", want: []string{"/ISk5MT174-0001", values}},
		{name: "iec unasked", cfg: Config{Type: TypeIEC, Checksum: optional}, wire: "/ISk5MT174-0001\r\n\r\n" + values, want: []string{"/ISk5MT174-0001\r\n\r\n1-0:1.8.0(000123.456*kWh)\r\n!"}},
		{name: "sml", cfg: Config{Type: TypeSML}, wire: raw("1b1b1b1b01010101") + smlBody + raw("1b1b1b1b 1a00 7cca"), want: []string{smlBody}, strong: true},
		{name: "vedirect", cfg: Config{Type: TypeVEDirect}, wire: block, want: []string{block}, strong: true},
		{name: "vedirect hex", cfg: Config{Type: TypeVEDirect}, wire: ":A0002000148\n", want: []string{":A0002000148"}, strong: true},
		{name: "stx-etx", cfg: Config{Type: TypeSTXETX}, wire: raw("02 ff80c32800 03"), want: []string{raw("ff80c32800")}},
		{name: "stx-etx bcc", cfg: Config{Type: TypeSTXETX, BCC: BCCXOR}, wire: "\x02" + values + "\x03\x6b", want: []string{values}, strong: true},
		{name: "stx-etx dle", cfg: Config{Type: TypeSTXETX, DLE: true}, wire: raw("10 02 01 10 10 03 02 10 03"), want: []string{raw("01 10 03 02")}, lost: 1},
		{name: "stx-etx dle bcc", cfg: Config{Type: TypeSTXETX, DLE: true, BCC: BCCXOR}, wire: raw("10 02 01 10 10 03 05 10 03 14"), want: []string{raw("01 10 03 05")}, strong: true, lost: 1},
		{name: "fixed", cfg: Config{Type: TypeFixed, Length: 6, Sync: "hex:aa55"}, wire: raw("aa55 01020304"), want: []string{raw("aa5501020304")}, lost: 1},
		{name: "u16be", cfg: Config{Type: TypeLength, LengthType: LengthU16BE, MaxBytes: 16}, wire: raw("0003 414243"), want: []string{"ABC"}, lost: 3},
		{name: "u8, sync, all of it", cfg: Config{Type: TypeLength, LengthType: LengthU8, Sync: `\xaa`, Offset: 2, IncludesHeader: true, Include: true, Trailer: 1, MaxBytes: 16}, wire: raw("aa 07 05 4142 43"), want: []string{raw("aa0705414243")}, lost: 3},
		{name: "varint", cfg: Config{Type: TypeLength, LengthType: LengthVarint, Sync: "hex:55aa", Offset: 2, MaxBytes: 200}, wire: raw("55aa 8201") + strings.Repeat("z", 130), want: []string{strings.Repeat("z", 130)}, lost: 2},
	}
}

// good returns the messages among frames.
func good(frames []Frame) []string {
	var out []string
	for _, f := range frames {
		if f.Reject == "" {
			out = append(out, string(f.Data))
		}
	}
	return out
}

func TestGoldenMessages(t *testing.T) {
	for _, s := range samples() {
		t.Run(s.name, func(t *testing.T) {
			frames := everySplit(t, s.cfg, []byte(s.wire))
			if got := good(frames); !slices.Equal(got, s.want) || len(frames) != len(s.want) {
				t.Errorf("frames of %q\n got %q\nwant %q", s.wire, brief(frames), s.want)
			}
			twice := everySplit(t, s.cfg, []byte(s.wire+s.wire))
			if got := good(twice); !slices.Equal(got, append(slices.Clone(s.want), s.want...)) || len(twice) != 2*len(s.want) {
				t.Errorf("frames of two in a row: %q", brief(twice))
			}
		})
	}
}

// TestChecksOfKnownText compares the CRCs with their published check values.
func TestChecksOfKnownText(t *testing.T) {
	text := []byte("123456789")
	if got := crcARC(text); got != 0xbb3d {
		t.Errorf("CRC-16/ARC = %04X, want BB3D", got)
	}
	if got := crcXMODEM(text); got != 0x31c3 {
		t.Errorf("CRC-16/XMODEM = %04X, want 31C3", got)
	}
	if got := crcX25(text); got != 0x906e {
		t.Errorf("CRC-16/X-25 = %04X, want 906E", got)
	}
	if !bytes.Equal([]byte(sdiSum([]byte("0+3.14"))), []byte("OqZ")) {
		t.Errorf("SDI-12 CRC of 0+3.14 = %s, want OqZ", sdiSum([]byte("0+3.14")))
	}
}
