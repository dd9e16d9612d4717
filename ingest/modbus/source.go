// Package modbus polls Modbus devices on serial lines and networks, and never takes a late reply for another's.
package modbus

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/holdfast-edge/holdfast/ingest"
)

// Source is the only user of one bus: it polls the devices on it, one request at a time, and makes a record of each poll.
//
// A record is a JSON object with the device and every field, its value and its quality. A poll that failed makes a record too. The
// record's tail is the name of the device.
//
// On a serial line nothing in a reply names its request. So the line is emptied and idle before each request, a device that did
// not answer is asked only the same again, after a pause in which a late reply is dropped, and is then left alone until its
// replies must all have come. In Modbus/TCP the transaction id tells.
type Source struct {
	name     string
	cfg      Config
	log      *slog.Logger
	stations []*station
	open     func(ctx context.Context, b Bus) (port, *trouble)

	jobs   chan *job // never closed
	buffer *ingest.Buffer
	cond   *ingest.Condition
	tally  ingest.Tally
	meter  meter
}

var (
	_ ingest.Source  = (*Source)(nil)
	_ ingest.Stater  = (*Source)(nil)
	_ ingest.Counter = (*Source)(nil)
)

// New returns the source of a bus, which Run opens. It fails only for a configuration that Validate faults.
func New(name string, cfg Config, log *slog.Logger) (*Source, error) {
	var err error
	cfg.Validate(func(key, problem, remedy string) {
		if err == nil {
			err = fmt.Errorf("modbus source %s: %s: %s: %s", name, key, problem, remedy)
		}
	})
	if err != nil {
		return nil, err
	}
	log = log.With("source", name, "device", cfg.Bus.device())
	s := &Source{name: name, cfg: cfg, log: log, open: openPort, jobs: make(chan *job), cond: ingest.NewCondition(log)}
	s.buffer = ingest.NewBuffer(cfg.Buffer, &s.tally, log)
	for _, d := range cfg.Devices {
		st, err := newStation(d)
		if err != nil {
			return nil, fmt.Errorf("modbus source %s: device %s: %w", name, d.Name, err)
		}
		s.stations = append(s.stations, st)
	}
	return s, nil
}

// Name is the configured name.
func (s *Source) Name() string { return s.name }

// State says how the bus is: silent when a device does not answer, refused when one refuses a field.
func (s *Source) State() ingest.State { return s.cond.State() }

// Counts says how many records were delivered, and how many rejected and why.
func (s *Source) Counts() ingest.Counts { return s.tally.Counts() }

// Stats is safe for concurrent use.
func (s *Source) Stats() Stats { return s.meter.read() }

// Run polls the devices until ctx ends. Polling goes on while the store takes nothing, into the configured buffer; records that
// find no room there are rejected as overrun. What was read when ctx ends is delivered for up to a second more, and by the next
// Run if the store does not take it.
func (s *Source) Run(ctx context.Context, deliver ingest.Deliver) error {
	return s.buffer.Run(ctx, deliver, s.poll)
}

// poll owns the bus.
func (s *Source) poll(ctx context.Context) error {
	if s.State().Kind == ingest.Unknown {
		s.cond.Set(ingest.Starting, "", "")
	}
	b := &bus{cfg: s.cfg.Bus, stations: s.stations, jobs: s.jobs, report: s.report, open: s.open, meter: &s.meter, cond: s.cond, log: s.log}
	return b.run(ctx)
}

// report makes a record of a poll, if the device's configuration wants one.
func (s *Source) report(st *station, values []value, at time.Time) {
	if !st.reported.wants(st.cfg, st.points, values, at) {
		return
	}
	r := ingest.Reading{Time: at, Tail: st.cfg.Name, Data: st.record(values)}
	if s.buffer.Put(r, len(r.Data)) {
		st.reported.took(values, at)
		st.skipped = 0
	}
}
