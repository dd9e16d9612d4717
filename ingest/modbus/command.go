package modbus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"
)

// Write is what is written to a device. Exactly one of Registers and Coils is set.
type Write struct {
	Device    string   // its configured name
	Address   int      // the first register or coil, counted from the device's address_base
	Registers []uint16 // for holding registers from Address on, up to 123
	Coils     []bool   // for coils from Address on, up to 1968
}

// errNotSent means that time was over before the write was sent.
var errNotSent = errors.New("not sent")

// states of a job
const (
	jobWaiting int32 = iota
	jobBegun
	jobGivenUp
)

// job is a write on its way to the owner of the bus.
type job struct {
	req    request
	state  atomic.Int32
	result chan error // holds one; never closed
}

// Write writes registers or coils of a device. It goes before the next poll request, is sent once and not tried again, and returns
// when the device has confirmed it. Its errors are *Exception (the device refuses), ErrNoReply and ErrGarbled (it may have been
// written or not), ErrOffline (not written), a fault of the arguments, and the error of ctx, which says whether it was sent. It
// needs a Run, and is safe for concurrent use.
func (s *Source) Write(ctx context.Context, w Write) error {
	st, err := s.station(w.Device)
	if err != nil {
		return err
	}
	address, count := w.Address-st.cfg.AddressBase, max(len(w.Registers), len(w.Coils))
	switch {
	case (len(w.Registers) > 0) == (len(w.Coils) > 0):
		return fmt.Errorf("write %s: give registers or coils", w.Device)
	case len(w.Registers) > maxWriteRegisters || len(w.Coils) > maxWriteCoils:
		return fmt.Errorf("write %s: %d values are more than one request can hold", w.Device, count)
	case address < 0 || address+count > 1<<16:
		return fmt.Errorf("write %s: address %d is out of range", w.Device, w.Address)
	}
	req := registersRequest(byte(st.cfg.Unit), address, w.Registers, st.cfg.WriteMultiple)
	if len(w.Coils) > 0 {
		req = coilsRequest(byte(st.cfg.Unit), address, w.Coils, st.cfg.WriteMultiple)
	}
	if err := s.do(ctx, req); err != nil {
		return fmt.Errorf("write %s: %w", w.Device, err)
	}
	return nil
}

// Set writes one field of a device, given as text: a number in the field's unit, true or false, or a text. The field has to be
// writable. Its errors are those of Write.
func (s *Source) Set(ctx context.Context, device, field, text string) error {
	st, err := s.station(device)
	if err != nil {
		return err
	}
	for _, p := range st.points {
		if p.Name != field {
			continue
		}
		if !p.Writable {
			return fmt.Errorf("set %s of %s: the field is not writable", field, device)
		}
		w := Write{Device: device, Address: p.Address}
		if p.coil() {
			on, err := parseBool(text)
			if err != nil {
				return fmt.Errorf("set %s of %s: %w", field, device, err)
			}
			w.Coils = []bool{on}
		} else if w.Registers, err = p.encode(text); err != nil {
			return fmt.Errorf("set %s of %s: %w", field, device, err)
		}
		return s.Write(ctx, w)
	}
	return fmt.Errorf("set %s of %s: there is no such field", field, device)
}

func (s *Source) station(device string) (*station, error) {
	for _, st := range s.stations {
		if st.cfg.Name == device {
			return st, nil
		}
	}
	return nil, fmt.Errorf("there is no device %q on this bus", device)
}

// do hands a request to the owner of the bus and waits for the outcome.
func (s *Source) do(ctx context.Context, req request) error {
	j := &job{req: req, result: make(chan error, 1)}
	select {
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", errNotSent, ctx.Err())
	case s.jobs <- j:
	}
	select {
	case err := <-j.result:
		return err
	case <-ctx.Done():
	}
	if j.state.CompareAndSwap(jobWaiting, jobGivenUp) {
		return fmt.Errorf("%w: %w", errNotSent, ctx.Err())
	}
	select {
	case err := <-j.result:
		return err
	default:
		return fmt.Errorf("sent, and no reply yet: %w", ctx.Err())
	}
}

// waiting returns a job whose device may be asked, the oldest first. Others wait their time here, and keep nobody else.
func (b *bus) waiting(now time.Time) *job {
	select {
	case j := <-b.jobs:
		b.deferred = append(b.deferred, j)
	default:
	}
	for i, j := range b.deferred {
		if st := b.stationOf(j.req.unit); st == nil || !st.hold.After(now) {
			b.deferred = slices.Delete(b.deferred, i, i+1)
			return j
		}
	}
	return nil
}

// nextJob is when the first of the deferred jobs may be executed, or latest if there is none before.
func (b *bus) nextJob(latest time.Time) time.Time {
	for _, j := range b.deferred {
		if st := b.stationOf(j.req.unit); st != nil {
			latest = minTime(latest, st.hold)
		}
	}
	return latest
}

// refuseJobs answers the deferred jobs, none of which was sent.
func (b *bus) refuseJobs(cause string) {
	for _, j := range b.deferred {
		j.result <- fmt.Errorf("%w: %s", ErrOffline, cause)
	}
	b.deferred = nil
}

// execute writes what a job asks for.
func (b *bus) execute(ctx context.Context, j *job) {
	if b.wire != nil && !b.wire.certain(j.req) {
		b.listenForEcho()
	}
	switch {
	case b.wire == nil:
		j.result <- fmt.Errorf("%w: %s", ErrOffline, b.trouble.cause)
		return
	case !b.wire.certain(j.req):
		j.result <- fmt.Errorf("%w: the line is too noisy to hear whether the adapter repeats what it sends; set echo to on or off", ErrOffline)
		return
	}
	if ctx.Err() != nil || !j.state.CompareAndSwap(jobWaiting, jobBegun) {
		j.result <- fmt.Errorf("%w: not sent", ErrOffline)
		return
	}
	st := b.stationOf(j.req.unit)
	_, err := b.wire.exchange(j.req)
	now := time.Now()
	b.free = now.Add(b.cfg.Delay)
	var broken *lost
	var exc *Exception
	switch {
	case err == nil, errors.As(err, &exc):
		b.proven, b.deaf = true, 0
	case errors.As(err, &broken):
		b.lose(err)
		err = fmt.Errorf("%w: %v", ErrOffline, broken)
		if broken.sent {
			err = fmt.Errorf("%w: %v", ErrNoReply, broken)
		}
	case st != nil && !b.wire.tagged():
		st.hold = now.Add(2 * b.cfg.Timeout)
	}
	j.result <- err
}

// listenForEcho reads something, whatever, to learn whether the adapter repeats what it sends: the reply to some writes looks the
// same.
func (b *bus) listenForEcho() {
	_, err := b.wire.exchange(b.stations[0].plan[0].req)
	var broken *lost
	if errors.As(err, &broken) {
		b.lose(err)
	}
}

func (b *bus) stationOf(unit byte) *station {
	for _, s := range b.stations {
		if s.cfg.Unit == int(unit) {
			return s
		}
	}
	return nil
}
