// Package request is the source for programs on the gateway: a request to holdfast.append.<source> is answered when its message is on flash.
package request

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/holdfast-edge/holdfast/ingest"
)

const (
	maxBatch   = 256                    // messages that are delivered together
	maxWaiting = 4096                   // messages that wait, beside the bytes of Config.Queue
	remembered = 8192                   // message IDs that are known again
	retryPause = 100 * time.Millisecond // after Deliver has failed
	maxTail    = 512                    // characters behind the source's subject
	maxHeader  = 4096                   // bytes of headers
)

// Options are what New needs.
type Options struct {
	Name    string
	Config  Config
	Subject string // without the tail; what follows it becomes the record's tail
	MaxSize int64  // bytes of a message that the stream takes; 0: not known
	// Conn returns the daemon's connection as soon as there is one. It belongs to the caller.
	Conn func(ctx context.Context) (*nats.Conn, error)
	Log  *slog.Logger
}

// Source answers the requests of one source.
type Source struct {
	options   Options
	condition *ingest.Condition
	tally     ingest.Tally

	// The fields below belong to Run.
	held []*nats.Msg     // given to Deliver, which failed: they come first again
	ids  map[string]bool // of the messages stored last
	ring []string        // the same, in order
	next int
}

var (
	_ ingest.Source  = (*Source)(nil)
	_ ingest.Stater  = (*Source)(nil)
	_ ingest.Counter = (*Source)(nil)
)

// Answer is the reply to a request, in JSON. Without an error the message is on flash.
type Answer struct {
	Stored    bool   `json:"stored"`
	Duplicate bool   `json:"duplicate,omitempty"` // a message with this Nats-Msg-Id was stored before
	Error     string `json:"error,omitempty"`     // why this message can never be stored
}

// New returns a source that has not subscribed yet.
func New(o Options) *Source {
	if o.Config.Queue == 0 {
		o.Config.SetDefaults()
	}
	return &Source{
		options: o, condition: ingest.NewCondition(o.Log.With("source", o.Name)), ids: map[string]bool{}, ring: make([]string, remembered),
	}
}

// Name is the configured name.
func (s *Source) Name() string { return s.options.Name }

// State says whether requests are taken.
func (s *Source) State() ingest.State { return s.condition.State() }

// Counts says what was taken and what was refused.
func (s *Source) Counts() ingest.Counts { return s.tally.Counts() }

// Run takes requests until ctx ends. What it has taken and not answered by then is asked for again by whoever waits for the answer.
func (s *Source) Run(ctx context.Context, deliver ingest.Deliver) error {
	s.condition.Set(ingest.Starting, "", "")
	nc, err := s.options.Conn(ctx)
	if err != nil {
		return fmt.Errorf("wait for the embedded server: %w", err)
	}
	inbox := make(chan *nats.Msg, maxWaiting)
	var subs []*nats.Subscription
	defer func() {
		for _, sub := range subs {
			_ = sub.Unsubscribe() // the connection may be closed already
		}
	}()
	for _, subject := range []string{s.options.Subject, s.options.Subject + ".>"} {
		sub, err := nc.QueueSubscribe(subject, "holdfast", func(m *nats.Msg) {
			select {
			case inbox <- m:
			case <-ctx.Done():
			}
		})
		if err != nil {
			return fmt.Errorf("subscribe to %s: %w", subject, err)
		}
		subs = append(subs, sub)
		if err := sub.SetPendingLimits(maxWaiting, int(s.options.Config.Queue)); err != nil {
			return fmt.Errorf("subscribe to %s: %w", subject, err)
		}
	}
	s.condition.Set(ingest.Running, "", "")
	for {
		batch := s.held
		if len(batch) == 0 {
			if batch = take(ctx, inbox); batch == nil {
				return ctx.Err()
			}
		}
		if err := s.store(ctx, deliver, batch); err == nil {
			continue
		}
		select { // the subscription stays, so that nothing is lost
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(retryPause):
		}
	}
}

