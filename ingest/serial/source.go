// Package serial reads frames from serial ports, through every unplugging of the device.
package serial

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/holdfast-edge/holdfast/ingest"
	"github.com/holdfast-edge/holdfast/ingest/frame"
)

// HeaderTag is the header with the NMEA TAG blocks of a sentence, as they were on the line.
const HeaderTag = "Holdfast-Nmea-Tag"

// ReasonSettling is the reason under which bytes count that came within settle after an open.
const ReasonSettling = "settling"

// errSilent ends the reading of a port that is to be opened anew because of its silence.
var errSilent = errors.New("it was silent")

const (
	tick       = time.Second            // how often the line is looked at when nothing comes
	absentMin  = 250 * time.Millisecond // first pause before a device that is not there is looked for again
	absentMax  = time.Second            // longest of these pauses
	troubleMax = 10 * time.Second       // longest pause after other faults
	goodFor    = 30 * time.Second       // a device that worked this long is opened again soon
	deadReads  = 20                     // this many empty reads ...
	deadWithin = 100 * time.Millisecond // ... within this time mean a dead port
)

// Source reads one serial port.
type Source struct {
	name   string
	cfg    Config
	framer frame.Framer
	pause  time.Duration // a silence that the framer wants to know of soon; 0: none
	log    *slog.Logger
	open   func(Config) (device, error)

	buffer *ingest.Buffer
	cond   *ingest.Condition
	tally  ingest.Tally

	pokes, end, prefix []byte // bytes of the configuration
	onReject           func(ingest.Reject)

	mu    sync.Mutex // guards the fields below
	mouth *mouth     // nil while the port is not open
	asked *asked     // nil while no command waits for a reply
}

var (
	_ ingest.Source  = (*Source)(nil)
	_ ingest.Stater  = (*Source)(nil)
	_ ingest.Counter = (*Source)(nil)

	_ ingest.Rejecter = (*Source)(nil)
)

// New returns the source of a port, which Run opens. It fails only for a configuration that Validate faults.
func New(name string, cfg Config, frames frame.Config, log *slog.Logger) (*Source, error) {
	var err error
	cfg.Validate(func(key, problem, remedy string) {
		if err == nil {
			err = fmt.Errorf("serial source %s: %s: %s: %s", name, key, problem, remedy)
		}
	})
	if err != nil {
		return nil, err
	}
	framer, err := frame.New(frames)
	if err != nil {
		return nil, fmt.Errorf("serial source %s: %w", name, err)
	}
	log = log.With("source", name, "device", cfg.Port)
	s := &Source{name: name, cfg: cfg, framer: framer, pause: frames.Pause(), log: log, open: open, cond: ingest.NewCondition(log),
		onReject: func(ingest.Reject) {}}
	s.buffer = ingest.NewBuffer(cfg.Buffer, &s.tally, log)
	for _, b := range []struct {
		to   *[]byte
		text string
	}{{&s.pokes, cfg.Poke}, {&s.end, cfg.Command.End}, {&s.prefix, cfg.Command.Prefix}} {
		*b.to, _ = frame.Unescape(b.text) // validated above
	}
	if advice := Advice(cfg.Port); advice != "" {
		log.Warn("port may change its name", "advice", advice)
	}
	return s, nil
}

// Name is the configured name.
func (s *Source) Name() string { return s.name }

// State says how the port is.
func (s *Source) State() ingest.State { return s.cond.State() }

// Counts says how many messages were delivered, and how many rejected and why.
func (s *Source) Counts() ingest.Counts { return s.tally.Counts() }

// OnReject lets f have what is rejected: bytes that are in no message, and messages that find no room.
func (s *Source) OnReject(f func(ingest.Reject)) { s.onReject = f }

// Run reads the port until ctx ends. The line is read all the time, into the configured buffer, because it cannot be told to
// wait: what comes while the buffer is full is rejected as overrun. What was read when ctx ends is delivered for up to a second
// more, and by the next Run if the store does not take it.
func (s *Source) Run(ctx context.Context, deliver ingest.Deliver) error {
	return s.buffer.Run(ctx, deliver, s.serve)
}

