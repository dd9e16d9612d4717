package forward

import (
	"maps"
	"slices"
	"time"

	"github.com/holdfast-edge/holdfast/leaf"
)

// Traffic is what the link has carried, in bytes with the headers of TCP and IP, by the gateway's clock in UTC. Of a power cut's last ten
// minutes it does not know.
type Traffic struct {
	Today, Month leaf.Traffic
}

// trafficDays is how many days are kept, so that a month is complete.
const trafficDays = 32

// trafficSave is how often the counts are saved when nothing else is.
const trafficSave = 10 * time.Minute

const dayForm = "2006-01-02"

// carry adds what the link has carried since the last call.
func (m *memory) carry(now time.Time, total leaf.Traffic) {
	m.mu.Lock()
	defer m.mu.Unlock()
	more := leaf.Traffic{Sent: total.Sent - m.carried.Sent, Received: total.Received - m.carried.Received}
	m.carried = total
	if more.Sent <= 0 && more.Received <= 0 {
		return
	}
	day := now.UTC().Format(dayForm)
	t := m.days[day]
	m.days[day] = leaf.Traffic{Sent: t.Sent + more.Sent, Received: t.Received + more.Received}
	if now.Sub(m.saved) >= trafficSave {
		m.dirty = true
	}
	if len(m.days) > trafficDays {
		delete(m.days, slices.Min(slices.Collect(maps.Keys(m.days))))
	}
}

// traffic returns the counts of the day and the month of now.
func (m *memory) traffic(now time.Time) Traffic {
	m.mu.Lock()
	defer m.mu.Unlock()
	today := now.UTC().Format(dayForm)
	t := Traffic{Today: m.days[today]}
	for day, c := range m.days {
		if day[:len("2006-01")] == today[:len("2006-01")] {
			t.Month.Sent += c.Sent
			t.Month.Received += c.Received
		}
	}
	return t
}

// Traffic returns what the link has carried today and this month, also before the last restarts.
func (u *Uplink) Traffic() Traffic {
	u.memory.carry(time.Now(), u.link.Traffic())
	return u.memory.traffic(time.Now())
}
