package frame

import (
	"bytes"
	"testing"
	"time"
)

// fuzz checks on any bytes and any cut that no byte is lost (feed does that) and that the cut makes no difference.
func fuzz(t *testing.T, cfg Config, in []byte, cut uint16) []Frame {
	whole := feed(t, cfg, in)
	at := 0
	if len(in) > 0 {
		at = int(cut) % len(in)
	}
	pieces := [][]byte{in[:at], in[at:]}
	if len(in) < 2000 {
		pieces = append(pieces[:1:1], chop(in[at:], func() int { return 1 + int(cut)%7 })...)
	}
	got := feed(t, cfg, pieces...)
	if len(got) != len(whole) {
		t.Fatalf("frames %q, in one piece %q", brief(got), brief(whole))
	}
	for i := range got {
		g, w := got[i], whole[i]
		if !bytes.Equal(g.Data, w.Data) || !bytes.Equal(g.Tag, w.Tag) || g.Size != w.Size || g.Reject != w.Reject {
			t.Fatalf("frame %d is %+v, in one piece %+v", i, g, w)
		}
	}
	return whole
}

func FuzzLine(f *testing.F) {
	f.Add([]byte("temp=21.5\r\nhum=40\r\n"), uint16(10), uint8(64), true)
	f.Add([]byte("\x00\x00a\x00b\x00\r\n\n"), uint16(3), uint8(2), true)
	f.Fuzz(func(t *testing.T, in []byte, cut uint16, limit uint8, trim bool) {
		for _, fr := range fuzz(t, Config{Type: TypeLine, MaxBytes: int64(limit), TrimNUL: trim}, in, cut) {
			if fr.Reject == "" && bytes.ContainsAny(fr.Data, "\r\n") {
				t.Fatalf("line end inside %q", fr.Data)
			}
		}
	})
}

func FuzzDelimiter(f *testing.F) {
	f.Add([]byte("a;b;;c"), []byte(";"), uint16(2), uint8(2), false)
	f.Add([]byte("xaaabaab"), []byte("aab"), uint16(3), uint8(0), true)
	f.Fuzz(func(t *testing.T, in, end []byte, cut uint16, limit uint8, include bool) {
		if len(end) == 0 || len(end) > maxDelimiter {
			t.Skip("no such delimiter can be configured")
		}
		quoted := make([]byte, 0, 4*len(end))
		for _, c := range end {
			quoted = append(quoted, '\\', 'x', "0123456789abcdef"[c>>4], "0123456789abcdef"[c&15])
		}
		cfg := Config{Type: TypeDelimiter, Delimiter: string(quoted), MaxBytes: int64(limit), Include: include}
		for _, fr := range fuzz(t, cfg, in, cut) {
			if fr.Reject == "" && (bytes.HasSuffix(fr.Data, end) != include && include || bytes.Contains(bytes.TrimSuffix(fr.Data, end), end)) {
				t.Fatalf("delimiter %q inside or missing in %q", end, fr.Data)
			}
		}
	})
}

func FuzzNMEA(f *testing.F) {
	f.Add([]byte(gga+gga), uint16(9), uint8(0), false)
	f.Add([]byte(`\g:1-2-1234*5A\!AIVDM,2,2,3,B,1@0000000000000,2*55`+"\r\n"), uint16(5), uint8(100), false)
	f.Add([]byte("$GPGGA,1\\x*78\\$GPGGA\r\n"), uint16(5), uint8(90), true)
	f.Fuzz(func(t *testing.T, in []byte, cut uint16, limit uint8, bare bool) {
		cfg := Config{Type: TypeNMEA, Checksum: ChecksumRequired}
		if bare {
			cfg.Checksum = ChecksumOptional
		}
		if limit >= 82 {
			cfg.MaxBytes = int64(limit)
		}
		check := nmea{bare: bare}
		for _, fr := range fuzz(t, cfg, in, cut) {
			if fr.Reject != "" {
				continue
			}
			if why := check.check(fr.Data); why != "" || bytes.ContainsAny(fr.Data[1:], "$!\r\n") || fr.Data[0] != '$' && fr.Data[0] != '!' {
				t.Fatalf("accepted %q: %s", fr.Data, why)
			}
			if fr.Tag != nil && tagStart(fr.Tag) != 0 {
				t.Fatalf("accepted TAG block %q", fr.Tag)
			}
		}
	})
}

