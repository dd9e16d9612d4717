package modbus

import (
	"fmt"
	"io"
	"log"
	"sync"
	"testing"
	"time"

	independent "github.com/simonvetter/modbus"

	rigport "github.com/holdfast-edge/holdfast/rig/port"
)

// memory is a device served by an implementation of Modbus that is not ours.
type memory struct {
	mu        sync.Mutex // guards the fields below
	registers [200]uint16
	inputs    [200]uint16
	coils     [200]bool
}

func span[T any](table []T, at, count uint16, write bool, args []T) ([]T, error) {
	if int(at)+int(count) > len(table) {
		return nil, independent.ErrIllegalDataAddress
	}
	if write {
		copy(table[at:], args)
	}
	return append([]T(nil), table[at:at+count]...), nil
}

func (m *memory) HandleCoils(r *independent.CoilsRequest) ([]bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return span(m.coils[:], r.Addr, r.Quantity, r.IsWrite, r.Args)
}

func (m *memory) HandleDiscreteInputs(r *independent.DiscreteInputsRequest) ([]bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return span(m.coils[:], r.Addr, r.Quantity, false, nil)
}

func (m *memory) HandleHoldingRegisters(r *independent.HoldingRegistersRequest) ([]uint16, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return span(m.registers[:], r.Addr, r.Quantity, r.IsWrite, r.Args)
}

func (m *memory) HandleInputRegisters(r *independent.InputRegistersRequest) ([]uint16, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r.UnitId != 7 {
		return nil, independent.ErrGWTargetFailedToRespond
	}
	return span(m.inputs[:], r.Addr, r.Quantity, false, nil)
}

// TestAgainstIndependentSlave reads and writes all tables of a slave that shares no code with us.
func TestAgainstIndependentSlave(t *testing.T) {
	t.Parallel()
	m := &memory{}
	m.inputs = [200]uint16{0: 0x4366, 1: 0x8000, 2: 0xffff, 10: 0x4142, 11: 0x4300}
	m.coils[9] = true
	ports, err := rigport.Pick(1)
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", ports[0])
	server, err := independent.NewServer(&independent.ServerConfiguration{URL: "tcp://" + address, Timeout: time.Minute, MaxClients: 2, Logger: log.New(io.Discard, "", 0)}, m)
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Stop() }) // nothing depends on it

	input := func(name string, address int, set func(*Field)) Field {
		f := newField(name, address, set)
		f.Table = TableInput
		return f
	}
	seven := newDevice("seven", 7, 20*time.Millisecond,
		input("volt", 0, func(f *Field) { f.Type = "f32" }),
		input("minus", 2, func(f *Field) { f.Type = "i16" }),
		input("name", 10, func(f *Field) { f.Type, f.Len = "string", 2 }),
		newField("level", 100, func(f *Field) { f.Type, f.Order, f.Writable = "i32", "DCBA", true }),
		newField("pump", 9, func(f *Field) { f.Table, f.Writable = TableCoil, true }),
		newField("valve", 10, func(f *Field) { f.Table = TableDiscrete }),
		newField("beyond", 300, nil))
	eight := newDevice("eight", 8, 20*time.Millisecond, input("volt", 0, nil))
	r := start(t, quick(netConfig(ModeTCP, address, seven, eight)))
	rec := r.want("seven", 1)[0]
	for name, want := range map[string]any{"volt": num("230.5"), "minus": num("-1"), "name": "ABC", "level": num("0"), "pump": true, "valve": false} {
		if f := rec.Fields[name]; f.Quality != Good || f.Value != want {
			t.Errorf("%s = %+v, want %v", name, f, want)
		}
	}
	if f := rec.Fields["beyond"]; f.Quality != Refused || f.Detail != "exception 2: illegal data address" {
		t.Errorf("beyond = %+v, want refused", f)
	}
	r.wantField("eight", "volt", Silent, nil)
	if err := r.Set(t.Context(), "seven", "level", "-70000"); err != nil {
		t.Errorf("Set(level) = %v", err)
	}
	if err := r.Set(t.Context(), "seven", "pump", "false"); err != nil {
		t.Errorf("Set(pump) = %v", err)
	}
	if err := r.Write(t.Context(), Write{Device: "seven", Address: 10, Coils: []bool{true, true, false, true, true, true, true, true, true, true}}); err != nil {
		t.Errorf("Write(coils) = %v", err)
	}
	r.wantField("seven", "level", Good, num("-70000"))
	r.wantField("seven", "pump", Good, false)
	r.wantField("seven", "valve", Good, true)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.registers[100] != 0x90ee || m.registers[101] != 0xfeff || m.coils[12] || !m.coils[19] {
		t.Errorf("slave holds %04x %04x and coils %v", m.registers[100], m.registers[101], m.coils[9:21])
	}
}
