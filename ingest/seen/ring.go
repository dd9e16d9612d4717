package seen

import "github.com/holdfast-edge/holdfast/storage"

// Ring remembers the last messages that were stored, as many as its file has slots but one. The oldest is forgotten first. It is not
// safe for concurrent use.
type Ring struct {
	file   *File
	failed func(*File, error) // called when the file cannot be written any more
	slot   int                // the one written last
	next   uint32
	known  map[Digest]int // slot by message
	held   []Digest       // message by slot
}

// NewRing returns a ring in a file that is not loaded yet. The ring calls failed, and goes on in memory, when the file cannot be
// written.
func NewRing(file *File, failed func(*File, error)) *Ring {
	return &Ring{file: file, failed: failed, known: map[Digest]int{}, held: make([]Digest, file.slots)}
}

// Load reads what an earlier process stored up to record (epoch, seq); see File.Load for the error.
func (r *Ring) Load(epoch, seq uint64) error {
	found := false
	return r.file.Load(epoch, seq, func(slot int, m Mark) {
		r.known[m.Digest], r.held[slot] = slot, m.Digest
		if after := m.Nr + 1; !found || int32(after-r.next) > 0 {
			found, r.next, r.slot = true, after, slot
		}
	})
}

// Reopen opens the file again after Close.
func (r *Ring) Reopen() error { return r.file.Reopen() }

// Close closes the file; what is stored from then on is remembered in memory only, until Reopen.
func (r *Ring) Close() error { return r.file.Close() }

// Find says whether a message is stored.
func (r *Ring) Find(d Digest) bool {
	_, ok := r.known[d]
	return ok
}

// Len returns how many messages are remembered.
func (r *Ring) Len() int { return len(r.known) }

// Place gives a message that is about to be stored its slot; the oldest message there is forgotten.
func (r *Ring) Place(d Digest) (slot int, m Mark) {
	if r.slot++; r.slot >= r.file.slots {
		r.slot = 1
	}
	if old := r.held[r.slot]; r.known[old] == r.slot {
		delete(r.known, old)
	}
	r.next++
	return r.slot, Mark{Nr: r.next - 1, Digest: d}
}

// Note writes the mark of a record that is about to be stored.
func (r *Ring) Note(slot int, m Mark, id storage.ID) {
	if err := r.file.Put(slot, m, id); err != nil {
		r.failed(r.file, err)
	}
}

// Store makes a mark good: its record is stored.
func (r *Ring) Store(slot int, m Mark) { r.known[m.Digest], r.held[slot] = slot, m.Digest }

// Forget makes the mark of a message void, without a sync.
func (r *Ring) Forget(d Digest) {
	slot, ok := r.known[d]
	if !ok {
		return
	}
	delete(r.known, d)
	r.held[slot] = Digest{}
	if err := r.file.Clear(slot); err != nil {
		r.failed(r.file, err)
	}
}
