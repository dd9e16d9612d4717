package modbus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/holdfast-edge/holdfast/ingest"
)

const (
	backMin   = 250 * time.Millisecond // first pause before a port is opened again
	absentMax = time.Second            // longest one while the device is absent
	backMax   = 10 * time.Second       // longest one after other faults
	lookEvery = time.Second            // how often it is looked whether the port is still the one that was opened
	deafAfter = 2                      // a connection on which so many requests in a row had no reply is made anew
	farAhead  = time.Hour              // longest wait when nothing is planned
)

// bus owns a line or connection: all requests go through it, one after the other. One goroutine uses it.
type bus struct {
	cfg      Bus
	stations []*station
	jobs     <-chan *job
	report   func(s *station, values []value, at time.Time)
	open     func(ctx context.Context, b Bus) (port, *trouble)
	meter    *meter
	cond     *ingest.Condition
	log      *slog.Logger

	port   port
	wire   wire // nil: not open
	proven bool // something answered since it was opened
	deaf   int  // requests without reply, in a row
	looked time.Time
	free   time.Time // when the next request may be sent

	deferred []*job // jobs for devices that are left alone at present
	jobDone  bool   // a job came before the polls last

	trouble *trouble  // why it is not open
	reopen  time.Time // when it is tried again
	absent  ingest.Backoff
	back    ingest.Backoff
}

// run polls the stations and executes jobs until ctx ends.
func (b *bus) run(ctx context.Context) error {
	b.absent, b.back = ingest.Backoff{Min: backMin, Max: absentMax}, ingest.Backoff{Min: backMin, Max: backMax}
	b.trouble = &trouble{ingest.Starting, "it was not opened yet", ""}
	start := time.Now()
	for _, s := range b.stations {
		s.poll = nil
		s.due, s.slot = start, time.Time{}
	}
	defer b.close()
	defer b.refuseJobs("the source has stopped")
	for ctx.Err() == nil {
		now := time.Now()
		if b.wire == nil && !now.Before(b.reopen) {
			b.connect(ctx)
			now = time.Now()
		}
		if b.wire == nil {
			b.failDue(now)
			b.refuseJobs(b.trouble.cause)
			b.idle(ctx, b.nextOffline())
			continue
		}
		b.turn(ctx, now)
	}
	return ctx.Err()
}

// turn sends one request, a waiting job's or the next station's in turns, or waits until there is one to send.
func (b *bus) turn(ctx context.Context, now time.Time) {
	if now.Before(b.free) {
		_ = ingest.Pause(ctx, b.free.Sub(now)) // ctx is looked at next
		return
	}
	s, next := b.pick(now)
	if s == nil || !b.jobDone {
		if j := b.waiting(now); j != nil {
			b.jobDone = true
			b.execute(ctx, j)
			return
		}
	}
	b.jobDone = false
	if s != nil {
		b.ask(ctx, s)
		return
	}
	b.idle(ctx, minTime(next, b.nextJob(next)))
}

// connect opens the port, and closes it when ctx ends, so that no read outlasts that.
func (b *bus) connect(ctx context.Context) {
	p, trouble := b.open(ctx, b.cfg)
	if ctx.Err() != nil {
		if p != nil {
			_ = p.Close() // nothing was written
		}
		return
	}
	if trouble != nil {
		b.trouble = trouble
		b.cond.Set(trouble.kind, trouble.cause, trouble.remedy)
		if trouble.kind == ingest.Waiting && b.cfg.Mode == ModeRTU {
			b.back.Reset()
			b.reopen = time.Now().Add(b.absent.Next())
		} else {
			b.reopen = time.Now().Add(b.back.Next())
		}
		return
	}
	stop := context.AfterFunc(ctx, func() { _ = p.Close() })
	b.port, b.wire = &closing{port: p, stop: stop}, newWire(p, b.cfg, b.meter)
	b.meter.count(func(s *Stats) { s.Opened++ })
	b.absent.Reset()
	b.proven, b.deaf, b.looked = false, 0, time.Now()
	if b.trouble != nil { // the devices may be back with the port
		for _, s := range b.stations {
			s.fails, s.missing, s.hold = 0, "", time.Time{}
			s.due = minTime(s.due, time.Now())
		}
	}
	b.trouble = nil
}

// closing is a port whose guard against the end of a context ends with it.
type closing struct {
	port
	stop func() bool
}

// Close closes the port and ends its guard.
func (c *closing) Close() error {
	c.stop()
	return c.port.Close()
}

func (b *bus) close() {
	if b.wire == nil {
		return
	}
	if err := b.port.Close(); err != nil {
		b.log.Debug("bus closed with an error", "err", err) // usual when an adapter was pulled out
	}
	b.port, b.wire = nil, nil
}

// lose closes a port that does not work. One that worked is opened again at once.
func (b *bus) lose(err error) {
	b.close()
	b.trouble = &trouble{ingest.Waiting, fmt.Sprintf("%s was lost: %v", b.cfg.device(), err), "check cable and power"}
	if b.proven {
		b.back.Reset()
		b.reopen = time.Now()
		return
	}
	b.cond.Set(b.trouble.kind, b.trouble.cause, b.trouble.remedy)
	b.reopen = time.Now().Add(b.back.Next())
}

// failDue ends the polls that are due or under way while the port is not open: a gap is a record too.
func (b *bus) failDue(now time.Time) {
	if !b.reopen.After(now) {
		return
	}
	for _, s := range b.stations {
		if s.poll != nil || !s.due.After(now) {
			s.begin(now)
			b.end(s, Offline, b.trouble.cause, now)
		}
	}
}

func (b *bus) nextOffline() time.Time {
	next := b.reopen
	for _, s := range b.stations {
		next = minTime(next, s.due)
	}
	return next
}

