package mqttserver

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/holdfast-edge/holdfast/ingest/mqttserver/packet"
	"github.com/holdfast-edge/holdfast/ingest/seen"
)

// inbound is a message of a client on its way to the store, in the order in which it came.
type inbound struct {
	packet.Publish
	at     time.Time
	user   string
	client string
	will   bool        // the server says it for a client that is gone
	digest seen.Digest // with QoS 1 and 2
	refuse *refusal    // not to be stored, only acknowledged
	repeat bool        // of a message that was stored before, only to be acknowledged
	size   int64       // of its share of the queue

	session *session // nil for a will
	conn    *conn    // where it is acknowledged, guarded by Source.mu; nil: nowhere any more
	origin  *session // whose message it is, for subscriptions without the client's own; nil when that is not known
}

// refusal is why a message is not stored.
type refusal struct {
	reason string
	code   packet.Reason // what a client of MQTT 5 is told
	bytes  int
}

// overhead is about what a queued message takes beside topic and payload.
const overhead = 512

// intake holds messages in order until the committer takes them. It is safe for concurrent use.
type intake struct {
	room  *semaphore.Weighted // bytes
	max   int64
	ready chan struct{} // holds a token when there may be messages; never closed

	mu    sync.Mutex // guards the field below
	items []*inbound
}

func newIntake(bytes int64) *intake {
	return &intake{room: semaphore.NewWeighted(bytes), max: bytes, ready: make(chan struct{}, 1)}
}

// reserve waits for room for a message. First come, first served.
func (q *intake) reserve(ctx context.Context, size int64) error {
	return q.room.Acquire(ctx, min(size, q.max))
}

// tryReserve reserves room for a message if there is some at once.
func (q *intake) tryReserve(size int64) bool { return q.room.TryAcquire(min(size, q.max)) }

// release gives room back.
func (q *intake) release(size int64) {
	if size > 0 {
		q.room.Release(min(size, q.max))
	}
}

// push appends a message for which there is room.
func (q *intake) push(m *inbound) {
	q.mu.Lock()
	q.items = append(q.items, m)
	q.mu.Unlock()
	select {
	case q.ready <- struct{}{}:
	default: // a token is there already
	}
}

// take removes up to n messages of about so many bytes, and at least one when there is one.
func (q *intake) take(n int, bytes int64) []*inbound {
	q.mu.Lock()
	defer q.mu.Unlock()
	end, size := 0, int64(0)
	for end < len(q.items) && end < n && (end == 0 || size+q.items[end].size <= bytes) {
		size += q.items[end].size
		end++
	}
	out := q.items[:end:end]
	if q.items = q.items[end:]; len(q.items) == 0 {
		q.items = nil
	}
	return out
}

// len returns how many messages wait.
func (q *intake) len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.items)
}
