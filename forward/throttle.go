package forward

import (
	"sync"
	"time"
)

const (
	burstTime = time.Second     // how much of the rate may be saved up
	pauseMost = 5 * time.Second // of a consumer, until it is looked at again
)

// throttle keeps what all streams send below a rate on average. It counts records before compression: a window or two too many are paid for by a
// pause. Safe for concurrent use.
type throttle struct {
	rate float64 // bytes per second, 0: no limit

	mu     sync.Mutex // guards the fields below
	tokens float64
	last   time.Time
}

// spend takes what a stream has sent, and returns how long it has to pause.
func (t *throttle) spend(now time.Time, bytes float64) time.Duration {
	if t.rate <= 0 {
		return 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.last.IsZero() {
		t.last = now
	}
	t.tokens = min(t.rate*burstTime.Seconds(), t.tokens+t.rate*now.Sub(t.last).Seconds()) - bytes
	t.last = now
	if t.tokens >= 0 {
		return 0
	}
	return min(pauseMost, time.Duration(-t.tokens/t.rate*float64(time.Second)))
}
