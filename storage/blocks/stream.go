// Package blocks reads the files of a stream as nats-server 2.15 leaves them, without a server: it verifies every record, finds those behind a damaged
// one, where the server gives up, and can put a damaged block right.
//
// Nothing here takes part in the daemon's normal work, and nobody else may write to the files meanwhile, except that walking beside a running server is
// allowed: it may then find damage that is none, a record half written at the end of the last block.
package blocks

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/klauspost/compress/s2"
)

// Names of files and folders in a stream's directory.
const (
	messageDir  = "msgs"
	blockSuffix = ".blk"
	keySuffix   = ".key"
	indexName   = "index.db"
)

// ErrEncrypted means that the blocks are encrypted and there is no Key: their records cannot be told from damage.
var ErrEncrypted = errors.New("blocks are encrypted")

// Stream is the directory of one stream.
type Stream struct {
	Dir  string // <store>/jetstream/<account>/streams/<name>
	Name string // the hashes are made with it
	Key  Key    // of an encrypted store
}

// Block is what a block holds.
type Block struct {
	Number  int      `json:"number"`
	Bytes   int64    `json:"bytes"` // on disk
	First   uint64   `json:"first"` // of its whole messages; 0: none
	Last    uint64   `json:"last"`
	Mended  int      `json:"mended,omitempty"` // records whose bytes are damaged but known
	Damage  []Damage `json:"damage,omitempty"`
	Problem string   `json:"problem,omitempty"` // why nothing of it can be read
}

// Report is what a stream's files hold.
type Report struct {
	Name     string
	Messages uint64  // whole ones that were not removed
	Live     Runs    // their sequences
	Deleted  Runs    // sequences that are noted as removed
	End      uint64  // highest sequence that the blocks speak of; the index may know of a higher one, which is gone then
	Blocks   []Block // in order
	Index    Index
}

// Damaged reports whether anything in the blocks cannot be read as it was written. Damage to the index is none: the server makes it anew.
func (r Report) Damaged() bool {
	return slices.ContainsFunc(r.Blocks, Block.Damaged)
}

// Damaged reports whether anything in the block cannot be read as it was written.
func (b Block) Damaged() bool { return len(b.Damage) > 0 || b.Mended > 0 || b.Problem != "" }

// Walk reads all blocks in order and says what they hold. visit, which may be nil, is called for every whole message, also for those that were removed by a
// deletion: Report.Deleted tells. Its error ends the walk. Damage is no error; ErrEncrypted is, as are those of the file system but for one block.
func (s Stream) Walk(visit func(Message) error) (Report, error) {
	return s.walk(visit, nil, nil)
}

// Numbers returns the numbers of all blocks, in order.
func (s Stream) Numbers() ([]int, error) { return s.numbers() }

// Block reads one block.
func (s Stream) Block(number int) (Block, error) {
	b, _, err := s.walkBlock(&scanner{}, number, &Report{}, nil, false)
	return b, err
}

// walk reads the blocks of the numbers in only, all if there are none, and calls done for each, with the bytes that are good.
func (s Stream) walk(visit func(Message) error, only []int, done func(b Block, good []byte) error) (Report, error) {
	r := Report{Name: s.Name}
	numbers, err := s.numbers()
	if err != nil {
		return r, err
	}
	sc := &scanner{}
	for _, n := range numbers {
		if len(only) > 0 && !slices.Contains(only, n) {
			continue
		}
		b, good, err := s.walkBlock(sc, n, &r, visit, done != nil)
		if err != nil {
			return r, err
		}
		r.Blocks = append(r.Blocks, b)
		if done != nil {
			if err := done(b, good); err != nil {
				return r, err
			}
		}
	}
	if r.Index, err = s.index(numbers); err != nil {
		return r, err
	}
	if r.Index.Fresh && r.Index.First > 1 { // what a purge left in a block that it did not rewrite
		r.Live = r.Live.Without(Runs{{1, r.Index.First - 1}})
	}
	r.Live = r.Live.Without(r.Deleted)
	r.Messages = r.Live.Count()
	return r, nil
}

func (s Stream) walkBlock(sc *scanner, n int, r *Report, visit func(Message) error, collect bool) (Block, []byte, error) {
	b := Block{Number: n}
	sc.hash = newHash(s.blockName(n))
	image, size, err := s.read(n)
	b.Bytes = size
	if errors.Is(err, ErrEncrypted) {
		return b, nil, err
	}
	if err != nil {
		b.Problem = err.Error()
		return b, nil, nil
	}
	var good []byte
	b.Damage, err = sc.block(image, func(at int, rec record) error {
		if collect {
			bytes := rec.fix
			if bytes == nil {
				bytes = image[at : at+rec.size]
			}
			good = append(good, bytes...)
		}
		if rec.Mended {
			b.Mended++
		}
		r.End = max(r.End, rec.Seq)
		switch rec.kind {
		case deletion:
			r.Deleted.add(rec.Seq)
			return nil
		case erased, stale:
			return nil
		}
		if b.First == 0 {
			b.First = rec.Seq
		}
		b.Last = rec.Seq
		r.Live.add(rec.Seq)
		if visit == nil {
			return nil
		}
		return visit(rec.Message)
	})
	for i := range b.Damage {
		b.Damage[i].Block = n
	}
	return b, good, err
}

// numbers returns the numbers of all blocks, in order.
func (s Stream) numbers() ([]int, error) {
	var all []int
	names, err := os.ReadDir(filepath.Join(s.Dir, messageDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read blocks of stream %s: %w", s.Name, err)
	}
	for _, d := range names {
		digits, ok := strings.CutSuffix(d.Name(), blockSuffix)
		if n, err := strconv.ParseUint(digits, 10, 31); ok && err == nil {
			all = append(all, int(n))
		}
	}
	slices.SortFunc(all, cmp.Compare[int])
	return all, nil
}

// BlockPath returns where a block is.
func (s Stream) BlockPath(number int) string {
	return filepath.Join(s.Dir, messageDir, strconv.Itoa(number)+blockSuffix)
}

// read returns a block's bytes, decompressed, and its size on disk.
func (s Stream) read(n int) ([]byte, int64, error) {
	path := s.BlockPath(n)
	st, err := os.Lstat(path)
	switch {
	case err != nil:
		return nil, 0, err
	case !st.Mode().IsRegular():
		return nil, 0, errors.New("not a file")
	case st.Size() > 4*maxSize:
		return nil, st.Size(), errors.New("longer than any block")
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, st.Size(), err
	}
	if err := s.crypt(n, b); err != nil {
		return nil, st.Size(), err
	}
	plain, err := decompress(b)
	return plain, st.Size(), err
}

// decompress undoes the compression of a block: cmp, 1 for S2, its length as a varint, then the S2 stream, then eight bytes as they are.
func decompress(b []byte) ([]byte, error) {
	if !bytes.HasPrefix(b, []byte("cmp\x01")) {
		return b, nil
	}
	at := 4
	for at < len(b) && b[at]&0x80 != 0 {
		at++
	}
	if at++; at+hashSize > len(b) {
		return nil, errors.New("compressed, and cut short")
	}
	end := len(b) - hashSize
	plain, err := io.ReadAll(io.LimitReader(s2.NewReader(bytes.NewReader(b[at:end])), 4*maxSize))
	if err != nil {
		if len(b) >= emptySize { // a record of a certain length begins like this
			if h, ok := readHead(b); ok && h.size == 0x01706d63 {
				return b, nil
			}
		}
		return nil, fmt.Errorf("compressed, and damaged: %w", err)
	}
	return append(plain, b[end:]...), nil
}
