package modbus

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/ingest"
	"github.com/holdfast-edge/holdfast/ingest/ingesttest"
	"github.com/holdfast-edge/holdfast/rig/leak"
)

// teller is a source whose device tells texts, made to look like one that sends them: what a poll finds in the field is what the
// device sent.
type teller struct {
	*Source
	mu    sync.Mutex // guards the fields below
	other uint64     // records that hold nothing new
	last  string     // the newest text; a device that was away tells it again
}

func (w *teller) Run(ctx context.Context, deliver ingest.Deliver) error {
	return w.Source.Run(ctx, func(ctx context.Context, batch ...ingest.Reading) error {
		var texts []ingest.Reading
		var other uint64
		w.mu.Lock()
		last := w.last
		w.mu.Unlock()
		for _, r := range batch {
			var rec record
			if err := json.Unmarshal(r.Data, &rec); err != nil {
				return err
			}
			text, _ := rec.Fields["text"].Value.(string)
			if r.Data = []byte(text); text == "" || text == last {
				other++
				continue
			}
			last = text
			texts = append(texts, r)
		}
		if len(texts) > 0 {
			if err := deliver(ctx, texts...); err != nil {
				return err
			}
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.other, w.last = w.other+other, last
		return nil
	})
}

func (w *teller) Counts() ingest.Counts {
	c := w.Source.Counts()
	w.mu.Lock()
	defer w.mu.Unlock()
	c.Received -= min(w.other, c.Received)
	return c
}

// queue makes a unit answer each read with the next of the texts that were sent, or with the last one again.
func (s *slave) queue(id byte) (send func(string)) {
	var texts []string
	last := ""
	s.units[id] = &unit{answer: func(pdu []byte) []byte {
		if len(texts) > 0 {
			last, texts = texts[0], texts[1:]
		}
		n := 2 * int(binary.BigEndian.Uint16(pdu[3:]))
		return append([]byte{pdu[0], byte(n)}, append([]byte(last), make([]byte, n-len(last))...)...)
	}}
	return func(text string) { s.change(func() { texts = append(texts, text) }) }
}

func TestContract(t *testing.T) {
	ingesttest.Run(t, func(t *testing.T) ingesttest.Device {
		s := newSlave(t, map[byte]*unit{})
		send := s.queue(1)
		c := newCable(s)
		d := newDevice("dev", 1, 5*time.Millisecond, newField("text", 0, func(f *Field) { f.Type, f.Len = "string", 20 }))
		d.Report = ReportChange
		source := &teller{Source: newSource(t, lineConfig(c.link, d))}
		return ingesttest.Device{
			Source: source,
			Send:   send,
			Ready:  func() { until(t, "the device to answer", func() bool { return source.State().Kind == ingest.Running }) },
			Break:  c.out,
			Mend:   c.in,
		}
	})
}

// TestModes reads one device over each kind of bus.
func TestModes(t *testing.T) {
	registers := map[int]uint16{0: 0x4366, 1: 0x8000, 10: 1010}
	fields := []Field{newField("volt", 0, func(f *Field) { f.Type, f.Unit = "f32", "V" }), newField("count", 10, nil)}
	for _, tt := range []struct {
		name   string
		config func(s *slave) Config
	}{
		{ModeRTU, func(s *slave) Config { return lineConfig(newCable(s).link) }},
		{ModeTCP, func(s *slave) Config {
			address, _ := s.listen(s.serveTCP)
			return netConfig(ModeTCP, address)
		}},
		{ModeRTUOverTCP, func(s *slave) Config {
			address, _ := s.listen(s.serveRTU)
			return netConfig(ModeRTUOverTCP, address)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			leak.Check(t)
			s := newSlave(t, map[byte]*unit{3: {holding: registers}})
			c := tt.config(s)
			c.Devices = []Device{newDevice("meter", 3, 20*time.Millisecond, fields...)}
			r := start(t, c)
			rec := r.wantField("meter", "volt", Good, num("230.5"))
			if rec.Quality != "good" || rec.Unit != 3 || rec.Fields["volt"].Unit != "V" || rec.Fields["count"].Value != num("1010") {
				t.Errorf("record %+v, want volt 230.5 V and count 1010", rec)
			}
			until(t, "state running", func() bool { return r.State().Kind == ingest.Running })
			if n := len(s.asked(3)); n < 2 {
				t.Errorf("slave was asked %d times, want one request for each of two ranges", n)
			}
			r.stop()
		})
	}
}