// pick returns the station to ask now, or when to look again. A request that may well stay without a reply waits until it keeps no
// other station from its time, as long as that is possible.
func (b *bus) pick(now time.Time) (*station, time.Time) {
	var sure, doubtful *station
	next := now.Add(farAhead)
	for _, s := range b.stations {
		switch t := s.ready(); {
		case s.doubtful() && !t.After(now):
			if doubtful == nil || s.slotTime().Before(doubtful.slotTime()) {
				doubtful = s
			}
		case !t.After(now):
			if sure == nil || s.slotTime().Before(sure.slotTime()) {
				sure = s
			}
		default:
			next = minTime(next, t)
		}
	}
	if sure != nil || doubtful == nil {
		return sure, next
	}
	cost, wait := b.cost(), next
	for _, s := range b.stations {
		if t := s.ready(); !s.doubtful() && t.After(now) && t.Before(now.Add(cost)) && now.Sub(doubtful.waitsSince()) < b.patience(doubtful) {
			return nil, minTime(wait, t)
		}
	}
	return doubtful, next
}

// slotTime is when the station's poll was due.
func (s *station) slotTime() time.Time {
	if s.poll != nil {
		return s.slot
	}
	return s.due
}

// waitsSince is since when the station could have been asked.
func (s *station) waitsSince() time.Time {
	if s.hold.After(s.slotTime()) {
		return s.hold
	}
	return s.slotTime()
}

// cost is how long a request without reply keeps the bus.
func (b *bus) cost() time.Duration {
	p := b.cfg.pace()
	return p.timeout + 4*p.gap + 8*p.char + b.cfg.Delay
}

// patience is how long a doubtful request waits for a time that suits the others.
func (b *bus) patience(s *station) time.Duration {
	if s.fails > 0 {
		return b.cfg.DeadInterval
	}
	return 4 * b.cfg.Timeout
}

// ask sends the station's next request.
func (b *bus) ask(ctx context.Context, s *station) {
	if !b.look() {
		return
	}
	sent := time.Now()
	batch := s.begin(sent)
	pdu, err := b.wire.exchange(batch.req)
	now := time.Now()
	if ctx.Err() != nil {
		return
	}
	b.free = now.Add(b.cfg.Delay)
	var exc *Exception
	var broken *lost
	switch {
	case err == nil:
		b.settled(s, sent, now)
		s.took(pdu, now)
	case errors.As(err, &exc) && exc.Code != excGatewayPath && exc.Code != excGatewayTarget:
		b.settled(s, sent, now)
		b.refused(s, exc, now)
	case errors.As(err, &broken):
		b.lose(err)
		if s.poll.attempt++; s.poll.attempt > max(b.cfg.Retries, 1) {
			b.end(s, Offline, b.trouble.cause, now)
		}
		return
	default:
		b.unanswered(s, err, sent, now)
		return
	}
	b.proven, b.deaf = true, 0
	if s.done() {
		b.end(s, "", "", now)
	}
}

// look finds out whether the port still is the one that is configured.
func (b *bus) look() bool {
	now := time.Now()
	c, ok := b.port.(*closing)
	if now.Sub(b.looked) < lookEvery || !ok {
		return true
	}
	b.looked = now
	if line, ok := c.port.(interface{ Gone() error }); ok {
		if err := line.Gone(); err != nil {
			b.lose(err)
			return false
		}
	}
	return true
}

// settled keeps the device alone, after a reply to a request that had been sent before without one: the reply may have been that to
// the first, and that to the second may still come. It would come as long after its request as this one did.
func (b *bus) settled(s *station, sent, now time.Time) {
	if s.poll.unsure && !b.wire.tagged() {
		s.hold = now.Add(sent.Sub(s.poll.first) + b.cfg.Timeout)
	}
}

// refused takes an exception.
func (b *bus) refused(s *station, exc *Exception, now time.Time) {
	retry := exc.Code == excAcknowledge || exc.Code == excBusy
	if retry && s.poll.attempt < b.cfg.Retries {
		s.replied(now)
		s.poll.attempt++
		s.hold = now.Add(b.cfg.BusyWait)
		return
	}
	s.refuse(exc, now)
}

// unanswered takes a request without a usable reply. The same request may be sent again, after a time in which a late reply can
// still come; anything else has to wait until none is to be expected.
func (b *bus) unanswered(s *station, err error, sent, now time.Time) {
	if errors.Is(err, ErrNoReply) {
		b.deaf++
	}
	hold := time.Duration(0)
	if !b.wire.tagged() {
		hold = b.cfg.Timeout
	}
	if s.sound() && s.poll.attempt < b.cfg.Retries {
		s.poll.attempt++
		s.poll.unsure = true
		s.hold = now.Add(hold)
	} else {
		span := sent.Sub(s.poll.first)
		quality, detail := quality(err)
		b.end(s, quality, detail, now)
		s.hold = now.Add(2*hold + span)
	}
	if b.cfg.Mode != ModeRTU && b.deaf >= deafAfter { // such a connection may be dead without anybody saying so
		b.close()
		b.deaf, b.reopen = 0, now
	}
}

// end ends the station's poll, makes its record and shows how the bus is. With a quality it ends early.
func (b *bus) end(s *station, quality, detail string, now time.Time) {
	if quality != "" {
		s.giveUp(quality, detail)
	}
	values, at := s.finish(now, b.cfg.DeadInterval)
	b.report(s, values, at)
	b.judge()
}

// idle waits until a time, a job, or the end of ctx.
func (b *bus) idle(ctx context.Context, until time.Time) {
	t := time.NewTimer(time.Until(until))
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	case j := <-b.jobs:
		b.deferred = append(b.deferred, j)
	}
}

func minTime(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
