package mqtt

import (
	"log/slog"
	"sync"

	"github.com/holdfast-edge/holdfast/ingest/seen"
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
	file *seen.File
	log  *slog.Logger

	mu      sync.Mutex // guards the fields below, and the file
	session uint64     // the broker's session, counted from 0 in this process
	next    uint32
	marks   map[uint16]seen.Mark
}

// load reads the marks of an earlier process; see seen.File.load.
func (d *delivered) load(epoch, seq uint64, journal []storage.Mark) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.marks = map[uint16]seen.Mark{}
	found := false
	return d.file.Load(epoch, seq, journal, func(slot int, m seen.Mark) {
		d.marks[uint16(slot)] = m
		if after := m.Nr + 1; !found || int32(after-d.next) > 0 {
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
	if err := d.file.Empty(); err != nil {
		giveUp(d.log, d.file, err)
	}
	return d.session
}

// find says whether a message with DUP is one that is stored, and returns its mark.
func (d *delivered) find(session uint64, packet uint16, digest seen.Digest) (seen.Mark, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m, ok := d.marks[packet]
	return m, ok && session == d.session && m.Digest == digest && d.next-m.Nr < packetWindow
}

// handle makes the mark of a message that is new, which is void until it is stored, and voids an older one of its packet id.
func (d *delivered) handle(session uint64, packet uint16, digest seen.Digest) seen.Mark {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.next++
	if _, ok := d.marks[packet]; ok && session == d.session {
		d.void(packet)
	}
	return seen.Mark{Nr: d.next - 1, Digest: digest}
}

// note writes the mark of a record that is about to be stored, and returns what goes into the journal with it.
func (d *delivered) note(session uint64, packet uint16, m seen.Mark, id storage.ID) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	if session != d.session {
		return nil
	}
	if err := d.file.Put(int(packet), m, id); err != nil {
		giveUp(d.log, d.file, err)
	}
	return d.file.Encode(int(packet), m)
}

// store makes the mark of a message good: its record is stored.
func (d *delivered) store(session uint64, packet uint16, m seen.Mark) {
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
	if m, ok := d.marks[packet]; ok && session == d.session && m.Nr == nr {
		d.void(packet)
	}
}

// void removes a mark; d.mu is held.
func (d *delivered) void(packet uint16) {
	delete(d.marks, packet)
	if err := d.file.Clear(int(packet)); err != nil {
		giveUp(d.log, d.file, err)
	}
}

// giveUp goes on without a file that cannot be written.
func giveUp(log *slog.Logger, f *seen.File, err error) {
	log.Warn("stored messages cannot be noted, a repeated one may be stored twice after a restart", "path", f.Path(), "err", err)
	if err := f.Drop(); err != nil {
		log.Warn("file of stored messages cannot be removed", "path", f.Path(), "err", err)
	}
}
