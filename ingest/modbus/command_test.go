package modbus

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"
)

// writer is a source with a device that can be written, over each kind of bus.
func eachBus(t *testing.T, test func(t *testing.T, s *slave, r *running)) {
	for _, mode := range []string{ModeRTU, ModeTCP, ModeRTUOverTCP} {
		t.Run(mode, func(t *testing.T) {
			s := newSlave(t, map[byte]*unit{1: {holding: tenths(), coils: map[int]bool{}}, 2: {mute: true}})
			c := lineConfig("")
			switch mode {
			case ModeRTU:
				c = lineConfig(newCable(s).link)
			case ModeTCP:
				address, _ := s.listen(s.serveTCP)
				c = netConfig(mode, address)
			default:
				address, _ := s.listen(s.serveRTU)
				c = netConfig(mode, address)
			}
			d := newDevice("m", 1, 20*time.Millisecond,
				newField("level", 1, func(f *Field) { f.Type, f.Scale, f.Writable = "i16", 0.1, true }),
				newField("total", 3, func(f *Field) { f.Type, f.Order, f.Writable = "f32", "CDAB", true }),
				newField("label", 7, func(f *Field) { f.Type, f.Len, f.Writable = "string", 4, true }),
				newField("pump", 5, func(f *Field) { f.Table, f.Writable = TableCoil, true }),
				newField("fixed", 40, nil))
			d.AddressBase = 1
			dead := newDevice("dead", 2, time.Hour, newField("a", 0, nil))
			c.Devices = []Device{d, dead}
			test(t, s, start(t, quick(c)))
		})
	}
}

func TestWriteAndSet(t *testing.T) {
	t.Parallel()
	eachBus(t, func(t *testing.T, s *slave, r *running) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		for field, text := range map[string]string{"level": "-12.5", "total": "230.5", "label": "Pump 7", "pump": "true"} {
			if err := r.Set(ctx, "m", field, text); err != nil {
				t.Errorf("Set(%s) = %v", field, err)
			}
		}
		r.wantField("m", "level", Good, num("-12.5"))
		r.wantField("m", "total", Good, num("230.5"))
		r.wantField("m", "label", Good, "Pump 7")
		r.wantField("m", "pump", Good, true)
		if err := r.Write(ctx, Write{Device: "m", Address: 5, Coils: []bool{false, true, true}}); err != nil {
			t.Errorf("Write(coils) = %v", err)
		}
		if err := r.Write(ctx, Write{Device: "m", Address: 21, Registers: []uint16{1, 2, 3}}); err != nil {
			t.Errorf("Write(registers) = %v", err)
		}
		s.change(func() {
			u := s.units[1]
			if u.holding[20] != 1 || u.holding[22] != 3 || u.coils[4] || !u.coils[6] {
				t.Errorf("device holds %v, %v", u.holding[20], u.coils)
			}
		})
		for _, tt := range []struct{ field, text, want string }{
			{"fixed", "1", "not writable"}, {"nothing", "1", "no such field"}, {"level", "much", "no number"}, {"pump", "open", "not true or false"}, {"level", "9999", "does not fit"},
		} {
			if err := r.Set(ctx, "m", tt.field, tt.text); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Set(%s, %s) = %v, want %s", tt.field, tt.text, err, tt.want)
			}
		}
		for name, w := range map[string]Write{
			"nobody": {Device: "x", Registers: []uint16{1}}, "nothing": {Device: "m", Address: 1}, "both": {Device: "m", Address: 1, Registers: []uint16{1}, Coils: []bool{true}},
			"below": {Device: "m", Address: 0, Registers: []uint16{1}}, "above": {Device: "m", Address: 65536, Registers: []uint16{1, 2}}, "many": {Device: "m", Address: 1, Registers: make([]uint16, 124)},
		} {
			if err := r.Write(ctx, w); err == nil {
				t.Errorf("Write(%s) = nil", name)
			}
		}
	})
}

