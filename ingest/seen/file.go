// Package seen remembers on flash which messages are stored, so that one that comes again is recognised.
package seen

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"

	"github.com/holdfast-edge/holdfast/storage"
)

// slotSize is the length of an entry. It divides a sector, so that a power cut leaves an entry old or new and never half.
const slotSize = 32

// slotMagic begins the file; its last character is the version of the format.
const slotMagic = "HFslots1"

// castagnoli is the polynomial of all checksums here.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Digest is the part of a SHA-256 by which a message is recognised: 96 bits.
type Digest [12]byte

// DigestOf returns the digest of a list of parts. Lists that differ in where one part ends have different digests.
func DigestOf(parts ...[]byte) Digest {
	h := sha256.New()
	for i, p := range parts {
		if i < len(parts)-1 {
			var n [4]byte
			binary.LittleEndian.PutUint32(n[:], uint32(len(p)))
			h.Write(n[:])
		}
		h.Write(p)
	}
	var d Digest
	copy(d[:], h.Sum(nil))
	return d
}

// Mark is what a slot says about a message.
type Mark struct {
	Nr     uint32 // position in the order in which the table's marks were made; it wraps
	Digest Digest
}

// File is a file of a fixed number of marks, each written in place, each with a checksum over its content, its place and a
// salt of the file. Slot 0 holds the salt: a new salt empties the file in one write of a sector.
//
// A mark is written before the record it stands for, without a sync: the commit that makes the record durable makes the mark
// durable too. A crash can therefore leave marks of records that were never stored. They name the record, and load drops
// those above the newest committed one.
type File struct {
	path  string
	slots int
	owner [8]byte // who the marks belong to; those of another are of no use

	f    *os.File // nil: not open, marks live in memory only
	salt [8]byte
}

// ErrFresh says that a slot file was made anew.
var ErrFresh = errors.New("made anew")

// NewFile returns the file of so many slots, slot 0 included, that is not open yet. The marks belong to owner; a file of another
// owner is made anew.
func NewFile(path string, slots int, owner string) *File {
	s := &File{path: path, slots: slots}
	sum := sha256.Sum256([]byte(owner))
	copy(s.owner[:], sum[:])
	return s
}

// Load opens the file and calls each for every mark of a record up to last (epoch, seq); others are removed. It makes the file
// anew, and returns an error that wraps ErrFresh and says why, when the old one cannot be used; a first one is made silently.
func (s *File) Load(epoch, seq uint64, each func(slot int, m Mark)) error {
	data, err := os.ReadFile(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return s.create()
	}
	if err == nil {
		err = s.check(data)
	}
	if err != nil {
		if anew := s.create(); anew != nil {
			return anew
		}
		return fmt.Errorf("%w: %w", err, ErrFresh)
	}
	if s.f, err = os.OpenFile(s.path, os.O_WRONLY, 0); err != nil {
		return err
	}
	copy(s.salt[:], data[16:24])
	for i := 1; i < s.slots; i++ {
		raw := data[i*slotSize : (i+1)*slotSize]
		if isZero(raw) {
			continue
		}
		if binary.LittleEndian.Uint32(raw) != s.sum(i, raw) {
			continue // torn, or of an older salt
		}
		e, n := uint64(binary.LittleEndian.Uint32(raw[8:])), binary.LittleEndian.Uint64(raw[12:])
		if e > epoch || e == epoch && n > seq {
			// Never committed. It must go for good: once there are records of a later epoch it would look committed.
			if err := s.Clear(i); err != nil {
				return err
			}
			continue
		}
		m := Mark{Nr: binary.LittleEndian.Uint32(raw[4:])}
		copy(m.Digest[:], raw[20:])
		each(i, m)
	}
	return nil
}

// Reopen opens the file again after Close. A file that was never loaded stays closed.
func (s *File) Reopen() (err error) {
	if s.salt == [8]byte{} {
		return nil // given up, or never there
	}
	s.f, err = os.OpenFile(s.path, os.O_WRONLY, 0)
	return err
}

