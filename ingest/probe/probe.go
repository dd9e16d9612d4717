// Package probe listens to an unknown serial device and says how to configure it.
package probe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/holdfast-edge/holdfast/ingest/serial"
)

// Setting is how a line is set while it is listened to.
type Setting struct {
	Baud     int    `json:"baud"`
	DataBits int    `json:"data_bits"`
	Parity   string `json:"parity"`
}

// String writes a setting as people do, such as 9600 8N1.
func (s Setting) String() string {
	letter := "N"
	switch s.Parity {
	case "even":
		letter = "E"
	case "odd":
		letter = "O"
	}
	return fmt.Sprintf("%d %d%s1", s.Baud, s.DataBits, letter)
}

// Chunk is what was read at once.
type Chunk struct {
	At   time.Duration // since the port was opened
	Data []byte
}

// Sample is what was heard with one setting.
type Sample struct {
	Setting Setting
	Chunks  []Chunk
}

// Size is how many bytes a sample has.
func (s Sample) Size() int {
	n := 0
	for _, c := range s.Chunks {
		n += len(c.Data)
	}
	return n
}

// Head returns up to n of the first bytes.
func (s Sample) Head(n int) []byte {
	var out []byte
	for _, c := range s.Chunks {
		out = append(out, c.Data[:min(len(c.Data), n-len(out))]...)
	}
	return out
}

// Settings are the settings that are tried, the usual ones first. A line with 7 data bits shows with 8 and no parity.
func Settings() []Setting {
	var all []Setting
	for _, baud := range []int{9600, 115200, 4800, 19200, 38400, 57600, 2400, 1200, 230400, 300} {
		all = append(all, Setting{baud, 8, "none"})
	}
	for _, baud := range []int{9600, 19200, 2400} {
		all = append(all, Setting{baud, 8, "even"})
	}
	return all
}

// Options say what is listened to.
type Options struct {
	Port    string
	Try     []Setting     // tried one after the other
	Listen  time.Duration // how long each is listened to
	Bytes   int           // a sample of so many bytes is enough
	Send    []byte        // what makes the device speak, sent after each open; nil: nothing
	Flow    string        // of the line, as in serial.Config
	Heard   func(Sample)  // called after each setting; nil: nobody wants to know
	Certain func(Sample) bool
}

// Listen opens the port with each setting in turn, and returns what was heard; it ends early when a sample makes Certain true. An error
// of opening the port explains itself by serial.Explain.
func Listen(ctx context.Context, o Options) ([]Sample, error) {
	var all []Sample
	for _, setting := range o.Try {
		s, err := listen(ctx, o, setting)
		if len(s.Chunks) > 0 || err == nil {
			all = append(all, s)
		}
		if err != nil {
			return all, err
		}
		if o.Heard != nil {
			o.Heard(s)
		}
		if ctx.Err() != nil || o.Certain != nil && o.Certain(s) {
			break
		}
	}
	return all, ctx.Err()
}

// listen hears one setting.
func listen(ctx context.Context, o Options, setting Setting) (Sample, error) {
	s := Sample{Setting: setting}
	var cfg serial.Config
	cfg.SetDefaults()
	cfg.Port, cfg.Baud, cfg.DataBits, cfg.Parity = o.Port, setting.Baud, setting.DataBits, setting.Parity
	if o.Flow != "" {
		cfg.Flow = o.Flow
	}
	line, err := serial.OpenLine(cfg)
	if err != nil {
		return s, err
	}
	defer func() { _ = line.Close() }() // nothing that matters was written
	began := time.Now()
	end := began.Add(o.Listen)
	defer context.AfterFunc(ctx, func() { _ = line.SetReadDeadline(time.Unix(1, 0)) })()
	if err := line.SetReadDeadline(end); err != nil {
		return s, err
	}
	if len(o.Send) > 0 {
		if err := line.SetWriteDeadline(end); err != nil {
			return s, err
		}
		if _, err := line.Write(o.Send); err != nil {
			return s, fmt.Errorf("send to %s: %w", o.Port, err)
		}
	}
	buf := make([]byte, 4096)
	for s.Size() < o.Bytes {
		n, err := line.Read(buf)
		if n > 0 {
			s.Chunks = append(s.Chunks, Chunk{At: time.Since(began), Data: append([]byte(nil), buf[:n]...)})
		}
		if errors.Is(err, os.ErrDeadlineExceeded) || ctx.Err() != nil {
			break
		}
		if err != nil {
			return s, fmt.Errorf("read %s: %w", o.Port, err)
		}
	}
	return s, nil
}