// take waits for a message and returns it with those that are there already. It returns nil when ctx ends.
func take(ctx context.Context, inbox <-chan *nats.Msg) []*nats.Msg {
	var batch []*nats.Msg
	select {
	case m := <-inbox:
		batch = append(batch, m)
	case <-ctx.Done():
		return nil
	}
	for len(batch) < maxBatch {
		select {
		case m := <-inbox:
			batch = append(batch, m)
		default:
			return batch
		}
	}
	return batch
}

// store delivers a batch and answers it. On an error the batch is held for the next call.
func (s *Source) store(ctx context.Context, deliver ingest.Deliver, batch []*nats.Msg) error {
	var readings []ingest.Reading
	answers := make([]Answer, len(batch))
	fresh := map[string]bool{}
	for i, m := range batch {
		id := m.Header.Get(nats.MsgIdHdr)
		r, problem := s.reading(m)
		switch {
		case problem != "":
			answers[i].Error = problem
		case id != "" && (s.ids[id] || fresh[id]):
			answers[i] = Answer{Stored: true, Duplicate: true}
		default:
			fresh[id] = true
			answers[i].Stored = true
			readings = append(readings, r)
		}
	}
	s.held = batch
	if len(readings) > 0 {
		if err := deliver(ctx, readings...); err != nil {
			return err
		}
		s.tally.Deliver(len(readings))
	}
	s.held = nil
	for i, m := range batch {
		if answers[i].Error != "" {
			s.tally.Reject("invalid", len(m.Data))
		} else {
			s.remember(m.Header.Get(nats.MsgIdHdr))
		}
		if m.Reply == "" {
			continue
		}
		text, err := json.Marshal(answers[i])
		if err != nil {
			return fmt.Errorf("answer a request: %w", err)
		}
		if err := m.Respond(text); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
			s.options.Log.Debug("a request is not answered", "source", s.options.Name, "err", err)
		}
	}
	return nil
}

// remember keeps an ID in the place of the oldest.
func (s *Source) remember(id string) {
	if id == "" || s.ids[id] {
		return
	}
	delete(s.ids, s.ring[s.next])
	s.ring[s.next], s.ids[id] = id, true
	s.next = (s.next + 1) % len(s.ring)
}

// reading makes a reading of a message, or says why it can never be stored. Headers of NATS and of ours are left out.
func (s *Source) reading(m *nats.Msg) (r ingest.Reading, problem string) {
	r = ingest.Reading{Time: time.Now(), Tail: strings.TrimPrefix(strings.TrimPrefix(m.Subject, s.options.Subject), "."), Data: m.Data}
	if s.options.MaxSize > 0 && int64(len(m.Data)) > s.options.MaxSize {
		return r, fmt.Sprintf("%d bytes are above max_msg_size of the stream, %d", len(m.Data), s.options.MaxSize)
	}
	if len(r.Tail) > maxTail {
		return r, fmt.Sprintf("the subject is longer than %d characters", maxTail)
	}
	for _, token := range strings.Split(r.Tail, ".") {
		if token == "*" || token == ">" {
			return r, "the subject has a wildcard"
		}
	}
	size := 0
	for key, values := range m.Header {
		if len(values) == 0 || !headerAllowed(key) {
			continue
		}
		if r.Header == nil {
			r.Header = map[string]string{}
		}
		r.Header[key] = strings.TrimSpace(values[0])
		size += len(key) + len(values[0])
	}
	if size > maxHeader {
		return r, fmt.Sprintf("the headers are longer than %d bytes", maxHeader)
	}
	return r, ""
}

// headerAllowed tells whether a header may stand in a record.
func headerAllowed(key string) bool {
	lower := strings.ToLower(key)
	return key != "" && !strings.HasPrefix(lower, "nats-") && !strings.HasPrefix(lower, "holdfast-") && lower != "status" && lower != "description" &&
		!strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == ':' })
}
