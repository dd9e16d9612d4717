// Package convert stands between a source and the store, and stores what messages say, beside or in the place of the messages.
package convert

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/holdfast-edge/holdfast/ingest"
	"github.com/holdfast-edge/holdfast/ingest/decode"
)

// What is kept of a message that can be decoded. One that cannot is kept as it is in any case.
const (
	KeepRaw     = "raw"     // the message; decoding only marks those that cannot be decoded
	KeepDecoded = "decoded" // what it says
	KeepBoth    = "both"    // the message, then what it says
)

// Headers of records that were decoded, or could not be.
const (
	HeaderDecoded = "Holdfast-Decoded" // the format, on records that hold what a message says, as JSON
	HeaderReject  = "Holdfast-Reject"  // why not, on messages that could not be decoded
	HeaderTime    = "Holdfast-Device-Time"
	HeaderNote    = "Holdfast-Device-Time-Note" // why the device's time is missing or in doubt
)

// NoteImplausible is the note on a device's time that cannot be; it is given all the same.
const NoteImplausible = "device time is not plausible"

// ahead is how far a device's time may be ahead of the gateway's: more than a wrong zone.
const ahead = 26 * time.Hour

// earliest is before any device had a time that is worth something to this program.
var earliest = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)

// TailDecoded is the token behind the subject of a decoded record that stands beside its message.
const TailDecoded = "decoded"

// ReasonDropped is the reason under which messages count that the transform drops.
const ReasonDropped = "dropped by transform"

// reasonLarge is the reason of a message whose decoded form the stream does not take.
const reasonLarge = "decoded form too large"

// Options say how the messages of a source are decoded.
type Options struct {
	Decode    decode.Config
	Transform decode.Transform
	Keep      string      // one of the Keep constants
	MaxSize   int64       // bytes of the largest record that the stream takes
	Trusted   func() bool // whether the gateway knows the time; nil: it never does
	Log       *slog.Logger
}

// Source decodes what another source delivers.
type Source struct {
	inner  ingest.Source
	decode *decode.Decoder
	change *decode.Transformer
	opt    Options
	log    *slog.Logger

	failed  atomic.Int64 // messages that could not be decoded
	dropped ingest.Tally
}

var (
	_ ingest.Source  = (*Source)(nil)
	_ ingest.Stater  = (*Source)(nil)
	_ ingest.Counter = (*Source)(nil)

	_ ingest.Commander = (*Source)(nil)
	_ ingest.Rejecter  = (*Source)(nil)
)

// New returns a source that decodes what inner delivers. It fails only for a configuration that Validate faults.
func New(inner ingest.Source, opt Options) (*Source, error) {
	d, err := decode.New(opt.Decode)
	if err != nil {
		return nil, fmt.Errorf("source %s: %w", inner.Name(), err)
	}
	t, err := decode.NewTransformer(opt.Transform)
	if err != nil {
		return nil, fmt.Errorf("source %s: %w", inner.Name(), err)
	}
	if !slices.Contains([]string{KeepRaw, KeepDecoded, KeepBoth}, opt.Keep) {
		return nil, fmt.Errorf("source %s: keep: %q is unknown: use %s, %s or %s", inner.Name(), opt.Keep, KeepRaw, KeepDecoded, KeepBoth)
	}
	return &Source{inner: inner, decode: d, change: t, opt: opt, log: opt.Log.With("source", inner.Name())}, nil
}

// Name is the name of the inner source.
func (s *Source) Name() string { return s.inner.Name() }

// State is that of the inner source, Running if it has none.
func (s *Source) State() ingest.State {
	if inner, ok := s.inner.(ingest.Stater); ok {
		return inner.State()
	}
	return ingest.State{Kind: ingest.Running}
}

// Counts are those of the inner source, and the messages that were dropped here.
func (s *Source) Counts() ingest.Counts {
	var c ingest.Counts
	if inner, ok := s.inner.(ingest.Counter); ok {
		c = inner.Counts()
	}
	own := s.dropped.Counts()
	if len(own.Rejected) == 0 {
		return c
	}
	c.Rejected, c.RejectedBytes = sum(c.Rejected, own.Rejected), sum(c.RejectedBytes, own.RejectedBytes)
	return c
}

// OnReject lets the inner source show what it rejects, if it does.
func (s *Source) OnReject(f func(ingest.Reject)) {
	if inner, ok := s.inner.(ingest.Rejecter); ok {
		inner.OnReject(f)
	}
}

// Command lets the inner source execute a command, if it executes any.
func (s *Source) Command(ctx context.Context, c ingest.Command) ingest.Outcome {
	inner, ok := s.inner.(ingest.Commander)
	if !ok {
		return ingest.Refuse("source " + s.Name() + " takes no commands")
	}
	return inner.Command(ctx, c)
}

