package probe

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/holdfast-edge/holdfast/ingest"
	"github.com/holdfast-edge/holdfast/ingest/frame"
	"github.com/holdfast-edge/holdfast/ingest/serial"
	"github.com/holdfast-edge/holdfast/rig/device"
)

// edge is a change of a line's level.
type edge struct {
	at   time.Duration
	high bool
}

// levels returns how the line changes when a device sends messages with pauses between them.
func levels(messages [][]byte, s Setting) []edge {
	bit := time.Second / time.Duration(s.Baud)
	var line []edge
	at := 10 * time.Millisecond
	put := func(high bool) {
		if n := len(line); n == 0 && !high || n > 0 && line[n-1].high != high {
			line = append(line, edge{at, high})
		}
		at += bit
	}
	for _, m := range messages {
		for _, b := range m {
			put(false)
			for i := range s.DataBits {
				put(b>>i&1 == 1)
			}
			if s.Parity != "none" {
				put((bits.OnesCount8(b&(1<<s.DataBits-1))%2 == 1) == (s.Parity == "even"))
			}
			put(true)
		}
		at += 100 * time.Millisecond
	}
	return line
}

// hear is what a UART with another setting makes of it. A byte without a stop bit arrives as 0.
func hear(line []edge, s Setting) Sample {
	out := Sample{Setting: s}
	bit := time.Second / time.Duration(s.Baud)
	high, k := true, 0
	level := func(at time.Duration) bool {
		for k < len(line) && line[k].at <= at {
			high = line[k].high
			k++
		}
		return high
	}
	for k < len(line) {
		start := line[k].at
		if line[k].high {
			level(start)
			continue
		}
		var b byte
		at := start + bit/2
		level(at)
		for i := range s.DataBits {
			at += bit
			if level(at) {
				b |= 1 << i
			}
		}
		wrong := false
		if s.Parity != "none" {
			at += bit
			wrong = level(at) != ((bits.OnesCount8(b)%2 == 1) == (s.Parity == "even"))
		}
		if at += bit; !level(at) || wrong {
			b = 0
		}
		out.Chunks = append(out.Chunks, Chunk{At: at, Data: []byte{b}})
		for !high && k < len(line) { // a break lasts until the line is high again
			level(line[k].at)
		}
	}
	return out
}

func hexBytes(s string) []byte {
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		panic(err)
	}
	return b
}

func repeat(n int, messages ...[]byte) (out [][]byte) {
	for range n {
		out = append(out, messages...)
	}
	return out
}

