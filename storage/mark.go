package storage

import (
	"slices"
	"sync"
)

// Mark is what a source gave along with a record, to know it again.
type Mark struct {
	Epoch, Seq uint64 // of the record
	Data       []byte // as in Record.Mark
}

// marks are those that the journal had at the start.
type marks struct {
	mu       sync.Mutex // guards the field below
	bySource map[string][]Mark
}

// keep notes the mark of a record in the journal, if it has one.
func (m *marks) keep(id ID, data []byte) {
	if len(data) == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.bySource == nil {
		m.bySource = map[string][]Mark{}
	}
	m.bySource[id.Source] = append(m.bySource[id.Source], Mark{id.Epoch, id.Seq, slices.Clone(data)})
}

// Marks returns the marks of a source's newest records, in the order of the records, once: those that the journal had when the store was opened.
// A mark is on flash with its record. A file of the source's own, on the store's file system, may be behind by these after a power cut and
// by none before: every checkpoint makes it durable before it lets go of the records.
func (s *Store) Marks(source string) []Mark {
	s.marks.mu.Lock()
	defer s.marks.mu.Unlock()
	found := s.marks.bySource[source]
	delete(s.marks.bySource, source)
	return found
}
