package modbus

import (
	"context"
	"errors"
	"fmt"

	"github.com/holdfast-edge/holdfast/ingest"
)

// Probe asks devices on a bus by hand, without a configuration of them. One goroutine uses it.
type Probe struct {
	bus   Bus
	port  port
	wire  wire
	meter meter
}

// OpenProbe opens the line or connection of a bus. The error says what to do. The caller closes the probe.
func OpenProbe(ctx context.Context, b Bus) (*Probe, error) {
	port, trouble := openPort(ctx, b)
	if trouble != nil {
		return nil, fmt.Errorf("%s: %s", trouble.cause, trouble.remedy)
	}
	p := &Probe{bus: b, port: port}
	p.wire = newWire(port, b, &p.meter)
	return p, nil
}

// Close closes the line or connection.
func (p *Probe) Close() error { return p.port.Close() }

// Read reads registers or bits of a table from a protocol address on, which counts from 0, and returns their bytes as they were on the
// wire. Its errors are *Exception, which a device sent, ErrNoReply, ErrGarbled, and those of a lost port.
func (p *Probe) Read(ctx context.Context, unit int, table string, address, count int) ([]byte, error) {
	most := maxRegisters
	if table == TableCoil || table == TableDiscrete {
		most = maxCoils
	}
	if count < 1 || count > most || address < 0 || address+count > 1<<16 || unit < 0 || unit > 255 {
		return nil, fmt.Errorf("read unit %d, %s %d, %d of them: up to %d from addresses 0 to 65535", unit, table, address, count, most)
	}
	pdu, err := p.wire.exchange(readRequest(byte(unit), table, address, count))
	if errors.Is(err, ErrNoReply) || errors.Is(err, ErrGarbled) {
		if !p.wire.tagged() { // a late reply must not be taken for the next one's
			_ = ingest.Pause(ctx, p.bus.Timeout) // ctx is looked at by the caller
		}
		return nil, err
	}
	if err != nil {
		return nil, err
	}
	_ = ingest.Pause(ctx, p.bus.Delay) // as above
	return append([]byte(nil), pdu[2:]...), nil
}

// There tells whether an error of Read shows that a device is there: it answered, if only to refuse.
func There(err error) bool {
	var exc *Exception
	return err == nil || errors.As(err, &exc) && exc.Code != excGatewayPath && exc.Code != excGatewayTarget
}
