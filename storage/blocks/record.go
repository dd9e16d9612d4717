package blocks

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"strconv"

	"github.com/minio/highwayhash"
)

// A record in a block, all numbers little-endian, as nats-server 2.15 writes it (server/filestore.go, writeMsgRecordLocked):
//
//	length of it all (4, the highest bit set if there are headers), sequence (8, with the marks below), time (8), length of the subject (2),
//	subject, with headers their length (4) and they, data, HighwayHash-64 of sequence, time, subject, headers and data (8)
//
// The three lengths are in no checksum. What they say is checked against the form of what they measure, and found again by it where they are wrong.
const (
	headSize   = 22
	hashSize   = 8
	emptySize  = headSize + hashSize
	maxSize    = 32 << 20 // the server takes anything longer for damage
	headerMark = 1 << 31  // in the length
	erasedMark = 1 << 63  // in the sequence: the message was overwritten
	deleteMark = 1 << 62  // in the sequence: the message of that sequence was removed
)

// Both ends of a header block.
var (
	headerStart = []byte("NATS/1.0")
	headerEnd   = []byte("\r\n\r\n")
)

// kind says what a record of a block is.
type kind uint8

const (
	message  kind = iota + 1
	erased        // a message that was overwritten in place
	deletion      // says that a message, elsewhere, was removed
	stale         // a message that the block has a newer state of in front: the server passes over it
)

// Message is one message of a stream. The slices are valid until the function that was given it returns.
type Message struct {
	Seq     uint64
	Time    int64 // unix nanoseconds
	Subject string
	Header  []byte // as on the wire, NATS/1.0 and what follows; nil for none
	Data    []byte
	Mended  bool // its bytes in the block are damaged, but what they were is proven by its checksum
}

// record is one record of a block.
type record struct {
	kind kind
	Message
	size int    // of its bytes in the block
	fix  []byte // its bytes as they were, if those in the block are damaged
}

// newHash returns the hash that the server makes: of a stream's files with its name, of the records of a block with blockName.
func newHash(name string) hash.Hash {
	key := sha256.Sum256([]byte(name))
	h, err := highwayhash.NewDigest64(key[:])
	if err != nil {
		panic(err) // only for a key that is not 32 bytes
	}
	return h
}

// blockName is what the hash of a block's records is keyed by, so that no record of another block is taken for one of this.
func (s Stream) blockName(number int) string { return s.Name + "-" + strconv.Itoa(number) }

// MetaSum returns what the server puts into meta.sum for a stream's meta.inf.
func MetaSum(name string, meta []byte) string {
	h := newHash(name)
	_, _ = h.Write(meta) // a hash does not fail
	return hex.EncodeToString(h.Sum(nil))
}

// head is the fixed part of a record.
type head struct {
	size    int
	headers bool
	seq     uint64 // without its marks
	kind    kind
	time    int64
	subject int // length
}

// readHead reads the fixed part. ok means that the lengths fit each other and into the bytes.
func readHead(b []byte) (h head, ok bool) {
	if len(b) < emptySize {
		return h, false
	}
	le := binary.LittleEndian
	size := le.Uint32(b)
	h.headers = size&headerMark != 0
	size &^= headerMark
	if size < emptySize || size > maxSize || int(size) > len(b) {
		return h, false
	}
	h.size, h.time, h.subject = int(size), int64(le.Uint64(b[12:])), int(le.Uint16(b[20:]))
	h.kind, h.seq = kindOf(le.Uint64(b[4:]))
	inner := h.size - emptySize
	if h.headers {
		inner -= 4
	}
	return h, h.subject <= inner
}

func kindOf(seq uint64) (kind, uint64) {
	switch {
	case seq&deleteMark != 0:
		return deletion, seq &^ deleteMark
	case seq&erasedMark != 0 || seq == 0:
		return erased, seq &^ erasedMark
	}
	return message, seq
}

