package blocks

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// Index is what the server's index of a stream, msgs/index.db, says. It is written every two minutes or so and at a clean stop.
type Index struct {
	Present  bool
	Problem  string // why it cannot be used; the server then reads the blocks
	Fresh    bool   // the last block has not been written to since: the server believes the index and reads no block
	Short    int    // number of a block that has less than the index tells of, which the server may believe for ever; 0: none
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
	if body, err = s.open(body); err != nil {
		i.Problem = err.Error()
		return i, nil
	}
	if len(body) < 24 || body[0] != 11 || body[1] < 1 || body[1] > 4 {
		i.Problem = "another version, or encrypted"
		return i, nil
	}
	r := indexReader{b: body, at: 2}
	listed := i.read(&r, int(body[1]))
	if r.bad {
		return Index{Present: true, Problem: "its content does not fit"}, nil
	}
	i.Fresh = len(numbers) > 0 && bytes.Equal(s.end(numbers[len(numbers)-1]), body[len(body)-hashSize:])
	for _, b := range listed {
		if !slices.Contains(numbers, b.number) {
			i.Problem, i.Fresh = fmt.Sprintf("block %d, which it lists, is missing", b.number), false
		} else if b.number != numbers[len(numbers)-1] && s.short(b) { // the newest one's end is in Fresh
			i.Problem, i.Fresh, i.Short = fmt.Sprintf("block %d is shorter than it tells", b.number), false, b.number
		}
	}
	if len(listed) > 0 && len(numbers) > 0 && numbers[len(numbers)-1] != listed[len(listed)-1].number {
		i.Fresh = false
	}
	return i, nil
}

// listedBlock is what an index tells of a block.
type listedBlock struct {
	number int
	bytes  uint64 // of its messages that are there
}

// short reports whether a block has fewer bytes than the index tells of. Of one that may be compressed only that it is empty can be told.
func (s Stream) short(b listedBlock) bool {
	f, err := os.Open(s.BlockPath(b.number))
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }() // read only
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || uint64(info.Size()) >= b.bytes {
		return false
	}
	start := make([]byte, 3)
	_, err = f.ReadAt(start, 0)
	return info.Size() == 0 || err == nil && s.Key.Secret == "" && string(start) != "cmp"
}

// dropIndex removes the index: the server makes it anew of the blocks.
func (s Stream) dropIndex() error {
	if err := os.Remove(filepath.Join(s.Dir, messageDir, indexName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// DropShort removes an index that tells of more than a block has. It returns the block's number, 0 if there is none.
func (s Stream) DropShort() (number int, err error) {
	index, err := s.Index()
	if err != nil || index.Short == 0 {
		return 0, err
	}
	return index.Short, s.dropIndex()
}

// indexReader reads the numbers of an index.
type indexReader struct {
	b   []byte
	at  int
	bad bool
}

func (r *indexReader) number() uint64 {
	v, n := binary.Uvarint(r.b[min(r.at, len(r.b)):])
	r.skip(max(n, 1))
	return v
}

func (r *indexReader) skip(n int) {
	if r.bad = r.bad || n < 0 || n > len(r.b)-r.at; !r.bad {
		r.at += n
	}
}

// read reads what is in the index and returns the blocks that it lists.
func (i *Index) read(r *indexReader, version int) []listedBlock {
	i.Messages = r.number()
	_ = r.number() // bytes
	i.First = r.number()
	_ = r.number() // time of the first
	i.Last = r.number()
	_ = r.number() // time of the last
	for n := r.number(); n > 0 && !r.bad; n-- {
		size := r.number()
		if size == 0 {
			continue
		}
		r.skip(int(min(size, 1<<30))) // a subject
		total := r.number()
		_ = r.number() // first block
		if total > 1 || version >= 4 {
			_ = r.number() // last block
		}
	}
	var listed []listedBlock
	for n := r.number(); n > 0 && !r.bad; n-- {
		number := r.number()
		bytes := r.number()
		for range 4 { // first, its time, last, its time
			_ = r.number()
		}
		deleted := r.number()
		for range min(version, 3) - 1 {
			_ = r.number()
		}
		if deleted > 0 { // a set of sequences, server/avl
			const nodeSize = 33*8 + 2
			if r.at+10 > len(r.b) || r.b[r.at] != 22 || r.b[r.at+1] != 2 {
				r.bad = true
				break
			}
			r.skip(10 + nodeSize*int(min(binary.LittleEndian.Uint32(r.b[r.at+2:]), 1<<20)))
		}
		listed = append(listed, listedBlock{int(number), bytes})
	}
	return listed
}

// end returns the last eight bytes of a block, which are the checksum of its last record; nil if it has none.
func (s Stream) end(number int) []byte {
	if s.Key.Secret != "" {
		b, _, err := s.read(number) // a stream cipher is read from its beginning
		if err != nil || len(b) < hashSize {
			return nil
		}
		return b[len(b)-hashSize:]
	}
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