func TestWriteOutcomes(t *testing.T) {
	t.Parallel()
	eachBus(t, func(t *testing.T, s *slave, r *running) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		r.want("m", 1)
		w := Write{Device: "m", Address: 1, Registers: []uint16{7}}
		asked := func() (n int) {
			for _, a := range s.asked(0) {
				if a.pdu[0] >= fnWriteCoil {
					n++
				}
			}
			return n
		}
		s.change(func() { s.units[1].exception = 3 })
		var exc *Exception
		if err := r.Write(ctx, w); !errors.As(err, &exc) || exc.Code != 3 {
			t.Errorf("Write() = %v, want exception 3", err)
		}
		if err := r.Write(ctx, Write{Device: "dead", Registers: []uint16{7}}); !errors.Is(err, ErrNoReply) {
			t.Errorf("Write() = %v, want no reply", err)
		}
		if n := asked(); n != 2 {
			t.Errorf("writes were sent %d times, want once each", n)
		}
		s.change(func() { s.units[1].exception, s.units[1].delay = 0, 40*time.Millisecond })
		short, end := context.WithTimeout(ctx, 10*time.Millisecond)
		defer end()
		if err := r.Write(short, w); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Write() = %v, want the context's error", err)
		}
		r.stop()
		if err := r.Write(short, w); err == nil || !strings.Contains(err.Error(), "not sent") {
			t.Errorf("Write() without a run = %v, want not sent", err)
		}
	})
}

func TestWriteOffline(t *testing.T) {
	t.Parallel()
	s := newSlave(t, map[byte]*unit{})
	c := newCable(s)
	c.out()
	r := start(t, lineConfig(c.link, newDevice("m", 1, time.Hour, newField("a", 0, nil))))
	if err := r.Write(t.Context(), Write{Device: "m", Registers: []uint16{7}}); !errors.Is(err, ErrOffline) || !strings.Contains(err.Error(), "is not there") {
		t.Errorf("Write() = %v, want offline, and why", err)
	}
}

// TestWriteMultiple writes single values as lists, for devices that want it.
func TestWriteMultiple(t *testing.T) {
	t.Parallel()
	s := newSlave(t, map[byte]*unit{1: {holding: tenths(), coils: map[int]bool{}}})
	d := newDevice("m", 1, time.Hour, newField("a", 0, nil))
	d.WriteMultiple = true
	r := start(t, lineConfig(newCable(s).link, d))
	for _, w := range []Write{{Device: "m", Registers: []uint16{7}}, {Device: "m", Coils: []bool{true}}} {
		if err := r.Write(t.Context(), w); err != nil {
			t.Errorf("Write(%+v) = %v", w, err)
		}
	}
	var functions []byte
	for _, a := range s.asked(1) {
		functions = append(functions, a.pdu[0])
	}
	if got := string(functions); !strings.Contains(got, "\x10") || !strings.Contains(got, "\x0f") || strings.ContainsAny(got, "\x05\x06") {
		t.Errorf("functions % x, want 10 and 0f and neither 05 nor 06", functions)
	}
}

// TestWritesToDeadDevice: commands that are not answered do not keep others from being polled or commanded.
func TestWritesToDeadDevice(t *testing.T) {
	t.Parallel()
	s := newSlave(t, map[byte]*unit{1: {holding: tenths()}, 2: {mute: true}})
	r := start(t, quick(lineConfig(newCable(s).link, newDevice("m", 1, 200*time.Millisecond, newField("a", 0, nil)), newDevice("dead", 2, time.Hour, newField("a", 0, nil)))))
	r.want("m", 1)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for ctx.Err() == nil {
				if err := r.Write(ctx, Write{Device: "dead", Registers: []uint16{1}}); err == nil {
					t.Error("Write() to a dead device = nil")
				}
			}
		})
	}
	began, before := time.Now(), len(r.records("m"))
	for i := range 5 {
		if err := r.Write(ctx, Write{Device: "m", Address: 1, Registers: []uint16{uint16(i)}}); err != nil {
			t.Errorf("Write() = %v", err)
		}
	}
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("5 writes took %s", took)
	}
	r.want("m", before+6)
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("6 polls took %s, want 1.2 seconds or little more", took)
	}
	cancel()
	wg.Wait()
}

