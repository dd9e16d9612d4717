package storage

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// streamView is what a stream says of itself.
type streamView struct {
	First, Last Position // of what it holds; an empty stream has First = Last + 1
	Messages    uint64
	Bytes       uint64
}

// heldRecord is a record as a stream gives it back.
type heldRecord struct {
	Position Position
	ID       ID    // zero for a placeholder or anything else that is not a record
	Stamp    Stamp // zero if its header says nothing readable
	Data     []byte
	Again    bool // it was put back, see HeaderPutBack
}

// own reports whether the record is one of ours, not a captured one.
func (r heldRecord) own() bool { return Own(r.ID.Source) }

// errNoRecord means that a stream holds nothing at or above the position asked for.
var errNoRecord = errors.New("no record there")

// held is what keeping and counting need of a stream.
type held interface {
	view(ctx context.Context) (streamView, error)
	// purge removes everything below a position.
	purge(ctx context.Context, below Position) error
	// next returns the first message at or above a position, errNoRecord if there is none.
	next(ctx context.Context, from Position) (heldRecord, error)
	// scan calls fn for every message from a position on, in order, without their data; see jetstream's ordered consumer.
	scan(ctx context.Context, from Position, fn func(heldRecord) error) error
}

// heldStream is a stream of the embedded server.
type heldStream struct {
	js     jetstream.JetStream
	stream jetstream.Stream
	name   string
}

var _ held = heldStream{}

// holdStream looks a stream up. What it returns stays good when the server's JetStream is restarted.
func holdStream(ctx context.Context, js jetstream.JetStream, name string) (heldStream, error) {
	s, err := js.Stream(ctx, name)
	if err != nil {
		return heldStream{}, fmt.Errorf("look at stream %s: %w", name, err)
	}
	return heldStream{js: js, stream: s, name: name}, nil
}

func (h heldStream) view(ctx context.Context) (streamView, error) {
	info, err := h.stream.Info(ctx)
	if err != nil {
		return streamView{}, fmt.Errorf("look at stream %s: %w", h.name, err)
	}
	st := info.State
	view := streamView{First: Position(st.FirstSeq), Last: Position(st.LastSeq), Messages: st.Msgs, Bytes: st.Bytes}
	if view.Messages == 0 {
		view.First = view.Last + 1
	}
	return view, nil
}

func (h heldStream) purge(ctx context.Context, below Position) error {
	if below <= 1 {
		return nil // to the server, 0 means everything
	}
	if err := h.stream.Purge(ctx, jetstream.WithPurgeSequence(uint64(below))); err != nil {
		return fmt.Errorf("purge stream %s below %d: %w", h.name, below, err)
	}
	return nil
}

func (h heldStream) next(ctx context.Context, from Position) (heldRecord, error) {
	m, err := h.stream.GetMsg(ctx, uint64(max(from, 1)), jetstream.WithGetMsgSubject(">"))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return heldRecord{}, errNoRecord
	}
	if err != nil {
		return heldRecord{}, fmt.Errorf("read stream %s at %d: %w", h.name, from, err)
	}
	if Position(m.Sequence) < from { // a record that was stored again with the headers of a direct get brings the old place along
		return heldRecord{}, fmt.Errorf("read stream %s at %d: the record there says it is at %d", h.name, from, m.Sequence)
	}
	return readHeld(Position(m.Sequence), m.Header, m.Data), nil
}

func (h heldStream) scan(ctx context.Context, from Position, fn func(heldRecord) error) error {
	view, err := h.view(ctx)
	if err != nil || view.Messages == 0 || view.Last < from {
		return err
	}
	cons, err := h.js.OrderedConsumer(ctx, h.name, jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: uint64(max(from, 1)), HeadersOnly: true,
	})
	if err != nil {
		return fmt.Errorf("read stream %s from %d: %w", h.name, from, err)
	}
	if cons.CachedInfo().NumPending == 0 {
		return nil // everything there is below
	}
	msgs, err := cons.Messages()
	if err != nil {
		return fmt.Errorf("read stream %s from %d: %w", h.name, from, err)
	}
	defer msgs.Stop()
	for {
		m, err := msgs.Next(jetstream.NextContext(ctx))
		if err != nil {
			return fmt.Errorf("read stream %s from %d: %w", h.name, from, err)
		}
		meta, err := m.Metadata()
		if err != nil {
			return fmt.Errorf("read stream %s from %d: %w", h.name, from, err)
		}
		if err := fn(readHeld(Position(meta.Sequence.Stream), m.Headers(), nil)); err != nil {
			return err
		}
		if meta.NumPending == 0 {
			return nil
		}
	}
}

// readHeld makes a record of a message. What does not read as a record keeps a zero ID or Stamp.
func readHeld(at Position, header nats.Header, data []byte) heldRecord {
	r := heldRecord{Position: at, Data: data, Again: header.Get(HeaderPutBack) != ""}
	if id, err := ParseID(header.Get(HeaderID)); err == nil {
		r.ID = id
	}
	if stamp, err := ParseStamp(header.Get(HeaderTime)); err == nil {
		r.Stamp = stamp
	}
	return r
}
