package serial

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/holdfast-edge/holdfast/ingest"
	"github.com/holdfast-edge/holdfast/ingest/frame"
	"github.com/holdfast-edge/holdfast/rig/cost"
	sim "github.com/holdfast-edge/holdfast/rig/device"
	"github.com/holdfast-edge/holdfast/rig/poll"
)

// BenchmarkSource takes sentences from a line that is as fast as a pseudo-terminal goes, into a store that costs nothing. The device in
// the same process is part of it.
func BenchmarkSource(b *testing.B) {
	const round = 1000
	p := newPlug(b)
	cfg := p.config()
	cfg.Buffer = maxBuffer
	s, _ := newSource(b, cfg, frame.Config{Type: frame.TypeNMEA})
	var got atomic.Int64
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Run(ctx, func(_ context.Context, batch ...ingest.Reading) error { got.Add(int64(len(batch))); return nil }) // ends by cancel
	}()
	defer func() { cancel(); <-done }()
	poll.Until(b, patience, func() bool { return s.State().Kind == ingest.Running }, "the port to be open")
	var log sim.Sentences
	var text []byte
	for range round {
		text = append(text, log.Next()+"\r\n"...)
	}
	b.SetBytes(int64(len(text)))
	sent := int64(0)
	m := cost.Start()
	for b.Loop() {
		sent += round
		if _, err := p.master.Write(text); err != nil {
			b.Fatal(err)
		}
		poll.Until(b, patience, func() bool { return got.Load() >= sent }, "%d records", sent)
	}
	m.Report(b, int(sent))
}
