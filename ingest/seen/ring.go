package seen

import "github.com/holdfast-edge/holdfast/storage"

// Ring remembers the last messages that were stored, as many as its file has slots but one. The oldest is forgotten first. The first
// bytes of a digest are its key: of messages with one key only the last is remembered. It is not safe for concurrent use.
type Ring struct {
	file   *File
	key    int                // how many bytes of a digest are its key
	failed func(*File, error) // called when the file cannot be written any more
	slot   int                // the one written last
	next   uint32
	known  map[Digest]int // slot by key
	held   []Digest       // message by slot
}

// NewRing returns a ring in a file that is not loaded yet, with keys of so many bytes, 1 to 12. The ring calls failed, and goes on in
// memory, when the file cannot be written.
func NewRing(file *File, key int, failed func(*File, error)) *Ring {
	return &Ring{file: file, key: key, failed: failed, known: map[Digest]int{}, held: make([]Digest, file.slots)}
}

func (r *Ring) keyOf(d Digest) Digest {
	clear(d[r.key:])
	return d
}

// Load reads what an earlier process stored up to record (epoch, seq), and what the journal gave back; see File.Load for the error.
func (r *Ring) Load(epoch, seq uint64, journal []storage.Mark) error {
	found, numbers := false, map[Digest]uint32{}
	return r.file.Load(epoch, seq, journal, func(slot int, m Mark) {
		key := r.keyOf(m.Digest)
		if nr, twice := numbers[key]; !twice || int32(m.Nr-nr) > 0 {
			numbers[key] = m.Nr
			r.known[key], r.held[slot] = slot, m.Digest
		}
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
	slot, ok := r.known[r.keyOf(d)]
	return ok && r.held[slot] == d
}

// Len returns how many messages are remembered.
func (r *Ring) Len() int { return len(r.known) }

// Place gives a message that is about to be stored its slot; the oldest message there is forgotten.
func (r *Ring) Place(d Digest) (slot int, m Mark) {
	if r.slot++; r.slot >= r.file.slots {
		r.slot = 1
	}
	if old := r.keyOf(r.held[r.slot]); r.known[old] == r.slot {
		delete(r.known, old)
	}
	r.next++
	return r.slot, Mark{Nr: r.next - 1, Digest: d}
}

// Note writes the mark of a record that is about to be stored, and returns what goes into the journal with it.
func (r *Ring) Note(slot int, m Mark, id storage.ID) []byte {
	if err := r.file.Put(slot, m, id); err != nil {
		r.failed(r.file, err)
	}
	return r.file.Encode(slot, m)
}

// Store makes a mark good: its record is stored.
func (r *Ring) Store(slot int, m Mark) { r.known[r.keyOf(m.Digest)], r.held[slot] = slot, m.Digest }

// Forget makes what is remembered under the key of d void, without a sync.
func (r *Ring) Forget(d Digest) {
	key := r.keyOf(d)
	slot, ok := r.known[key]
	if !ok {
		return
	}
	delete(r.known, key)
	r.held[slot] = Digest{}
	if err := r.file.Clear(slot); err != nil {
		r.failed(r.file, err)
	}
}