// TestFloodOfWrites: commands without end leave every second turn to the polls.
func TestFloodOfWrites(t *testing.T) {
	t.Parallel()
	s := newSlave(t, map[byte]*unit{1: {holding: tenths()}, 2: {holding: tenths()}})
	r := start(t, lineConfig(newCable(s).link, newDevice("m", 1, time.Hour, newField("a", 0, nil)), newDevice("n", 2, 50*time.Millisecond, newField("a", 0, nil))))
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				if err := r.Write(ctx, Write{Device: "m", Registers: []uint16{1}}); err != nil && ctx.Err() == nil {
					t.Errorf("Write() = %v", err)
				}
			}
		})
	}
	until(t, "writes", func() bool { return len(s.asked(1)) > 20 })
	r.want("n", len(r.records("n"))+10)
	cancel()
	wg.Wait()
}

// TestWriteBeforeEchoIsKnown: the reply to a single write looks like its echo, so the adapter is listened to before the first.
func TestWriteBeforeEchoIsKnown(t *testing.T) {
	for _, tt := range []struct {
		name    string
		replies bool // the device answers writes
		want    error
	}{{"a dead device is no success", false, ErrNoReply}, {"a reply behind the echo is", true, nil}} {
		t.Run(tt.name, func(t *testing.T) {
			var functions []byte
			p := newScripted(func(_ int, sent []byte) [][]byte {
				functions = append(functions, sent[1])
				if tt.replies && sent[1] == fnWriteRegister {
					return [][]byte{sent, sent}
				}
				return [][]byte{sent}
			})
			c := quick(lineConfig("/dev/ttyUSB0", newDevice("m", 1, time.Second, newField("a", 0, nil))))
			st, err := newStation(c.Devices[0])
			if err != nil {
				t.Fatal(err)
			}
			b := &bus{cfg: c.Bus, stations: []*station{st}, port: p, wire: newRTUWire(p, c.Bus, &meter{}), meter: &meter{}}
			j := &job{req: registersRequest(1, 1, []uint16{3}, false), result: make(chan error, 1)}
			b.execute(t.Context(), j)
			if err := <-j.result; !errors.Is(err, tt.want) {
				t.Errorf("outcome %v, want %v", err, tt.want)
			}
			if string(functions) != "\x03\x06" {
				t.Errorf("functions % x were sent, want a read and the write", functions)
			}
		})
	}
}

// TestLateEcho: an echo that comes after the time-out is one, and silence after an echo says nothing.
func TestLateEcho(t *testing.T) {
	p := newScripted(func(int, []byte) [][]byte { return nil })
	c := lineConfig("/dev/ttyUSB0")
	c.Bus.Timeout = minTimeout
	w := newRTUWire(p, c.Bus, &meter{})
	read, write := readRequest(1, TableHolding, 0, 1), registersRequest(1, 1, []uint16{3}, false)
	for i, want := range []hearing{echoless, echoes, echoes} {
		if _, err := w.exchange(read); !errors.Is(err, ErrNoReply) || w.hearing != want {
			t.Errorf("read %d: %v, and hearing %d, want no reply and %d", i, err, w.hearing, want)
		}
		if i == 0 {
			p.change(func() { p.pieces = [][]byte{read.frame()} })
		}
	}
	p.script = func(_ int, sent []byte) [][]byte { return [][]byte{sent} }
	if _, err := w.exchange(write); !errors.Is(err, ErrNoReply) {
		t.Errorf("write with nothing but its echo: %v, want no reply", err)
	}
}

// TestLateConfirmation: the confirmation of a write that came too late confirms no later one.
func TestLateConfirmation(t *testing.T) {
	t.Parallel()
	u := &unit{holding: tenths()}
	s := newSlave(t, map[byte]*unit{1: u})
	r := start(t, quick(lineConfig(newCable(s).link, newDevice("m", 1, time.Hour, newField("a", 0, nil)))))
	r.want("m", 1)
	writes := 0
	s.change(func() {
		u.delays = []time.Duration{shortTimeout * 3 / 2}
		u.answer = func(pdu []byte) []byte {
			if writes++; writes > 1 {
				return nil
			}
			return u.serve(pdu)
		}
	})
	for i := range 2 {
		if err := r.Write(t.Context(), Write{Device: "m", Registers: []uint16{uint16(i), 2}}); !errors.Is(err, ErrNoReply) {
			t.Errorf("Write() %d = %v, want no reply", i, err)
		}
	}
	if st := r.Stats(); st.Late != 1 {
		t.Errorf("stats %+v, want one late reply", st)
	}
}
