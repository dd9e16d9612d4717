// Package decode makes values with names out of the messages of devices, without ever being the only one who has the message.
package decode

import (
	"errors"
	"fmt"
	"time"
)

// Result is what a message says. Value, and all that is in it, is nil, a bool, a string, a json.Number, a []any or a map[string]any.
type Result struct {
	Value any
	Time  time.Time // when the device says it was measured; zero: it does not say
	Note  string    // why Time is missing although the message should have one, or in doubt; empty: all is well
}

// Error says why a message cannot be decoded. The message itself is as good as before.
type Error struct {
	Format string // of the message, as configured
	Reason string // one of the Reason constants, for counters
	Detail string // more about it, for people; may have parts of the message in it
}

// Error describes what is wrong with the message.
func (e *Error) Error() string {
	if e.Detail == "" {
		return fmt.Sprintf("decode %s: %s", e.Format, e.Reason)
	}
	return fmt.Sprintf("decode %s: %s: %s", e.Format, e.Reason, e.Detail)
}

// Reasons of an Error.
const (
	ReasonSyntax     = "bad syntax"             // not written as the format says
	ReasonFields     = "wrong number of fields" // more or fewer than must be
	ReasonValue      = "bad value"              // of a field
	ReasonChecksum   = "bad checksum"           // of the message
	ReasonNumber     = "not a number"           // nan or infinity where the policy takes none
	ReasonShort      = "too short"              // a field is behind the end
	ReasonEmpty      = "empty"                  // no message
	ReasonExpression = "expression failed"      // an expression of the transform
	ReasonTail       = "bad subject tail"       // made by an expression
	ReasonParts      = "too many parts"         // made by an expression
	ReasonFault      = "fault in the decoder"   // a fault of ours
)

// reject makes an error, whose format is filled in by Decode.
func reject(reason, format string, args ...any) error {
	return &Error{Reason: reason, Detail: fmt.Sprintf(format, args...)}
}

// Decoder decodes the messages of one source. It holds no state between messages and is safe for concurrent use.
type Decoder struct {
	format string
	parse  func([]byte) (Result, error)
	clock  *clock
}

// New returns the decoder of a valid configuration, else the first fault.
func New(cfg Config) (*Decoder, error) {
	if err := firstFault("decode", cfg.Validate); err != nil {
		return nil, err
	}
	d := &Decoder{format: cfg.Format}
	var err error
	if d.clock, err = newClock(cfg.Time); err != nil {
		return nil, err
	}
	null := cfg.NaN == NaNNull
	switch cfg.Format {
	case FormatJSON:
		d.parse = func(b []byte) (Result, error) { return plain(parseJSON(b, null)) }
	case FormatCSV:
		c := csvParser{separator: cfg.Separator, columns: cfg.Columns}
		d.parse = func(b []byte) (Result, error) { return plain(c.parse(b)) }
	case FormatKeyValue:
		k, err := newKeyValue(cfg.Separator, cfg.Assign)
		if err != nil {
			return nil, err
		}
		d.parse = func(b []byte) (Result, error) { return plain(k.parse(b)) }
	case FormatCBOR:
		c, err := newCBOR(null)
		if err != nil {
			return nil, err
		}
		d.parse = func(b []byte) (Result, error) { return plain(c.parse(b)) }
	case FormatNMEA:
		d.parse = parseNMEA
	case FormatOBIS:
		d.parse = obisParser{zone: d.clock.zone}.parse
	case FormatSDI12:
		d.parse = func(b []byte) (Result, error) { return plain(parseSDI12(b)) }
	case FormatRegisters:
		r, err := newRegisters(cfg.Fields)
		if err != nil {
			return nil, err
		}
		d.parse = func(b []byte) (Result, error) { return plain(r.parse(b)) }
	}
	return d, nil
}

func plain(value any, err error) (Result, error) { return Result{Value: value}, err }

// Decode says what a message means. data stays the caller's and is not changed. The error is an *Error, and then there is no Result:
// a message is decoded as a whole or not at all.
func (d *Decoder) Decode(data []byte) (res Result, err error) {
	defer func() {
		if r := recover(); r != nil {
			res, err = Result{}, &Error{Format: d.format, Reason: ReasonFault, Detail: fmt.Sprint(r)}
		}
	}()
	return d.decode(data)
}

func (d *Decoder) decode(data []byte) (Result, error) {
	res, err := d.parse(data)
	if err == nil {
		err = d.clock.set(&res)
	}
	if err != nil {
		var e *Error
		if !errors.As(err, &e) {
			e = &Error{Reason: ReasonSyntax, Detail: err.Error()}
		}
		e.Format = d.format
		return Result{}, e
	}
	return res, nil
}
