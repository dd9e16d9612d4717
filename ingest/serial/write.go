package serial

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/holdfast-edge/holdfast/ingest"
	"github.com/holdfast-edge/holdfast/ingest/frame"
)

const (
	pokeLimit = 20 * time.Millisecond // how long a poke may keep the reader when the output queue is full
	queueLook = 5 * time.Millisecond  // how often the output queue is looked at while it empties
	unbounded = time.Hour             // longest write when the context has no deadline
)

var _ ingest.Commander = (*Source)(nil)

// mouth is the writing side of a port while it is open.
type mouth struct {
	dev  device
	gone chan struct{} // closed when the port is

	turn sync.Mutex // held while something is written
}

// asked is a command that waits for its reply.
type asked struct {
	since  time.Time // when it was written
	prefix []byte
	reply  chan []byte // holds one
}

// opened lets commands use a port; the function it returns ends that, and must be called before the port is closed.
func (s *Source) opened(dev device) (closed func()) {
	m := &mouth{dev: dev, gone: make(chan struct{})}
	s.mu.Lock()
	s.mouth = m
	s.mu.Unlock()
	return func() {
		s.mu.Lock()
		s.mouth = nil
		s.mu.Unlock()
		close(m.gone)
	}
}

// Command writes the command's data, and what is configured to stand behind it, to the line. It is done when the bytes have left the
// port's queue, or with reply: message when a message came that began after it; the message is stored as any other, too.
func (s *Source) Command(ctx context.Context, c ingest.Command) ingest.Outcome {
	data := append(bytes.Clone(c.Data), s.end...)
	if len(c.Data) == 0 {
		return ingest.Refuse("the command is empty")
	}
	s.mu.Lock()
	m := s.mouth
	var a *asked
	if m != nil && s.cfg.Command.Reply == ReplyMessage {
		a = &asked{since: time.Now(), prefix: s.prefix, reply: make(chan []byte, 1)}
		s.asked = a
	}
	s.mu.Unlock()
	if m == nil {
		st := s.State()
		return ingest.Outcome{State: ingest.OutcomeFailed, Cause: fmt.Sprintf("the port is not open: %s %s", st.Kind, st.Cause)}
	}
	defer func() {
		s.mu.Lock()
		s.asked = nil
		s.mu.Unlock()
	}()
	if out := m.write(ctx, data); out.State != ingest.OutcomeDone || a == nil {
		return out
	}
	select {
	case reply := <-a.reply:
		return ingest.Outcome{State: ingest.OutcomeDone, Reply: reply}
	case <-m.gone:
		return ingest.Outcome{State: ingest.OutcomeUnknown, Cause: "it was sent, and the port was lost before a reply came"}
	case <-ctx.Done():
		return ingest.Outcome{State: ingest.OutcomeUnknown, Cause: "it was sent, and no reply came in time"}
	}
}

// write writes data and waits until it has left the queue.
func (m *mouth) write(ctx context.Context, data []byte) ingest.Outcome {
	m.turn.Lock()
	defer m.turn.Unlock()
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(unbounded)
	}
	if err := m.dev.SetWriteDeadline(deadline); err != nil {
		return ingest.Outcome{State: ingest.OutcomeFailed, Cause: fmt.Sprintf("the port cannot be written: %v", errno(err))}
	}
	stop := context.AfterFunc(ctx, func() { _ = m.dev.SetWriteDeadline(time.Unix(1, 0)) }) // a closed port ends the write by itself
	defer stop()
	n, err := m.dev.Write(data)
	for err == nil {
		left, e := m.dev.Queued()
		if e != nil || left == 0 { // a port that cannot say has taken all
			return ingest.Outcome{State: ingest.OutcomeDone}
		}
		if n = len(data) - left; ingest.Pause(ctx, queueLook) != nil {
			err = os.ErrDeadlineExceeded
		}
	}
	_ = m.dev.Discard() // what is left must not be sent later; a lost port has dropped it
	out := ingest.Outcome{State: ingest.OutcomeUnknown, Cause: fmt.Sprintf("%d of %d bytes were sent: %v", max(n, 0), len(data), errno(err))}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		out.Cause = fmt.Sprintf("%d of %d bytes were sent in time: the device, or flow control, holds the rest back", max(n, 0), len(data))
	}
	if n <= 0 {
		out.State = ingest.OutcomeFailed
	}
	return out
}

// poke sends what wakes a silent device, unless a command is being sent.
func (s *Source) poke(m *mouth) {
	if m == nil || len(s.pokes) == 0 || !m.turn.TryLock() {
		return
	}
	defer m.turn.Unlock()
	err := m.dev.SetWriteDeadline(time.Now().Add(pokeLimit))
	if err == nil {
		_, err = m.dev.Write(s.pokes)
	}
	if err != nil {
		s.log.Debug("poke not sent", "err", err) // a lost port shows by itself, a full queue by the next command
	}
}

// answer gives a message to the command that waits for one.
func (s *Source) answer(f frame.Frame) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a := s.asked; a != nil && !f.First.Before(a.since) && bytes.HasPrefix(f.Data, a.prefix) {
		a.reply <- bytes.Clone(f.Data)
		s.asked = nil
	}
}
