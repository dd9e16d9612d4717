package blocks

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/crypto/chacha20"
	"golang.org/x/crypto/chacha20poly1305"
)

// Key opens the files of an encrypted server. The zero value opens none.
type Key struct {
	Secret string // as the server has it
	Cipher string // aes or chacha
}

// metaKey is the file of the key that encrypts the index.
const metaKey = "meta.key"

// seal makes the cipher that keys and the index are sealed with.
func (k Key) seal(key []byte) (cipher.AEAD, error) {
	if k.Cipher == "chacha" {
		return chacha20poly1305.NewX(key)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithNonceSize(block, block.BlockSize())
}

// seed opens a key file: a nonce, and a seed sealed with a key that the secret, the account and a name make.
func (s Stream) seed(path, name string) (seed, nonce []byte, err error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, err
	}
	if s.Key.Secret == "" {
		return nil, nil, fmt.Errorf("stream %s: %w: %s", s.Name, ErrEncrypted, path)
	}
	h := hmac.New(sha256.New, []byte(s.Key.Secret))
	account := filepath.Base(filepath.Dir(filepath.Dir(s.Dir))) // <store>/jetstream/<account>/streams/<name>
	_, _ = h.Write([]byte(account + name))                      // a hash does not fail
	aead, err := s.Key.seal(h.Sum(nil))
	if err != nil {
		return nil, nil, err
	}
	n := aead.NonceSize()
	if len(raw) < n {
		return nil, nil, errors.New("its key is cut short")
	}
	if seed, err = aead.Open(nil, raw[:n], raw[n:], nil); err != nil {
		return nil, nil, errors.New("its key is damaged, or of another store")
	}
	return seed, raw[:n], nil
}

// Opens says whether Key opens any key file of the stream. sealed: there is one that it could open.
func (s Stream) Opens() (opens, sealed bool) {
	keys := map[string]string{filepath.Join(s.Dir, metaKey): s.Name}
	blocks, _ := filepath.Glob(filepath.Join(s.Dir, messageDir, "*"+keySuffix)) // what is no pattern matches nothing
	for _, path := range blocks {
		keys[path] = s.Name + ":" + strings.TrimSuffix(filepath.Base(path), keySuffix)
	}
	for path, name := range keys {
		switch _, _, err := s.seed(path, name); {
		case err == nil:
			return true, true
		case !errors.Is(err, fs.ErrNotExist):
			sealed = true
		}
	}
	return false, sealed
}

// crypt encrypts or decrypts a block in place; a block without a key file is left as it is.
func (s Stream) crypt(number int, b []byte) error {
	path := strings.TrimSuffix(s.BlockPath(number), blockSuffix) + keySuffix
	seed, nonce, err := s.seed(path, s.Name+":"+strconv.Itoa(number))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if s.Key.Cipher == "chacha" {
		c, err := chacha20.NewUnauthenticatedCipher(seed, nonce)
		if err != nil {
			return err
		}
		c.XORKeyStream(b, b)
		return nil
	}
	block, err := aes.NewCipher(seed)
	if err != nil {
		return err
	}
	cipher.NewCTR(block, nonce).XORKeyStream(b, b)
	return nil
}

// open decrypts an index, whose nonce is in front; one of a stream without a key is left as it is.
func (s Stream) open(b []byte) ([]byte, error) {
	seed, _, err := s.seed(filepath.Join(s.Dir, metaKey), s.Name)
	if errors.Is(err, fs.ErrNotExist) {
		return b, nil
	}
	if err != nil {
		return nil, err
	}
	aead, err := s.Key.seal(seed)
	if err != nil {
		return nil, err
	}
	n := aead.NonceSize()
	if len(b) < n {
		return nil, errors.New("too short")
	}
	return aead.Open(nil, b[:n], b[n:], nil)
}
