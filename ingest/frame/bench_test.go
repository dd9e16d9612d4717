package frame

import (
	"strings"
	"testing"
)

// BenchmarkPush measures what a framer costs per byte, with good messages in a row that arrive as from a serial port.
func BenchmarkPush(b *testing.B) {
	for _, s := range samples() {
		b.Run("type="+strings.ReplaceAll(s.name, " ", "_"), func(b *testing.B) {
			in := []byte(strings.Repeat(s.wire, 1+4096/len(s.wire)))
			f, _ := open(b, s.cfg)
			b.SetBytes(int64(len(in)))
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				n += len(f.Push(in, epoch))
			}
			if n == 0 {
				b.Error("no messages")
			}
		})
	}
}
