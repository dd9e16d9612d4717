package journal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrKey means that the ring's entries were encrypted with another key than Options.Key, or without one, or are encrypted and there is no key. Nothing
// was written: open the ring with the right key.
var ErrKey = errors.New("journal has another key")

// sealOverhead is what an encrypted payload has more than a plain one: the tag of AES-GCM.
const sealOverhead = 16

// sealedFlag, in the byte behind an entry's kind, says that its payload is encrypted.
const sealedFlag = 1

// sealer encrypts payloads, each by AES-256-GCM under a key of the ring's own. The nonce is the entry's position and the run: a run is begun by each Open and
// has each position once. The entry's header is authenticated, too. A nil sealer does nothing.
type sealer struct{ aead cipher.AEAD }

// newSealer derives the ring's key; nil if there is none.
func newSealer(key []byte, ring uint64) (*sealer, error) {
	if key == nil {
		return nil, nil
	}
	own, err := hkdf.Key(sha256.New, key, binary.LittleEndian.AppendUint64(nil, ring), "holdfast journal", 32)
	if err != nil {
		return nil, fmt.Errorf("derive the journal's key: %w", err)
	}
	b, err := aes.NewCipher(own)
	if err != nil {
		return nil, fmt.Errorf("derive the journal's key: %w", err)
	}
	aead, err := cipher.NewGCM(b)
	if err != nil {
		return nil, fmt.Errorf("derive the journal's key: %w", err)
	}
	return &sealer{aead}, nil
}

func nonce(at Position, run uint64) []byte {
	b := make([]byte, 0, 12)
	b = binary.LittleEndian.AppendUint64(b, uint64(at))
	return binary.LittleEndian.AppendUint32(b, uint32(run))
}

// overhead returns what sealing adds to a payload.
func (s *sealer) overhead() int {
	if s == nil {
		return 0
	}
	return sealOverhead
}

// seal puts an entry's payload, encrypted, behind its header at the front of b.
func (s *sealer) seal(b []byte, at Position, run uint64, payload []byte) {
	s.aead.Seal(b[entryHeader:entryHeader], nonce(at, run), payload, b[4:entryHeader])
}

// open decrypts the payload of an entry that was read with its whole header; false if it is not of this key.
func (s *sealer) open(b []byte, at Position, run uint64, e *Entry) bool {
	if encrypted := b[25] == sealedFlag; encrypted != (s != nil) {
		return false
	} else if !encrypted {
		return true
	}
	plain, err := s.aead.Open(nil, nonce(at, run), e.Payload, b[4:entryHeader])
	if err != nil {
		return false
	}
	e.Payload = plain
	return true
}
