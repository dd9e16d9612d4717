package modbus

import (
	"math"
	"time"
)

// report remembers what was reported last.
type report struct {
	values []value
	time   time.Time
}

// wants tells whether a poll makes a record.
func (r *report) wants(d Device, points []*point, values []value, now time.Time) bool {
	overdue := d.ReportEvery > 0 && now.Sub(r.time) >= d.ReportEvery-d.Interval/2
	switch {
	case r.values == nil || d.Report == ReportEvery:
		return true
	case d.Report == ReportInterval:
		return overdue
	}
	for i, v := range values {
		if changed(points[i], r.values[i], v) {
			return true
		}
	}
	return overdue
}

// changed compares two values of a field.
func changed(p *point, was, is value) bool {
	if was.quality != is.quality || is.text == was.text {
		return was.quality != is.quality
	}
	if p.Deadband == 0 {
		return true
	}
	diff := math.Abs(is.numeric() - was.numeric())
	return math.IsNaN(diff) || diff > p.Deadband
}

// took notes that a record was made.
func (r *report) took(values []value, now time.Time) { r.values, r.time = values, now }