func sum(a, b map[string]uint64) map[string]uint64 {
	out := maps.Clone(a)
	if out == nil {
		out = map[string]uint64{}
	}
	for k, n := range b {
		out[k] += n
	}
	return out
}

// Run runs the inner source.
func (s *Source) Run(ctx context.Context, deliver ingest.Deliver) error {
	return s.inner.Run(ctx, func(ctx context.Context, batch ...ingest.Reading) error {
		out := make([]ingest.Reading, 0, 2*len(batch))
		var dropped []int // sizes
		failed := int64(0)
		var last error
		for _, r := range batch {
			made, err := s.convert(r)
			if err != nil {
				failed++
				last = err
			}
			if len(made) == 0 {
				dropped = append(dropped, len(r.Data))
			}
			out = append(out, made...)
		}
		if len(out) > 0 {
			if err := deliver(ctx, out...); err != nil {
				return err // the same batch comes again, and becomes the same records
			}
		}
		for _, size := range dropped {
			s.dropped.Reject(ReasonDropped, size)
		}
		s.report(failed, last)
		return nil
	})
}

// report logs the first message that could not be decoded, and every thousandth.
func (s *Source) report(failed int64, err error) {
	if failed == 0 {
		return
	}
	total := s.failed.Add(failed)
	if total == failed || total/1000 != (total-failed)/1000 {
		s.log.Warn("messages cannot be decoded, they are stored as they are", "err", err, "total", total)
	}
}

// convert returns what is stored of a reading; none if it is dropped. The error says why it could not be decoded; what is
// returned then is the reading with the reason.
func (s *Source) convert(r ingest.Reading) ([]ingest.Reading, error) {
	made, err := s.decoded(r)
	if err != nil {
		raw := with(r, map[string]string{HeaderReject: ingest.HeaderText(err.Error())})
		raw.Note = r.Note
		return []ingest.Reading{raw}, err
	}
	if made == nil {
		return nil, nil
	}
	var out []ingest.Reading
	switch s.opt.Keep {
	case KeepRaw:
		return []ingest.Reading{r}, nil
	case KeepBoth:
		raw := r
		raw.Note = nil
		out = append(out, raw)
	}
	out = append(out, made...)
	// The note says that the whole message is stored, so it belongs to what is stored last.
	if len(out) > 0 {
		out[len(out)-1].Note = r.Note
	}
	return out, nil
}

// decoded returns the records that a reading becomes; nil if it is dropped.
func (s *Source) decoded(r ingest.Reading) ([]ingest.Reading, error) {
	res, err := s.decode.Decode(r.Data)
	if err != nil {
		return nil, err
	}
	at := res.Time
	if at.IsZero() {
		at = r.Time
	}
	parts, err := s.change.Apply(decode.Part{Value: res.Value, Tail: r.Tail, Time: at})
	if err != nil {
		return nil, err
	}
	if parts == nil {
		return nil, nil
	}
	header := map[string]string{HeaderDecoded: s.opt.Decode.Format}
	if !res.Time.IsZero() {
		header[HeaderTime] = res.Time.UTC().Format(time.RFC3339Nano)
		if s.implausible(res.Time, r.Time) {
			header[HeaderNote] = NoteImplausible
		}
	}
	if res.Note != "" {
		header[HeaderNote] = res.Note
	}
	out := make([]ingest.Reading, 0, len(parts))
	for _, p := range parts {
		data, err := decode.Encode(p.Value)
		if err != nil {
			return nil, err
		}
		if int64(len(data)) > s.opt.MaxSize {
			return nil, &decode.Error{Format: s.opt.Decode.Format, Reason: reasonLarge, Detail: fmt.Sprintf("%d bytes, the stream takes %d", len(data), s.opt.MaxSize)}
		}
		one := with(r, header)
		one.Data, one.Tail = data, s.tail(r.Tail, p.Tail)
		out = append(out, one)
	}
	return out, nil
}

// implausible says that a device's time cannot be: before there were gateways of this kind, or far ahead of a clock that is right.
func (s *Source) implausible(at, received time.Time) bool {
	if at.Before(earliest) {
		return true
	}
	return s.opt.Trusted != nil && s.opt.Trusted() && !received.IsZero() && at.After(received.Add(ahead))
}

// tail returns the tail of a decoded record: what the transform made, or that of the message, told apart when both are kept.
func (s *Source) tail(raw, made string) string {
	if s.opt.Keep != KeepBoth || s.opt.Transform.Tail != "" {
		return made
	}
	if raw == "" {
		return TailDecoded
	}
	return raw + "." + TailDecoded
}

// with returns a reading without its note and with further headers.
func with(r ingest.Reading, header map[string]string) ingest.Reading {
	h := make(map[string]string, len(r.Header)+len(header))
	maps.Copy(h, r.Header)
	maps.Copy(h, header)
	r.Header, r.Note = h, nil
	return r
}
