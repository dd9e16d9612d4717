package modbus

import (
	"errors"
	"fmt"
	"strconv"
	"time"
)

// station is one device: what is asked of it, when, and how it answers. Only the owner of the bus uses it.
type station struct {
	cfg      Device
	points   []*point
	plan     []batch
	reported report

	due     time.Time // when the next poll begins
	slot    time.Time // when the last one was due
	hold    time.Time // nothing is asked before
	poll    *poll     // under way; nil between polls
	skipped int       // polls left out since the last record

	fails   int    // polls without any reply, in a row
	why     string // quality of the last of them
	missing string // the first field for which the last poll had no reply though the device answered others
	refused string // the first field that the last poll was refused, and why
}

// poll reads all batches of a station once.
type poll struct {
	values  []value
	next    int       // batch
	attempt int       // of this batch, from 0
	unsure  bool      // an attempt of this batch had no reply: it may come yet
	first   time.Time // when this batch was first sent
	replies int
	time    time.Time // when the first reply came
}

func newStation(d Device) (*station, error) {
	s := &station{cfg: d}
	names := map[string]int{}
	for i, f := range d.Fields {
		p, key, problem, _ := newPoint(f, d)
		if problem != "" {
			return nil, fmt.Errorf("field %s: %s: %s", f.Name, key, problem)
		}
		s.points = append(s.points, p)
		names[f.Name] = i
	}
	for _, p := range s.points {
		if p.ScaleFrom != "" {
			p.from = names[p.ScaleFrom]
		}
	}
	s.plan = plan(d, s.points)
	return s, nil
}

// ready is when the station may be asked next.
func (s *station) ready() time.Time {
	t := s.due
	if s.poll != nil {
		t = time.Time{}
	}
	if s.hold.After(t) {
		return s.hold
	}
	return t
}

// doubtful tells whether the next request may well have no reply.
func (s *station) doubtful() bool { return !s.sound() || s.poll != nil && s.poll.unsure }

// sound tells whether the last poll had all its replies.
func (s *station) sound() bool { return s.fails == 0 && s.missing == "" }

// begin begins a poll unless one is under way, and returns the batch to be asked for.
func (s *station) begin(now time.Time) batch {
	if s.poll == nil {
		s.poll = &poll{values: make([]value, len(s.points))}
		if !s.slot.IsZero() {
			s.skipped += max(int((s.due.Sub(s.slot)+s.cfg.Interval/2)/s.cfg.Interval)-1, 0)
		}
		s.slot = s.due
	}
	if s.poll.attempt == 0 {
		s.poll.first = now
	}
	return s.plan[s.poll.next]
}

// took takes the reply to the present batch.
func (s *station) took(pdu []byte, now time.Time) {
	p, b := s.poll, s.plan[s.poll.next]
	for _, i := range b.points {
		p.values[i] = value{quality: Good, raw: b.cut(pdu, s.points[i])}
	}
	s.replied(now)
	s.advance()
}

// replied notes that the device answered.
func (s *station) replied(now time.Time) {
	if s.poll.replies++; s.poll.replies == 1 {
		s.poll.time = now
	}
}

// advance goes on to the next batch.
func (s *station) advance() { s.poll.next, s.poll.attempt, s.poll.unsure = s.poll.next+1, 0, false }

// refuse takes an exception: a range that is refused is asked for field by field from now on.
func (s *station) refuse(exc *Exception, now time.Time) {
	s.replied(now)
	b := s.plan[s.poll.next]
	if (exc.Code == excAddress || exc.Code == excValue) && len(b.points) > 1 {
		s.plan = append(append(append([]batch(nil), s.plan[:s.poll.next]...), b.split(s.cfg, s.points)...), s.plan[s.poll.next+1:]...)
		return
	}
	for _, i := range b.points {
		s.poll.values[i] = bad(Refused, exc.Error(), nil)
	}
	s.advance()
}

