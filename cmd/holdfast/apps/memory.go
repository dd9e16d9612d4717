package apps

import (
	"math"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/holdfast-edge/holdfast/leaf"
)

// The server remembers each message ID for the duplicate window of its stream, as many as come. So many messages within the window are let be if memory is
// short, and so many where no limit of memory is known.
const (
	idsShort   = 200_000
	idsAtMost  = 4_000_000
	shortAbove = 85  // percent of the memory limit that is in use
	lastAbove  = 100 // percent, above which nobody is spared
	much       = 1 << 20
)

// flow counts the messages that local applications have stored lately.
type flow struct {
	last   map[string]uint64 // by stream, at the newest look
	looks  []stored          // the oldest first
	window time.Duration     // that looks cover
}

type stored struct {
	at time.Time
	n  uint64
}

// look takes the streams as they are and returns how many messages were stored within the window.
func (f *flow) look(now time.Time, streams []leaf.AppStream) uint64 {
	next := make(map[string]uint64, len(streams))
	var grown uint64
	for _, st := range streams {
		next[st.Name] = st.Last
		if was, known := f.last[st.Name]; known && st.Last > was {
			grown += st.Last - was
		}
	}
	f.last = next
	for len(f.looks) > 0 && now.Sub(f.looks[0].at) > f.window {
		f.looks = f.looks[1:]
	}
	if grown > 0 {
		f.looks = append(f.looks, stored{now, grown})
	}
	var sum uint64
	for _, l := range f.looks {
		sum += l.n
	}
	return sum
}

// tooMany says whether the memory that so many messages may hold by their IDs is more than there is. live is what is in use, limit what may be.
func tooMany(n uint64, live, limit int64) bool {
	if limit <= 0 || limit == math.MaxInt64 {
		return n > idsAtMost
	}
	return n > idsShort && live > limit/100*shortAbove
}

// relieve closes connections of local applications when memory is short: what waits for them, what they are about to store and what they ask for is
// bounded for each, and not for all of them together. Capture goes on.
func (k *Keeper) relieve() {
	live, limit := memory()
	if limit == math.MaxInt64 || live <= limit/100*shortAbove {
		return
	}
	pending := much // readers first
	if live > limit/100*lastAbove {
		pending = -1
	}
	n := k.server.DropApps(pending)
	if n == 0 {
		return
	}
	k.mu.Lock()
	first := time.Since(k.state.relieved) > time.Minute
	k.state.relieved = time.Now()
	k.state.dropped += uint64(n)
	k.mu.Unlock()
	if first {
		k.log.Warn("memory is short: connections of local applications were closed", "bytes", live, "connections", n)
	}
}

// memory returns what the collector has found in use, and the limit that it was told.
func memory() (live, limit int64) {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	if sample[0].Value.Kind() == metrics.KindUint64 {
		live = int64(sample[0].Value.Uint64())
	}
	return live, debug.SetMemoryLimit(-1)
}
