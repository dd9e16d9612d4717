package storage

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sys/unix"

	"github.com/holdfast-edge/holdfast/storage/journal"
)

// journalForm is the commit by journal of docs/decisions/0007 in its smallest form, one stream and no limits: a model to measure and to cut, not the store.
type journalForm struct {
	ring   *journal.Ring
	nc     *nats.Conn
	root   *os.File
	stream string
	every  time.Duration // between checkpoints

	next     uint64 // predicted sequence
	queue    chan formGroup
	done     chan struct{} // closed when the publisher has ended
	acked    atomic.Uint64 // sequence of the newest record that was answered
	needed   atomic.Uint64 // sequences up to it may be gone from the ring
	replayed int
	mu       sync.Mutex // guards err
	err      error
}

// formGroup is a group that is on flash and on its way into the stream.
type formGroup struct {
	end journal.Position
	msg []*nats.Msg
	seq uint64 // of the last
}

// formSubject is the subject of a record, as long as one of the store's.
const formSubject = "data.leaf.A.a1"

// openForm opens the ring beside a server, replays it into the stream and starts the publisher.
func openForm(ctx context.Context, dir string, o journal.Options, every time.Duration, js jetstream.JetStream) (*journalForm, journal.Recovery, error) {
	f := &journalForm{nc: js.Conn(), stream: "A", every: every, queue: make(chan formGroup, 512), done: make(chan struct{})}
	st, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name: f.stream, Subjects: []string{"data.leaf.A.>"}, FirstSeq: 1 << 40, Duplicates: duplicateWindow, AllowDirect: true,
	})
	if err != nil {
		return nil, journal.Recovery{}, err
	}
	if f.root, err = os.Open(dir); err != nil {
		return nil, journal.Recovery{}, err
	}
	o.Dir = filepath.Join(dir, "journal")
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, journal.Recovery{}, err
	}
	ring, rec, err := journal.Open(o)
	if err != nil {
		return nil, rec, err
	}
	f.ring = ring
	last := st.CachedInfo().State.LastSeq
	f.next = last + 1
	var end journal.Position
	err = ring.Replay(0, func(at journal.Position, group []journal.Entry) error {
		g := formGroup{end: at}
		for _, e := range group {
			if end, f.next = at, e.Sequence+1; e.Sequence > last {
				g.msg, g.seq = append(g.msg, formMsg(e)), e.Sequence
			}
		}
		if len(g.msg) == 0 {
			return nil
		}
		f.replayed += len(g.msg)
		return f.publish([]formGroup{g})
	})
	if err == nil && end > 0 {
		err = f.checkpoint(formGroup{end: end, seq: f.next - 1})
	}
	f.acked.Store(f.next - 1)
	go f.run()
	return f, rec, err
}

// formPayload is what the ring keeps of a record: its time header and its data. The ID is made of the sequence here.
func formPayload(data []byte, stamp string) []byte {
	b := binary.LittleEndian.AppendUint16(nil, uint16(len(stamp)))
	return append(append(b, stamp...), data...)
}

func formMsg(e journal.Entry) *nats.Msg {
	n := int(binary.LittleEndian.Uint16(e.Payload))
	id := ID{Leaf: "leaf", Store: "0123456789", Source: "a1", Epoch: 1, Seq: e.Sequence}
	return &nats.Msg{Subject: formSubject, Data: append([]byte{}, e.Payload[2+n:]...), Header: nats.Header{
		HeaderID: {id.String()}, HeaderTime: {string(e.Payload[2 : 2+n])},
		jetstream.ExpectedLastSeqHeader: {strconv.FormatUint(e.Sequence-1, 10)},
	}}
}

// append makes a group durable, answers, and hands it to the publisher.
func (f *journalForm) append(data ...[]byte) error {
	group := make([]journal.Entry, len(data))
	g := formGroup{}
	stamp := Stamp{Wall: time.Unix(1800000000, 0), Boot: time.Hour, Clock: ClockSynced}.String()
	for i := range data {
		group[i] = journal.Entry{Kind: 1, Incarnation: 1, Sequence: f.next + uint64(i), Payload: formPayload(data[i], stamp)}
		g.msg = append(g.msg, formMsg(group[i]))
	}
	for {
		end, err := f.ring.Append(group)
		if err == nil {
			g.end = end
			break
		}
		if !errors.Is(err, journal.ErrRingFull) {
			return err
		}
		f.queue <- formGroup{} // asks for a checkpoint
	}
	f.next += uint64(len(data))
	g.seq = f.next - 1
	f.acked.Store(g.seq)
	f.queue <- g
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// run publishes what comes, several groups at a time if they are there, and gives checkpoints.
func (f *journalForm) run() {
	defer close(f.done)
	var last formGroup
	pending := false
	timer := time.NewTicker(f.every)
	defer timer.Stop()
	for {
		var batch []formGroup
		open, due := true, false
		select {
		case g, ok := <-f.queue:
			if open = ok; ok {
				batch = append(batch, g)
			}
		case <-timer.C:
			due = true
		}
		records := 0
		for more := open && !due; more && records < maxGroupRecords/2; {
			select {
			case g, ok := <-f.queue:
				if more = ok; ok {
					batch = append(batch, g)
					records += len(g.msg)
				}
			default:
				more = false
			}
		}
		var groups []formGroup
		for _, g := range batch {
			if due = due || g.end == 0; g.end > 0 {
				groups = append(groups, g)
			}
		}
		err := f.publish(groups)
		if len(groups) > 0 {
			last, pending = groups[len(groups)-1], true
		}
		if err == nil && pending && (due || !open) {
			err = f.checkpoint(last)
			pending = false
		}
		if err != nil {
			f.mu.Lock()
			f.err = errors.Join(f.err, err)
			f.mu.Unlock()
		}
		if !open {
			return
		}
	}
}

// publish puts groups into the stream under their predicted sequences and waits for the last one's acknowledgement.
func (f *journalForm) publish(groups []formGroup) error {
	if len(groups) == 0 {
		return nil
	}
	inbox := f.nc.NewInbox()
	sub, err := f.nc.SubscribeSync(inbox)
	if err != nil {
		return err
	}
	for gi, g := range groups {
		for i, m := range g.msg {
			if gi == len(groups)-1 && i == len(g.msg)-1 {
				m.Reply = inbox
			}
			if err := f.nc.PublishMsg(m); err != nil {
				return err
			}
		}
	}
	reply, err := sub.NextMsg(30 * time.Second)
	if err != nil {
		return err
	}
	if a := parseAck(reply); a.err != nil || uint64(a.seq) != groups[len(groups)-1].seq {
		return fmt.Errorf("stream answered %d, %w, predicted %d", a.seq, a.err, groups[len(groups)-1].seq)
	}
	return sub.Unsubscribe()
}

// checkpoint frees the ring up to a group whose records were all acknowledged.
func (f *journalForm) checkpoint(g formGroup) error {
	if err := unix.Syncfs(int(f.root.Fd())); err != nil {
		return err
	}
	f.needed.Store(g.seq)
	return f.ring.Checkpoint(g.end)
}

func (f *journalForm) close() error {
	close(f.queue)
	<-f.done
	return errors.Join(f.err, f.ring.Close(), f.root.Close())
}
