package device

import (
	"context"
	"fmt"
	"sync"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"
)

// Sensor is a set of MQTT devices behind one connection. It publishes with QoS 1 and keeps publishing a message until the broker has acknowledged it.
type Sensor struct {
	client paho.Client

	mu    sync.Mutex // guards the fields below
	acked []string
}

// NewSensor connects to broker, such as tcp://127.0.0.1:1883.
func NewSensor(ctx context.Context, broker, clientID string) (*Sensor, error) {
	s := &Sensor{client: paho.NewClient(paho.NewClientOptions().AddBroker(broker).SetClientID(clientID).SetProtocolVersion(4).
		SetCleanSession(false).SetConnectRetry(true).SetConnectRetryInterval(200 * time.Millisecond).
		SetMaxReconnectInterval(time.Second).SetKeepAlive(10 * time.Second).SetWriteTimeout(10 * time.Second))}
	if err := wait(ctx, s.client.Connect()); err != nil {
		return nil, fmt.Errorf("connect the sensors: %w", err)
	}
	return s, nil
}

func wait(ctx context.Context, t paho.Token) error {
	select {
	case <-t.Done():
		return t.Error()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Publish sends the payloads to topic in order, window of them in flight at a time, and returns when the broker has acknowledged all.
func (s *Sensor) Publish(ctx context.Context, topic string, window int, payloads []string) error {
	tokens := make([]paho.Token, 0, window)
	first := 0
	settle := func() error {
		if err := wait(ctx, tokens[0]); err != nil {
			return fmt.Errorf("publish to %s: %w", topic, err)
		}
		tokens = tokens[1:]
		s.mu.Lock()
		s.acked = append(s.acked, payloads[first])
		s.mu.Unlock()
		first++
		return nil
	}
	for _, p := range payloads {
		if len(tokens) == window {
			if err := settle(); err != nil {
				return err
			}
		}
		tokens = append(tokens, s.client.Publish(topic, 1, false, p))
	}
	for len(tokens) > 0 {
		if err := settle(); err != nil {
			return err
		}
	}
	return nil
}

// Acked returns the payloads that the broker has acknowledged, in order.
func (s *Sensor) Acked() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.acked...)
}

// Close ends the connection.
func (s *Sensor) Close() { s.client.Disconnect(100) }
