package probe

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// entry is a line of a capture: a setting, or bytes that were heard with the setting before it.
type entry struct {
	*Setting
	At  *float64 `json:"at,omitempty"` // seconds since the port was opened
	Hex string   `json:"hex,omitempty"`
}

// maxEntry bounds a line of a capture.
const maxEntry = 1 << 20

// Write writes samples as a capture: lines of JSON, a setting each and then what was heard, in hexadecimal.
func Write(w io.Writer, all []Sample) error {
	e := json.NewEncoder(w)
	for _, s := range all {
		if err := e.Encode(entry{Setting: &s.Setting}); err != nil {
			return fmt.Errorf("write capture: %w", err)
		}
		for _, c := range s.Chunks {
			at := c.At.Seconds()
			if err := e.Encode(entry{At: &at, Hex: hex.EncodeToString(c.Data)}); err != nil {
				return fmt.Errorf("write capture: %w", err)
			}
		}
	}
	return nil
}

// Read reads a capture. The error names the line.
func Read(r io.Reader) ([]Sample, error) {
	var all []Sample
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxEntry)
	for n := 1; lines.Scan(); n++ {
		if len(lines.Bytes()) == 0 {
			continue
		}
		var e entry
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, fmt.Errorf("capture line %d: %w; give a file that probe -capture wrote", n, err)
		}
		switch {
		case e.Setting != nil && e.At == nil:
			all = append(all, Sample{Setting: *e.Setting})
		case len(all) == 0:
			return nil, fmt.Errorf("capture line %d: bytes before any setting", n)
		case e.At == nil || *e.At < 0 || *e.At > 1e6:
			return nil, fmt.Errorf("capture line %d: at is missing or no time", n)
		default:
			data, err := hex.DecodeString(e.Hex)
			if err != nil {
				return nil, fmt.Errorf("capture line %d: hex: %w", n, err)
			}
			s := &all[len(all)-1]
			s.Chunks = append(s.Chunks, Chunk{At: time.Duration(*e.At * float64(time.Second)), Data: data})
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read capture: %w", err)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("the capture is empty")
	}
	return all, nil
}
