package blocks

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// blockSize is how large the blocks that a Writer makes become.
const blockSize = 4 << 20

// Writer makes the blocks of a stream, with sequences of the caller's choice. The server takes them up when it makes or opens the stream.
type Writer struct {
	s      Stream
	number int
	last   uint64
	image  []byte
}

// NewWriter removes what the stream's directory has of blocks, and begins anew. No server may have the stream open.
func (s Stream) NewWriter() (*Writer, error) {
	dir := filepath.Join(s.Dir, messageDir)
	if err := os.RemoveAll(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("write blocks of stream %s: %w", s.Name, err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("write blocks of stream %s: %w", s.Name, err)
	}
	return &Writer{s: s, number: 1}, nil
}

// Write adds a message. Sequences must grow.
func (w *Writer) Write(m Message) error {
	if m.Seq <= w.last || len(m.Subject) > 1<<16-1 {
		return fmt.Errorf("write blocks of stream %s: message %d behind %d on %q", w.s.Name, m.Seq, w.last, m.Subject)
	}
	w.last = m.Seq
	w.image = append(w.image, w.s.encode(w.number, m)...)
	if len(w.image) < blockSize {
		return nil
	}
	return w.flush()
}

// Close writes what is left. Everything is in the files on return; the caller makes them durable.
func (w *Writer) Close() error {
	if len(w.image) == 0 {
		return nil
	}
	return w.flush()
}

// End is Close for a stream that goes on above a sequence, whether that is there or not.
func (w *Writer) End(seq uint64) error {
	if err := w.Close(); err != nil || seq <= w.last {
		return err
	}
	w.image = append(w.image[:0], w.s.removed(w.number, seq, 0)...)
	return w.flush()
}

func (w *Writer) flush() error {
	if err := os.WriteFile(w.s.BlockPath(w.number), w.image, 0o600); err != nil {
		return fmt.Errorf("write blocks of stream %s: %w", w.s.Name, err)
	}
	w.number++
	w.image = w.image[:0]
	return nil
}

// encode makes a record of a block, see record.go.
func (s Stream) encode(block int, m Message) []byte {
	size := emptySize + len(m.Subject) + len(m.Data)
	mark := uint32(0)
	if len(m.Header) > 0 {
		size += 4 + len(m.Header)
		mark = headerMark
	}
	b := make([]byte, headSize, size)
	le := binary.LittleEndian
	le.PutUint32(b, uint32(size)|mark)
	le.PutUint64(b[4:], m.Seq)
	le.PutUint64(b[12:], uint64(m.Time))
	le.PutUint16(b[20:], uint16(len(m.Subject)))
	h := newHash(s.blockName(block))
	_, _ = h.Write(b[4:20]) // a hash does not fail
	_, _ = h.Write([]byte(m.Subject))
	_, _ = h.Write(m.Header)
	_, _ = h.Write(m.Data)
	b = append(b, m.Subject...)
	if mark != 0 {
		b = append(le.AppendUint32(b, uint32(len(m.Header))), m.Header...)
	}
	return h.Sum(append(b, m.Data...))
}
