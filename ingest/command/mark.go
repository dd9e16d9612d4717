package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/holdfast-edge/holdfast/ingest"
	"github.com/holdfast-edge/holdfast/storage"
)

// Phases of a mark.
const (
	idle     = ""         // nothing is in hand
	begun    = "begun"    // a device may have been touched
	answered = "answered" // the outcome is known, and its record may be missing
)

// recent is how many IDs of executed commands a mark remembers, so that a command that comes again is not executed again.
const recent = 128

// mark is how far the commands of one source have come. It is on flash before a device is touched.
type mark struct {
	path string

	Seq     uint64   `json:"seq"`   // of the command in hand, or the last one done, in the stream
	Phase   string   `json:"phase"` // one of the phases
	Command string   `json:"command,omitempty"`
	Tail    string   `json:"tail,omitempty"`
	Outcome *Outcome `json:"outcome,omitempty"` // when answered
	Recent  []string `json:"recent,omitempty"`  // IDs of commands that are done, the newest last
}

// openMark reads the mark of a source in dir, or begins one.
func openMark(dir, source string) (*mark, error) {
	m := &mark{path: filepath.Join(dir, source+".json")}
	data, err := os.ReadFile(m.path)
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	if err == nil {
		err = json.Unmarshal(data, m)
	}
	if err != nil {
		return nil, fmt.Errorf("read the mark of commands %s: %w; remove the file to go on: a command that was in hand is then executed again", m.path, err)
	}
	return m, nil
}

// save puts the mark on flash.
func (m *mark) save() error {
	data, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("write %s: %w", m.path, err)
	}
	return storage.WriteFile(m.path, data, true)
}

// begin says that a command is taken in hand.
func (m *mark) begin(seq uint64, c ingest.Command) error {
	m.Seq, m.Phase, m.Command, m.Tail, m.Outcome = seq, begun, c.ID, c.Tail, nil
	return m.save()
}

// answer says what became of the command in hand.
func (m *mark) answer(seq uint64, o Outcome) error {
	m.Seq, m.Phase, m.Command, m.Tail, m.Outcome = seq, answered, o.Command, o.Tail, &o
	return m.save()
}

// finish says that the outcome's record is on flash.
func (m *mark) finish() error {
	m.Recent = append(m.Recent, m.Command)
	m.Recent = m.Recent[max(0, len(m.Recent)-recent):]
	m.Phase, m.Command, m.Tail, m.Outcome = idle, "", "", nil
	return m.save()
}

// knows says whether a command was executed before.
func (m *mark) knows(id string) bool { return slices.Contains(m.Recent, id) }
