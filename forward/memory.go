package forward

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/holdfast-edge/holdfast/leaf"
	"github.com/holdfast-edge/holdfast/storage"
)

// memoryFile is where an Uplink keeps what it shows while offline, within Options.Dir.
const memoryFile = "forward.json"

// saveInterval is how often the memory is written at most. It is not synced: what a power cut takes from it the next handshake gives back.
const saveInterval = 30 * time.Second

// remembered is what is kept of one stream.
type remembered struct {
	HubStream string           `json:"hub_stream"`
	Proven    storage.Position `json:"proven"`
	At        time.Time        `json:"at"`
}

// memory keeps how far the hub has proven to hold each stream of one store, over restarts.
type memory struct {
	path string // empty: kept nowhere

	mu      sync.Mutex // guards the fields below
	store   storage.StoreID
	streams map[string]remembered
	days    map[string]leaf.Traffic // by date
	carried leaf.Traffic            // by the link, as last counted
	dirty   bool
	saved   time.Time
}

type memoryContent struct {
	Store   storage.StoreID         `json:"store"`
	Streams map[string]remembered   `json:"streams"`
	Traffic map[string]leaf.Traffic `json:"traffic,omitempty"` // by date, of whatever store
}

// openMemory reads the memory of a store. What was kept for another store is forgotten. The memory is usable in spite of an error.
func openMemory(dir string, store storage.StoreID) (*memory, error) {
	m := &memory{store: store, streams: map[string]remembered{}, days: map[string]leaf.Traffic{}}
	if dir == "" {
		return m, nil
	}
	m.path = filepath.Join(dir, memoryFile)
	b, err := os.ReadFile(m.path)
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	var c memoryContent
	if err == nil {
		err = json.Unmarshal(b, &c)
	}
	if err != nil {
		return m, fmt.Errorf("read saved progress %s: %w", m.path, err)
	}
	if c.Traffic != nil {
		m.days = c.Traffic
	}
	if c.Store == store && c.Streams != nil {
		m.streams = c.Streams
	}
	return m, nil
}

// Remembered returns how far the hub was proven to hold the streams of a store when dir was written to last, before there is an Uplink.
func Remembered(dir string, store storage.StoreID) func(stream string) (storage.Position, bool) {
	m, err := openMemory(dir, store)
	return func(stream string) (storage.Position, bool) {
		r, ok := m.streams[stream]
		return r.Proven, ok && err == nil && r.Proven > 0
	}
}

// of returns what is remembered of a stream's way to a hub stream.
func (m *memory) of(stream, hubStream string) (remembered, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.streams[stream]
	if !ok || r.HubStream != hubStream {
		return remembered{}, false
	}
	return r, true
}

func (m *memory) set(stream string, r remembered) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.streams[stream] = r
	m.dirty = true
}

// save writes the memory when it has changed and, unless now is asked for, when the last time is long enough ago.
func (m *memory) save(now bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.dirty && !(now && len(m.days) > 0) || m.path == "" || (!now && time.Since(m.saved) < saveInterval) {
		return nil
	}
	b, err := json.MarshalIndent(memoryContent{Store: m.store, Streams: m.streams, Traffic: m.days}, "", "  ")
	if err != nil {
		return fmt.Errorf("save progress: %w", err)
	}
	if err := storage.WriteFile(m.path, b, false); err != nil { // a power cut may cost it: the hub tells anew
		return fmt.Errorf("save progress: %w", err)
	}
	m.dirty, m.saved = false, time.Now()
	return nil
}
