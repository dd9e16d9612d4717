package mqtt

import (
	"log/slog"
	"sync"

	"github.com/holdfast-edge/holdfast/storage"
)

const (
	// packetSlots has one slot for every packet id, 1 to 65535, and slot 0.
	packetSlots = 1 << 16
	// packetWindow bounds how many later messages a stored one is remembered for. Brokers count packet ids up, so that an id comes
	// back 65535 messages later: a mark must be void before that.
	packetWindow = 1<<16 - 1
	// retainedSlots is how many retained messages are remembered, and slot 0.
	retainedSlots = 1 << 14
)

// delivered remembers which messages are stored whose acknowledgement may not have reached the broker: a broker sends those
// again after a reconnect, with the flag DUP and the same packet id (MQTT 3.1.1 section 4.4).
//
// DUP alone says nothing: it is also set on messages whose first copy was lost on its way to us, which must be stored. So a
// message with DUP is taken for a redelivery only if the last message that was stored under its packet id has the same topic
// and payload. Equal readings are common, so this alone could still throw away a reading: packet id used again, equal
// payload, first copy lost. It cannot, because a mark is void
//
//   - once the broker has answered a ping that was sent after the acknowledgement: it has the acknowledgement, will not send
//     that message again, and may use the packet id for another (see guard);
//   - when a later message was stored under the same packet id;
//   - when packetWindow later messages were handled;
//   - when the broker has no session of ours any more.
//
// What cannot be recognised: a broker that comes back from a crash with its messages but gives them new packet ids, or that
// sends again what it had our acknowledgement for. Those messages are stored twice.
//
// It is safe for concurrent use.
type delivered struct {
	file *slotFile
	log  *slog.Logger

	mu      sync.Mutex // guards the fields below, and the file
	session uint64     // the broker's session, counted from 0 in this process
	next    uint32
	marks   map[uint16]mark
}

// load reads the marks of an earlier process; see slotFile.load.
func (d *delivered) load(epoch, seq uint64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.marks = map[uint16]mark{}
	found := false
	return d.file.load(epoch, seq, func(slot int, m mark) {
		d.marks[uint16(slot)] = m
		if after := m.nr + 1; !found || int32(after-d.next) > 0 {
			found, d.next = true, after
		}
	})
}

// present returns the session whose packet ids the marks are about.
func (d *delivered) present() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.session
}

// begin forgets everything because the broker began a new session, and returns that.
func (d *delivered) begin() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.session++
	clear(d.marks)
	if err := d.file.empty(); err != nil {
		giveUp(d.log, d.file, err)
	}
	return d.session
}

// find says whether a message with DUP is one that is stored, and returns its mark.
func (d *delivered) find(session uint64, packet uint16, digest digest) (mark, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m, ok := d.marks[packet]
	return m, ok && session == d.session && m.digest == digest && d.next-m.nr < packetWindow
}

// handle makes the mark of a message that is new, which is void until it is stored, and voids an older one of its packet id.
func (d *delivered) handle(session uint64, packet uint16, digest digest) mark {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.next++
	if _, ok := d.marks[packet]; ok && session == d.session {
		d.void(packet)
	}
	return mark{nr: d.next - 1, digest: digest}
}

// note writes the mark of a record that is about to be stored.
func (d *delivered) note(session uint64, packet uint16, m mark, id storage.ID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if session != d.session {
		return
	}
	if err := d.file.put(int(packet), m, id); err != nil {
		giveUp(d.log, d.file, err)
	}
}

// store makes the mark of a message good: its record is stored.
func (d *delivered) store(session uint64, packet uint16, m mark) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if session == d.session {
		d.marks[packet] = m
	}
}

// confirm voids the mark of a message whose acknowledgement the broker has, unless its packet id is in use again.
func (d *delivered) confirm(session uint64, packet uint16, nr uint32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if m, ok := d.marks[packet]; ok && session == d.session && m.nr == nr {
		d.void(packet)
	}
}

// void removes a mark; d.mu is held.
func (d *delivered) void(packet uint16) {
	delete(d.marks, packet)
	if err := d.file.clear(int(packet)); err != nil {
		giveUp(d.log, d.file, err)
	}
}

// retained remembers which retained messages are stored: the last ones, up to retainedSlots. It is not safe for concurrent use.
type retained struct {
	file  *slotFile
	log   *slog.Logger
	slot  int // the one written last
	next  uint32
	known map[digest]int // slot by message
	held  []digest       // message by slot
}

func (r *retained) load(epoch, seq uint64) error {
	r.known, r.held = map[digest]int{}, make([]digest, retainedSlots)
	found := false
	return r.file.load(epoch, seq, func(slot int, m mark) {
		r.known[m.digest], r.held[slot] = slot, m.digest
		if after := m.nr + 1; !found || int32(after-r.next) > 0 {
			found, r.next, r.slot = true, after, slot
		}
	})
}

func (r *retained) find(d digest) bool {
	_, ok := r.known[d]
	return ok
}

// place gives a message that is about to be stored its slot; the oldest message there is forgotten.
func (r *retained) place(d digest) (slot int, m mark) {
	if r.slot++; r.slot >= retainedSlots {
		r.slot = 1
	}
	if old := r.held[r.slot]; r.known[old] == r.slot {
		delete(r.known, old)
	}
	r.next++
	return r.slot, mark{nr: r.next - 1, digest: d}
}

func (r *retained) note(slot int, m mark, id storage.ID) {
	if err := r.file.put(slot, m, id); err != nil {
		giveUp(r.log, r.file, err)
	}
}

func (r *retained) store(slot int, m mark) { r.known[m.digest], r.held[slot] = slot, m.digest }

// giveUp goes on without a file that cannot be written.
func giveUp(log *slog.Logger, f *slotFile, err error) {
	log.Warn("stored messages cannot be noted, a repeated one may be stored twice after a restart", "path", f.path, "err", err)
	if err := f.drop(); err != nil {
		log.Warn("file of stored messages cannot be removed", "path", f.path, "err", err)
	}
}