// done tells whether the poll has asked for everything.
func (s *station) done() bool { return s.poll.next == len(s.plan) }

// giveUp ends the poll: what was not read yet has this quality.
func (s *station) giveUp(quality, detail string) {
	for i, v := range s.poll.values {
		if v.quality == "" {
			s.poll.values[i] = bad(quality, detail, nil)
		}
	}
	s.poll.next = len(s.plan)
}

// finish ends a poll and returns its values and time, and plans the next one. dead is the longest pause for a device that does not
// answer.
func (s *station) finish(now time.Time, dead time.Duration) (values []value, at time.Time) {
	p := s.poll
	s.decode(p.values)
	s.assess(p)
	s.poll = nil
	pause := s.cfg.Interval
	if s.fails > 1 {
		pause = min(pause<<min(s.fails-1, 20), max(pause, dead))
	}
	s.due = s.slot.Add(pause)
	if late := now.Sub(s.due); late > 0 { // the bus is slower than its devices' intervals: whole slots are left out
		s.due = s.due.Add(late / s.cfg.Interval * s.cfg.Interval)
	}
	if p.time.IsZero() {
		p.time = now
	}
	return p.values, p.time
}

// assess says what a poll found out about the device.
func (s *station) assess(p *poll) {
	s.why, s.missing, s.refused = "", "", ""
	s.fails++
	if p.replies > 0 {
		s.fails = 0
	}
	for i, v := range p.values {
		switch name := s.points[i].Name; {
		case s.fails > 0:
			s.why = v.quality
		case v.quality == Refused && s.refused == "":
			s.refused = name + ": " + v.detail
		case (v.quality == Silent || v.quality == Garbled) && s.missing == "":
			s.missing = name
		}
	}
}

// decode makes values of raw bytes: first the fields that others get their power of ten from.
func (s *station) decode(values []value) {
	for i, p := range s.points {
		if v := values[i]; v.quality == Good && p.from < 0 {
			values[i] = p.decode(v.raw, 0)
		}
	}
	for i, p := range s.points {
		v := values[i]
		if v.quality != Good || p.from < 0 {
			continue
		}
		exponent, problem := power(values[p.from])
		if problem == "" {
			values[i] = p.decode(v.raw, exponent)
			continue
		}
		quality := values[p.from].quality
		if quality == Good {
			quality = Invalid
		}
		values[i] = bad(quality, problem, v.raw)
	}
}

// record writes a poll as JSON.
func (s *station) record(values []value) []byte {
	b := append([]byte(`{"device":`), jsonText(s.cfg.Name)...)
	b = strconv.AppendInt(append(b, `,"unit":`...), int64(s.cfg.Unit), 10)
	b = append(append(append(b, `,"quality":"`...), summary(values)...), '"')
	if s.skipped > 0 {
		b = strconv.AppendInt(append(b, `,"skipped":`...), int64(s.skipped), 10)
	}
	b = append(b, `,"fields":{`...)
	for i, v := range values {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(b, jsonText(s.points[i].Name)...), ':')
		b = v.append(b, s.points[i].Unit, s.cfg.Keep == KeepBoth)
	}
	return append(b, "}}"...)
}

// summary folds the qualities of all fields into one: good, partial, bad.
func summary(values []value) string {
	good := 0
	for _, v := range values {
		if v.quality == Good {
			good++
		}
	}
	switch good {
	case len(values):
		return "good"
	case 0:
		return "bad"
	}
	return "partial"
}

// quality is the quality of fields that an error kept from being read, and why.
func quality(err error) (quality, detail string) {
	var exc *Exception
	switch {
	case errors.As(err, &exc):
		return Silent, exc.Error() // of a gateway, for a device that did not answer it
	case errors.Is(err, ErrNoReply):
		return Silent, ""
	case errors.Is(err, ErrGarbled):
		return Garbled, err.Error()
	}
	return Offline, err.Error()
}
