package storage

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// putBackMark is the file, in store/, by which Repair asks the next start to put back what is in the quarantine.
const putBackMark = "put-back"

// maxPutBackReason bounds the text of HeaderPutBack.
const maxPutBackReason = 200

// AskPutBack has the next start put the records of the quarantine back into their streams, through the journal, behind what is there: with their own IDs and
// times, marked by HeaderPutBack, each once. Those that cannot be put back stay where they are, see Quarantined.Stays. ErrLocked while a daemon runs on the directory.
func AskPutBack(dir string) error {
	release, err := lockForRepair(dir, false)
	if err != nil {
		return err
	}
	defer release()
	return writeFile(filepath.Join(dir, "store", putBackMark), nil, true)
}

// Stays says why a record of the quarantine cannot be put back whatever the configuration; empty if it can.
func (r Quarantined) Stays() string {
	id, err := r.id()
	switch {
	case err != nil:
		return "it does not say whose it is"
	case Own(id.Source):
		return "it is a record of the store's own, about a place in the stream that is another's now"
	}
	return ""
}

func (r Quarantined) id() (ID, error) {
	m := message{header: []byte(r.Header)}
	return ParseID(m.header1(headerStart))
}

// stays says why a record cannot be put back into this store; empty if it can.
func (s *Store) stays(r Quarantined) string {
	if why := r.Stays(); why != "" {
		return why
	}
	st := s.byName[r.Stream]
	switch {
	case st == nil:
		return "stream " + r.Stream + " is not configured"
	case !strings.HasPrefix(r.Subject, DataSubject(s.Leaf(), r.Stream, "")):
		return "its subject " + r.Subject + " is not one of the stream's any more"
	case len(r.Header)+len(r.Data)+maxPutBackReason+maxSubject > min(maxPayload, s.ring.GroupLimit()):
		return "it does not fit into the journal or the server"
	}
	return ""
}

// finishPutBack takes out of the quarantine what an earlier start has put back and did not come to take out: those records are in the ring still.
func (s *Store) finishPutBack() error {
	if len(s.putBackIDs) == 0 {
		return nil
	}
	if _, err := os.Stat(filepath.Join(s.home, putBackMark)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	all, err := s.quarantine.all()
	if err != nil {
		return err
	}
	return s.quarantine.keep(all, func(r Quarantined) bool {
		id, err := r.id()
		at, there := s.putBackIDs[id]
		return err != nil || !there || at <= r.Sequence // it was refused there, again
	})
}

// putBack does what AskPutBack has asked for. Needs publisher.turn, which keeps the checkpoint from passing what it puts back before that is out of the
// quarantine: after a crash in between the ring tells what has been put back. What fails is tried again by the next start.
func (s *Store) putBack() {
	mark := filepath.Join(s.home, putBackMark)
	if _, err := os.Stat(mark); err != nil {
		return
	}
	all, err := s.quarantine.all()
	if err != nil {
		s.log.Error("nothing is put back", "err", err)
		return
	}
	var items []*item
	for _, r := range all {
		if why := s.stays(r); why != "" {
			s.log.Warn("a record stays in the quarantine", "stream", r.Stream, "seq", r.Sequence, "err", why)
			continue
		}
		items = append(items, s.again(r))
	}
	_, failed := s.inscribe(items, false)
	done := map[ID]bool{}
	for _, it := range items {
		if it.done {
			done[it.whose] = true
		}
	}
	takeOut := func() error {
		return s.quarantine.keep(all, func(r Quarantined) bool {
			id, err := r.id()
			return err != nil || !done[id]
		})
	}
	if err = takeOut(); err != nil {
		s.publisher.unkept = takeOut
	}
	if err = errors.Join(failed, err); err == nil {
		err = os.Remove(mark)
	}
	if err != nil {
		s.log.Error("not all is put back: the next start goes on", "err", err)
		return
	}
	s.log.Info("records were put back from the quarantine", "records", len(done), "left", len(all)-len(done))
}

// again makes an item of a record that was set aside.
func (s *Store) again(r Quarantined) *item {
	st := s.byName[r.Stream]
	it := &item{source: st.again}
	it.whose, _ = r.id() // stays has read it
	s.mu.Lock()
	s.own[st.again.name]++
	it.seq = s.own[st.again.name]
	s.mu.Unlock()
	header := r.Header
	if !strings.Contains(header, "\r\n"+HeaderPutBack+": ") {
		header += HeaderPutBack + ": " + plain(r.Reason) + "\r\n"
	}
	it.payload = message{stream: r.Stream, subject: r.Subject, header: []byte(header), data: r.Data}.encode()
	return it
}

// plain makes a text fit for a header.
func plain(text string) string {
	text = strings.TrimSpace(strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return ' '
		}
		return r
	}, text))
	if len(text) > maxPutBackReason {
		text = strings.TrimSpace(text[:maxPutBackReason])
	}
	if text == "" {
		return "set aside"
	}
	return text
}

// keep rewrites the files of the quarantine without those of all its records that are not to stay, on flash. Lines that cannot be read stay as they are.
func (q *quarantine) keep(all []Quarantined, stay func(Quarantined) bool) (err error) {
	defer func() { err = errors.Join(err, q.recount()) }()
	gone := map[string]bool{}
	for _, r := range all {
		if !stay(r) {
			gone[fileOf(r)] = true
		}
	}
	for name := range gone {
		if f := q.files[name]; f != nil {
			if err := f.f.Close(); err != nil {
				return err
			}
			delete(q.files, name)
		}
		path := filepath.Join(q.dir, name)
		raw, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("take out of the quarantine: %w", err)
		}
		var left []byte
		for line := range bytes.Lines(raw) {
			if r, ok := q.parse(line); len(bytes.TrimSpace(line)) > 0 && (!ok || stay(r)) {
				left = append(bytes.TrimSuffix(append(left, line...), []byte("\n")), '\n')
			}
		}
		if len(left) > 0 {
			err = writeFile(path, left, true)
		} else {
			err = errors.Join(os.Remove(path), syncDir(q.dir))
		}
		if err != nil {
			return fmt.Errorf("take out of the quarantine: %w", err)
		}
	}
	return nil
}

// fileOf is the name of the file that a record is kept in.
func fileOf(r Quarantined) string {
	if tokenProblem(r.Stream) != "" {
		return unnamed
	}
	return r.Stream
}
