package forward

import (
	"time"

	"github.com/holdfast-edge/holdfast/storage"
)

// State is where a stream stands on its way to the hub.
type State uint8

// The states of a stream. All but Unknown, Off, CatchingUp and Live have a cause, and where somebody can act a remedy.
const (
	Unknown          State = iota
	Off                    // not forwarded, or no hub is configured
	Down                   // no link; what is captured waits
	Connecting             // the link is being made
	Handshake              // the link is up; leaf and hub find out where both stand, and the hub attaches
	CatchingUp             // records flow, and older ones wait
	Live                   // records flow as they come
	Stalled                // records wait and nothing has moved for a while
	Refused                // hub and leaf do not fit each other; nothing is sent until somebody acts
	SameName               // the hub has records of another store under our name; nothing is sent
	OtherIncarnation       // the hub's mirror is of another store, or too far away; nothing is sent
	Full                   // the hub takes our records and stores none of them: its stream is full
	Missing                // nobody answers for the hub stream; nothing is sent
)

var stateNames = [...]string{
	"unknown", "off", "down", "connecting", "handshake", "catching-up", "live", "stalled", "refused", "same name twice", "other incarnation",
	"hub stream full", "hub stream missing",
}

// String returns the state in words.
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return stateNames[Unknown]
}

// Progress says how far a stream is known to have come.
type Progress struct {
	Stream    string
	HubStream string
	State     State
	Cause     string           // in words, empty if all is well
	Remedy    string           // what to do about it, empty if waiting is all
	Since     time.Time        // when State was entered
	Proven    storage.Position // the hub has proven to hold everything up to here; 0: nothing, or unknown
	ProvenAt  time.Time        // when it did; zero: never
	Waiting   uint64           // records that the hub has not proven to hold
	Pending   uint64           // of those, the records that no quorum of the hub has acknowledged; the others only await the proof that is read now and then
	Sent      uint64           // of those, the records that are on the way to the hub; it acknowledges them in bulk, at the latest when the stream falls silent for a second
	Oldest    time.Time        // when the oldest captured one of them was, by the clock of then; zero: none waits, or unknown
	Rate      float64          // records per second that the hub takes, over the last 10 s or so
	ETA       time.Duration    // until nothing waits at this Rate; 0: nothing waits, or unknown
}

// rateWindow is the time over which Rate is smoothed.
const rateWindow = 10 * time.Second

// meter smooths the rate of a counter that only grows, except when it begins anew.
type meter struct {
	count uint64
	at    time.Time
	rate  float64
}

// update takes the counter's value and returns the rate per second.
func (m *meter) update(count uint64, now time.Time) float64 {
	if m.at.IsZero() || count < m.count {
		m.count, m.at = count, now
		return m.rate
	}
	d := now.Sub(m.at).Seconds()
	if d <= 0 {
		return m.rate
	}
	weight := min(1, d/rateWindow.Seconds())
	if m.rate == 0 {
		weight = 1 // the first sample counts whole
	}
	m.rate += weight * (float64(count-m.count)/d - m.rate)
	m.count, m.at = count, now
	return m.rate
}

// eta returns how long so many records take at a rate.
func eta(waiting uint64, rate float64) time.Duration {
	const longest = 365 * 24 * time.Hour
	if waiting == 0 || rate < 0.01 {
		return 0
	}
	seconds := float64(waiting) / rate
	if seconds >= longest.Seconds() {
		return longest
	}
	return time.Duration(seconds+1) * time.Second
}
