package storage

import (
	"bytes"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/cpu"

	"github.com/holdfast-edge/holdfast/storage/blocks"
)

// ErrKey means that the store was made with another key, or without one, or with one and there is none now. Its message says which. Nothing was changed.
var ErrKey = errors.New("the key does not open this store")

// minKey is how long the content of a key file must be.
const minKey = 16

// maxKeyFile is how long a key file is at most: more was meant to be something else.
const maxKeyFile = 4096

// Ciphers of the server's files. The journal has AES alone: what it takes is little.
const (
	cipherAES    = "aes"
	cipherChaCha = "chacha" // where the processor has no instructions for AES
)

// keyRecord is the content of the file key. It is there if and only if the store is encrypted.
type keyRecord struct {
	Cipher string `json:"cipher"`
	Salt   []byte `json:"salt"`
	Check  []byte `json:"check"` // tells a wrong key
}

// openKey reads the key and makes sure that it is this store's, before anything of the store is written.
func (s *Store) openKey(fresh bool) error {
	file := newStateFile(filepath.Join(s.home, "key"))
	var record keyRecord
	err := loadState(file, &record, s.log)
	missing := errors.Is(err, fs.ErrNotExist)
	var damaged *DamagedError
	if err != nil && !missing && !errors.As(err, &damaged) {
		return fmt.Errorf("open store: %w", err)
	}
	encrypted := !missing || s.holdsEncrypted()
	if s.options.Key == "" {
		if encrypted {
			return fmt.Errorf("open store %s: it is encrypted, and storage.key is not set: %w", s.options.Dir, ErrKey)
		}
		return nil
	}
	if s.key, err = readKey(s.options.Key); err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	switch {
	case !encrypted && !fresh:
		return fmt.Errorf("open store %s: it is not encrypted, and storage.key is set: only a new store takes a key, so let the hub have everything, then start with an empty directory: %w", s.options.Dir, ErrKey)
	case missing || damaged != nil: // a new store, or the note is gone
		return s.newKey(file)
	case !hmac.Equal(record.Check, keyCheck(s.key, record.Salt)):
		return fmt.Errorf("open store %s: it was made with another key than that in %s: %w", s.options.Dir, s.options.Key, ErrKey)
	}
	s.cipher = record.Cipher
	return nil
}

// newKey notes how a wrong key is told, on flash on return, unless there are streams and the key opens none of them.
func (s *Store) newKey(file *stateFile) error {
	cipher, sealed := s.opens()
	switch {
	case cipher != "":
		s.cipher = cipher
	case sealed:
		return fmt.Errorf("open store %s: the note of its key, %s, is gone, and the key in %s opens none of its streams: give the key that it was made with: %w",
			s.options.Dir, file.path, s.options.Key, ErrKey)
	case cpu.X86.HasAES || cpu.ARM64.HasAES || cpu.ARM.HasAES:
		s.cipher = cipherAES
	default:
		s.cipher = cipherChaCha
	}
	salt := make([]byte, 16)
	rand.Read(salt) // never fails: crypto/rand
	if err := file.save(keyRecord{Cipher: s.cipher, Salt: salt, Check: keyCheck(s.key, salt)}); err != nil {
		return fmt.Errorf("open store: note its key: %w", err)
	}
	return nil
}

// opens returns the cipher with which the key opens a stream, empty for none; sealed: there are encrypted streams.
func (s *Store) opens() (cipher string, sealed bool) {
	dirs, _ := filepath.Glob(filepath.Join(s.jetstream(), "*", "streams", "*")) // the pattern is right
	for _, dir := range dirs {
		for _, cipher := range []string{cipherAES, cipherChaCha} {
			opens, locked := blocks.Stream{Dir: dir, Name: filepath.Base(dir), Key: blocks.Key{Secret: serverKey(s.key), Cipher: cipher}}.Opens()
			if opens {
				return cipher, true
			}
			sealed = sealed || locked
		}
	}
	return "", sealed
}

// readKey reads a key file. A line end at its end does not belong to the key.
func readKey(path string) ([]byte, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the store's key: %w", err)
	}
	raw = bytes.TrimRight(raw, "\r\n")
	switch {
	case len(raw) < minKey:
		return nil, fmt.Errorf("read the store's key: %s has %d bytes, want %d at least: make it with `head -c 32 /dev/urandom | base64`: %w", path, len(raw), minKey, ErrKey)
	case len(raw) > maxKeyFile:
		return nil, fmt.Errorf("read the store's key: %s has %d bytes, want %d at most: is it the right file: %w", path, len(raw), maxKeyFile, ErrKey)
	}
	return hkdf.Extract(sha256.New, raw, nil)
}

// keyCheck is what tells one key from another.
func keyCheck(key, salt []byte) []byte {
	m := hmac.New(sha256.New, key)
	m.Write([]byte("holdfast key check"))
	m.Write(salt)
	return m.Sum(nil)
}

// holdsEncrypted reports whether the server has encrypted files here.
func (s *Store) holdsEncrypted() bool {
	found, _ := filepath.Glob(filepath.Join(s.jetstream(), "*", "streams", "*", serverMetaKey)) // the pattern is right
	return len(found) > 0
}

// ServerKey returns the key that the server must encrypt its files with, and the cipher: aes or chacha. Both are empty for a store that is not encrypted.
func (s *Store) ServerKey() (key, cipher string) {
	if s.key == nil {
		return "", ""
	}
	return serverKey(s.key), s.cipher
}

func serverKey(key []byte) string {
	m := hmac.New(sha256.New, key)
	m.Write([]byte("holdfast streams"))
	return hex.EncodeToString(m.Sum(nil))
}

// blocksKey returns the key to the blocks of a data directory that is not open, by its key file; none for an empty path.
func blocksKey(dir, path string) (blocks.Key, error) {
	if path == "" {
		return blocks.Key{}, nil
	}
	key, err := readKey(path)
	if err != nil {
		return blocks.Key{}, err
	}
	var record keyRecord
	if _, err := newStateFile(filepath.Join(dir, "store", "key")).load(&record); err != nil {
		return blocks.Key{}, fmt.Errorf("how store %s is encrypted cannot be read: %w", dir, err)
	}
	if !hmac.Equal(record.Check, keyCheck(key, record.Salt)) {
		return blocks.Key{}, fmt.Errorf("store %s was made with another key than that in %s: %w", dir, path, ErrKey)
	}
	return blocks.Key{Secret: serverKey(key), Cipher: record.Cipher}, nil
}
