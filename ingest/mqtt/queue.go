package mqtt

import (
	"sync"
	"time"
)

// message is one PUBLISH packet on its way from the connection to the worker.
type message struct {
	link     *link  // connection it came from, the only one on which it can be acknowledged
	index    uint64 // how many messages this connection had brought before
	at       time.Time
	topic    string
	payload  []byte
	qos      byte
	dup      bool
	retained bool
	packet   uint16 // packet id, 0 with QoS 0
	tooLarge int64  // bytes of a payload that was not kept because of its length
	ack      func()
}

// overhead is about what a queued message takes beside topic and payload.
const overhead = 256

func (m *message) size() int64 { return int64(len(m.topic)+len(m.payload)) + overhead }

// maxQueued is how many messages wait at most. A broker has at most as many unacknowledged messages under way as there are
// packet ids, so QoS 1 and 2 alone never fill it, whatever the broker makes of its own window (Mosquitto 2.0.11 overruns its).
const maxQueued = 65535

// queue holds messages in order until the worker takes them. Safe for concurrent use.
type queue struct {
	max   int64         // bytes
	ready chan struct{} // holds a token when something may have happened; never closed

	mu    sync.Mutex // guards the fields below
	items []message
	head  int
	bytes int64
}

func newQueue(maxBytes int64) *queue {
	return &queue{max: maxBytes, ready: make(chan struct{}, 1)}
}

// push appends a message; false means that there is no room.
func (q *queue) push(m message) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := len(q.items) - q.head
	if n >= maxQueued || n > 0 && q.bytes+m.size() > q.max {
		return false
	}
	q.items = append(q.items, m)
	q.bytes += m.size()
	q.wake()
	return true
}

// wake makes the worker look up.
func (q *queue) wake() {
	select {
	case q.ready <- struct{}{}:
	default: // a token is there already
	}
}

// take removes up to n messages of up to about so many bytes, and at least one when there is one.
func (q *queue) take(n int, bytes int64) []message {
	q.mu.Lock()
	defer q.mu.Unlock()
	var size int64
	end := q.head
	for end < len(q.items) && end-q.head < n && (end == q.head || size+q.items[end].size() <= bytes) {
		size += q.items[end].size()
		end++
	}
	out := append([]message(nil), q.items[q.head:end]...)
	clear(q.items[q.head:end]) // let go of topics and payloads
	q.head = end
	q.bytes -= size
	if q.head == len(q.items) {
		q.items, q.head = q.items[:0], 0
		if cap(q.items) > 4096 {
			q.items = nil // a backlog is over
		}
	} else if q.head > 4096 && q.head > len(q.items)/2 {
		rest := copy(q.items, q.items[q.head:])
		clear(q.items[rest:])
		q.items, q.head = q.items[:rest], 0
	}
	return out
}

// load returns how many messages and bytes wait.
func (q *queue) load() (n int, bytes int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.items) - q.head, q.bytes
}

// roomy says whether at least half of the room is free.
func (q *queue) roomy() bool {
	n, bytes := q.load()
	return n <= maxQueued/2 && bytes <= q.max/2
}
