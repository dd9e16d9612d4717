package mqttserver

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-edge/holdfast/ingest/mqttserver/packet"
	"github.com/holdfast-edge/holdfast/storage"
)

// saver keeps sessions and retained messages on flash: a file for each session that outlives its connection, written before its
// client is told that it has one and before a subscription is granted; what waits for a client, and the retained messages, every
// saveInterval and at the end.
type saver struct {
	s   *Source
	dir string

	mu   sync.Mutex // held while a file is written, so that the newest state is written last; taken before Source.mu
	next uint64     // number of the next file: of two files of one client, the one with the higher number counts
}

// saveInterval is how old what is on flash of waiting and retained messages may be.
const saveInterval = time.Minute

// maxStateFile is the longest file that is read, in bytes.
const maxStateFile = 256 << 20

// savedSession is a session in its file.
type savedSession struct {
	Nr      uint64          `json:"nr"`
	ID      string          `json:"id"`
	Client  string          `json:"client"`
	User    string          `json:"user,omitempty"`
	Expiry  int64           `json:"expiry"` // seconds
	Filters []packet.Filter `json:"filters,omitempty"`
	Queue   []savedMessage  `json:"queue,omitempty"`
}

// savedMessage is a message that waits or is retained.
type savedMessage struct {
	Topic   string `json:"topic"`
	Payload []byte `json:"payload"`
	QoS     byte   `json:"qos"`
	Retain  bool   `json:"retain,omitempty"`
	ID      uint16 `json:"id,omitempty"` // it is under way
	Forward []byte `json:"properties,omitempty"`
	Left    int64  `json:"left,omitempty"` // seconds until it expires; 0: never
}

func saveMessage(p *packet.Publish, expires time.Time) savedMessage {
	m := savedMessage{Topic: p.Topic, Payload: p.Payload, QoS: p.QoS, Retain: p.Retain, ID: p.ID, Forward: p.Properties.Forward}
	if !expires.IsZero() {
		m.Left = max(1, int64(time.Until(expires)/time.Second))
	}
	return m
}

func (m savedMessage) publish() (p packet.Publish, expires time.Time) {
	p = packet.Publish{Topic: m.Topic, Payload: m.Payload, QoS: min(m.QoS, 2), Retain: m.Retain, ID: m.ID,
		Properties: packet.Properties{Forward: m.Forward, HasExpiry: m.Left > 0}}
	if m.Left > 0 {
		expires = time.Now().Add(time.Duration(m.Left) * time.Second)
	}
	return p, expires
}

// save writes the file of a session; it is on flash when save returns. A session that ends with its connection has none.
func (v *saver) save(x *session) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.s.mu.Lock()
	if x.expiry == 0 || v.s.sessions[x.client] != x {
		v.s.mu.Unlock()
		return nil
	}
	v.next++
	f := savedSession{Nr: v.next, ID: x.id, Client: x.client, User: x.user, Expiry: int64(x.expiry / time.Second)}
	for _, filter := range x.subs {
		f.Filters = append(f.Filters, filter)
	}
	for _, list := range [][]*outgoing{x.flight, x.queue} {
		for _, o := range list {
			f.Queue = append(f.Queue, saveMessage(&o.Publish, o.expires))
		}
	}
	x.unsaved, x.saved = false, len(f.Queue)
	v.s.mu.Unlock()
	data, err := json.Marshal(f)
	if err == nil {
		err = storage.WriteFile(filepath.Join(v.dir, x.id), data, true)
	}
	if err != nil {
		v.s.mu.Lock()
		x.unsaved = true // saveAll tries again
		v.s.mu.Unlock()
		return fmt.Errorf("save session: %w", err)
	}
	return nil
}

// saveAll writes what has changed, and removes the files of sessions that ended.
func (v *saver) saveAll() {
	s := v.s
	s.mu.Lock()
	var due []*session
	for _, x := range s.sessions {
		if x.unsaved && (x.saved > 0 || len(x.queue)+len(x.flight) > 0) {
			due = append(due, x)
		}
	}
	s.mu.Unlock()
	var errs error
	for _, x := range due {
		errs = errors.Join(errs, v.save(x))
	}
	v.clean()
	if errs = errors.Join(errs, v.saveRetained()); errs != nil {
		s.log.Warn("sessions or retained messages are not saved: they may be older after a restart", "err", errs)
	}
}

