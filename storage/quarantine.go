package storage

import (
	"bufio"
	"cmp"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/holdfast-edge/holdfast/storage/journal"
)

// Quarantined is a record that was acknowledged and cannot go into its stream: one line, in JSON, of the file quarantine/<stream>. In an encrypted store the line is
// a sealedLine that holds it.
type Quarantined struct {
	Stream      string    `json:"stream"`
	Incarnation uint64    `json:"incarnation"` // of the stream that it was meant for
	Sequence    Position  `json:"sequence"`    // that it was promised
	Reason      string    `json:"reason"`
	Time        time.Time `json:"time"` // when it was set aside, by a clock that may be wrong
	Subject     string    `json:"subject"`
	Header      string    `json:"header"` // as on the wire
	Data        []byte    `json:"data"`
}

// quarantine is the folder of what was set aside. It is on flash before the checkpoint passes it, because that syncs the file system.
// Needs publisher.turn.
type quarantine struct {
	dir   string
	files map[string]*quarantineFile
	aead  cipher.AEAD // nil: the store is not encrypted

	aside atomic.Int64 // records that it holds, without the store's own
}

// sealedLine is a line of the quarantine of an encrypted store: the JSON of a Quarantined behind a random nonce, by AES-256-GCM under a key of the quarantine's own.
type sealedLine struct {
	Sealed []byte `json:"sealed"`
}

// encrypt makes lines encrypted from now on, by a key that is made of the store's.
func (q *quarantine) encrypt(key []byte) error {
	own, err := hkdf.Key(sha256.New, key, nil, "holdfast quarantine", 32)
	if err != nil {
		return fmt.Errorf("derive the quarantine's key: %w", err)
	}
	b, err := aes.NewCipher(own)
	if err == nil {
		q.aead, err = cipher.NewGCMWithRandomNonce(b)
	}
	if err != nil {
		return fmt.Errorf("derive the quarantine's key: %w", err)
	}
	return nil
}

// line writes a record as a line.
func (q *quarantine) line(r Quarantined) ([]byte, error) {
	line, err := json.Marshal(r)
	if err != nil || q.aead == nil {
		return line, err
	}
	return json.Marshal(sealedLine{q.aead.Seal(nil, nil, line, nil)})
}

// parse reads a line; false if it is cut off or of another key. Lines that were written before they were encrypted are read, too.
func (q *quarantine) parse(line []byte) (r Quarantined, ok bool) {
	var s sealedLine
	if json.Unmarshal(line, &s) != nil {
		return r, false
	}
	if s.Sealed != nil {
		if q.aead == nil {
			return r, false
		}
		var err error
		if line, err = q.aead.Open(nil, nil, s.Sealed, nil); err != nil {
			return r, false
		}
	}
	return r, json.Unmarshal(line, &r) == nil
}

type quarantineFile struct {
	f    *os.File
	have map[[2]uint64]bool // incarnation and sequence
}

// unnamed is the file of entries that do not even say which stream they are of.
const unnamed = "_unnamed"

