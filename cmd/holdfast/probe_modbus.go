package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/holdfast-edge/holdfast/ingest/modbus"
	"github.com/holdfast-edge/holdfast/ingest/serial"
)

// probing is what `holdfast probe modbus` was asked.
type probing struct {
	bus            modbus.Bus
	units          []int
	unit           int // 0: look for devices
	table          string
	address, count int
	std            stdio
}

func probeModbus(ctx context.Context, args []string, std stdio) error {
	fs := flags("probe modbus", "PORT|HOST:PORT", "Looks for Modbus devices on a serial line or in a network, or with -unit reads one and shows its registers in all the ways they can be meant. Reads only. The daemon must not use the line.", std)
	p := probing{std: std}
	p.bus.SetDefaults()
	fs.IntVar(&p.bus.Baud, "baud", p.bus.Baud, "bits per second")
	fs.StringVar(&p.bus.Parity, "parity", p.bus.Parity, "none, even or odd")
	fs.IntVar(&p.bus.StopBits, "stop", p.bus.StopBits, "stop bits")
	fs.DurationVar(&p.bus.Timeout, "timeout", 200*time.Millisecond, "how long a device may take to answer")
	over := fs.Bool("rtu", false, "HOST:PORT: serial frames through the connection")
	units := fs.String("units", "1-247", "which units to look for")
	fs.IntVar(&p.unit, "unit", 0, "read this unit; 0: look for units")
	fs.StringVar(&p.table, "table", modbus.TableHolding, "holding, input, coil or discrete")
	fs.IntVar(&p.address, "address", 0, "first register, counted from 0 as on the wire: 40001 in a manual is holding 0")
	fs.IntVar(&p.count, "count", 10, "how many registers")
	words, err := parse(fs, args, 1)
	if err != nil {
		return err
	}
	if len(words) == 0 {
		return usageErrorf("give a port or HOST:PORT; `holdfast ports` lists the ports")
	}
	if p.units, err = unitRange(*units); err != nil {
		return usageErrorf("-units: %w", err)
	}
	p.bus.Retries = 0
	if problem, _ := serial.CheckPort(words[0]); problem == "" {
		p.bus.Port = words[0]
	} else {
		p.bus.Address, p.bus.Mode = words[0], modbus.ModeTCP
		if *over {
			p.bus.Mode = modbus.ModeRTUOverTCP
		}
	}
	if fault := p.bus.Check(); fault != nil {
		return usageErrorf("%w", fault)
	}
	dev, err := modbus.OpenProbe(ctx, p.bus)
	if err != nil {
		return err
	}
	defer func() { _ = dev.Close() }() // nothing was written
	if p.unit != 0 {
		return p.read(ctx, dev)
	}
	return p.scan(ctx, dev)
}

// unitRange reads units such as 1-10,20.
func unitRange(s string) ([]int, error) {
	var all []int
	for _, part := range strings.Split(s, ",") {
		from, to, isRange := strings.Cut(part, "-")
		first, err := strconv.Atoi(from)
		last := first
		if isRange && err == nil {
			last, err = strconv.Atoi(to)
		}
		if err != nil || first < 0 || last > 255 || first > last {
			return nil, fmt.Errorf("%q is no range of 0 to 255, such as 1-10,20", part)
		}
		for n := first; n <= last; n++ {
			all = append(all, n)
		}
	}
	return all, nil
}

// scan asks every unit for one register. A device that refuses it is there too.
func (p probing) scan(ctx context.Context, dev *modbus.Probe) error {
	found := 0
	for _, unit := range p.units {
		began := time.Now()
		_, err := dev.Read(ctx, unit, p.table, p.address, 1)
		if ctx.Err() != nil {
			break
		}
		var exc *modbus.Exception
		switch {
		case err == nil:
			fmt.Fprintf(p.std.out, "unit %d answers in %s\n", unit, time.Since(began).Round(time.Millisecond))
		case modbus.There(err):
			fmt.Fprintf(p.std.out, "unit %d answers in %s, and refuses %s %d: %v\n", unit, time.Since(began).Round(time.Millisecond), p.table, p.address, err)
		case errors.Is(err, modbus.ErrNoReply), errors.As(err, &exc): // of a gateway
			continue
		case errors.Is(err, modbus.ErrGarbled):
			fmt.Fprintf(p.std.out, "something answers unit %d, and cannot be read: another speed or parity, or two devices with one number\n", unit)
		default:
			return err
		}
		found++
	}
	if found == 0 {
		fmt.Fprintln(p.std.out, "no device answers: try other -baud and -parity (9600 and 19200, none and even are usual); swap A and B;")
		fmt.Fprintln(p.std.out, "check the device's unit number, and the termination; a longer -timeout helps with slow gateways")
		return errSaid
	}
	fmt.Fprintf(p.std.out, "read one with: holdfast probe modbus -unit N -address 0 -count 10 %s\n", p.target())
	return nil
}

func (p probing) target() string {
	if p.bus.Mode != modbus.ModeRTU {
		return p.bus.Address
	}
	return fmt.Sprintf("-baud %d -parity %s %s", p.bus.Baud, p.bus.Parity, p.bus.Port)
}

// read shows registers in all the ways they can be meant, or bits.
func (p probing) read(ctx context.Context, dev *modbus.Probe) error {
	data, err := dev.Read(ctx, p.unit, p.table, p.address, p.count)
	if err != nil {
		return fmt.Errorf("read unit %d, %s %d to %d: %w", p.unit, p.table, p.address, p.address+p.count-1, err)
	}
	tw := tabwriter.NewWriter(p.std.out, 0, 8, 2, ' ', 0)
	if p.table == modbus.TableCoil || p.table == modbus.TableDiscrete {
		fmt.Fprintln(tw, "ADDRESS\tMANUAL\tBIT")
		for i := range p.count {
			fmt.Fprintf(tw, "%d\t%s\t%d\n", p.address+i, manual(p.table, p.address+i), data[i/8]>>(i%8)&1)
		}
		return tw.Flush()
	}
	fmt.Fprintln(tw, "ADDRESS\tMANUAL\tHEX\tU16\tI16\tU32 ABCD\tF32 ABCD\tF32 CDAB\tTEXT")
	for i := range len(data) / 2 {
		w := binary.BigEndian.Uint16(data[2*i:])
		fmt.Fprintf(tw, "%d\t%s\t%04x\t%d\t%d\t", p.address+i, manual(p.table, p.address+i), w, w, int16(w))
		if 2*i+4 <= len(data) {
			high := binary.BigEndian.Uint32(data[2*i:])
			fmt.Fprintf(tw, "%d\t%.6g\t%.6g", high, math.Float32frombits(high), math.Float32frombits(high<<16|high>>16))
		} else {
			fmt.Fprint(tw, "\t\t")
		}
		fmt.Fprintf(tw, "\t%s\n", letters(data[2*i:2*i+2]))
	}
	return tw.Flush()
}

// manual is the number under which many manuals list an address.
func manual(table string, address int) string {
	first := map[string]int{modbus.TableCoil: 1, modbus.TableDiscrete: 10001, modbus.TableInput: 30001, modbus.TableHolding: 40001}[table]
	if address > 9998 {
		first = map[string]int{modbus.TableCoil: 1, modbus.TableDiscrete: 100001, modbus.TableInput: 300001, modbus.TableHolding: 400001}[table]
	}
	return strconv.Itoa(first + address)
}

func letters(b []byte) string {
	out := []byte("..")
	for i, c := range b {
		if c > ' ' && c < 0x7f {
			out[i] = c
		}
	}
	return string(out)
}
