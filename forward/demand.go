package forward

import (
	"time"

	"github.com/holdfast-edge/holdfast/leaf"
)

// demand decides when a link that is opened on demand is wanted. Used by one goroutine.
type demand struct {
	cfg     leaf.OnDemand
	closed  time.Time // since when the link has not been up
	waiting time.Time // since when something has waited meanwhile; zero: nothing does
	idle    time.Time // since when nothing has waited with the link up; zero: something does
}

// open is true when the link is to be opened: so many records and bytes wait.
func (d *demand) open(now time.Time, records, bytes uint64) bool {
	if d.closed.IsZero() {
		d.closed = now
	}
	switch {
	case records == 0:
		d.waiting = time.Time{}
	case d.waiting.IsZero():
		d.waiting = now
	}
	c := d.cfg
	return c.Records > 0 && records >= uint64(c.Records) || c.Bytes > 0 && bytes >= uint64(c.Bytes) ||
		c.Age > 0 && !d.waiting.IsZero() && now.Sub(d.waiting) >= c.Age || c.Every > 0 && now.Sub(d.closed) >= c.Every
}

// done is true when the link, which is up, is to be closed: nothing has waited for a while.
func (d *demand) done(now time.Time, quiet bool) bool {
	d.closed, d.waiting = time.Time{}, time.Time{}
	if !quiet {
		d.idle = time.Time{}
		return false
	}
	if d.idle.IsZero() {
		d.idle = now
	}
	return now.Sub(d.idle) >= d.cfg.Linger
}

// demandCause is what a stream says while the link waits for demand.
const demandCause = "the link is opened on demand, as hub.on_demand says"

// backlog returns how many records wait, and about how many bytes they have.
func (u *Uplink) backlog() (records, bytes uint64) {
	sizes := map[string]float64{}
	for _, s := range u.store.Streams() {
		if s.Messages > 0 {
			sizes[s.Name] = float64(s.Bytes) / float64(s.Messages)
		}
	}
	for _, f := range u.feeds {
		n := f.snapshot().Waiting
		records += n
		bytes += uint64(float64(n) * sizes[f.name])
	}
	return records, bytes
}

// quiet is true when the hub has all of every stream.
func (u *Uplink) quiet() bool {
	for _, f := range u.feeds {
		if p := f.snapshot(); p.State != Live || p.Waiting > 0 || p.Pending > 0 {
			return false
		}
	}
	return true
}
