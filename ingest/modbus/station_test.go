package modbus

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestPlan(t *testing.T) {
	at := func(addresses ...int) []Field {
		var out []Field
		for _, a := range addresses {
			out = append(out, newField(fmt.Sprint(a), a, nil))
		}
		return out
	}
	wide := func(address int) Field {
		return newField(fmt.Sprint(address), address, func(f *Field) { f.Type = "u64" })
	}
	in := func(table string, fields ...Field) []Field {
		for i := range fields {
			fields[i].Table = table
			fields[i].Name += table
		}
		return fields
	}
	for _, tt := range []struct {
		name       string
		fields     []Field
		gap, batch int
		want       string // function:address+count ...
	}{
		{"neighbours", at(0, 1, 2), 0, 125, "3:0+3"},
		{"a gap", at(0, 2), 0, 125, "3:0+1 3:2+1"},
		{"a gap that is bridged", at(0, 2), 1, 125, "3:0+3"},
		{"a gap that is too wide", at(0, 3), 1, 125, "3:0+1 3:3+1"},
		{"any order", at(7, 5, 6), 0, 125, "3:5+3"},
		{"one in another", []Field{wide(10), at(11)[0]}, 0, 125, "3:10+4"},
		{"the same twice", append(at(3), newField("again", 3, nil)), 0, 125, "3:3+1"},
		{"largest batch", at(0, 1, 2, 3, 4), 0, 2, "3:0+2 3:2+2 3:4+1"},
		{"wide ones are not torn", []Field{wide(0), wide(4), wide(8)}, 0, 9, "3:0+8 3:8+4"},
		{"tables apart", append(in(TableInput, at(0)...), at(1)...), 5, 125, "3:1+1 4:0+1"},
		{"coils", in(TableCoil, at(0, 1, 40)...), 0, 125, "1:0+2 1:40+1"},
		{"coils across a gap", in(TableCoil, at(0, 1, 40)...), 38, 125, "1:0+41"},
		{"coils in batches", in(TableDiscrete, at(0, 15, 16)...), 20, 1, "2:0+16 2:16+1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := newDevice("d", 1, time.Second, tt.fields...)
			d.MaxGap, d.MaxBatch = tt.gap, tt.batch
			s, err := newStation(d)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			fields := 0
			for _, b := range s.plan {
				got = append(got, fmt.Sprintf("%d:%d+%d", b.req.pdu[0], binary.BigEndian.Uint16(b.req.pdu[1:]), binary.BigEndian.Uint16(b.req.pdu[3:])))
				fields += len(b.points)
			}
			if strings.Join(got, " ") != tt.want || fields != len(tt.fields) {
				t.Errorf("plan %v of %d fields, want %s of %d", got, fields, tt.want, len(tt.fields))
			}
		})
	}
}

// TestPlanReadsWhatItSays cuts every field out of the replies.
func TestPlanReadsWhatItSays(t *testing.T) {
	u := &unit{holding: tenths(), coils: map[int]bool{3: true, 12: true}}
	d := newDevice("d", 1, time.Second, newField("a", 5, nil), newField("b", 9, nil),
		newField("c3", 3, func(f *Field) { f.Table = TableCoil }), newField("c11", 11, func(f *Field) { f.Table = TableCoil }), newField("c12", 12, func(f *Field) { f.Table = TableCoil }))
	d.MaxGap = 10
	s, err := newStation(d)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	s.due = now
	for !s.poll.over(s) {
		s.took(u.serve(s.begin(now).req.pdu), now)
	}
	values, _ := s.finish(now, time.Minute)
	for i, want := range []string{"1005", "1009", "true", "false", "true"} {
		if values[i].text != want {
			t.Errorf("%s = %s, want %s", d.Fields[i].Name, values[i].text, want)
		}
	}
}

// over tells whether a poll has been begun and has nothing left to ask.
func (p *poll) over(s *station) bool { return p != nil && s.done() }

// TestBackOff: a device that does not answer is asked more and more seldom, and in its period again once it answers.
func TestBackOff(t *testing.T) {
	s, err := newStation(newDevice("d", 1, time.Second, newField("a", 0, nil)))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	s.due = now
	for i, tt := range []struct {
		pause   time.Duration
		skipped int
	}{{1, 0}, {2, 0}, {4, 1}, {8, 3}, {16, 7}, {30, 15}, {30, 29}} {
		s.begin(now)
		s.giveUp(Silent, "")
		if s.skipped != tt.skipped {
			t.Errorf("poll %d: %d skipped, want %d", i, s.skipped, tt.skipped)
		}
		s.skipped = 0
		s.finish(now, 30*time.Second)
		if pause := s.due.Sub(now); pause != tt.pause*time.Second {
			t.Errorf("pause %d is %s, want %ds", i, pause, tt.pause)
		}
		now = s.due
	}
	s.begin(now)
	s.took([]byte{3, 2, 0, 7}, now)
	s.finish(now, 30*time.Second)
	if pause := s.due.Sub(now); pause != time.Second || s.doubtful() {
		t.Errorf("pause after a reply is %s, want 1s", pause)
	}
}