// read reads the record at the beginning of b; why says what is wrong with it, empty for nothing.
func (s *scanner) read(b []byte) (r record, why string) {
	h, ok := readHead(b)
	if !ok {
		return r, "length does not fit"
	}
	if !s.hashFits(b, h) {
		return r, "checksum does not fit"
	}
	r = record{kind: h.kind, size: h.size, Message: Message{Seq: h.seq, Time: h.time}}
	if h.kind != message {
		return r, ""
	}
	rest := b[headSize : h.size-hashSize]
	r.Subject, rest = string(rest[:h.subject]), rest[h.subject:]
	if !subjectFits(r.Subject) {
		return r, "length of the subject does not fit"
	}
	if h.headers {
		n := int(binary.LittleEndian.Uint32(rest))
		rest = rest[4:]
		if n > len(rest) || !bytes.HasPrefix(rest, headerStart) || !bytes.HasSuffix(rest[:n], headerEnd) {
			return r, "length of the headers does not fit"
		}
		r.Header, rest = rest[:n], rest[n:]
	}
	r.Data = rest
	return r, ""
}

// hashFits recomputes a record's hash.
func (s *scanner) hashFits(b []byte, h head) bool {
	s.hash.Reset()
	body := b[headSize : h.size-hashSize]
	_, _ = s.hash.Write(b[4:20])
	_, _ = s.hash.Write(body[:h.subject])
	if h.headers {
		body = body[4:]
	}
	_, _ = s.hash.Write(body[h.subject:])
	return bytes.Equal(s.hash.Sum(s.sum[:0]), b[h.size-hashSize:h.size])
}

// subjectFits reports whether a subject can be one: a wrong length takes control characters, blanks or nothing along.
func subjectFits(subject string) bool {
	for i := range len(subject) {
		if subject[i] <= ' ' || subject[i] == 0x7f {
			return false
		}
	}
	return subject != ""
}

// restore tries to find out what the bytes of one damaged record were, nil if that cannot be proven. b begins with the record and ends where the next
// good one begins, or with the block. The checksum, which is 64 bits long, proves the result.
func (s *scanner) restore(b []byte) []byte {
	if len(b) < emptySize || len(b) > maxSize {
		return nil
	}
	fix := append([]byte(nil), b...)
	le := binary.LittleEndian
	for _, mark := range [2]uint32{headerMark, 0} { // with the right lengths its bytes may all be good
		le.PutUint32(fix, uint32(len(fix))|mark)
		if mark != 0 && !fixHeaderLengths(fix) {
			continue
		}
		if r, why := s.read(fix); why == "" && s.follows(r.kind, r.Seq) {
			return fix
		}
	}
	h, ok := readHead(b)
	if !ok || h.size != len(b) || h.size > restoreBits {
		return nil
	}
	copy(fix, b)
	for i := 4; i < len(fix); i++ { // one bit
		for bit := range 8 {
			fix[i] ^= 1 << bit
			if h, ok := readHead(fix); ok && s.hashFits(fix, h) {
				if r, why := s.read(fix); why == "" && s.follows(r.kind, r.Seq) {
					return fix
				}
			}
			fix[i] ^= 1 << bit
		}
	}
	return nil
}

// restoreBits is the longest record of which every single bit is tried: the work grows with the square, to some 0.1 s of a slow core.
const restoreBits = 1 << 10

// fixHeaderLengths sets the lengths of subject and headers by the form of the headers.
func fixHeaderLengths(b []byte) bool {
	body := b[headSize : len(b)-hashSize]
	at := bytes.Index(body, headerStart)
	if at < 4 || at-4 > 1<<16-1 {
		return false
	}
	end := bytes.Index(body[at:], headerEnd)
	if end < 0 {
		return false
	}
	binary.LittleEndian.PutUint16(b[20:], uint16(at-4))
	binary.LittleEndian.PutUint32(body[at-4:], uint32(end+len(headerEnd)))
	return true
}
