package storage

import (
	"bytes"
	"errors"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// TestClassify publishes what a real server refuses, each in its way.
func TestClassify(t *testing.T) {
	small := []byte("x")
	cases := []struct {
		name   string
		change func(c *jetstream.StreamConfig)
		max    int64 // MaxStore of the server
		msg    nats.Msg
		want   error
	}{
		{"taken", nil, 0, nats.Msg{Data: small}, nil},
		{"stream's bytes", func(c *jetstream.StreamConfig) { c.MaxBytes = 100 }, 0, nats.Msg{Data: make([]byte, 200)}, ErrFull},
		{"stream's messages", func(c *jetstream.StreamConfig) { c.MaxMsgs = 1 }, 0, nats.Msg{Data: small}, ErrFull},
		{"server's space", nil, 2000, nats.Msg{Data: make([]byte, 4000)}, ErrFull},
		{"message size", func(c *jetstream.StreamConfig) { c.MaxMsgSize = 100 }, 0, nats.Msg{Data: make([]byte, 200)}, ErrInvalid},
		{"header size", nil, 0, nats.Msg{Header: nats.Header{"A": {string(bytes.Repeat([]byte("x"), 70_000))}}}, ErrInvalid},
		{"time to live", nil, 0, nats.Msg{Header: nats.Header{"Nats-TTL": {"1s"}}}, ErrInvalid},
		{"larger than max_payload", nil, 0, nats.Msg{Data: make([]byte, 2<<20)}, ErrInvalid},
		{"no stream", nil, 0, nats.Msg{Subject: "nowhere", Data: small}, ErrUnavailable},
		{"sealed", func(c *jetstream.StreamConfig) { c.Sealed = true }, 0, nats.Msg{Data: small}, ErrUnavailable},
		{"wrong stream", nil, 0, nats.Msg{Header: nats.Header{jetstream.ExpectedStreamHeader: {"Q"}}}, ErrUnavailable},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			b := newBed(t)
			if c.max != 0 {
				b.max = c.max
			}
			b.serve()
			cfg := jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}, Discard: jetstream.DiscardNew, Storage: jetstream.FileStorage}
			if _, err := b.js.CreateStream(b.ctx(), cfg); err != nil {
				t.Fatal(err)
			}
			if _, err := b.js.Publish(b.ctx(), "s", small); err != nil {
				t.Fatal(err)
			}
			if c.change != nil {
				b.alter("S", c.change)
			}
			w, err := newWire(b.js)
			if err != nil {
				t.Fatal(err)
			}
			if c.msg.Subject == "" {
				c.msg.Subject = "s"
			}
			got := error(nil)
			for range 2 { // the server looks at its own limit before it stores, so the one after is refused
				ticket, err := w.send(&c.msg, true)
				if err == nil {
					err = w.await(ticket, &nats.Msg{Subject: "s"}).err
				}
				if got = classify(err); got != nil {
					break
				}
			}
			if (c.want == nil) != (got == nil) || !errors.Is(got, c.want) {
				t.Errorf("classified as %v, want %v", got, c.want)
			}
		})
	}
}

func TestStored(t *testing.T) {
	var s stored
	for _, seq := range []uint64{1, 2, 5, 6, 9} {
		s.add(seq)
	}
	for seq, want := range map[uint64][2]bool{
		1: {true, false}, 2: {true, false}, 3: {false, true}, 4: {false, true}, 5: {true, false}, 6: {true, false},
		7: {false, true}, 8: {false, true}, 9: {true, false}, 10: {false, false},
	} {
		if yes, passed := s.has(seq); yes != want[0] || passed != want[1] {
			t.Errorf("has(%d) = %v, %v, want %v", seq, yes, passed, want)
		}
	}
	for n := range uint64(3 * maxHoles) {
		s.add(100 + 2*n)
	}
	if len(s.holes) > maxHoles {
		t.Errorf("%d holes are remembered, want at most %d", len(s.holes), maxHoles)
	}
}