// clean removes the files of sessions that ended.
func (v *saver) clean() {
	v.s.mu.Lock()
	gone := v.s.gone
	v.s.gone = nil
	v.s.mu.Unlock()
	for _, id := range gone {
		if err := os.Remove(filepath.Join(v.dir, id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			v.s.log.Warn("file of an ended session stays", "err", err)
		}
	}
}

func (v *saver) retainedFile() string { return filepath.Join(v.s.dir, "retained") }

func (v *saver) saveRetained() error {
	v.s.mu.Lock()
	if !v.s.retainedDirty {
		v.s.mu.Unlock()
		return nil
	}
	v.s.retainedDirty = false
	list := make([]savedMessage, 0, len(v.s.retained))
	for _, k := range v.s.retained {
		list = append(list, saveMessage(&k.Publish, k.expires))
	}
	v.s.mu.Unlock()
	data, err := json.Marshal(list)
	if err == nil {
		err = storage.WriteFile(v.retainedFile(), data, true)
	}
	if err != nil {
		v.s.mu.Lock()
		v.s.retainedDirty = true
		v.s.mu.Unlock()
		return fmt.Errorf("save retained messages: %w", err)
	}
	return nil
}

// load reads what an earlier process has saved. What cannot be read is left out with a warning: clients subscribe again.
func (v *saver) load() {
	s := v.s
	if err := os.MkdirAll(v.dir, 0o700); err != nil {
		s.log.Warn("state directory cannot be made, so no session can be kept", "err", err)
	}
	entries, err := os.ReadDir(v.dir)
	if err != nil {
		s.log.Warn("sessions cannot be read", "err", err)
	}
	numbers := map[string]uint64{}
	for _, e := range entries {
		var f savedSession
		if err := readState(filepath.Join(v.dir, e.Name()), &f); err != nil || f.ID != e.Name() {
			s.log.Warn("session cannot be read", "file", e.Name(), "err", err)
			s.gone = append(s.gone, e.Name())
			continue
		}
		v.next = max(v.next, f.Nr)
		if nr, twice := numbers[f.Client]; twice && nr > f.Nr {
			s.gone = append(s.gone, f.ID)
			continue
		} else if twice {
			s.gone = append(s.gone, s.sessions[f.Client].id)
			s.drop(s.sessions[f.Client])
		}
		numbers[f.Client] = f.Nr
		s.sessions[f.Client] = s.restore(f)
	}
	var list []savedMessage
	if err := readState(v.retainedFile(), &list); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.log.Warn("retained messages cannot be read", "err", err)
	}
	for _, m := range list {
		p, expires := m.publish()
		k := &kept{Publish: p, expires: expires}
		s.retained[p.Topic] = k
		s.retainedBytes += k.size()
	}
}

// restore makes a session of what was saved. Its client is away since now: how long it was before cannot be known without a
// clock that can be trusted.
func (s *Source) restore(f savedSession) *session {
	x := newSession(f.Client, f.User)
	x.id, x.expiry, x.left, x.saved = f.ID, min(time.Duration(f.Expiry)*time.Second, s.cfg.SessionExpiry), time.Now(), len(f.Queue)
	for _, filter := range f.Filters {
		x.subs[filter.Filter] = filter
	}
	for _, m := range f.Queue {
		p, expires := m.publish()
		o := &outgoing{Publish: p, expires: expires}
		s.outgoing += o.size()
		if p.ID > 0 && p.QoS > 0 {
			x.flight = append(x.flight, o)
		} else {
			x.queue = append(x.queue, o)
		}
	}
	return x
}

func readState(path string, to any) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if info.Size() > maxStateFile {
		return fmt.Errorf("%s has %d bytes", path, info.Size())
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(data))
	return d.Decode(to)
}

// asciiJSON writes everything in a JSON text that is not ASCII as \u escapes, so that it can be a header.
func asciiJSON(text []byte) string {
	var b strings.Builder
	for _, r := range string(text) {
		switch {
		case r < 0x7f:
			b.WriteRune(r)
		case r <= 0xffff:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			r -= 0x10000
			fmt.Fprintf(&b, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		}
	}
	return b.String()
}
