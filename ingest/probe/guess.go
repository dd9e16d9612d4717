package probe

import (
	"bytes"
	"encoding/json"
	"math/bits"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-edge/holdfast/ingest/frame"
)

// Guess is how well a way to cut a sample fits it.
type Guess struct {
	Setting  Setting
	Frame    frame.Config
	Decode   string   // a format that its messages can be read by; empty for none
	Messages int      // found
	Examples [][]byte // the first of them
	Garbage  float64  // share of the bytes between the first and the last message that are in none, 0 to 1
	Score    float64  // 0: fits not at all, 1: all bytes are in messages with right checksums
	Hint     string   // what else to know; empty for nothing
}

// Certain says that a guess needs no other to be tried: more than one message with a checksum, and little garbage.
func (g Guess) Certain() bool { return g.Score >= 0.9 && g.Messages > 1 }

// way is a way to cut and how far its messages prove it.
type way struct {
	cfg    frame.Config
	decode string
	weight float64
	least  int // bytes that have to be in messages, since a few fit by chance
}

const (
	examples  = 5
	shortGap  = 20 * time.Millisecond
	textShare = 0.95 // of the bytes of a line of text that are printable
)

// ways are tried in this order; the first of equals wins.
func ways() []way {
	return []way{
		{frame.Config{Type: frame.TypeNMEA}, "nmea", 1, 10},
		{frame.Config{Type: frame.TypeDSMR}, "obis", 1, 64},
		{frame.Config{Type: frame.TypeIEC}, "obis", 1, 20},
		{frame.Config{Type: frame.TypeSML}, "", 1, 16},
		{frame.Config{Type: frame.TypeVEDirect}, "", 1, 32},
		{frame.Config{Type: frame.TypePMS}, "", 1, 32},
		{frame.Config{Type: frame.TypeMBus}, "", 1, 20},
		{frame.Config{Type: frame.TypeDavis}, "", 1, 99},
		{frame.Config{Type: frame.TypeMHZ}, "", 0.95, 18},
		{frame.Config{Type: frame.TypeHDLC}, "", 1, 12},
		{frame.Config{Type: frame.TypeSDI12}, "sdi12", 1, 10},
		{frame.Config{Type: frame.TypeNMEA, Checksum: frame.ChecksumOptional}, "nmea", 0.8, 10},
		{frame.Config{Type: frame.TypeSTXETX, BCC: frame.BCCXOR}, "", 0.95, 10},
		{frame.Config{Type: frame.TypeSTXETX}, "", 0.7, 10},
		{frame.Config{Type: frame.TypeLine, TrimNUL: true}, "", 0.75, 2},
	}
}

// Best returns the guess that fits best over all samples, and false if nothing fits any.
func Best(all []Sample) (Guess, bool) {
	var best Guess
	for _, s := range all {
		if g := guess(s); g.Score > best.Score {
			best = g
		}
	}
	return best, best.Score > 0
}

// guess tries all ways on one sample.
func guess(s Sample) Guess {
	if s.Size() == 0 {
		return Guess{}
	}
	parity := topBits(s)
	best := bursts(s)
	for _, w := range ways() {
		if parity != "" {
			w.cfg.Parity = parity
		}
		if g := try(s, w); g.Score > best.Score {
			best = g
		}
	}
	if n := modbusFrames(s); n > 1 {
		best.Hint = "this is Modbus RTU with a master of its own: a source of type modbus cannot share the line with it"
	}
	if parity != "" && best.Frame.Parity == parity {
		best.Setting.DataBits, best.Setting.Parity = 7, parity
		best.Frame.Parity = ""
	}
	if best.Decode == "" && best.Frame.Type == frame.TypeLine {
		best.Decode = textFormat(best.Examples)
	}
	return best
}