// FuzzDevices gives any bytes to any of the framers that have samples, with a small maximum.
func FuzzDevices(f *testing.F) {
	all := samples()
	for i, s := range all {
		f.Add([]byte(s.wire+s.wire), uint16(7), uint8(i), uint8(0))
		f.Add([]byte("\x00"+s.wire[:len(s.wire)/2]+s.wire), uint16(11), uint8(i), uint8(64))
	}
	f.Fuzz(func(t *testing.T, in []byte, cut uint16, which, limit uint8) {
		cfg := all[int(which)%len(all)].cfg
		if kind := kinds[cfg.Type]; int(limit) >= kind.least && kind.least < kind.most {
			cfg.MaxBytes = int64(limit)
		}
		fuzz(t, cfg, in, cut)
		if cfg.Type == TypeDSMR {
			cfg.Parity = ParityEven
			fuzz(t, cfg, in, cut)
		}
	})
}

// fuzzOf makes the fuzz test of one type: messages are checked by accept, beside what fuzz checks of all.
func fuzzOf(f *testing.F, accept func(t *testing.T, cfg Config, fr Frame), cfgs ...Config) {
	for _, s := range samples() {
		for i, cfg := range cfgs {
			if s.cfg.Type == cfg.Type {
				f.Add([]byte(s.wire+s.wire), uint16(5), uint8(i))
				f.Add([]byte(s.wire[len(s.wire)/2:]+s.wire), uint16(3), uint8(i))
			}
		}
	}
	f.Fuzz(func(t *testing.T, in []byte, cut uint16, which uint8) {
		cfg := cfgs[int(which)%len(cfgs)]
		for _, fr := range fuzz(t, cfg, in, cut) {
			if fr.Reject == "" {
				accept(t, cfg, fr)
			}
		}
	})
}

func FuzzSTXETX(f *testing.F) {
	fuzzOf(f, func(t *testing.T, cfg Config, fr Frame) {
		if !cfg.DLE && bytes.IndexByte(fr.Data, etx) >= 0 {
			t.Fatalf("ETX inside %q", fr.Data)
		}
	}, Config{Type: TypeSTXETX, MaxBytes: 32}, Config{Type: TypeSTXETX, BCC: BCCXOR, MaxBytes: 32}, Config{Type: TypeSTXETX, DLE: true, MaxBytes: 32},
		Config{Type: TypeSTXETX, DLE: true, BCC: BCCXOR, MaxBytes: 32})
}

func FuzzFixed(f *testing.F) {
	fuzzOf(f, func(t *testing.T, _ Config, fr Frame) {
		if len(fr.Data) != 6 || !bytes.HasPrefix(fr.Data, []byte{0xaa, 0x55}) {
			t.Fatalf("accepted %q", fr.Data)
		}
	}, Config{Type: TypeFixed, Length: 6, Sync: "hex:aa55"})
}

func FuzzLength(f *testing.F) {
	fuzzOf(f, func(*testing.T, Config, Frame) {}, // fuzz checks the length
		Config{Type: TypeLength, LengthType: LengthU16BE, MaxBytes: 16}, Config{Type: TypeLength, LengthType: LengthU32LE, MaxBytes: 16, IncludesHeader: true},
		Config{Type: TypeLength, LengthType: LengthVarint, MaxBytes: 200, Sync: "hex:55aa", Offset: 3, Trailer: 1},
		Config{Type: TypeLength, LengthType: LengthU8, MaxBytes: 16, Offset: 2, Include: true, IncludesHeader: true, Trailer: 2})
}

func FuzzGap(f *testing.F) {
	f.Add([]byte("abcdefgh"), uint8(3), uint8(2))
	f.Fuzz(func(t *testing.T, in []byte, size, limit uint8) {
		cfg := Config{Type: TypeGap, Gap: time.Second, MaxBytes: int64(limit)}
		fr, m := open(t, cfg)
		sum, now := 0, epoch
		count := func(frames []Frame) {
			for _, f := range frames {
				sound(t, cfg, f)
				sum += f.Size
			}
		}
		for i, p := range chop(in, func() int { return 1 + int(size) }) {
			now = now.Add(time.Duration(i%3) * time.Second / 2)
			count(fr.Push(p, now))
		}
		count(fr.Reset("end"))
		if sum != len(in) || m.held() != 0 {
			t.Fatalf("%d bytes in, %d out, %d held", len(in), sum, m.held())
		}
	})
}

