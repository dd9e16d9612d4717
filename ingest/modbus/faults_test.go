package modbus

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/ingest"
)

// spread are fields so far from each other that each takes a request of its own, all of one shape.
func spread() []Field {
	return []Field{newField("a", 0, nil), newField("b", 20, nil), newField("c", 40, nil)}
}

// honest checks that no value is that of another field.
func honest(t *testing.T, records []record) (good int) {
	t.Helper()
	for _, rec := range records {
		for name, want := range map[string]any{"a": num("1000"), "b": num("1020"), "c": num("1040")} {
			if f := rec.Fields[name]; f.Quality == Good {
				good++
				if f.Value != want {
					t.Fatalf("%s = %v, want %v: a late reply was taken for another's", name, f.Value, want)
				}
			}
		}
	}
	return good
}

// TestLateRepliesAreNeverTakenForOthers lets a device hesitate in all ways around the time-out: each reply is for the request it
// belongs to, or for none.
func TestLateRepliesAreNeverTakenForOthers(t *testing.T) {
	t.Parallel()
	const timeout = 40 * time.Millisecond
	for _, tt := range []struct {
		name   string
		delays []time.Duration // in time-outs, times ten
		always time.Duration
	}{
		{"once within the pause", []time.Duration{15}, 0},
		{"once beyond the pause", []time.Duration{22}, 0},
		{"once, after the retry was sent", []time.Duration{29}, 0},
		{"after the retry, whose own reply comes later", []time.Duration{25, 8, 9, 9}, 0},
		{"twice", []time.Duration{0, 15, 16}, 0},
		{"in turns", []time.Duration{13, 0, 19, 0, 24, 5, 28, 0, 11, 17, 0, 22, 26, 9}, 0},
		{"always within the pause", nil, 15},
		{"always beyond it", nil, 25},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if testing.Short() && (tt.always > 0 || len(tt.delays) > 5) {
				t.Skip("takes long")
			}
			t.Parallel()
			u := &unit{holding: tenths(), delay: tt.always * timeout / 10}
			for _, d := range tt.delays {
				u.delays = append(u.delays, d*timeout/10)
			}
			s := newSlave(t, map[byte]*unit{1: u, 2: {holding: tenths()}})
			cfg := lineConfig(newCable(s).link, newDevice("m", 1, 60*time.Millisecond, spread()...), newDevice("n", 2, 60*time.Millisecond, spread()...))
			cfg.Bus.Timeout = timeout
			r := start(t, cfg)
			until(t, "the delays to be over", func() bool { return len(s.asked(1)) > len(tt.delays)+6 })
			honest(t, r.records("m"))
			if good := honest(t, r.want("n", 5)); good < 12 {
				t.Errorf("the other device has %d good values of 15", good)
			}
		})
	}
}

func TestLateRepliesOverTCP(t *testing.T) {
	t.Parallel()
	u := &unit{holding: tenths()}
	for i := range 30 {
		u.delays = append(u.delays, time.Duration(i*7%45)*time.Millisecond)
	}
	s := newSlave(t, map[byte]*unit{1: u})
	address, _ := s.listen(s.serveTCP)
	cfg := netConfig(ModeTCP, address, newDevice("m", 1, 20*time.Millisecond, spread()...))
	cfg.Bus.Timeout = 20 * time.Millisecond
	r := start(t, cfg)
	until(t, "the delays to be over", func() bool { return len(s.asked(1)) > 45 })
	honest(t, r.records("m"))
	if st := r.Stats(); st.Late == 0 {
		t.Errorf("stats %+v, want late replies", st)
	}
}

// TestDeadDeviceKeepsOthersInTime has three devices on a bus, one of them dead: the others keep their period. A machine that is busy
// with other things gets three attempts.
func TestDeadDeviceKeepsOthersInTime(t *testing.T) {
	var problems []string
	for range 3 {
		if problems = deadDevice(t); len(problems) == 0 {
			return
		}
		t.Log(problems)
	}
	t.Errorf("in the last of 3 attempts: %v", problems)
}

// watchLag measures how late this machine wakes a goroutine at worst, from now on.
func watchLag(t *testing.T) (worst func() time.Duration) {
	var lag atomic.Int64
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() { cancel(); wg.Wait() })
	wg.Go(func() {
		const step = 5 * time.Millisecond
		for ctx.Err() == nil {
			began := time.Now()
			<-time.After(step)
			lag.Store(max(lag.Load(), int64(time.Since(began)-step)))
		}
	})
	return func() time.Duration { return time.Duration(lag.Load()) }
}