// TestSlowBusLeavesOutSlots: a poll that takes longer than the interval is followed by the next at once, and by no heap of them.
func TestSlowBusLeavesOutSlots(t *testing.T) {
	s, err := newStation(newDevice("d", 1, time.Second, newField("a", 0, nil)))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	s.due = now
	s.begin(now)
	s.took([]byte{3, 2, 0, 7}, now)
	now = now.Add(3500 * time.Millisecond)
	s.finish(now, time.Minute)
	if late := now.Sub(s.due); late != 500*time.Millisecond {
		t.Errorf("next poll is %s late, want the slot of half a second ago", late)
	}
	s.begin(now)
	if s.skipped != 2 {
		t.Errorf("%d skipped, want 2", s.skipped)
	}
}

func TestScaleFrom(t *testing.T) {
	d := newDevice("d", 1, time.Second, newField("power", 0, func(f *Field) { f.ScaleFrom = "sf" }),
		newField("sf", 1, func(f *Field) { f.Type, f.NaN = "i16", []string{"0x8000"} }))
	for _, tt := range []struct {
		name, sf string
		want     string
		quality  string
	}{
		{"hundredths", "fffe", "12.34", Good},
		{"none", "0000", "1234", Good},
		{"thousands", "0003", "1234000", Good},
		{"not available", "8000", "", NotAvailable},
		{"no power", "7000", "", Invalid},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, err := newStation(d)
			if err != nil {
				t.Fatal(err)
			}
			values := []value{{quality: Good, raw: []byte{0x04, 0xd2}}, {quality: Good, raw: unhex(t, tt.sf)}}
			s.decode(values)
			if v := values[0]; v.text != tt.want || v.quality != tt.quality || v.raw == nil {
				t.Errorf("power = %s, %s (%s), want %s, %s, with raw", v.text, v.quality, v.detail, tt.want, tt.quality)
			}
		})
	}
}

func TestReport(t *testing.T) {
	d := newDevice("d", 1, time.Second, newField("a", 0, func(f *Field) { f.Deadband = 5 }), newField("b", 1, nil))
	s, err := newStation(d)
	if err != nil {
		t.Fatal(err)
	}
	type step struct {
		a, b int // negative: silent
		want bool
	}
	for _, tt := range []struct {
		name   string
		report string
		every  time.Duration
		steps  []step
	}{
		{"every", ReportEvery, 0, []step{{1, 1, true}, {1, 1, true}}},
		{"change", ReportChange, 0, []step{{1, 1, true}, {1, 1, false}, {1, 2, true}, {1, 2, false}}},
		{"deadband", ReportChange, 0, []step{{10, 1, true}, {15, 1, false}, {16, 1, true}, {12, 1, false}, {10, 1, true}}},
		{"quality is a change", ReportChange, 0, []step{{1, 1, true}, {-1, -1, true}, {-1, -1, false}, {1, 1, true}}},
		{"change, at least every third", ReportChange, 3 * time.Second, []step{{1, 1, true}, {1, 1, false}, {1, 1, false}, {1, 1, true}, {1, 1, false}}},
		{"interval", ReportInterval, 3 * time.Second, []step{{1, 1, true}, {2, 2, false}, {3, 3, false}, {4, 4, true}, {5, 5, false}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d.Report, d.ReportEvery = tt.report, tt.every
			var r report
			now := time.Now()
			for i, st := range tt.steps {
				now = now.Add(time.Second)
				values := make([]value, 2)
				for j, n := range []int{st.a, st.b} {
					if values[j] = bad(Silent, "", nil); n >= 0 {
						values[j] = s.points[j].decode([]byte{0, byte(n)}, 0)
					}
				}
				got := r.wants(d, s.points, values, now)
				if got != st.want {
					t.Errorf("poll %d: record %v, want %v", i, got, st.want)
				}
				if got {
					r.took(values, now)
				}
			}
		})
	}
}