// try cuts a sample in one way.
func try(s Sample, w way) Guess {
	g := Guess{Setting: s.Setting, Frame: w.cfg, Decode: w.decode}
	cfg := w.cfg
	if cfg.Checksum == "" {
		cfg.Checksum = frame.ChecksumRequired
	}
	f, err := frame.New(cfg)
	if err != nil {
		return Guess{} // this way does not go with the parity
	}
	var frames []frame.Frame
	start := time.Unix(0, 0)
	for _, c := range s.Chunks {
		frames = append(frames, f.Push(c.Data, start.Add(c.At))...)
	}
	frames = append(frames, f.Reset("cut off")...)
	good, bad, pending, printable, total := 0, 0, 0, 0, 0
	for _, m := range frames {
		if m.Reject != "" {
			if g.Messages > 0 {
				pending += m.Size // counts if another message follows
			}
			continue
		}
		g.Messages++
		good += m.Size
		bad, pending = bad+pending, 0
		if len(g.Examples) < examples {
			g.Examples = append(g.Examples, m.Data)
		}
		for _, b := range m.Data {
			total++
			if b >= ' ' && b < 0x7f || b == '\t' || b >= 0x80 && w.cfg.Type != frame.TypeLine {
				printable++
			}
		}
	}
	if good < w.least || g.Messages == 0 {
		return Guess{}
	}
	g.Garbage = float64(bad) / float64(good+bad)
	// What stands before the first message and behind the last was cut by the listening, unless it is more than a message.
	rest := max(0, s.Size()-good-bad-4*g.Messages-2*good/g.Messages)
	g.Score = w.weight * float64(good) / float64(good+bad+rest)
	if w.cfg.Type == frame.TypeLine || w.cfg.Type == frame.TypeSTXETX {
		share := float64(printable) / float64(max(total, 1))
		if share < textShare {
			share *= share * share
		}
		g.Score *= share
	}
	return g
}

// bursts guesses messages between silences, which nothing proves.
func bursts(s Sample) Guess {
	g := Guess{Setting: s.Setting, Frame: frame.Config{Type: frame.TypeGap, Gap: shortGap}, Score: 0.05,
		Hint: "no known kind of message fits; these are bursts between silences of 20ms. Look for the device's protocol in its manual"}
	var last []byte
	for i, c := range s.Chunks {
		if i > 0 && c.At-s.Chunks[i-1].At < shortGap {
			last = append(last, c.Data...)
			continue
		}
		if len(last) > 0 && len(g.Examples) < examples {
			g.Examples = append(g.Examples, last)
		}
		g.Messages++
		last = bytes.Clone(c.Data)
	}
	if len(last) > 0 && len(g.Examples) < examples {
		g.Examples = append(g.Examples, last)
	}
	// The noise of a wrong speed is mostly bytes that no device sends.
	odd := 0
	for _, b := range s.Head(1 << 16) {
		if b == 0 || b >= 0xf0 {
			odd++
		}
	}
	g.Score *= 1 - float64(odd)/float64(s.Size()+1)
	return g
}

// topBits finds out that the top bits are the parity of the other seven; empty if they are not.
func topBits(s Sample) string {
	data := s.Head(1 << 16)
	even, set := 0, 0
	for _, b := range data {
		if bits.OnesCount8(b)%2 == 0 {
			even++
		}
		if b >= 0x80 {
			set++
		}
	}
	const least = 16 // bytes
	switch n := len(data); {
	case n < least || set < n/5: // text has about half of them set
		return ""
	case even >= n*98/100:
		return frame.ParityEven
	case even <= n*2/100:
		return frame.ParityOdd
	}
	return ""
}

// modbusFrames counts chunks that are frames of Modbus RTU, by their checksum.
func modbusFrames(s Sample) int {
	n := 0
	for _, c := range s.Chunks {
		if len(c.Data) < 5 || len(c.Data) > 256 {
			continue
		}
		crc := uint16(0xffff)
		for _, b := range c.Data {
			crc ^= uint16(b)
			for range 8 {
				crc = crc>>1 ^ 0xa001*(crc&1)
			}
		}
		if crc == 0 && !slices.ContainsFunc(c.Data[:1], func(b byte) bool { return b > 247 }) {
			n++
		}
	}
	return n
}

// textFormat is the format that lines of text can be decoded by; empty if none fits all.
func textFormat(lines [][]byte) string {
	fits := func(ok func(string) bool) bool {
		n := 0
		for _, l := range lines {
			if s := strings.TrimSpace(string(l)); s != "" {
				if !ok(s) {
					return false
				}
				n++
			}
		}
		return n > 0
	}
	switch {
	case fits(func(s string) bool { return s[0] == '{' && json.Valid([]byte(s)) }):
		return "json"
	case fits(func(s string) bool { return strings.Count(s, "=") > 0 && !strings.HasPrefix(s, "=") }):
		return "key-value"
	case fits(func(s string) bool { return strings.Count(s, ",") > 0 && strings.ContainsAny(s, "0123456789") }):
		return "csv"
	}
	return ""
}
