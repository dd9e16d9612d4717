package modbus

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/holdfast-edge/holdfast/ingest"
)

var _ ingest.Commander = (*Source)(nil)

// order is the data of a command that names no field in its tail.
type order struct {
	Field     string          `json:"field"`     // with value: what Set takes
	Value     json.RawMessage `json:"value"`     // a number, true or false, or a text
	Address   int             `json:"address"`   // with registers or coils: what Write takes
	Registers []uint16        `json:"registers"` // for holding registers from address on
	Coils     []bool          `json:"coils"`     // for coils from address on
}

// Command writes to a device. With the tail <device>.<field> the data is the field's new value as text, in the field's unit. With the
// tail <device> it is JSON: {"field":"setpoint","value":21.5}, {"address":10,"registers":[1,2]} or {"address":3,"coils":[true]}.
func (s *Source) Command(ctx context.Context, c ingest.Command) ingest.Outcome {
	device, field, named := strings.Cut(c.Tail, ".")
	if device == "" {
		return ingest.Refuse("the tail names no device: send it to <source>.<device> or <source>.<device>.<field>")
	}
	if named {
		return became(s.Set(ctx, device, field, string(bytes.TrimSpace(c.Data))))
	}
	var o order
	d := json.NewDecoder(bytes.NewReader(c.Data))
	d.DisallowUnknownFields()
	if err := d.Decode(&o); err != nil {
		return ingest.Refuse(fmt.Sprintf(`the data is no order such as {"field":"setpoint","value":21.5}: %v`, err))
	}
	if o.Field == "" {
		return became(s.Write(ctx, Write{Device: device, Address: o.Address, Registers: o.Registers, Coils: o.Coils}))
	}
	value := string(o.Value)
	var text string
	if json.Unmarshal(o.Value, &text) == nil {
		value = text
	}
	return became(s.Set(ctx, device, o.Field, value))
}

// became says what an error of Write or Set means.
func became(err error) ingest.Outcome {
	var exc *Exception
	state := ingest.OutcomeRefused // a fault of the arguments
	switch {
	case err == nil:
		return ingest.Outcome{State: ingest.OutcomeDone}
	case errors.As(err, &exc) && (exc.Code == excGatewayTarget || exc.Code == excAcknowledge): // it was passed on, or is still being done
		state = ingest.OutcomeUnknown
	case exc != nil, errors.Is(err, ErrOffline), errors.Is(err, errNotSent):
		state = ingest.OutcomeFailed
	case errors.Is(err, ErrNoReply), errors.Is(err, ErrGarbled), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		state = ingest.OutcomeUnknown
	}
	return ingest.Outcome{State: state, Cause: err.Error()}
}
