package blocks

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Hands are how Mend changes files, so that it is durable.
type Hands struct {
	Copy  func(path string) (string, error)    // keeps a copy of a file aside, and says where
	Away  func(path string) (string, error)    // moves a file or folder aside, and says where
	Write func(path string, data []byte) error // replaces a file in one step

}

// Mended says what Mend did to one block.
type Mended struct {
	Block
	Aside string // where the block as it was is now
}

// Mend puts damaged blocks right: what is whole, also behind the damage, stays where it was, with its sequence; what is not is left out, as if it had been
// removed. The server, which would have given up at the first damaged record, then reads all the rest. The index goes first, so that the server reads the
// blocks; a cut at any point leaves a stream that can be mended again. With numbers, only blocks of these are read. Nobody else may have the stream open.
func (s Stream) Mend(h Hands, only ...int) (Report, []Mended, error) {
	was, err := s.Index()
	if err != nil {
		return Report{}, nil, err
	}
	var done []Mended
	r, err := s.walk(nil, only, func(b Block, good []byte) error {
		if !b.Damaged() {
			return nil
		}
		m, err := s.mendBlock(h, b, good, was)
		if err == nil {
			done = append(done, m)
		}
		return err
	})
	if err != nil {
		return r, done, fmt.Errorf("mend stream %s: %w", s.Name, err)
	}
	return r, done, nil
}

func (s Stream) mendBlock(h Hands, b Block, good []byte, was Index) (Mended, error) {
	m := Mended{Block: b}
	path := s.BlockPath(b.Number)
	index := filepath.Join(s.Dir, messageDir, indexName)
	if err := os.Remove(index); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return m, err
	}
	if b.Problem != "" { // nothing of it is readable, or it is no file
		aside, err := h.Away(path)
		m.Aside = aside
		return m, err
	}
	aside, err := h.Copy(path)
	if err != nil {
		return m, err
	}
	m.Aside = aside
	numbers, err := s.numbers()
	if err != nil {
		return m, err
	}
	if last := numbers[len(numbers)-1] == b.Number; last && was.Fresh && was.Last > b.Last {
		good = append(good, s.deletion(b.Number, was.Last)...) // so that no sequence is given out twice
	}
	if len(good) == 0 {
		return m, os.Remove(path)
	}
	if err := s.crypt(b.Number, good); err != nil {
		return m, err
	}
	return m, h.Write(path, good)
}

// deletion makes the record that says that a sequence was removed. At the end of a stream it keeps the last sequence.
func (s Stream) deletion(block int, seq uint64) []byte { return s.removed(block, seq, 0) }

// removed is deletion with a time, in unix nanoseconds.
func (s Stream) removed(block int, seq uint64, at int64) []byte {
	b := make([]byte, headSize, emptySize)
	binary.LittleEndian.PutUint32(b, emptySize)
	binary.LittleEndian.PutUint64(b[4:], seq|deleteMark)
	binary.LittleEndian.PutUint64(b[12:], uint64(at))
	h := newHash(s.blockName(block))
	_, _ = h.Write(b[4:20]) // a hash does not fail
	return h.Sum(b)
}