func deadDevice(t *testing.T) (problems []string) {
	const interval, periods, before = 200 * time.Millisecond, 8, 2 // before: until it is known which device is dead
	s := newSlave(t, map[byte]*unit{1: {holding: tenths()}, 2: {mute: true}, 3: {holding: tenths()}})
	cfg := lineConfig(newCable(s).link)
	for i, name := range []string{"first", "dead", "third"} {
		cfg.Devices = append(cfg.Devices, newDevice(name, i+1, interval, newField("a", 0, nil)))
	}
	cfg.Bus.Timeout, cfg.Bus.DeadInterval = 150*time.Millisecond, 500*time.Millisecond
	lag := watchLag(t)
	r := start(t, cfg)
	defer r.stop()
	r.want("first", before+periods+1)
	if n := len(s.asked(2)); n < 2 || n > 3+periods/2 {
		problems = append(problems, fmt.Sprintf("dead device was asked %d times in %d periods, want about one in 2.5", n, periods))
	}
	for _, name := range []string{"first", "third"} {
		recs := r.want(name, before+periods+1)[before : before+periods+1]
		var steps []time.Duration
		for i, rec := range recs {
			if rec.Quality != "good" || rec.Skipped != 0 {
				problems = append(problems, fmt.Sprintf("record %d of %s: %+v, want good and none skipped", i, name, rec))
			}
			if i > 0 {
				steps = append(steps, rec.time.Sub(recs[i-1].time))
			}
		}
		slices.Sort(steps)
		mean, most := recs[periods].time.Sub(recs[0].time)/periods, interval/10+2*lag()
		if max(mean-interval, interval-mean, interval-steps[0], steps[periods-1]-interval) > most {
			problems = append(problems, fmt.Sprintf("%s: period %s, steps %v, want %s with %s more or less", name, mean, steps, interval, most))
		}
	}
	dead := r.want("dead", 3)
	if f := dead[0].Fields["a"]; f.Quality != Silent || dead[0].Quality != "bad" {
		t.Errorf("record of the dead device %+v, want silent", dead[0])
	}
	if dead[len(dead)-1].Skipped == 0 {
		t.Errorf("records of the dead device %+v, want skipped polls told", dead)
	}
	if st := r.State(); st.Kind != ingest.Silent || !strings.Contains(st.Cause, "dead (unit 2) does not answer on ") {
		t.Errorf("state %+v, want silent and the device named", st)
	}
	s.change(func() { s.units[2].mute = false; s.units[2].holding = tenths() })
	r.wantField("dead", "a", Good, num("1000"))
	until(t, "state running", func() bool { return r.State().Kind == ingest.Running })
	return problems
}

func TestMuteDeviceIsTriedAgainOnce(t *testing.T) {
	t.Parallel()
	s := newSlave(t, map[byte]*unit{1: {mute: true}})
	r := start(t, quick(lineConfig(newCable(s).link, newDevice("m", 1, time.Hour, spread()...))))
	rec := r.want("m", 1)[0]
	for name, f := range rec.Fields {
		if f.Quality != Silent || f.Value != nil {
			t.Errorf("%s = %+v, want silent", name, f)
		}
	}
	asked := s.asked(1)
	if len(asked) != 2 || !slices.Equal(asked[0].pdu, asked[1].pdu) {
		t.Fatalf("asked %v, want the same twice", asked)
	}
	if pause := asked[1].time.Sub(asked[0].time); pause < 2*shortTimeout-10*time.Millisecond {
		t.Errorf("asked again after %s, want the time-out and as long a pause", pause)
	}
	if st := r.State(); st.Kind != ingest.Silent || !strings.Contains(st.Cause, "no device answers") || st.Remedy == "" {
		t.Errorf("state %+v, want silent", st)
	}
}

func TestGarbledReplyIsTriedAgain(t *testing.T) {
	t.Parallel()
	s := newSlave(t, map[byte]*unit{1: {holding: tenths(), corrupt: 1}, 2: {holding: tenths(), corrupt: 1000}})
	r := start(t, quick(lineConfig(newCable(s).link, newDevice("m", 1, time.Hour, newField("a", 0, nil)), newDevice("bad", 2, time.Hour, newField("a", 0, nil)))))
	r.wantField("m", "a", Good, num("1000"))
	r.wantField("bad", "a", Garbled, nil)
	if n := len(s.asked(1)); n != 2 {
		t.Errorf("asked %d times, want twice", n)
	}
	until(t, "state", func() bool { return strings.Contains(r.State().Cause, "bad (unit 2) answers without a right checksum") })
	if st := r.Stats(); st.Garbled != 3 {
		t.Errorf("stats %+v, want 3 garbled", st)
	}
}

