package frame

import (
	"bytes"
	"testing"
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
