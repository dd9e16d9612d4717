package mqtt

import (
	"bytes"
	"io"
	"net"
	"testing"
	"testing/iotest"
	"time"

	"github.com/eclipse/paho.mqtt.golang/packets"
)

// fixed is a connection whose other side has sent certain bytes.
type fixed struct {
	net.Conn
	r io.Reader
}

func (f fixed) Read(p []byte) (int, error)       { return f.r.Read(p) }
func (f fixed) Write(p []byte) (int, error)      { return len(p), nil }
func (f fixed) SetWriteDeadline(time.Time) error { return nil }

// FuzzGuard reads any bytes through a guard: the result must be the same however they are split, and what the library makes
// of it must not panic or take much memory.
func FuzzGuard(f *testing.F) {
	f.Add([]byte{0x20, 2, 1, 0, 0x90, 3, 0, 1, 1, 0x32, 8, 0, 1, 'a', 0, 7, 'x', 'y', 'z', 0xd0, 0})
	f.Add(append([]byte{0x32, 0xd0, 0x0f, 0, 1, 'a', 0, 1}, make([]byte, 2100)...))
	f.Add(append([]byte{0x30, 0xd0, 0x0f, 0xff, 0xff}, make([]byte, 3000)...))
	f.Add([]byte{0x90, 5, 0, 1, 1, 1, 1})
	f.Add([]byte{0x30, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, data []byte) {
		const limit = 500
		whole := newGuard(fixed{r: bytes.NewReader(data)}, limit, time.Second, func() {})
		a, errA := io.ReadAll(whole)
		split := newGuard(fixed{r: iotest.OneByteReader(bytes.NewReader(data))}, limit, time.Second, func() {})
		b, errB := io.ReadAll(split)
		if !bytes.Equal(a, b) || (errA == nil) != (errB == nil) {
			t.Fatalf("whole: % x, %v\nsplit: % x, %v", a, errA, b, errB)
		}
		if len(a) > len(data) {
			t.Fatalf("%d bytes became %d", len(data), len(a))
		}
		r := bytes.NewReader(a)
		for published := uint64(0); ; {
			p, err := packets.ReadPacket(r)
			if err != nil {
				return
			}
			if m, ok := p.(*packets.PublishPacket); ok {
				if len(m.Payload) > limit {
					t.Fatalf("a payload of %d bytes came through", len(m.Payload))
				}
				if n := whole.oversize(published); n > 0 && (n <= limit || len(m.Payload) > 0) {
					t.Fatalf("message %d: %d bytes cut off, %d left", published, n, len(m.Payload))
				}
				published++
			}
		}
	})
}
