package hub

import (
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Keep is a stream at the hub that holds nothing, in memory, and whose consumers keep sources awake while their leaves are away. A source that hears
// nothing for 10 s asks its leaf, waits 5 s for an answer, and asks again ever more seldom; a leaf that comes back within these 5 s waits for the rest of
// them (nats-server 2.15, srcDurableConsumerWaitTime). Heartbeats on the subject on which the source listens are enough to keep it from asking.
// Without them everything arrives all the same, up to 5 s later. See docs/decisions/0012.
const Keep = "HOLDFAST_KEEP"

// keepInterval is the heartbeat of a keeper: well below the 10 s after which a source asks.
const keepInterval = 4 * time.Second

// keeper is the consumer that keeps one source awake. It never has anything to deliver.
func keeper(leaf, stream string) DurableConsumer {
	return DurableConsumer{Stream: Keep, Config: jetstream.ConsumerConfig{
		Durable: Consumer(leaf, stream), DeliverSubject: DeliverSubject(leaf, stream), DeliverPolicy: jetstream.DeliverNewPolicy,
		AckPolicy: jetstream.AckNonePolicy, IdleHeartbeat: keepInterval, MemoryStorage: true, Replicas: 1,
	}}
}