// TestNoiseBeforeReply sends what lines carry when a driver switches: a zero, ones, and the beginning of a long frame.
func TestNoiseBeforeReply(t *testing.T) {
	t.Parallel()
	for _, noise := range []string{"00", "ff", "fe ff 00", "01", "01 03", "01 83", "07 03 f0", "00 00 00 00 00 00 00 00"} {
		t.Run(noise, func(t *testing.T) {
			s := newSlave(t, map[byte]*unit{1: {holding: tenths(), before: unhex(t, noise)}})
			r := start(t, lineConfig(newCable(s).link, newDevice("m", 1, 20*time.Millisecond, newField("a", 0, nil))))
			r.wantField("m", "a", Good, num("1000"))
			if r.records("m")[0].Quality != "good" {
				t.Errorf("first record %+v, want good at once", r.records("m")[0])
			}
			if st := r.Stats(); st.Noise == 0 || st.Garbled > 0 {
				t.Errorf("stats %+v, want noise and nothing garbled", st)
			}
		})
	}
}

func TestEchoingAdapter(t *testing.T) {
	t.Parallel()
	for _, echo := range []string{EchoAuto, EchoOn} {
		t.Run(echo, func(t *testing.T) {
			s := newSlave(t, map[byte]*unit{1: {holding: tenths(), coils: map[int]bool{}}, 2: {mute: true}})
			s.echo = true
			cfg := lineConfig(newCable(s).link, newDevice("m", 1, 20*time.Millisecond, newField("a", 0, nil)), newDevice("dead", 2, 20*time.Millisecond, newField("a", 0, nil)))
			cfg.Bus.Echo, cfg.Bus.Timeout = echo, shortTimeout
			r := start(t, cfg)
			r.wantField("m", "a", Good, num("1000"))
			r.wantField("dead", "a", Silent, nil)
			if err := r.Write(t.Context(), Write{Device: "m", Address: 0, Registers: []uint16{7}}); err != nil {
				t.Errorf("Write() = %v", err)
			}
			r.wantField("m", "a", Good, num("7"))
			// An echo is no confirmation.
			if err := r.Write(t.Context(), Write{Device: "dead", Address: 0, Registers: []uint16{7}}); err == nil {
				t.Error("Write() to a dead device = nil")
			}
			if st := r.Stats(); st.Echoes < 4 || st.Garbled > 0 {
				t.Errorf("stats %+v, want echoes and nothing garbled", st)
			}
		})
	}
}

func TestBusyDeviceIsAskedAgain(t *testing.T) {
	t.Parallel()
	s := newSlave(t, map[byte]*unit{1: {holding: tenths(), busy: 1}, 2: {holding: tenths(), busy: 1000}})
	r := start(t, lineConfig(newCable(s).link, newDevice("m", 1, time.Hour, newField("a", 0, nil)), newDevice("n", 2, time.Hour, newField("a", 0, nil))))
	r.wantField("m", "a", Good, num("1000"))
	rec := r.wantField("n", "a", Refused, nil)
	if !strings.Contains(rec.Fields["a"].Detail, "device busy") {
		t.Errorf("record %+v, want busy", rec)
	}
	asked := s.asked(1)
	if len(asked) != 2 || asked[1].time.Sub(asked[0].time) < 10*time.Millisecond {
		t.Errorf("asked %v, want twice with a pause", asked)
	}
	if st := r.Stats(); st.Exceptions[6] != 3 {
		t.Errorf("stats %+v, want 3 times busy", st)
	}
}

// TestRefusedRangeIsSplit has a device that refuses a range for one register in it.
func TestRefusedRangeIsSplit(t *testing.T) {
	t.Parallel()
	s := newSlave(t, map[byte]*unit{1: {holding: tenths(), holes: []int{3, 5}}})
	d := newDevice("m", 1, 20*time.Millisecond, newField("a", 2, nil), newField("b", 4, nil), newField("c", 5, nil), newField("d", 6, nil))
	d.MaxGap = 2
	r := start(t, lineConfig(newCable(s).link, d))
	rec := r.want("m", 2)[0]
	for name, want := range map[string]any{"a": num("1002"), "b": num("1004"), "d": num("1006")} {
		if rec.Fields[name].Value != want {
			t.Errorf("%s = %+v, want %v in the first record", name, rec.Fields[name], want)
		}
	}
	if f := rec.Fields["c"]; f.Quality != Refused || rec.Quality != "partial" {
		t.Errorf("c = %+v in a record that is %s, want refused, partial", f, rec.Quality)
	}
	if n := len(s.asked(1)); n < 9 || n > 13 {
		t.Errorf("asked %d times in 2 polls, want the range once and then 4 single ones each", n)
	}
}

