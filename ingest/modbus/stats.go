package modbus

import (
	"maps"
	"sync"
)

// Stats say how the bus is, since the source was made.
type Stats struct {
	Requests   uint64          // sent
	Replies    uint64          // that came as asked for
	Exceptions map[byte]uint64 // replies that refused, by code; nil for none
	Silent     uint64          // requests without reply
	Garbled    uint64          // requests after which bytes came, and no reply could be made of them
	Late       uint64          // replies that came too late, or to another request: dropped
	Foreign    uint64          // frames of units that were not asked: dropped
	Echoes     uint64          // requests that the adapter repeated: dropped
	Noise      uint64          // bytes that belonged to no frame: dropped
	Opened     uint64          // how often line or connection was opened
}

// count counts a refusal.
func (s *Stats) count(e *Exception) {
	if s.Exceptions == nil {
		s.Exceptions = map[byte]uint64{}
	}
	s.Exceptions[e.Code]++
}

// meter counts. It is safe for concurrent use.
type meter struct {
	mu    sync.Mutex // guards stats
	stats Stats
}

func (m *meter) count(f func(s *Stats)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f(&m.stats)
}

// scanned counts what a scan dropped.
func (m *meter) scanned(s *scan) {
	m.count(func(st *Stats) {
		st.Late += uint64(s.stray)
		st.Foreign += uint64(s.foreign)
		st.Noise += uint64(s.noise)
		if s.echoed {
			st.Echoes++
		}
	})
}

func (m *meter) read() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.stats
	s.Exceptions = maps.Clone(s.Exceptions)
	return s
}
