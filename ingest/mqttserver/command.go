package mqttserver

import (
	"context"
	"fmt"

	"github.com/holdfast-edge/holdfast/ingest"
	"github.com/holdfast-edge/holdfast/ingest/mqttserver/packet"
	"github.com/holdfast-edge/holdfast/ingest/topic"
)

// Command publishes the command's data to the clients that are connected and subscribe to its topic, with QoS 1, and waits for
// their acknowledgements. The topic is the one that the tail is mapped from, or the one in the header topic.Header. It is done when all
// have acknowledged, failed when nobody was there, and unknown when one did not answer, or has subscribed with QoS 0. A command
// that was not acknowledged in time is not sent again.
func (s *Source) Command(ctx context.Context, c ingest.Command) ingest.Outcome {
	name, err := topic.OfCommand(c.Tail, c.Header[topic.Header])
	if err != nil {
		return ingest.Refuse(err.Error())
	}
	data := append([]byte(nil), c.Data...)
	if int64(len(data)+len(name)) > s.cfg.MaxMessage {
		return ingest.Refuse(fmt.Sprintf("the command has %d bytes, and max_message is %d", len(data), s.cfg.MaxMessage))
	}
	answers, sent := s.order(name, data)
	if len(sent) == 0 {
		return ingest.Outcome{State: ingest.OutcomeFailed, Cause: fmt.Sprintf("no client that is connected subscribes to %q", name)}
	}
	worst := confirmed
	for range sent {
		select {
		case a := <-answers:
			worst = min(worst, a)
		case <-ctx.Done():
			return s.recall(sent, answers)
		}
	}
	switch worst {
	case confirmed:
		return ingest.Outcome{State: ingest.OutcomeDone}
	case inDoubt:
		return ingest.Outcome{State: ingest.OutcomeUnknown, Cause: "it was sent, and not every client acknowledged it"}
	}
	if len(sent) > 1 {
		return ingest.Outcome{State: ingest.OutcomeUnknown, Cause: "it could not be sent to every client"}
	}
	return ingest.Outcome{State: ingest.OutcomeFailed, Cause: "it could not be sent: too much waits for the client, or the client takes no message of that length"}
}

// errand is a command on its way to one client.
type errand struct {
	to *session
	o  *outgoing
}

// order queues a command for everybody who is there. Each answers once.
func (s *Source) order(name string, data []byte) (answers chan acknowledged, sent []errand) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.subscribers(name)
	answers = make(chan acknowledged, len(list))
	for _, r := range list {
		if r.to.conn == nil {
			continue
		}
		o := &outgoing{Publish: packet.Publish{Topic: name, Payload: data, QoS: min(r.filter.QoS, maxGranted)},
			done: func(a acknowledged) { answers <- a }}
		sent = append(sent, errand{r.to, o})
		s.enqueue(r.to, o)
	}
	return answers, sent
}

// recall takes back what was not acknowledged in time, so that it is not done later, and says what is known by then.
func (s *Source) recall(sent []errand, answers chan acknowledged) ingest.Outcome {
	s.mu.Lock()
	defer s.mu.Unlock()
	started := false
	for _, e := range sent {
		if e.o.done == nil {
			started = true // it has answered
			continue
		}
		for i, o := range e.to.queue {
			if o == e.o {
				e.to.queue = append(e.to.queue[:i:i], e.to.queue[i+1:]...)
				s.forget(o, lost)
				break
			}
		}
		for i, o := range e.to.flight {
			if o == e.o {
				started = true
				e.to.flight = append(e.to.flight[:i:i], e.to.flight[i+1:]...)
				s.forget(o, inDoubt)
				break
			}
		}
	}
	if started {
		return ingest.Outcome{State: ingest.OutcomeUnknown, Cause: "it was sent, and not acknowledged in time"}
	}
	return ingest.Outcome{State: ingest.OutcomeFailed, Cause: "it was not sent in time: the client takes no messages"}
}
