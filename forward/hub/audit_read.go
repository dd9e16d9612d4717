package hub

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/storage"
)

const (
	auditBatch    = 5000             // records asked for at a time
	auditPatience = 30 * time.Second // for the next of them
)

// ErrNoStream means that the hub does not have a stream that was to be read.
var ErrNoStream = errors.New("the hub does not have it: holdfast hub apply makes it, and holdfast hub list shows what waits for it")

// Read adds the records of a hub stream up to its present end, of one leaf or of all ("*"), and returns how many they were. Only their headers
// travel. It calls progress now and then with the number of those that are left, when it is not nil. ErrNoStream if the stream is not there.
func (a *Audit) Read(ctx context.Context, js jetstream.JetStream, stream, leaf string, progress func(left uint64)) (uint64, error) {
	s, err := lookAt(ctx, js, stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return 0, fmt.Errorf("audit hub stream %s: %w", stream, ErrNoStream)
	}
	if err != nil {
		return 0, fmt.Errorf("audit hub stream %s: %w", stream, err)
	}
	r := newReader(a, s)
	n, err := r.run(ctx, "data."+leaf+".>", progress)
	if err != nil {
		return n, fmt.Errorf("audit hub stream %s: %w", stream, err)
	}
	return n, nil
}

// reader reads one hub stream.
type reader struct {
	audit   *Audit
	stream  jetstream.Stream
	cfg     jetstream.StreamConfig
	first   uint64
	created time.Time          // the stream, by the hub: nothing of ours in it came before
	marked  map[streamKey]bool // told of truncation
}

func newReader(a *Audit, s jetstream.Stream) *reader {
	return &reader{audit: a, stream: s, cfg: s.CachedInfo().Config, first: s.CachedInfo().State.FirstSeq, created: s.CachedInfo().Created, marked: map[streamKey]bool{}}
}

func (r *reader) run(ctx context.Context, filter string, progress func(uint64)) (uint64, error) {
	c, err := r.stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{FilterSubjects: []string{filter}, HeadersOnly: true})
	if err != nil {
		return 0, err
	}
	defer func() {
		if info := c.CachedInfo(); info != nil {
			_ = r.stream.DeleteConsumer(context.WithoutCancel(ctx), info.Name) // the server forgets it by itself, later
		}
	}()
	info, err := c.Info(ctx)
	if err != nil {
		return 0, err
	}
	total := info.NumPending + info.Delivered.Consumer
	if total == 0 {
		return 0, nil
	}
	messages, err := c.Messages(jetstream.PullMaxMessages(auditBatch))
	if err != nil {
		return 0, err
	}
	defer messages.Stop()
	var n uint64
	for n < total && ctx.Err() == nil {
		m, err := messages.Next(jetstream.NextMaxWait(auditPatience))
		if err != nil {
			return n, fmt.Errorf("%d records before its end: %w", total-n, err)
		}
		n++
		if err := r.take(ctx, m); err != nil {
			return n, err
		}
		if progress != nil && n%(20*auditBatch) == 0 {
			progress(total - n)
		}
	}
	return n, ctx.Err()
}

// take adds one message.
func (r *reader) take(ctx context.Context, m jetstream.Msg) error {
	tokens := strings.SplitN(m.Subject(), ".", 5)
	if len(tokens) < 4 {
		return nil // data.<leaf>.<stream> has no source: not of our making, and not in our way
	}
	key := streamKey{tokens[1], tokens[2]}
	if !r.marked[key] {
		r.marked[key] = true
		if r.truncated(time.Now()) {
			r.audit.Truncated(key.leaf, key.stream)
		}
	}
	md, err := m.Metadata()
	if err != nil {
		return err
	}
	h := m.Headers()
	id, err := storage.ParseID(h.Get(storage.HeaderID))
	pos, perr := r.position(h, md.Sequence.Stream)
	if err != nil || perr != nil || id.Leaf != key.leaf {
		r.audit.Foreign(key.leaf, key.stream)
		return nil
	}
	seen := Seen{Stream: key.stream, Pos: pos, ID: id}
	if id.Source == storage.EpochSource || id.Source == storage.GapSource {
		whole, err := r.stream.GetMsg(ctx, md.Sequence.Stream)
		if err != nil {
			return fmt.Errorf("read record %d: %w", md.Sequence.Stream, err)
		}
		seen.Body = whole.Data
	}
	return r.audit.Add(seen)
}

// truncated says that the hub's limits may have taken records from the beginning of the hub stream. What somebody else took there is missing.
func (r *reader) truncated(now time.Time) bool {
	if r.cfg.Mirror == nil && r.first <= 1 {
		return false
	}
	aged := r.cfg.MaxAge > 0 && (r.cfg.Mirror != nil || now.Sub(r.created) >= r.cfg.MaxAge) // a mirror's records have the time at which the leaf took them
	full := r.cfg.Discard == jetstream.DiscardOld && (r.cfg.MaxBytes > 0 || r.cfg.MaxMsgs > 0)
	return aged || full || r.cfg.MaxMsgsPerSubject > 0
}

// position returns the sequence that a record has in the leaf's stream.
func (r *reader) position(h nats.Header, seq uint64) (storage.Position, error) {
	if r.cfg.Mirror != nil {
		return storage.Position(seq), nil
	}
	fields := strings.Fields(h.Get("Nats-Stream-Source"))
	if len(fields) < 2 {
		return 0, errors.New("no leaf's sequence")
	}
	n, err := strconv.ParseUint(fields[1], 10, 64)
	return storage.Position(n), err
}

// RecordStreams returns the names of the hub streams that take records from leaves, sorted.
func (p Plan) RecordStreams() []string {
	var names []string
	for _, s := range p.streams {
		if len(s.Sources) > 0 || s.Mirror != nil {
			names = append(names, s.Name)
		}
	}
	slices.Sort(names)
	return names
}