// serve opens the port, and opens it again whenever it is lost, until ctx ends.
func (s *Source) serve(ctx context.Context) error {
	if s.State().Kind == ingest.Unknown {
		s.cond.Set(ingest.Starting, "", "")
	}
	s.take(s.framer.Reset("cut off by a restart")) // nothing is held, unless the last run ended in a panic
	gone := ingest.Backoff{Min: absentMin, Max: absentMax}
	trouble := ingest.Backoff{Min: absentMin, Max: troubleMax}
	silent := false // the port was closed because of its silence
	for ctx.Err() == nil {
		dev, err := s.open(s.cfg)
		if err != nil {
			why := asFault(err)
			s.cond.Set(why.kind, why.cause, why.remedy)
			silent = false
			if why.kind == ingest.Waiting {
				trouble.Reset() // it will be another device, or the same one switched on anew
				_ = gone.Wait(ctx)
			} else {
				_ = trouble.Wait(ctx)
			}
			continue
		}
		gone.Reset()
		began := time.Now()
		err = s.read(ctx, dev, silent)
		if ctx.Err() != nil {
			s.take(s.framer.Reset("cut off by a stop"))
			break
		}
		s.take(s.framer.Reset("cut off by loss of the port"))
		if silent = errors.Is(err, errSilent); silent {
			continue
		}
		s.cond.Set(ingest.Waiting, fmt.Sprintf("%s was lost: %v", s.cfg.Port, err), "plug the device in, and check its cable and power if it was not pulled out")
		if time.Since(began) >= goodFor {
			trouble.Reset()
		}
		_ = trouble.Wait(ctx)
	}
	return ctx.Err()
}

// asFault explains errors of open.
func asFault(err error) *fault {
	var f *fault
	if errors.As(err, &f) {
		return f
	}
	return &fault{ingest.Refused, err.Error(), "check that it is a serial port"}
}

// read reads the device until it is lost or ctx ends, and closes it in any case, so that the next open finds it free. With silent the
// port was closed for its silence, and counts as silent until a message comes.
func (s *Source) read(ctx context.Context, dev device, silent bool) error {
	defer func() {
		if err := dev.Close(); err != nil {
			s.log.Debug("port closed with an error", "err", err) // usual when the device was pulled out
		}
	}()
	stop := context.AfterFunc(ctx, func() { _ = dev.SetReadDeadline(time.Unix(1, 0)) }) // a device that has no deadlines ends by its next read
	defer stop()
	defer s.opened(dev)()
	if !silent {
		s.cond.Set(ingest.Running, "", "")
	}
	w := newWatch(s, silent)
	settled := time.Now().Add(s.cfg.Settle)
	buf := make([]byte, 4096)
	for {
		if err := dev.SetReadDeadline(time.Now().Add(w.wait())); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		n, err := dev.Read(buf)
		now := time.Now()
		if n > 0 && now.Before(settled) {
			s.tally.Reject(ReasonSettling, n)
		} else if n > 0 {
			w.heard(s.take(s.framer.Push(buf[:n], now)), n, now)
		}
		switch {
		case err == nil && n == 0:
			if w.dead(now) {
				return errors.New("it reads as empty without waiting")
			}
		case errors.Is(err, os.ErrDeadlineExceeded):
			w.fresh = false
			w.heard(s.take(s.framer.Tick(now)), 0, now)
		case errors.Is(err, io.EOF):
			return errors.New("it hung up")
		case err != nil:
			return errno(err)
		}
		if err := w.look(dev, now); err != nil {
			return err
		}
	}
}

// take queues frames and counts rejects. It returns how many frames were good.
func (s *Source) take(frames []frame.Frame) (good int) {
	for _, f := range frames {
		if f.Reject != "" {
			s.tally.Reject(f.Reject, f.Size)
			s.log.Debug("bytes rejected", "reason", f.Reject, "bytes", f.Size)
			s.onReject(ingest.Reject{Source: s.name, Reason: f.Reject, Detail: f.Detail, Data: f.Data, Size: f.Size, Time: f.First})
			continue
		}
		good++
		s.answer(f)
		r := ingest.Reading{Time: f.First, Data: f.Data}
		if f.Tag != nil {
			r.Header = map[string]string{HeaderTag: string(f.Tag)}
		}
		if !s.buffer.Put(r, f.Size) {
			s.onReject(ingest.Reject{Source: s.name, Reason: ingest.ReasonOverrun, Data: f.Data, Size: f.Size, Time: f.First})
		}
	}
	return good
}
