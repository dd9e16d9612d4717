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
	"path/filepath"

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
// A mark is written before the record it stands for, without a sync, and goes with the record into the store's journal, which gives it back
// as long as the file may be behind. A crash can leave marks of records that were never stored. They name the record, and Load drops those above
// the newest committed one.
type File struct {
	path  string
	tag   byte // tells the file's marks from those of the source's other files, in the journal
	slots int
	owner [8]byte // who the marks belong to; those of another are of no use

	f    *os.File // nil: not open, marks live in memory only
	salt [8]byte
}

// ErrFresh says that a slot file was made anew.
var ErrFresh = errors.New("made anew")

// NewFile returns the file of so many slots, slot 0 included, that is not open yet. The marks belong to owner; a file of another
// owner is made anew. Files of one source have names that begin differently.
func NewFile(path string, slots int, owner string) *File {
	s := &File{path: path, tag: filepath.Base(path)[0], slots: slots}
	sum := sha256.Sum256([]byte(owner))
	copy(s.owner[:], sum[:])
	return s
}

// Load opens the file, brings in what the journal gave back, and calls each for every mark of a record up to last (epoch, seq); others are
// removed. It makes the file anew, and returns an error that wraps ErrFresh and says why, when the old one cannot be used; a first one is made
// silently.
func (s *File) Load(epoch, seq uint64, journal []storage.Mark, each func(slot int, m Mark)) error {
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
	if s.f, err = os.OpenFile(s.path, os.O_RDWR, 0); err != nil {
		return err
	}
	copy(s.salt[:], data[16:24])
	if err := s.restore(data, journal); err != nil {
		return err
	}
	for i := 1; i < s.slots; i++ {
		raw := data[i*slotSize : (i+1)*slotSize]
		if !s.good(i, raw) || raw[slotVoid] != 0 {
			continue
		}
		e, n := record(raw)
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

// good tells whether a slot says something: it is not empty, not torn, and not of an older salt.
func (s *File) good(slot int, raw []byte) bool {
	return !isZero(raw) && binary.LittleEndian.Uint32(raw) == s.sum(slot, raw)
}

// record returns the record that a slot names.
func record(raw []byte) (epoch, seq uint64) {
	return uint64(binary.LittleEndian.Uint32(raw[8:])), binary.LittleEndian.Uint64(raw[12:]) & (1<<56 - 1)
}

// restore writes the journal's marks into the slots that were not written back before a power cut: those that name an older record, or none.
func (s *File) restore(data []byte, journal []storage.Mark) error {
	for _, j := range journal {
		slot, m, ok := s.decode(j.Data)
		if !ok {
			continue
		}
		raw := data[slot*slotSize : (slot+1)*slotSize]
		if e, n := record(raw); s.good(slot, raw) && (e > j.Epoch || e == j.Epoch && n >= j.Seq) {
			continue
		}
		if err := s.Put(slot, m, storage.ID{Epoch: j.Epoch, Seq: j.Seq}); err != nil {
			return err
		}
		copy(raw, s.encode(slot, m, j.Epoch, j.Seq))
	}
	return nil
}

// saltShare is how much of the salt a mark in the journal has, so that one from before an Empty is not brought back.
const saltShare = 3

// Encode returns what goes into the journal with a record, nil when the file is not open. Marks of several files may stand one behind the other.
func (s *File) Encode(slot int, m Mark) []byte {
	if s.f == nil {
		return nil
	}
	b := append([]byte{s.tag}, s.salt[:saltShare]...)
	b = binary.LittleEndian.AppendUint32(b, uint32(slot))
	return append(binary.LittleEndian.AppendUint32(b, m.Nr), m.Digest[:]...)
}

// decode finds the file's mark among those that went with one record.
func (s *File) decode(b []byte) (slot int, m Mark, ok bool) {
	const head = 1 + saltShare
	const size = head + 4 + 4 + len(m.Digest)
	for ; len(b) >= size; b = b[size:] {
		if b[0] != s.tag || !bytes.Equal(b[1:head], s.salt[:saltShare]) {
			continue
		}
		slot, m.Nr = int(binary.LittleEndian.Uint32(b[head:])), binary.LittleEndian.Uint32(b[head+4:])
		copy(m.Digest[:], b[head+8:])
		return slot, m, slot > 0 && slot < s.slots
	}
	return 0, m, false
}

// Reopen opens the file again after Close. A file that was never loaded stays closed.
func (s *File) Reopen() (err error) {
	if s.salt == [8]byte{} {
		return nil // given up, or never there
	}
	s.f, err = os.OpenFile(s.path, os.O_RDWR, 0)
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
	f, err := os.OpenFile(s.path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
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
	_, err := s.f.WriteAt(s.encode(slot, m, id.Epoch, id.Seq), int64(slot)*slotSize)
	return err
}

// encode makes a slot: checksum (4 bytes), number (4), epoch (4), sequence (7), whether it is void (1), digest (12).
func (s *File) encode(slot int, m Mark, epoch, seq uint64) []byte {
	raw := make([]byte, slotSize)
	binary.LittleEndian.PutUint32(raw[4:], m.Nr)
	binary.LittleEndian.PutUint32(raw[8:], uint32(epoch))
	binary.LittleEndian.PutUint64(raw[12:], seq)
	copy(raw[20:], m.Digest[:])
	binary.LittleEndian.PutUint32(raw, s.sum(slot, raw))
	return raw
}

// slotVoid is the byte of a slot that is not zero once its mark is void. The slot still names the record, so that the journal does not bring it back.
const slotVoid = 19

// Clear makes a slot's mark void, without a sync.
func (s *File) Clear(slot int) error {
	if s.f == nil {
		return nil
	}
	raw := make([]byte, slotSize)
	if _, err := s.f.ReadAt(raw, int64(slot)*slotSize); err != nil {
		return err
	}
	if s.good(slot, raw) {
		raw[slotVoid] = 1
		binary.LittleEndian.PutUint32(raw, s.sum(slot, raw))
	} else {
		clear(raw)
	}
	_, err := s.f.WriteAt(raw, int64(slot)*slotSize)
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
