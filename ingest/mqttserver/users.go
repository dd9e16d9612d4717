package mqttserver

import (
	"bufio"
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode"

	"golang.org/x/crypto/bcrypt"

	"github.com/holdfast-edge/holdfast/storage"
)

// Limits of users and passwords.
const (
	maxUser     = 128
	maxPassword = 72 // what bcrypt looks at
	maxUsers    = 1 << 20
)

// Failed logins of one address: after so many within the time, only known passwords are looked at.
const (
	maxFailures = 5
	failureTime = time.Minute
	maxSources  = 1024 // addresses that are remembered
)

// checkUser says why a name cannot be a user.
func checkUser(name string) error {
	switch {
	case name == "":
		return errors.New("the name is empty")
	case len(name) > maxUser:
		return fmt.Errorf("the name is longer than %d bytes", maxUser)
	case strings.ContainsFunc(name, func(r rune) bool { return r == ':' || unicode.IsControl(r) }) || strings.HasPrefix(name, "#"):
		return errors.New("a name has no colon, no control character and no # in front")
	}
	return nil
}

// SetUser writes the user and the bcrypt hash of a password into the users file, in place of what was there for that user. An empty
// hash removes the user. The file is on flash when it returns.
func SetUser(file, user, hash string) error {
	if err := checkUser(user); err != nil {
		return fmt.Errorf("user %q: %w", user, err)
	}
	info, statErr := os.Stat(file)
	old, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read users: %w", err)
	}
	var out bytes.Buffer
	found := false
	for line := range strings.Lines(string(old)) {
		if name, _, ok := strings.Cut(line, ":"); ok && name == user {
			found = true
			continue
		}
		out.WriteString(strings.TrimRight(line, "\r\n") + "\n")
	}
	if hash == "" && !found {
		return fmt.Errorf("there is no user %q in %s", user, file)
	}
	if hash != "" {
		fmt.Fprintf(&out, "%s:%s\n", user, hash)
	}
	if err := storage.WriteFile(file, out.Bytes(), true); err != nil {
		return fmt.Errorf("write users: %w", err)
	}
	if statErr == nil { // the daemon must be able to read it as before
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			err = os.Chown(file, int(st.Uid), int(st.Gid))
		}
		if err = errors.Join(err, os.Chmod(file, info.Mode().Perm())); err != nil {
			return fmt.Errorf("users are written, but who may read them is not as it was: %w", err)
		}
	}
	return nil
}

// users checks passwords. It is safe for concurrent use.
type users struct {
	path string
	key  [32]byte // of good; made anew in each process

	slow chan struct{} // holds a token; whoever took it may hash a password

	mu       sync.Mutex // guards the fields below
	read     time.Time  // when the file was looked at
	stamp    string     // size and time of the file that was read
	hashes   map[string][]byte
	good     map[[32]byte]bool // passwords that were right, under key
	failures map[string][]time.Time
}

func newUsers(path string) *users {
	u := &users{path: path, slow: make(chan struct{}, 1), hashes: map[string][]byte{}, good: map[[32]byte]bool{}, failures: map[string][]time.Time{}}
	u.slow <- struct{}{}
	rand.Read(u.key[:])
	return u
}

// load reads the file if it has changed, and looks at it once a second at most. The error says why there are no users.
func (u *users) load(now time.Time) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.path == "" || !u.read.IsZero() && now.Sub(u.read) < time.Second {
		return nil
	}
	info, err := os.Stat(u.path)
	if err != nil {
		return fmt.Errorf("users: %w", err)
	}
	u.read = now
	stamp := fmt.Sprint(info.Size(), info.ModTime().UnixNano())
	if stamp == u.stamp {
		return nil
	}
	if info.Size() > 64<<20 {
		return fmt.Errorf("users: %s has %d bytes, which is no list of users", u.path, info.Size())
	}
	data, err := os.ReadFile(u.path)
	if err != nil {
		return fmt.Errorf("users: %w", err)
	}
	hashes, err := parseUsers(data)
	if err != nil {
		return fmt.Errorf("users: %s: %w", u.path, err)
	}
	u.stamp, u.hashes, u.good = stamp, hashes, map[[32]byte]bool{}
	return nil
}

// parseUsers reads lines of user:hash. Empty lines and those that begin with # say nothing.
func parseUsers(data []byte) (map[string][]byte, error) {
	hashes := map[string][]byte{}
	lines := bufio.NewScanner(bytes.NewReader(data))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimRight(lines.Text(), "\r ")
		if line == "" || line[0] == '#' {
			continue
		}
		name, hash, ok := strings.Cut(line, ":")
		if err := checkUser(name); !ok || err != nil {
			return nil, fmt.Errorf("line %d is no user and hash: write it with holdfast password", n)
		}
		if cost, err := bcrypt.Cost([]byte(hash)); err != nil || cost > 14 {
			return nil, fmt.Errorf("line %d: the password of %q is not a bcrypt hash with a cost of up to 14: write it with holdfast password", n, name)
		}
		if len(hashes) == maxUsers {
			return nil, fmt.Errorf("line %d: more than %d users", n, maxUsers)
		}
		hashes[name] = []byte(hash)
	}
	return hashes, lines.Err()
}

// verdict is what becomes of a login.
type verdict uint8

const (
	denied    verdict = iota // wrong
	accepted                 // right
	throttled                // not looked at, because that address was wrong too often
)

// check says whether the password is the user's. Only one password is hashed at a time, so that a flood of logins takes one
// core at most; a password that was right before is known without that. stop ends the wait.
func (u *users) check(stop <-chan struct{}, user string, password []byte, from string) verdict {
	mac := hmac.New(sha256.New, u.key[:])
	mac.Write([]byte(user + "\x00"))
	mac.Write(password)
	var tag [32]byte
	mac.Sum(tag[:0])

	u.mu.Lock()
	hash, known := u.hashes[user]
	good, blocked := u.good[tag], u.blocked(from)
	u.mu.Unlock()
	switch {
	case good:
		return accepted
	case blocked:
		return throttled
	case !known || len(password) > maxPassword:
		u.fail(from)
		return denied
	}
	select {
	case <-u.slow:
	case <-stop:
		return throttled
	}
	err := bcrypt.CompareHashAndPassword(hash, password)
	u.slow <- struct{}{}
	if err != nil {
		u.fail(from)
		return denied
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if string(u.hashes[user]) == string(hash) { // unless the file was changed meanwhile
		u.good[tag] = true
	}
	return accepted
}

// exists says whether the file names the user.
func (u *users) exists(user string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	_, ok := u.hashes[user]
	return ok
}

// blocked says whether an address was wrong too often lately; u.mu is held.
func (u *users) blocked(from string) bool {
	recent := u.failures[from]
	return len(recent) >= maxFailures && time.Since(recent[len(recent)-maxFailures]) < failureTime
}

func (u *users) fail(from string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if _, ok := u.failures[from]; !ok && len(u.failures) >= maxSources {
		for other := range u.failures { // any: an attacker with many addresses cannot be told apart anyway
			delete(u.failures, other)
			break
		}
	}
	recent := append(u.failures[from], time.Now())
	u.failures[from] = recent[max(0, len(recent)-maxFailures):]
}