// open opens the file of a stream and reads what it has, so that a second replay does not set the same aside twice.
func (q *quarantine) open(stream string) (*quarantineFile, error) {
	if f := q.files[stream]; f != nil {
		return f, nil
	}
	if err := os.MkdirAll(q.dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(q.dir, stream), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	q.files[stream] = &quarantineFile{f: f, have: map[[2]uint64]bool{}}
	_ = q.read(f, func(r Quarantined) { q.files[stream].have[[2]uint64{r.Incarnation, uint64(r.Sequence)}] = true }) // what cannot be read is at worst set aside twice
	return q.files[stream], nil
}

// holds reports whether a record was set aside.
func (q *quarantine) holds(stream string, incarnation uint64, at Position) bool {
	if _, err := os.Stat(filepath.Join(q.dir, stream)); err != nil {
		return false
	}
	f, err := q.open(stream)
	return err == nil && f.have[[2]uint64{incarnation, uint64(at)}]
}

// read reads what a file holds. A line that was cut off is passed over.
func (q *quarantine) read(f *os.File, fn func(Quarantined)) error {
	lines := bufio.NewReader(f)
	for {
		line, err := lines.ReadBytes('\n')
		if r, ok := q.parse(line); ok {
			fn(r)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// readQuarantine reads what was set aside in a data directory; keyFile is the file of an encrypted store's key.
func readQuarantine(dir, keyFile string) ([]Quarantined, error) {
	q := quarantine{dir: filepath.Join(dir, "store", "quarantine")}
	if keyFile != "" {
		key, err := readKey(keyFile)
		if err == nil {
			err = q.encrypt(key)
		}
		if err != nil {
			return nil, err
		}
	}
	return q.all()
}

// all reads everything that was set aside.
func (q *quarantine) all() (all []Quarantined, err error) {
	err = q.walk(func(r Quarantined) { all = append(all, r) })
	return all, err
}

// recount counts what was set aside.
func (q *quarantine) recount() error {
	var n int64
	err := q.walk(func(r Quarantined) {
		if r.captured() {
			n++
		}
	})
	q.aside.Store(n)
	return err
}

// walk calls fn with everything that was set aside.
func (q *quarantine) walk(fn func(Quarantined)) error {
	names, err := os.ReadDir(q.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the quarantine: %w", err)
	}
	for _, n := range names {
		f, err := os.Open(filepath.Join(q.dir, n.Name()))
		if err == nil {
			err = errors.Join(q.read(f, fn), f.Close())
		}
		if err != nil {
			return fmt.Errorf("read the quarantine: %w", err)
		}
	}
	return nil
}

// captured reports whether it may be a record of a source's: all that is not known to be the store's own.
func (r Quarantined) captured() bool {
	id, err := r.id()
	return err != nil || !Own(id.Source)
}

// add sets a record aside. fresh: it was not there yet.
func (q *quarantine) add(r Quarantined) (fresh bool, err error) {
	f, err := q.open(fileOf(r))
	if err != nil {
		return false, err
	}
	key := [2]uint64{r.Incarnation, uint64(r.Sequence)}
	if f.have[key] {
		return false, nil
	}
	line, err := q.line(r)
	if err != nil {
		return false, err
	}
	if _, err := f.f.Write(append(append([]byte{'\n'}, line...), '\n')); err != nil { // a line before it may have been cut off
		return false, err
	}
	f.have[key] = true
	if r.captured() {
		q.aside.Add(1)
	}
	return true, nil
}

func (q *quarantine) close() error {
	var errs []error
	for _, f := range q.files {
		errs = append(errs, f.f.Close())
	}
	return errors.Join(errs...)
}

// setAside keeps a record that cannot go into its stream.
func (s *Store) quarantined(e *journal.Entry, m message, reason string) error {
	r := Quarantined{
		Stream: m.stream, Incarnation: e.Incarnation, Sequence: Position(e.Sequence), Reason: reason, Time: s.now().UTC(),
		Subject: m.subject, Header: string(m.header), Data: m.data,
	}
	fresh, err := s.quarantine.add(r)
	if err != nil {
		return fmt.Errorf("set record %d of stream %s aside: %w", e.Sequence, m.stream, err)
	}
	if fresh {
		s.log.Error("an acknowledged record was set aside", "stream", m.stream, "seq", e.Sequence, "err", reason)
		s.alarmQuarantine(cmp.Or(m.stream, unnamed), reason)
	}
	return nil
}

// alarmQuarantine says, once for each stream, that it has records set aside.
func (s *Store) alarmQuarantine(stream, reason string) {
	path := filepath.Join(s.quarantine.dir, stream)
	where := s.relative(path)
	if !slices.ContainsFunc(s.Alarms(), func(a Alarm) bool { return a.Where == where }) {
		s.alarm(path, "acknowledged records could not go into their stream: "+reason, path)
	}
}

// SetAside returns how many acknowledged records are in the quarantine. Records of the store's own do not count, nor does what cannot be read.
func (s *Store) SetAside() uint64 { return uint64(max(0, s.quarantine.aside.Load())) }

// openQuarantine counts and names what was set aside in earlier runs.
func (s *Store) openQuarantine() error {
	if err := s.quarantine.recount(); err != nil {
		s.log.Error("not all that was set aside is counted", "err", err)
	}
	return s.each(s.quarantine.dir, func(path string) error {
		s.alarmQuarantine(filepath.Base(path), "in an earlier run")
		return nil
	})
}

// setEntryAside keeps an entry of the ring that belongs to no stream that is configured, or cannot be read.
func (s *Store) setEntryAside(e *journal.Entry, m message, cause error) error {
	switch {
	case cause != nil:
		return s.quarantined(e, message{stream: unnamed, data: e.Payload}, cause.Error())
	case s.byName[m.stream] != nil:
		return s.quarantined(e, m, "its stream was made anew since: the sequence means another record now")
	}
	return s.quarantined(e, m, "its stream is not configured any more, and the server does not have it")
}

// replace sets a record aside that the server refuses for good, and puts a placeholder where it was to lie, so that those behind it lie where they were
// promised to. A gap record will tell of it.
func (s *Store) replace(ctx context.Context, st *stream, r pending, cause error) error {
	m, err := parseMessage(r.payload)
	if err != nil {
		return err
	}
	if err := s.quarantined(&journal.Entry{Incarnation: st.incarnation, Sequence: uint64(r.at)}, m, cause.Error()); err != nil {
		return err
	}
	p := &nats.Msg{Subject: LeapSubject(st.name()), Header: nats.Header{}}
	order(p, r.at-1)
	ticket := s.wire.ticket(p)
	if err := s.wire.nc.PublishMsg(p); err != nil {
		return classify(err)
	}
	if a := s.wire.await(ticket, st.fence()); a.err != nil || a.seq != r.at {
		return fmt.Errorf("%w: placeholder for record %d of stream %s: %w", ErrUnavailable, r.at, st.name(), a.err)
	}
	if err := s.purgePlaceholders(ctx, st); err != nil {
		return err
	}
	s.publisher.owed = append(s.publisher.owed, GapRecord{Stream: st.name(), First: r.at, Last: r.at, Count: 1, Reason: GapRefused})
	return nil
}
