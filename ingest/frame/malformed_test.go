package frame

import (
	"math/bits"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// known says whether a message is one of the sample's; capitals and small letters are one, as in checksum digits.
func (s sample) known(m string) bool {
	return slices.ContainsFunc(s.want, func(w string) bool { return strings.EqualFold(w, m) })
}

// follows checks that, whatever went before, the messages of the good ones that were sent last came out last, and whole.
func (s sample) follows(t *testing.T, frames []Frame, times int, what string) {
	t.Helper()
	got := good(frames)
	n := times*len(s.want) - s.lost
	if len(got) < n || n < 1 {
		t.Fatalf("%s: %q, want %d good messages at least", what, brief(frames), n)
	}
	for i, m := range got[len(got)-n:] {
		if !s.known(m) {
			t.Fatalf("%s: message %d from behind is %q in %q", what, n-i, m, brief(frames))
		}
	}
	if s.strong {
		for _, m := range got {
			if !s.known(m) {
				t.Fatalf("%s: false message %q", what, m)
			}
		}
	}
}

// TestCutMessages cuts every sample at every byte, before good ones: what is cut off never costs a good message.
func TestCutMessages(t *testing.T) {
	for _, s := range samples() {
		t.Run(s.name, func(t *testing.T) {
			times := 2 + s.lost
			rest := strings.Repeat(s.wire, times)
			for i := 1; i < len(s.wire); i++ {
				s.follows(t, feed(t, s.cfg, []byte(s.wire[:i]+rest)), times, "cut at "+s.wire[:i])
				s.follows(t, feed(t, s.cfg, []byte(s.wire[i:]+rest)), times, "from "+s.wire[i:])
				if !s.strong {
					continue
				}
				for _, m := range good(feed(t, s.cfg, []byte(s.wire[:i]))) {
					if !s.known(m) {
						t.Fatalf("cut at %d and nothing behind: false message %q", i, m)
					}
				}
			}
		})
	}
}

// TestFlippedBits flips every bit of every sample, before good ones.
func TestFlippedBits(t *testing.T) {
	for _, s := range samples() {
		t.Run(s.name, func(t *testing.T) {
			times := 2 + s.lost
			for bit := range len(s.wire) * 8 {
				b := []byte(s.wire)
				b[bit/8] ^= 1 << (bit % 8)
				s.follows(t, feed(t, s.cfg, append(b, strings.Repeat(s.wire, times)...)), times, "flipped bit "+string(b))
			}
		})
	}
}

// TestNoiseAround puts noise before, between and behind the samples.
func TestNoiseAround(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	noises := []string{strings.Repeat("\x00", 64), strings.Repeat("\xff", 64), "\r", "\xef\xbb\xbf"}
	for n := 1; n <= 20; n++ {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		noises = append(noises, string(b))
	}
	for _, s := range samples() {
		t.Run(s.name, func(t *testing.T) {
			times := 2 + s.lost
			for _, noise := range noises {
				rest := strings.Repeat(s.wire, times)
				s.follows(t, feed(t, s.cfg, []byte(noise+rest)), times, "behind noise "+noise)
				s.follows(t, feed(t, s.cfg, []byte(s.wire+noise+rest)), times, "between noise "+noise)
				got := good(feed(t, s.cfg, []byte(s.wire+noise)))
				if len(got) < len(s.want) || !slices.Equal(got[:len(s.want)], s.want) {
					t.Fatalf("before noise %q: %q", noise, got)
				}
			}
		})
	}
}

// TestNoiseAlone feeds noise without a message: types with strong checks find none, and nothing is held without a bound.
func TestNoiseAlone(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	noise := make([]byte, 200_000)
	for i := range noise {
		noise[i] = byte(rng.Uint32())
	}
	for _, s := range samples() {
		t.Run(s.name, func(t *testing.T) {
			f, m := open(t, s.cfg)
			found := 0
			for piece := range slices.Chunk(noise, 1000) {
				found += len(good(f.Push(piece, epoch)))
				if held := m.held(); held > 4*s.cfg.limit()+chunk+maxDelimiter {
					t.Fatalf("%d bytes held with a maximum of %d", held, s.cfg.limit())
				}
			}
			if most := map[string]int{TypeMBus: 30, TypeHDLC: 2, TypeSTXETX: 20, TypeMHZ: 4}[s.cfg.Type]; s.strong && found > most {
				t.Errorf("%d messages found in noise, want %d at most", found, most)
			}
		})
	}
}

// TestEndlessGarbage feeds a megabyte of what keeps a framer busiest: memory stays bounded, and the rejects show while it goes on.
func TestEndlessGarbage(t *testing.T) {
	for _, tc := range []struct {
		name string
		cfg  Config
		unit string
		want string // the reason of most bytes
	}{
		{"stx-etx", Config{Type: TypeSTXETX, MaxBytes: 100, BCC: BCCXOR}, "\x02", Overlong},
		{"stx-etx with DLE", Config{Type: TypeSTXETX, MaxBytes: 100, DLE: true}, "\x10\x02", Truncated},
		{"slip", Config{Type: TypeSLIP, MaxBytes: 100}, "x", Overlong},
		{"cobs", Config{Type: TypeCOBS, MaxBytes: 100}, "\xff", Overlong},
		{"hdlc", Config{Type: TypeHDLC, MaxBytes: 100}, "~xxxxxxx", BadChecksum},
		{"gap", Config{Type: TypeGap, MaxBytes: 100, Gap: time.Second}, "x", Overlong},
		{"length", Config{Type: TypeLength, LengthType: LengthU32BE, MaxBytes: 100}, "\xff", BadLength},
		{"endless varint", Config{Type: TypeLength, LengthType: LengthVarint, MaxBytes: 100}, "\xff", BadLength},
		{"fixed", Config{Type: TypeFixed, Length: 100, Sync: "ab"}, "aa", Noise},
		{"dsmr", Config{Type: TypeDSMR, MaxBytes: 100}, "/x", Truncated},
		{"dsmr without end", Config{Type: TypeDSMR, MaxBytes: 1000}, "/" + strings.Repeat("x", 1023), Overlong},
		{"iec", Config{Type: TypeIEC, MaxBytes: 1000}, "\x02" + strings.Repeat("x", 1023), Overlong},
		{"sml", Config{Type: TypeSML, MaxBytes: 100}, string(smlStart), Truncated},
		{"mbus", Config{Type: TypeMBus}, "\x68\xf0\xf0\x69", BadLength},
		{"mbus, long telegrams without end", Config{Type: TypeMBus}, "\x68\x68\x68\x68", NoStop},
		{"vedirect", Config{Type: TypeVEDirect, MaxBytes: 100}, "x", Noise},
		{"vedirect, colons", Config{Type: TypeVEDirect, MaxBytes: 100}, ":", Truncated},
		{"vedirect, lines", Config{Type: TypeVEDirect, MaxBytes: 100}, "\r\n", Overlong},
		{"sdi12", Config{Type: TypeSDI12, MaxBytes: 100}, "0", Overlong},
		{"ais", Config{Type: TypeAIS, MaxBytes: 100}, "!AIVDM,2,1,3,B,", Truncated},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f, m := open(t, tc.cfg)
			piece := []byte(strings.Repeat(tc.unit, 16<<10/len(tc.unit)))
			settled := 0
			reasons := map[string]int{}
			for range 16 {
				for _, fr := range f.Push(piece, epoch) {
					sound(t, tc.cfg, fr)
					if len(fr.Data) > 2*junkChunk {
						t.Fatalf("reject %q keeps %d bytes", fr.Reject, len(fr.Data))
					}
					reasons[fr.Reject] += fr.Size
					settled += fr.Size
				}
				if held := m.held(); held > 2*chunk {
					t.Fatalf("%d bytes not accounted for yet", held)
				}
			}
			if settled += m.terminators(); settled < 16*len(piece)-2*chunk {
				t.Errorf("%d bytes settled of %d", settled, 16*len(piece))
			}
			for why, n := range reasons {
				if n > reasons[tc.want] {
					t.Errorf("%d bytes are %q and %d are %q, want most to be that", n, why, reasons[tc.want], tc.want)
				}
			}
		})
	}
}

