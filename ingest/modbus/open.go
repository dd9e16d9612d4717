package modbus

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"github.com/holdfast-edge/holdfast/ingest"
	"github.com/holdfast-edge/holdfast/ingest/serial"
)

const dialTimeout = 5 * time.Second

// trouble is a state that keeps the bus from being used, for people.
type trouble struct {
	kind          ingest.Kind
	cause, remedy string
}

// device names what the bus is reached by.
func (b Bus) device() string {
	if b.Mode == ModeRTU {
		return b.Port
	}
	return b.Address
}

// line returns the settings of the serial line.
func (b Bus) line() serial.Config {
	var c serial.Config
	c.SetDefaults()
	c.Port, c.Baud, c.DataBits, c.Parity, c.StopBits = b.Port, b.Baud, b.DataBits, b.Parity, b.StopBits
	return c
}

// openPort opens the line or connection.
func openPort(ctx context.Context, b Bus) (port, *trouble) {
	if b.Mode == ModeRTU {
		l, err := serial.OpenLine(b.line())
		if err != nil {
			kind, cause, remedy := serial.Explain(err)
			return nil, &trouble{kind, cause, remedy}
		}
		return l, nil
	}
	d := net.Dialer{Timeout: dialTimeout}
	c, err := d.DialContext(ctx, "tcp", b.Address)
	if err != nil {
		return nil, dialTrouble(b.Address, err)
	}
	return c, nil
}

// dialTrouble explains why there is no connection.
func dialTrouble(address string, err error) *trouble {
	t := &trouble{kind: ingest.Waiting, cause: fmt.Sprintf("%s is not reached: %v", address, err), remedy: "check address and network, and that the device is on"}
	var name *net.DNSError
	var timeout net.Error
	switch {
	case errors.As(err, &name):
		t.cause, t.remedy = fmt.Sprintf("%s has no address: %s", name.Name, name.Err), "check the name, or give an IP address"
	case errors.Is(err, syscall.ECONNREFUSED):
		t.cause, t.remedy = address+" refuses the connection", "check the port (502 is usual), switch Modbus on in the device; some take one connection only: end the others"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		t.cause, t.remedy = address+" cannot be reached: no route", "check cable, address and netmask"
	case errors.As(err, &timeout) && timeout.Timeout():
		t.cause, t.remedy = address+" does not answer", "check that the device is on, its address, and firewalls between"
	}
	return t
}

// newWire speaks the bus's protocol over an open port.
func newWire(p port, b Bus, m *meter) wire {
	if b.Mode == ModeTCP {
		return &tcpWire{reader: reader{port: p}, timeout: b.Timeout, meter: m}
	}
	return newRTUWire(p, b, m)
}
