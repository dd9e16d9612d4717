package mqtt

import (
	"context"
	"errors"
	"fmt"

	paho "github.com/eclipse/paho.mqtt.golang"

	"github.com/holdfast-edge/holdfast/ingest"
	"github.com/holdfast-edge/holdfast/ingest/topic"
)

// Command publishes the command's data with QoS 1 to the topic that the tail is mapped from, or that the header topic.Header holds; with
// "1" in the header HeaderRetained, as a retained message. It is done when the broker has acknowledged it: whether a device was there
// to take it, a broker does not tell. It is published once: after a lost connection it is not known whether the broker has it.
func (s *Source) Command(ctx context.Context, c ingest.Command) ingest.Outcome {
	name, err := topic.OfCommand(c.Tail, c.Header[topic.Header])
	if err != nil {
		return ingest.Refuse(err.Error())
	}
	if int64(len(c.Data)) > s.cfg.MaxMessage {
		return ingest.Refuse(fmt.Sprintf("the command has %d bytes, and max_message is %d", len(c.Data), s.cfg.MaxMessage))
	}
	l := s.current.Load()
	if l == nil || l.done() {
		return ingest.Outcome{State: ingest.OutcomeFailed, Cause: "there is no connection to the broker: " + s.State().Cause}
	}
	token := l.client.Publish(name, 1, c.Header[HeaderRetained] == "1", append([]byte(nil), c.Data...))
	select {
	case <-token.Done():
		err = token.Error()
	case <-ctx.Done():
		err = errors.New("the broker did not acknowledge it in time")
	case <-l.guard.closed:
		err = errors.New("the connection was lost before the broker acknowledged it")
	}
	if errors.Is(err, paho.ErrNotConnected) {
		return ingest.Outcome{State: ingest.OutcomeFailed, Cause: "the connection to the broker was lost before it was sent"}
	}
	if err != nil {
		return ingest.Outcome{State: ingest.OutcomeUnknown, Cause: "it was sent to the broker: " + err.Error()}
	}
	return ingest.Outcome{State: ingest.OutcomeDone}
}
