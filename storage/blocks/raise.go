package blocks

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// metaName is the file with a stream's configuration.
const metaName = "meta.inf"

// Raise makes a stream go on above a sequence: no message gets one at or below to any more. It adds a block that says that to was removed, which write puts
// into a file in one step, and touches nothing else. It reports whether it had to. A stream that is higher, that has no blocks since it is in memory, or
// that mirrors another, whose sequences are that one's, is left alone. No server may have the stream open.
func (s Stream) Raise(to uint64, write func(path string, data []byte) error) (bool, error) {
	numbers, err := s.numbers()
	if err != nil || len(numbers) == 0 {
		return false, err
	}
	if mirror, err := s.mirrors(); err != nil || mirror {
		return false, err
	}
	last, at, err := s.newest(numbers)
	if err != nil || last >= to {
		return false, err
	}
	number := numbers[len(numbers)-1] + 1
	return true, write(s.BlockPath(number), s.removed(number, to, at))
}

// Last returns the highest sequence that the files speak of.
func (s Stream) Last() (uint64, error) {
	numbers, err := s.numbers()
	if err != nil {
		return 0, err
	}
	seq, _, err := s.newest(numbers)
	return seq, err
}

// newest returns the highest sequence that the files speak of, and the time of that record if it is in a block.
func (s Stream) newest(numbers []int) (seq uint64, at int64, err error) {
	index, err := s.index(numbers)
	if err != nil {
		return 0, 0, err
	}
	for _, n := range slices.Backward(numbers) {
		image, _, err := s.read(n)
		if errors.Is(err, ErrEncrypted) {
			return 0, 0, err
		}
		if err != nil {
			continue // damaged: those in front are lower
		}
		sc := &scanner{hash: newHash(s.blockName(n))}
		if _, err = sc.block(image, func(_ int, r record) error {
			if r.Seq >= seq {
				seq, at = r.Seq, r.Time
			}
			return nil
		}); err != nil {
			return 0, 0, err
		}
		if seq > 0 {
			break
		}
	}
	return max(seq, index.Last), at, nil
}

// mirrors tells whether the stream is a mirror.
func (s Stream) mirrors() (bool, error) {
	raw, err := os.ReadFile(filepath.Join(s.Dir, metaName))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err == nil {
		raw, err = s.open(raw)
	}
	if err != nil {
		return false, fmt.Errorf("read the configuration of stream %s: %w", s.Name, err)
	}
	var c struct {
		Mirror json.RawMessage `json:"mirror"`
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return false, fmt.Errorf("read the configuration of stream %s: %w", s.Name, err)
	}
	return len(c.Mirror) > 0 && !bytes.Equal(c.Mirror, []byte("null")), nil
}
