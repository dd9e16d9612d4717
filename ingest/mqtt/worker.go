package mqtt

import (
	"context"
	"time"

	"github.com/holdfast-edge/holdfast/ingest"
	"github.com/holdfast-edge/holdfast/ingest/seen"
	"github.com/holdfast-edge/holdfast/ingest/topic"
	"github.com/holdfast-edge/holdfast/storage"
)

// Limits of a batch that is delivered at once.
const (
	batchMessages = 512
	batchBytes    = 1 << 20
)

// item is a message and what is to be done with it.
type item struct {
	message
	session uint64         // the broker's session it came from
	store   bool           // deliver the reading; else only acknowledge
	reading ingest.Reading // when store is true

	marked bool // has a mark, which counts from the moment it is stored
	mark   seen.Mark

	keep int // slot of a retained message that is to be remembered, else 0
	kept seen.Mark
}

// work delivers what is in the queue until ctx ends or Deliver fails. What Deliver did not take stays in the batch.
func (s *Source) work(ctx context.Context, deliver ingest.Deliver) error {
	tick := time.NewTicker(s.timing.confirm)
	defer tick.Stop()
	for {
		s.look()
		if len(s.batch) == 0 {
			s.fill()
		}
		if len(s.batch) > 0 {
			if err := s.flush(ctx, deliver); err != nil {
				return err
			}
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.queue.ready:
		case <-tick.C:
			s.askConfirm()
		}
	}
}

// fill makes the next batch from the queue.
func (s *Source) fill() {
	pending := map[uint16]seen.Digest{} // messages of the batch, by packet id
	kept := map[seen.Digest]bool{}      // retained messages of the batch
	for _, m := range s.queue.take(batchMessages, batchBytes) {
		s.batch = append(s.batch, s.judge(m, pending, kept))
	}
}

// judge decides what to do with a message.
func (s *Source) judge(m message, pending map[uint16]seen.Digest, kept map[seen.Digest]bool) item {
	s.confirm(m.link)
	m.link.handled = m.index + 1
	it, d := item{message: m, session: m.link.session.Load()}, seen.DigestOf([]byte(m.topic), m.payload)
	if m.qos > 0 {
		same, ok := pending[m.packet]
		switch {
		case m.dup && ok && same == d:
			s.redelivered.Add(1)
			return it
		case m.dup && !ok:
			if it.mark, it.marked = s.delivered.find(it.session, m.packet, d); it.marked {
				s.redelivered.Add(1)
				return it
			}
		}
		it.marked, it.mark = true, s.delivered.handle(it.session, m.packet, d)
	}
	switch {
	case m.tooLarge > 0:
		s.reject(ReasonTooLarge, &it, int(m.tooLarge))
		return it
	case !s.subscribed(m.topic):
		s.reject(ReasonNotSubscribed, &it, len(m.payload))
		return it
	case m.retained && s.cfg.Retained == RetainedSkip:
		s.reject(ReasonRetained, &it, len(m.payload))
		return it
	case m.retained && s.cfg.Retained == RetainedOnce:
		if kept[d] || s.retained.Find(d) {
			s.repeated.Add(1)
			it.marked = false
			return it
		}
		kept[d] = true
		it.keep, it.kept = s.retained.Place(d)
	}
	if m.qos > 0 {
		pending[m.packet] = d
	}
	s.read(&it)
	return it
}

// reject counts a message that is not stored.
func (s *Source) reject(reason string, it *item, bytes int) {
	s.tally.Reject(reason, bytes)
	it.marked = false
}

// subscribed says whether a topic is one that is asked for.
func (s *Source) subscribed(name string) bool {
	for _, f := range s.cfg.Topics {
		if topic.Matches(f, name) {
			return true
		}
	}
	return false
}

// read makes the reading of a message.
func (s *Source) read(it *item) {
	tail, reversible := topic.Map(it.topic)
	it.store = true
	it.reading = ingest.Reading{Time: it.at, Tail: tail, Data: it.payload}
	header := map[string]string{}
	if !reversible {
		header[topic.Header] = topic.Escape(it.topic)
	}
	if it.retained {
		header[HeaderRetained] = "1"
	}
	if it.qos == 0 {
		header[HeaderQoS] = "0"
	}
	if len(header) > 0 {
		it.reading.Header = header
	}
	if !it.marked && it.keep == 0 {
		return
	}
	session, packet, marked, m, keep, kept := it.session, it.packet, it.marked, it.mark, it.keep, it.kept
	it.reading.Note = func(id storage.ID) (marks []byte, err error) {
		if marked {
			marks = s.delivered.note(session, packet, m, id)
		}
		if keep > 0 {
			marks = append(marks, s.retained.Note(keep, kept, id)...)
		}
		return marks, nil
	}
}

// flush delivers the batch and acknowledges its messages in order (MQTT 3.1.1 section 4.6).
func (s *Source) flush(ctx context.Context, deliver ingest.Deliver) error {
	readings := make([]ingest.Reading, 0, len(s.batch))
	for _, it := range s.batch {
		if it.store {
			readings = append(readings, it.reading)
		}
	}
	if len(readings) > 0 {
		if err := deliver(ctx, readings...); err != nil {
			return err
		}
		s.tally.Deliver(len(readings))
	}
	for i := range s.batch {
		it := &s.batch[i]
		if it.store && it.marked {
			s.delivered.store(it.session, it.packet, it.mark)
		}
		if it.store && it.keep > 0 {
			s.retained.Store(it.keep, it.kept)
		}
		s.acknowledge(it)
	}
	clear(s.batch) // let go of the payloads
	s.batch = s.batch[:0]
	return nil
}

// look does what may be due on the present connection.
func (s *Source) look() {
	l := s.current.Load()
	if l == nil {
		return
	}
	s.confirm(l)
	if l.overrun.Load() && s.queue.roomy() {
		l.lose(errDrained)
	}
}

// acknowledge tells the broker that a message is stored, or need not be. On a connection that is gone it does nothing.
func (s *Source) acknowledge(it *item) {
	if it.qos == 0 || it.link.done() {
		return
	}
	it.ack()
	it.link.acks = append(it.link.acks, acked{packet: it.packet, nr: it.mark.Nr, marked: it.marked})
	if len(it.link.acks)%4096 == 0 {
		s.askConfirm()
	}
}

// askConfirm sends a ping when there are acknowledgements that the broker may not have read yet.
func (s *Source) askConfirm() {
	l := s.current.Load()
	if l == nil || len(l.acks) == 0 || l.done() {
		return
	}
	_ = l.guard.ping() // a connection that cannot be written to is found out by the library
}

// confirm forgets the marks of messages whose acknowledgement the broker has read.
func (s *Source) confirm(l *link) {
	n := l.guard.confirmed(l.handled)
	for l.base < n && len(l.acks) > 0 {
		if a := l.acks[0]; a.marked {
			s.delivered.confirm(l.session.Load(), a.packet, a.nr)
		}
		l.acks = l.acks[1:]
		l.base++
	}
}