// TestParity damages single bits of a 7E1 line: the message is rejected, and no other.
func TestParity(t *testing.T) {
	even := func(s string) []byte {
		b := []byte(s)
		for i := range b {
			if bits.OnesCount8(b[i])%2 == 1 {
				b[i] |= 0x80
			}
		}
		return b
	}
	cfg := Config{Type: TypeDSMR, Checksum: ChecksumOptional, Parity: ParityEven}
	text := strings.Replace(telegram, "E836", "", 1)
	want := strings.TrimSuffix(text, "\r\n")
	three := even(text + text + text)
	if got := good(everySplit(t, cfg, three)); !slices.Equal(got, []string{want, want, want}) {
		t.Fatalf("three good ones: %q", got)
	}
	for i := range text {
		b := slices.Clone(three)
		b[len(text)+i] ^= 1 << (i % 8)
		frames := feed(t, cfg, b)
		if got := good(frames); len(got) > 3 || !slices.Equal(got[:1], []string{want}) || got[len(got)-1] != want {
			t.Fatalf("byte %d damaged: %q", i, brief(frames))
		}
		for _, m := range good(frames) {
			if m != want {
				t.Fatalf("byte %d damaged: false message %q", i, m)
			}
		}
	}
	odd := cfg
	odd.Parity = ParityOdd
	if got := brief(everySplit(t, odd, three)); !slices.Equal(got, []string{"bad parity/111", "bad parity/111", "bad parity/111"}) {
		t.Errorf("read with the wrong parity: %q", got)
	}
	if got := brief(everySplit(t, Config{Type: TypeLine, Parity: ParityEven}, append([]byte("a\xe1\r\n"), even("b\r\nc")...))); !slices.Equal(got, []string{"bad parity/2", "b", "port closed/1"}) {
		t.Errorf("lines: %q", got)
	}
}
