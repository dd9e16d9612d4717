package frame

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

const gga = "$GPGGA,123519,4807.038,N,01131.000,E,1,08,0.9,545.4,M,46.9,M,,*47\r\n"

var epoch = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// open returns a framer and its machine.
func open(t testing.TB, cfg Config) (Framer, machine) {
	t.Helper()
	f, err := New(cfg)
	if err != nil {
		t.Fatalf("New(%+v) = %v", cfg, err)
	}
	return f, f.(pusher).machine
}

// feed pushes pieces and checks after each that no byte is lost, and that no frame or memory is above the maximum.
func feed(t testing.TB, cfg Config, pieces ...[]byte) []Frame {
	t.Helper()
	f, m := open(t, cfg)
	var out []Frame
	in := 0
	account := func(got []Frame, what string) {
		t.Helper()
		out = append(out, got...)
		sum := 0
		for _, fr := range out {
			sum += fr.Size
		}
		ended, held := m.terminators(), m.held()
		if sum+ended+held != in {
			t.Fatalf("%s: %d bytes in, but %d in frames + %d terminators + %d held", what, in, sum, ended, held)
		}
		for _, fr := range got {
			sound(t, cfg, fr)
		}
	}
	for i, p := range pieces {
		now := epoch
		if cfg.Pause() == 0 { // else time would say more than the bytes
			now = epoch.Add(time.Duration(i) * time.Second)
		}
		own := bytes.Clone(p)
		got := f.Push(own, now)
		in += len(p)
		clear(own) // p stays the caller's: nothing may point into it
		account(got, fmt.Sprintf("after piece %d", i))
		account(f.Tick(now), "after Tick")
	}
	account(f.Reset("port closed"), "after Reset")
	if held := m.held(); held != 0 {
		t.Fatalf("%d bytes held after Reset", held)
	}
	return out
}

// sound checks what holds for every frame.
func sound(t testing.TB, cfg Config, f Frame) {
	t.Helper()
	limit := cfg.limit()
	size := len(f.Data) + len(f.Tag)
	exact := true // Data is all that was on the line
	switch cfg.Type {
	case TypeDelimiter:
		if cfg.Include && f.Reject == "" {
			end, _ := Unescape(cfg.Delimiter)
			limit += len(end)
		}
	case TypeAIS:
		joined := 2 * bytes.Count(f.Data, []byte("\r\n"))
		size -= joined
		limit = 9*limit + joined
		if f.Reject != "" && f.Size < len(f.Data) {
			f.Data = f.Data[:f.Size]
		}
	case TypeSLIP, TypeCOBS, TypeHDLC, TypeSTXETX, TypeLength, TypeSML, TypeIEC:
		exact = false
	}
	switch {
	case f.Size < 1 || len(f.Data) == 0:
		t.Fatalf("empty frame %+v", f)
	case f.Reject == "" && (exact && f.Size != size || f.Size < size || len(f.Data) > limit):
		t.Fatalf("frame of %d bytes with Size %d, maximum %d: %q", len(f.Data), f.Size, limit, f.Data)
	case f.Reject != "" && len(f.Data) > f.Size:
		t.Fatalf("reject with %d bytes of %d", len(f.Data), f.Size)
	case f.Size > 3*limit+chunk+maxDelimiter+maxOffset*2:
		t.Fatalf("frame stands for %d bytes", f.Size)
	case f.First.IsZero() || f.Last.Before(f.First):
		t.Fatalf("frame from %s to %s", f.First, f.Last)
	}
}

// brief writes frames as text: their data, with a TAG block in front, or the reason and size of a reject.
func brief(frames []Frame) []string {
	var out []string
	for _, f := range frames {
		switch {
		case f.Reject != "":
			out = append(out, fmt.Sprintf("%s/%d", f.Reject, f.Size))
		case f.Tag != nil:
			out = append(out, string(f.Tag)+" "+string(f.Data))
		default:
			out = append(out, string(f.Data))
		}
	}
	return out
}

// everySplit returns the frames of in, after checking that every way to cut it gives the same ones.
func everySplit(t testing.TB, cfg Config, in []byte) []Frame {
	t.Helper()
	whole := feed(t, cfg, in)
	same := func(got []Frame, how string) {
		t.Helper()
		if len(got) != len(whole) {
			t.Fatalf("%s of %q: frames %q, in one piece %q", how, in, brief(got), brief(whole))
		}
		for i := range got {
			g, w := got[i], whole[i]
			if !bytes.Equal(g.Data, w.Data) || !bytes.Equal(g.Tag, w.Tag) || g.Size != w.Size || g.Reject != w.Reject {
				t.Fatalf("%s of %q: frame %d is %+v, in one piece %+v", how, in, i, g, w)
			}
		}
	}
	for i := 1; i < len(in); i++ {
		same(feed(t, cfg, in[:i], in[i:]), fmt.Sprintf("split at %d", i))
	}
	same(feed(t, cfg, chop(in, func() int { return 1 })...), "single bytes")
	rng := rand.New(rand.NewPCG(1, 2))
	for round := range 20 {
		same(feed(t, cfg, chop(in, func() int { return 1 + rng.IntN(9) })...), fmt.Sprintf("random split %d", round))
	}
	return whole
}

// chop cuts in into pieces of the sizes that next gives.
func chop(in []byte, next func() int) [][]byte {
	var out [][]byte
	for len(in) > 0 {
		n := min(next(), len(in))
		out, in = append(out, in[:n]), in[n:]
	}
	return out
}
