package storage

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// How long the publisher waits for the server.
const (
	fencePatience = time.Second      // after so long without an acknowledgement it is asked whether it is still at it
	ackLimit      = 30 * time.Second // after so long the server counts as stuck; a card in trouble stalls for seconds
)

// Outcomes of a publish that are not the server's refusal of the record.
var (
	errNoReply  = errors.New("the server dropped a record without a reply, as it does after a write error")
	errStuck    = errors.New("the server did not reply in " + ackLimit.String())
	errNoStream = errors.New("no stream takes the subject, or JetStream is off")
)

// wire publishes to the server and reads its acknowledgements. Only the last record of a run asks for one: the records of a stream are stored in the
// order of publishing and nobody else writes to it, and each names the sequence that it must come behind, so the sequence in that acknowledgement tells whether all of the run were stored. Used by one
// goroutine at a time, the holder of publisher.turn.
type wire struct {
	js      jetstream.JetStream
	nc      *nats.Conn
	sub     *nats.Subscription
	inbox   string
	serial  uint64
	acks    chan *nats.Msg // closed by nobody: the subscription ends with close
	carrier carrier
	early   map[uint64]ack // acknowledgements that came while another was awaited; emptied for each group

	patience time.Duration // fencePatience; shorter in tests
	limit    time.Duration // ackLimit; shorter in tests
}

// ack is the server's answer to one publish.
type ack struct {
	seq       Position
	duplicate bool
	err       error
}

func newWire(js jetstream.JetStream) (*wire, error) {
	w := &wire{
		js:       js,
		nc:       js.Conn(),
		acks:     make(chan *nats.Msg, 1024),
		early:    map[uint64]ack{},
		patience: fencePatience,
		limit:    ackLimit,
	}
	w.inbox = w.nc.NewInbox() + "."
	var err error
	if w.sub, err = w.nc.ChanSubscribe(w.inbox+"*", w.acks); err != nil {
		return nil, fmt.Errorf("subscribe to acknowledgements: %w", err)
	}
	return w, nil
}

// send publishes a message. The last of a run asks for an acknowledgement.
func (w *wire) send(m *nats.Msg, last bool) (ticket uint64, err error) {
	m.Reply = ""
	if last {
		ticket = w.ticket(m)
	}
	if err := w.nc.PublishMsg(m); err != nil {
		return w.serial, err
	}
	return ticket, nil
}

func (w *wire) close() error {
	if err := w.sub.Unsubscribe(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
		return fmt.Errorf("unsubscribe from acknowledgements: %w", err)
	}
	return nil
}

// ticket gives a message a reply subject and returns what await needs to recognise the reply.
func (w *wire) ticket(m *nats.Msg) uint64 {
	w.serial++
	m.Reply = w.inbox + strconv.FormatUint(w.serial, 10)
	return w.serial
}

// await waits for the acknowledgement of a ticket. Without one it fences: see errNoReply and errStuck.
func (w *wire) await(ticket uint64, fence *nats.Msg) ack {
	if a, ok := w.early[ticket]; ok {
		delete(w.early, ticket)
		return a
	}
	timer := time.NewTimer(w.patience)
	defer timer.Stop()
	var fenced uint64
	for {
		select {
		case m := <-w.acks:
			serial, err := strconv.ParseUint(strings.TrimPrefix(m.Subject, w.inbox), 10, 64)
			switch {
			case err != nil:
			case serial == ticket:
				return parseAck(m)
			case fenced != 0 && serial == fenced:
				return ack{err: errNoReply}
			default: // of another stream's run, or of one that was given up
				w.early[serial] = parseAck(m)
			}
		case <-timer.C:
			if fenced != 0 {
				return ack{err: errStuck}
			}
			fenced = w.ticket(fence)
			if err := w.nc.PublishMsg(fence); err != nil {
				return ack{err: fmt.Errorf("%w: %w", errStuck, err)}
			}
			timer.Reset(w.limit)
		}
	}
}

// pass waits until the server has dealt with everything that was published to a stream before, stored or not.
func (w *wire) pass(fence *nats.Msg) error {
	ticket := w.ticket(fence)
	if err := w.nc.PublishMsg(fence); err != nil {
		return fmt.Errorf("publish a fence: %w", err)
	}
	timer := time.NewTimer(w.limit)
	defer timer.Stop()
	want := w.inbox + strconv.FormatUint(ticket, 10)
	for {
		select {
		case m := <-w.acks:
			if m.Subject != want {
				if serial, err := strconv.ParseUint(strings.TrimPrefix(m.Subject, w.inbox), 10, 64); err == nil {
					w.early[serial] = parseAck(m)
				}
				continue
			}
			if a := parseAck(m); errors.Is(a.err, errNoStream) {
				return a.err
			}
			return nil
		case <-timer.C:
			return errStuck
		}
	}
}

// fence makes a message that the stream refuses before it looks at anything else: its answer proves that all before it were dealt with.
func (st *stream) fence() *nats.Msg {
	return &nats.Msg{Subject: LeapSubject(st.name()), Header: nats.Header{jetstream.ExpectedStreamHeader: {"_"}}}
}

// parseAck reads a publish acknowledgement.
func parseAck(m *nats.Msg) ack {
	if len(m.Data) == 0 && m.Header.Get("Status") == "503" {
		return ack{err: errNoStream}
	}
	var r struct {
		Seq       uint64              `json:"seq"`
		Duplicate bool                `json:"duplicate"`
		Error     *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(m.Data, &r); err != nil {
		return ack{err: fmt.Errorf("read acknowledgement %q: %w", m.Data, err)}
	}
	if r.Error != nil {
		return ack{err: r.Error}
	}
	return ack{seq: Position(r.Seq), duplicate: r.Duplicate}
}