func TestRecordForm(t *testing.T) {
	d := newDevice("boiler", 7, time.Second, newField("temp", 0, func(f *Field) { f.Type, f.Scale, f.Unit = "i16", 0.1, "°C" }), newField("flow \"in\"", 1, nil))
	s, err := newStation(d)
	if err != nil {
		t.Fatal(err)
	}
	values := []value{s.points[0].decode([]byte{0, 215}, 0), bad(Refused, (&Exception{2}).Error(), nil)}
	s.skipped = 2
	want := `{"device":"boiler","unit":7,"quality":"partial","skipped":2,"fields":{"temp":{"value":21.5,"unit":"°C","quality":"good"},` +
		`"flow \"in\"":{"value":null,"quality":"refused","detail":"exception 2: illegal data address"}}}`
	if got := s.record(values); !bytes.Equal(got, []byte(want)) {
		t.Errorf("record\n%s, want\n%s", got, want)
	}
	s.cfg.Keep = KeepBoth
	if got := s.record(values); !bytes.Contains(got, []byte(`"quality":"good","raw":"00d7"}`)) {
		t.Errorf("record %s, want raw bytes", got)
	}
}

func TestPace(t *testing.T) {
	for _, tt := range []struct {
		name      string
		set       func(*Bus)
		char, gap time.Duration
	}{
		{"9600 8N1", func(*Bus) {}, 1041666, 3645831},
		{"19200 8E1", func(b *Bus) { b.Baud, b.Parity = 19200, "even" }, 572916, 2005206},
		{"115200", func(b *Bus) { b.Baud = 115200 }, 86805, 1750000},
		{"1200, 2 stop bits", func(b *Bus) { b.Baud, b.StopBits = 1200, 2 }, 9166666, 32083331},
		{"gap as configured", func(b *Bus) { b.Gap = 20 * time.Millisecond }, 1041666, 20 * time.Millisecond},
		{"network", func(b *Bus) { b.Mode = ModeRTUOverTCP }, 0, 1750000},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var b Bus
			b.SetDefaults()
			tt.set(&b)
			if p := b.pace(); p.char != tt.char || p.gap != tt.gap {
				t.Errorf("pace() = %s a character, %s idle, want %s, %s", p.char, p.gap, tt.char, tt.gap)
			}
		})
	}
}

// TestPick: who is asked next, and that a request which may stay without reply does not go in front of another device's poll.
func TestPick(t *testing.T) {
	c := lineConfig("/dev/ttyUSB0", newDevice("a", 1, time.Second, newField("x", 0, nil)), newDevice("b", 2, time.Second, newField("x", 0, nil)))
	c.Bus.Timeout = 100 * time.Millisecond
	now := time.Now()
	at := func(ms int) time.Time { return now.Add(time.Duration(ms) * time.Millisecond) }
	for _, tt := range []struct {
		name string
		set  func(a, b *station)
		want string
		next time.Time // when nobody is asked
	}{
		{"the one that is due", func(a, b *station) { a.due, b.due = at(5), at(-1) }, "b", now},
		{"the one that waits longest", func(a, b *station) { a.due, b.due = at(-1), at(-2) }, "b", now},
		{"nobody yet", func(a, b *station) { a.due, b.due = at(7), at(9) }, "", at(7)},
		{"one that is left alone", func(a, b *station) { a.due, a.hold, b.due = at(-1), at(30), at(9) }, "", at(9)},
		{"a poll under way", func(a, b *station) { a.due, a.poll, a.slot, b.due = at(-9), &poll{}, at(-9), at(-1) }, "a", now},
		{"a dead one after the others", func(a, b *station) { a.due, a.fails, b.due = at(-9), 3, at(-1) }, "b", now},
		{"no dead one before another's poll", func(a, b *station) { a.due, a.fails, b.due = at(-1), 3, at(90) }, "", at(90)},
		{"a dead one in a gap", func(a, b *station) { a.due, a.fails, b.due = at(-1), 3, at(130) }, "a", now},
		{"a dead one that waited long enough", func(a, b *station) { a.due, a.fails, b.due = at(-400), 3, at(90) }, "a", now},
		{"a retry waits as well", func(a, b *station) { a.poll, a.hold, b.due = &poll{unsure: true}, at(-1), at(90) }, "", at(90)},
		{"a poll of such a one under way", func(a, b *station) { a.poll, a.slot, a.missing, b.due = &poll{}, at(-1), "x", at(90) }, "", at(90)},
		{"dead ones among themselves", func(a, b *station) { a.due, a.fails, b.due, b.fails = at(-1), 3, at(10), 1 }, "a", now},
		{"one that answers in part", func(a, b *station) { a.due, a.missing, b.due = at(-1), "x", at(90) }, "", at(90)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := &bus{cfg: c.Bus}
			for _, d := range c.Devices {
				s, err := newStation(d)
				if err != nil {
					t.Fatal(err)
				}
				b.stations = append(b.stations, s)
			}
			tt.set(b.stations[0], b.stations[1])
			s, next := b.pick(now)
			got := ""
			if s != nil {
				got, next = s.cfg.Name, now
			}
			if got != tt.want || !next.Equal(tt.next) {
				t.Errorf("pick() = %q in %s, want %q in %s", got, next.Sub(now), tt.want, tt.next.Sub(now))
			}
		})
	}
}