// TestGuess lets devices of many kinds be heard with every setting that is tried: the right one is found, and what the bytes are.
func TestGuess(t *testing.T) {
	var gps [][]byte
	var log device.Sentences
	for range 12 {
		gps = append(gps, []byte(log.Next()+"\r\n"))
	}
	var values [][]byte
	for i := range 10 {
		values = append(values, fmt.Appendf(nil, "{\"t\":%d.%d,\"h\":%d}\r\n", 20+i, i, 40+i))
	}
	telegram := []byte("/ISk5\\2EXAMPLE-1\r\n\r\n1-3:0.2.8(50)\r\n0-0:1.0.0(260131120000W)\r\n1-0:1.8.1(000123.456*kWh)\r\n1-0:1.7.0(00.321*kW)\r\n!E836\r\n")
	sml := hexBytes("1b1b1b1b01010101 7605000000016200620072630101 7601 1b1b1b1b 1a00 7cca")
	mbus := hexBytes("68 14 14 68 08 05 72 78 56 34 12 24 40 01 07 55 00 00 00 03 13 15 31 00 b0 16")
	air := hexBytes("424d001c 0007000c000f 0007000c000f 04b0 0154 003c 0008 0003 0001 9700 02d7")
	for _, tc := range []struct {
		name     string
		sends    [][]byte
		with     Setting
		want     Setting
		frame    string
		decode   string
		messages int
		certain  bool
	}{
		{"gps", gps, Setting{4800, 8, "none"}, Setting{4800, 8, "none"}, frame.TypeNMEA, "nmea", 12, true},
		{"gps 38400", gps, Setting{38400, 8, "none"}, Setting{38400, 8, "none"}, frame.TypeNMEA, "nmea", 12, true},
		{"meter P1", repeat(2, telegram), Setting{115200, 8, "none"}, Setting{115200, 8, "none"}, frame.TypeDSMR, "obis", 2, true},
		{"meter SML", repeat(3, sml), Setting{9600, 8, "none"}, Setting{9600, 8, "none"}, frame.TypeSML, "", 3, true},
		{"meter M-Bus", repeat(3, mbus), Setting{2400, 8, "even"}, Setting{2400, 8, "even"}, frame.TypeMBus, "", 3, true},
		{"air", repeat(4, air), Setting{9600, 8, "none"}, Setting{9600, 8, "none"}, frame.TypePMS, "", 4, true},
		{"json lines", values, Setting{19200, 8, "none"}, Setting{19200, 8, "none"}, frame.TypeLine, "json", 10, false},
		{"7 bits", values, Setting{9600, 7, "even"}, Setting{9600, 7, "even"}, frame.TypeLine, "json", 10, false},
		{"7 bits odd", repeat(10, []byte("RH= 45.1 %RH T= 22.3 'C\r\n")), Setting{1200, 7, "odd"}, Setting{1200, 7, "odd"}, frame.TypeLine, "key-value", 10, false},
		{"scale", repeat(10, []byte("\x02 12.5 kg\x03")), Setting{2400, 8, "none"}, Setting{2400, 8, "none"}, frame.TypeSTXETX, "", 10, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			line := levels(tc.sends, tc.with)
			var all []Sample
			for _, s := range Settings() {
				all = append(all, hear(line, s))
			}
			g, ok := Best(all)
			if !ok || g.Setting != tc.want || g.Frame.Type != tc.frame || g.Decode != tc.decode {
				t.Fatalf("Best() = %+v, want %v %s %s", g, tc.want, tc.frame, tc.decode)
			}
			if g.Messages < tc.messages-1 || g.Messages > tc.messages || g.Certain() != tc.certain || g.Garbage > 0.01 {
				t.Errorf("Best() = %+v, want %d messages, certain %t", g, tc.messages, tc.certain)
			}
			f := g.Frame
			if f.Checksum == "" {
				f.Checksum = frame.ChecksumRequired
			}
			if _, err := frame.New(f); err != nil {
				t.Errorf("the guess cannot be configured: %v", err)
			}
		})
	}
}

// TestGuessNothing has samples of which nothing can be made.
func TestGuessNothing(t *testing.T) {
	if g, ok := Best([]Sample{{Setting: Setting{9600, 8, "none"}}}); ok {
		t.Errorf("a silent line is %+v", g)
	}
	var noise Sample
	for i := range 40 {
		noise.Chunks = append(noise.Chunks, Chunk{At: time.Duration(i) * 50 * time.Millisecond, Data: hexBytes("a5 03 91 7c 18 e2")})
	}
	if g, ok := Best([]Sample{noise}); !ok || g.Frame.Type != frame.TypeGap || g.Messages != 40 || g.Hint == "" || g.Score > 0.1 {
		t.Errorf("unknown bursts are %+v", g)
	}
	var bus Sample
	for i := range 10 {
		bus.Chunks = append(bus.Chunks, Chunk{At: time.Duration(i) * 50 * time.Millisecond, Data: hexBytes("01 03 00 00 00 0a c5 cd")})
	}
	if g, _ := Best([]Sample{bus}); !strings.Contains(g.Hint, "Modbus") {
		t.Errorf("a Modbus line is %+v", g)
	}
}