// check looks at length and header.
func (s *File) check(data []byte) error {
	switch {
	case len(data) != s.slots*slotSize:
		return fmt.Errorf("%s has %d bytes, want %d", s.path, len(data), s.slots*slotSize)
	case string(data[:8]) != slotMagic:
		return fmt.Errorf("%s does not begin with %s", s.path, slotMagic)
	case binary.LittleEndian.Uint32(data[24:]) != crc32.Checksum(data[:24], castagnoli):
		return fmt.Errorf("%s: checksum of the header is wrong", s.path)
	case !bytes.Equal(data[8:16], s.owner[:]):
		return fmt.Errorf("%s belongs to another broker or client id", s.path)
	}
	return nil
}

// create makes an empty file of full length, on flash when it returns.
func (s *File) create() error {
	f, err := os.OpenFile(s.path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	s.f = f
	// Written, not left sparse: later writes must not need space.
	if _, err := f.Write(make([]byte, s.slots*slotSize)); err != nil {
		return errors.Join(err, s.Close())
	}
	return s.Empty()
}

// Empty makes all marks void, on flash when it returns: they must not come back after a power cut, because then they could be
// taken for marks of the broker's next session.
func (s *File) Empty() error {
	if s.f == nil {
		return nil
	}
	var head [slotSize]byte
	copy(head[:], slotMagic)
	copy(head[8:], s.owner[:])
	rand.Read(s.salt[:])
	copy(head[16:], s.salt[:])
	binary.LittleEndian.PutUint32(head[24:], crc32.Checksum(head[:24], castagnoli))
	if _, err := s.f.WriteAt(head[:], 0); err != nil {
		return errors.Join(err, s.Close())
	}
	return s.f.Sync()
}

// Put writes the mark of a record into a slot.
func (s *File) Put(slot int, m Mark, id storage.ID) error {
	if s.f == nil {
		return nil
	}
	if id.Epoch > 1<<32-1 {
		return fmt.Errorf("epoch %d does not fit", id.Epoch)
	}
	var raw [slotSize]byte
	binary.LittleEndian.PutUint32(raw[4:], m.Nr)
	binary.LittleEndian.PutUint32(raw[8:], uint32(id.Epoch))
	binary.LittleEndian.PutUint64(raw[12:], id.Seq)
	copy(raw[20:], m.Digest[:])
	binary.LittleEndian.PutUint32(raw[:], s.sum(slot, raw[:]))
	_, err := s.f.WriteAt(raw[:], int64(slot)*slotSize)
	return err
}

// Clear makes a slot empty, without a sync.
func (s *File) Clear(slot int) error {
	if s.f == nil {
		return nil
	}
	_, err := s.f.WriteAt(make([]byte, slotSize), int64(slot)*slotSize)
	return err
}

// Drop gives the file up after a write error: what it says is no longer right.
func (s *File) Drop() error {
	return errors.Join(s.Close(), os.Remove(s.path))
}

// Close closes the file; marks live in memory only until Reopen.
func (s *File) Close() error {
	if s.f == nil {
		return nil
	}
	f := s.f
	s.f = nil
	return f.Close()
}

// sum is the checksum of a slot: of its place, the file's salt and everything behind the checksum itself.
func (s *File) sum(slot int, raw []byte) uint32 {
	var place [4]byte
	binary.LittleEndian.PutUint32(place[:], uint32(slot))
	c := crc32.Update(crc32.Checksum(place[:], castagnoli), castagnoli, s.salt[:])
	return crc32.Update(c, castagnoli, raw[4:slotSize])
}

func isZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// Open says whether marks go to flash; else they live in memory only.
func (s *File) Open() bool { return s.f != nil }

// Path returns the name of the file.
func (s *File) Path() string { return s.path }