// TestGatewayAnswersForSilentDevice: exception 11 comes from the gateway, and means that the device did not answer.
func TestGatewayAnswersForSilentDevice(t *testing.T) {
	t.Parallel()
	s := newSlave(t, map[byte]*unit{1: {exception: 11}, 2: {holding: tenths()}})
	address, _ := s.listen(s.serveTCP)
	r := start(t, quick(netConfig(ModeTCP, address, newDevice("m", 1, 20*time.Millisecond, newField("a", 0, nil)), newDevice("n", 2, 20*time.Millisecond, newField("a", 0, nil)))))
	rec := r.wantField("m", "a", Silent, nil)
	if !strings.Contains(rec.Fields["a"].Detail, "gateway target does not respond") {
		t.Errorf("record %+v, want what the gateway said", rec)
	}
	r.want("n", 10)
	if st := r.Stats(); st.Opened != 1 {
		t.Errorf("stats %+v, want one connection", st)
	}
}

// TestAbsentPort: a line that is not there makes records too, and is opened when it comes, under whatever node.
func TestAbsentPort(t *testing.T) {
	t.Parallel()
	s := newSlave(t, map[byte]*unit{1: {holding: tenths()}})
	c := newCable(s)
	c.out()
	r := start(t, lineConfig(c.link, newDevice("m", 1, 30*time.Millisecond, newField("a", 0, nil))))
	rec := r.wantField("m", "a", Offline, nil)
	if !strings.Contains(rec.Fields["a"].Detail, "is not there") {
		t.Errorf("record %+v, want why", rec)
	}
	until(t, "state waiting", func() bool { st := r.State(); return st.Kind == ingest.Waiting && st.Remedy != "" })
	for round := range 2 {
		before := len(r.records("m"))
		c.in()
		until(t, fmt.Sprintf("good values in round %d", round), func() bool {
			recs := r.records("m")
			return len(recs) > before && recs[len(recs)-1].Quality == "good" && r.State().Kind == ingest.Running
		})
		c.out()
		until(t, "state waiting again", func() bool { return r.State().Kind == ingest.Waiting })
	}
}

// TestConnectionIsMadeAnew: a gateway that closes an idle connection costs no record; one that goes mute gets a new connection.
func TestConnectionIsMadeAnew(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{ModeTCP, ModeRTUOverTCP} {
		t.Run(mode, func(t *testing.T) {
			s := newSlave(t, map[byte]*unit{1: {holding: tenths()}})
			serve := s.serveTCP
			if mode == ModeRTUOverTCP {
				serve = s.serveRTU
			}
			address, cut := s.listen(serve)
			r := start(t, quick(netConfig(mode, address, newDevice("m", 1, 30*time.Millisecond, newField("a", 0, nil)))))
			r.want("m", 3)
			cut()
			n := len(r.records("m"))
			for i, rec := range r.want("m", n+3) {
				if rec.Quality != "good" {
					t.Errorf("record %d %+v, want good", i, rec)
				}
			}
			if st := r.Stats(); st.Opened != 2 {
				t.Errorf("opened %d times, want 2", st.Opened)
			}
			s.change(func() { s.units[1].mute = true })
			until(t, "a third connection", func() bool { return r.Stats().Opened > 2 })
			s.change(func() { s.units[1].mute = false })
			n = len(r.records("m"))
			until(t, "good values", func() bool {
				recs := r.records("m")
				return len(recs) > n && recs[len(recs)-1].Quality == "good"
			})
		})
	}
}

func TestStoreTakesNothing(t *testing.T) {
	t.Parallel()
	s := newSlave(t, map[byte]*unit{1: {holding: tenths()}})
	cfg := lineConfig(newCable(s).link, newDevice("m", 1, 5*time.Millisecond, newField("a", 0, nil)))
	cfg.Buffer = 4 << 10
	source := newSource(t, cfg)
	r := &running{Source: source, t: t, done: make(chan struct{})}
	hold := r.startHeld()
	until(t, "overruns", func() bool { return r.Counts().Rejected[ingest.ReasonOverrun] > 3 })
	if n := source.buffer.Len(); n > 20 {
		t.Errorf("%d records wait, want no more than 4 KiB hold", n)
	}
	hold()
	r.want("m", 10)
	c := r.Counts()
	if c.RejectedBytes[ingest.ReasonOverrun] == 0 || c.Received <= c.Rejected[ingest.ReasonOverrun] {
		t.Errorf("counts %+v", c)
	}
}