// TestGarbage counts what is between messages, and not what the listening cut.
func TestGarbage(t *testing.T) {
	gga := "$GPGGA,123519,4807.038,N,01131.000,E,1,08,0.9,545.4,M,46.9,M,,*47\r\n"
	s := Sample{Chunks: []Chunk{{Data: []byte(gga[30:] + gga + gga[:20] + gga + gga[:35])}}}
	g, _ := Best([]Sample{s})
	if g.Messages != 2 || g.Garbage < 0.1 || g.Garbage > 0.15 {
		t.Errorf("Best() = %+v, want 2 messages and 20 bytes of garbage", g)
	}
}

func TestCaptureReadsBack(t *testing.T) {
	all := []Sample{
		{Setting: Setting{9600, 8, "none"}},
		{Setting: Setting{4800, 7, "even"}, Chunks: []Chunk{{At: 12 * time.Millisecond, Data: []byte("$GP")}, {At: 1500 * time.Millisecond, Data: []byte{0, 0xff}}}},
	}
	var b bytes.Buffer
	if err := Write(&b, all); err != nil {
		t.Fatal(err)
	}
	got, err := Read(&b)
	if err != nil || !reflect.DeepEqual(got, all) {
		t.Errorf("Read() = %+v, %v, want %+v", got, err, all)
	}
	for text, want := range map[string]string{
		"":                          "empty",
		"{\"at\":1,\"hex\":\"00\"}": "before any setting",
		"hello":                     "line 1",
		"{\"baud\":9600,\"data_bits\":8,\"parity\":\"none\"}\n{\"at\":1,\"hex\":\"0\"}": "line 2",
		"{\"baud\":9600,\"data_bits\":8,\"parity\":\"none\"}\n{\"hex\":\"00\"}":         "line 2",
	} {
		if _, err := Read(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Read(%q) = %v, want %q in it", text, err, want)
		}
	}
}

func FuzzCapture(f *testing.F) {
	f.Add("{\"baud\":9600,\"data_bits\":8,\"parity\":\"none\"}\n{\"at\":0.1,\"hex\":\"244750\"}\n")
	f.Fuzz(func(t *testing.T, text string) {
		all, err := Read(strings.NewReader(text))
		if err == nil {
			Best(all) // must not panic
		}
	})
}

// TestListen hears a pseudo-terminal, speaks first, and ends as soon as it is certain.
func TestListen(t *testing.T) {
	master, slave, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = master.Close(); _ = slave.Close() }()
	link := filepath.Join(t.TempDir(), "port")
	if err := os.Symlink(slave.Name(), link); err != nil {
		t.Fatal(err)
	}
	go func() { // ends with the line
		buf := make([]byte, 16)
		for {
			n, err := master.Read(buf)
			if err != nil {
				return
			}
			if bytes.Contains(buf[:n], []byte("?")) {
				var log device.Sentences
				for range 8 {
					_, _ = master.WriteString(log.Next() + "\r\n")
				}
			}
		}
	}()
	heard := 0
	all, err := Listen(t.Context(), Options{Port: link, Try: Settings(), Listen: 300 * time.Millisecond, Bytes: 1 << 16, Send: []byte("?"),
		Heard: func(Sample) { heard++ },
		Certain: func(s Sample) bool {
			g, ok := Best([]Sample{s})
			return ok && g.Certain()
		}})
	if err != nil || len(all) != 1 || heard != 1 || !bytes.HasPrefix(all[0].Head(6), []byte("$GPRMC")) {
		t.Errorf("Listen() = %+v, %v after %d settings", all, err, heard)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Listen(ctx, Options{Port: link, Try: Settings(), Listen: time.Hour, Bytes: 1}); err == nil {
		t.Error("Listen() goes on when its context has ended")
	}
	if _, err := Listen(t.Context(), Options{Port: link + "x", Try: Settings(), Listen: time.Second, Bytes: 1}); err == nil {
		t.Error("Listen() = nil for a port that is not there")
	} else if kind, cause, remedy := serial.Explain(err); kind != ingest.Waiting || cause == "" || remedy == "" {
		t.Errorf("%v explains as %v %q %q", err, kind, cause, remedy)
	}
}
