package forward

import (
	"fmt"
	"testing"
	"time"
)

// model is a sourcing consumer, a link with a rate and a delay, and a hub that acknowledges, in steps of a millisecond.
type model struct {
	bytesPerSecond float64
	rtt            time.Duration
	size           float64

	now                 time.Time
	limit               int
	sent, acked, backed uint64  // backed: records that wait, in all
	drained             float64 // records that the link has carried
	asked               bool
	askedAt             uint64    // records sent before the request
	answer              time.Time // when the answer arrives; zero: the request is still queued
	delivered           time.Time
}

func (m *model) step() {
	const step = time.Millisecond
	m.now = m.now.Add(step)
	for m.sent < m.backed && int(m.sent-m.acked) < m.limit {
		m.sent++
		m.delivered = m.now
		if !m.asked && int(m.sent-m.acked) >= m.limit {
			m.asked, m.askedAt, m.answer = true, m.sent, time.Time{}
		}
	}
	if !m.asked && m.sent > m.acked && m.now.Sub(m.delivered) >= time.Second { // the heartbeat asks, too
		m.asked, m.askedAt, m.answer = true, m.sent, time.Time{}
	}
	m.drained = min(float64(m.sent), m.drained+m.bytesPerSecond*step.Seconds()/m.size)
	if m.asked && m.answer.IsZero() && m.drained >= float64(m.askedAt) {
		m.answer = m.now.Add(m.rtt)
	}
	if m.asked && !m.answer.IsZero() && !m.now.Before(m.answer) {
		m.acked, m.asked = m.askedAt, false
	}
}

// queue is how long a ping sent now waits.
func (m *model) queue() time.Duration {
	return time.Duration((float64(m.sent) - m.drained) * m.size / m.bytesPerSecond * float64(time.Second))
}

func alone(float64) float64 { return 1 }

// TestPaceOnAnyLink: from 9.6 kbit/s to 100 Mbit/s, from 20 to 2000 ms, a ping is answered within its interval from the first second on,
// and after a while the link is kept busy.
func TestPaceOnAnyLink(t *testing.T) {
	for _, bits := range []float64{9600, 64e3, 1e6, 10e6, 100e6} {
		for _, rtt := range []time.Duration{20 * time.Millisecond, 300 * time.Millisecond, 600 * time.Millisecond, 2 * time.Second} {
			for _, size := range []float64{80, 350, 2000} {
				t.Run(fmt.Sprintf("%.0f bit/s, %v, %.0f bytes", bits, rtt, size), func(t *testing.T) {
					t.Parallel()
					m := &model{bytesPerSecond: bits / 8, rtt: rtt, size: size, backed: 1 << 40, now: time.Unix(0, 0)}
					p := newPace(size, 0, m.now)
					m.limit = p.limit
					var worst, settled time.Duration
					var half float64
					begin := m.now
					for m.now.Sub(begin) < 90*time.Second {
						for range int(followClosely / time.Millisecond) {
							m.step()
							worst = max(worst, m.queue())
							if m.now.Sub(begin) > 40*time.Second {
								settled = max(settled, m.queue())
							}
						}
						if m.now.Sub(begin) == 40*time.Second {
							half = m.drained
						}
						m.limit = p.look(m.now, m.acked, int(m.sent-m.acked), m.backed-m.sent, rtt, alone)
					}
					used := (m.drained - half) * size / (bits / 8 * 50)
					drain := float64(p.most()) * size / (bits / 8) // seconds; otherwise the largest window is the limit
					full := drain >= 6*rtt.Seconds() || drain >= 2.2*rtt.Seconds() && drain+rtt.Seconds() > slowCycle.Seconds()
					full = full && size < bits/8 // or one record is more than the window should be
					if worst > pingLimit || settled > 5*time.Second || full && used < 0.85 {
						t.Errorf("a ping waits %v at worst, %v once settled, and %.2f of the link is used; want at most %v, 5s, at least 0.85", worst, settled, used, pingLimit)
					}
				})
			}
		}
	}
}

// pingLimit is the leaf's ping interval.
const pingLimit = 10 * time.Second

// TestPaceAsksOnATrickle: two records a second never fill a window, and are acknowledged all the same.
func TestPaceAsksOnATrickle(t *testing.T) {
	m := &model{bytesPerSecond: 8000, rtt: 300 * time.Millisecond, size: 100, now: time.Unix(0, 0)}
	p := newPace(m.size, 0, m.now)
	p.window, p.limit = windowMost, windowMost
	m.limit = p.limit
	for i := range 600 {
		for range 100 {
			m.step()
		}
		if i%5 == 0 {
			m.backed++
		}
		m.limit = p.look(m.now, m.acked, int(m.sent-m.acked), m.backed-m.sent, m.rtt, alone)
		if m.backed-m.acked > 10 {
			t.Fatalf("after %v %d of %d records are acknowledged", time.Duration(i)*100*time.Millisecond, m.acked, m.backed)
		}
	}
}

// TestPaceShares: where two streams have more than the link carries, the live one gets nine times as much as bulk, whatever their
// records' size, and the whole queue is no longer than for one alone.
func TestPaceShares(t *testing.T) {
	const rate = 8000.0
	now := time.Unix(0, 0)
	s := newShares()
	s.now = func() time.Time { return now }
	type stream struct {
		name         string
		size, weight float64
		p            *pace
		acked        float64
		took         float64
	}
	streams := []*stream{{name: "live", size: 60, weight: weightLive}, {name: "bulk", size: 900, weight: weightBulk}}
	for _, st := range streams {
		st.p = newPace(st.size, 0, now)
	}
	for i := range 3000 { // both windows are full at all times: the link serves them in proportion
		now = now.Add(followClosely)
		var queued float64
		for _, st := range streams {
			queued += float64(st.p.window) * st.size
		}
		for _, st := range streams {
			took := rate * followClosely.Seconds() * float64(st.p.window) * st.size / queued
			if wait := queued / rate; wait > 5 && i > 300 {
				t.Fatalf("after %v a record waits %.1f s", now.Sub(time.Unix(0, 0)), wait)
			}
			st.acked += took / st.size
			if i >= 2000 {
				st.took += took
			}
			st.p.look(now, uint64(st.acked), st.p.window, 1<<20, 0, func(bytes float64) float64 { return s.take(st.name, st.weight, bytes) })
		}
	}
	live, bulk := streams[0].took, streams[1].took
	if share := bulk / (live + bulk); share < 0.05 || share > 0.25 {
		t.Errorf("bulk has %.2f of the link, want 0.1", share)
	}
	t.Logf("bulk has %.2f of the link, windows %d and %d", bulk/(live+bulk), streams[0].p.window, streams[1].p.window)
}
