package blocks

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Index is what the server's index of a stream, msgs/index.db, says. It is written every two minutes or so and at a clean stop.
type Index struct {
	Present  bool
	Problem  string // why it cannot be used; the server then reads the blocks
	Fresh    bool   // the last block has not been written to since: the server believes the index and reads no block
	Messages uint64
	First    uint64
	Last     uint64
}

// Reads reports whether the server is going to read all blocks at its start. From a plain block it then cuts off whatever follows a damaged record.
func (i Index) Reads() bool { return !i.Fresh }

// index reads the index beside the blocks of the given numbers.
func (s Stream) index(numbers []int) (Index, error) {
	path := filepath.Join(s.Dir, messageDir, indexName)
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Index{}, nil
	}
	i := Index{Present: true}
	if err != nil {
		i.Problem = err.Error()
		return i, nil
	}
	if len(raw) < 32 {
		i.Problem = "too short"
		return i, nil
	}
	h := newHash(s.Name)
	body, sum := raw[:len(raw)-hashSize], raw[len(raw)-hashSize:]
	_, _ = h.Write(body) // a hash does not fail
	if !bytes.Equal(h.Sum(nil), sum) {
		i.Problem = "checksum does not fit"
		return i, nil
	}
	if body[0] != 11 || body[1] < 1 || body[1] > 4 {
		i.Problem = "another version, or encrypted"
		return i, nil
	}
	at := 2
	unsigned := func() uint64 {
		v, n := binary.Uvarint(body[min(at, len(body)):])
		at += max(n, 1)
		return v
	}
	i.Messages = unsigned()
	_ = unsigned() // bytes
	i.First = unsigned()
	_ = unsigned() // time of the first
	i.Last = unsigned()
	i.Fresh = len(numbers) > 0 && bytes.Equal(s.end(numbers[len(numbers)-1]), body[len(body)-hashSize:])
	return i, nil
}

// end returns the last eight bytes of a block, which are the checksum of its last record; nil if it has none.
func (s Stream) end(number int) []byte {
	f, err := os.Open(s.BlockPath(number))
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }() // read only
	st, err := f.Stat()
	if err != nil || st.Size() < hashSize {
		return nil
	}
	b := make([]byte, hashSize)
	if _, err := f.ReadAt(b, st.Size()-hashSize); err != nil {
		return nil
	}
	return b
}

// Index reads the index alone, which is quick.
func (s Stream) Index() (Index, error) {
	numbers, err := s.numbers()
	if err != nil {
		return Index{}, err
	}
	return s.index(numbers)
}