func FuzzSLIP(f *testing.F) {
	fuzzOf(f, func(t *testing.T, _ Config, fr Frame) {
		again := bytes.ReplaceAll(bytes.ReplaceAll(fr.Data, []byte{0xdb}, []byte{0xdb, 0xdd}), []byte{0xc0}, []byte{0xdb, 0xdc})
		if len(again) != fr.Size {
			t.Fatalf("%q encodes to %d bytes, had %d", fr.Data, len(again), fr.Size)
		}
	}, Config{Type: TypeSLIP, MaxBytes: 64})
}

func FuzzCOBS(f *testing.F) {
	fuzzOf(f, func(t *testing.T, _ Config, fr Frame) {
		if n := len(fr.Data); fr.Size < n+1 || fr.Size > n+2+n/254 {
			t.Fatalf("%d bytes from %d", n, fr.Size)
		}
	}, Config{Type: TypeCOBS, MaxBytes: 300})
}

func FuzzHDLC(f *testing.F) {
	fuzzOf(f, func(t *testing.T, _ Config, fr Frame) {
		if fr.Size < len(fr.Data)+hdlcSumLen || len(fr.Data) < hdlcShort-hdlcSumLen {
			t.Fatalf("%q from %d bytes", fr.Data, fr.Size)
		}
	}, Config{Type: TypeHDLC, MaxBytes: 64})
}

func FuzzAIS(f *testing.F) {
	fuzzOf(f, func(t *testing.T, _ Config, fr Frame) {
		for _, s := range bytes.Split(fr.Data, []byte("\r\n")) {
			if why := (&nmea{}).check(s); why != "" {
				t.Fatalf("accepted %q: %s", fr.Data, why)
			}
		}
	}, Config{Type: TypeAIS})
}

func FuzzDSMR(f *testing.F) {
	fuzzOf(f, func(t *testing.T, _ Config, fr Frame) {
		if i := bytes.IndexByte(fr.Data, '!'); fr.Data[0] != '/' || i < 0 || bytes.IndexByte(fr.Data[1:], '/') >= 0 {
			t.Fatalf("accepted %q", fr.Data)
		}
	}, Config{Type: TypeDSMR, MaxBytes: 200}, Config{Type: TypeDSMR, Checksum: ChecksumOptional, Parity: ParityOdd})
}

func FuzzIEC(f *testing.F) {
	fuzzOf(f, func(t *testing.T, _ Config, fr Frame) {
		if bytes.IndexByte(fr.Data, etx) >= 0 {
			t.Fatalf("accepted %q", fr.Data)
		}
	}, Config{Type: TypeIEC, MaxBytes: 100}, Config{Type: TypeIEC, Checksum: ChecksumOptional, MaxBytes: 100})
}

func FuzzSML(f *testing.F) {
	fuzzOf(f, func(t *testing.T, _ Config, fr Frame) {
		if fr.Size < len(fr.Data)+16 || fr.Size%4 != 0 {
			t.Fatalf("%d bytes from %d", len(fr.Data), fr.Size)
		}
	}, Config{Type: TypeSML, MaxBytes: 64})
}

func FuzzMBus(f *testing.F) {
	fuzzOf(f, func(t *testing.T, _ Config, fr Frame) {
		if n := len(fr.Data); fr.Data[n-1] != mbusStop && (n != 1 || fr.Data[0] != mbusAck) {
			t.Fatalf("accepted %q", fr.Data)
		}
	}, Config{Type: TypeMBus})
}

func FuzzPMS(f *testing.F) {
	fuzzOf(f, func(t *testing.T, _ Config, fr Frame) {
		if len(fr.Data)%4 != 0 || fr.Data[0] != 'B' || fr.Data[1] != 'M' {
			t.Fatalf("accepted %q", fr.Data)
		}
	}, Config{Type: TypePMS})
}

func FuzzVEDirect(f *testing.F) {
	fuzzOf(f, func(t *testing.T, _ Config, fr Frame) {
		if fr.Data[0] == ':' && recordCheck(fr.Data) != "" || fr.Data[0] != ':' && total(fr.Data) != 0 {
			t.Fatalf("accepted %q", fr.Data)
		}
	}, Config{Type: TypeVEDirect, MaxBytes: 100})
}

func FuzzSDI12(f *testing.F) {
	fuzzOf(f, func(t *testing.T, cfg Config, fr Frame) {
		if !alnum(fr.Data[0]) || sdiCheck(fr.Data, cfg.Checksum == ChecksumOptional) != "" {
			t.Fatalf("accepted %q", fr.Data)
		}
	}, Config{Type: TypeSDI12}, Config{Type: TypeSDI12, Checksum: ChecksumOptional, Parity: ParityEven})
}
