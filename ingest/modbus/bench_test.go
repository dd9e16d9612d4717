package modbus

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/ingest"
	"github.com/holdfast-edge/holdfast/rig/cost"
)

// BenchmarkPoll is one poll of a device over TCP, from the request to the record that is handed to the store: CPU, allocations and
// time of a record. The slave in the same process is part of it.
func BenchmarkPoll(b *testing.B) {
	for _, fields := range []int{1, 20, 100} {
		b.Run(fmt.Sprintf("fields=%d", fields), func(b *testing.B) {
			s := newSlave(b, map[byte]*unit{1: {holding: tenths()}})
			address, _ := s.listen(s.serveTCP)
			d := newDevice("m", 1, minInterval)
			for i := range fields {
				d.Fields = append(d.Fields, newField(fmt.Sprint("f", i), i, func(f *Field) { f.Scale = 0.1 }))
			}
			source := newSource(b, netConfig(ModeTCP, address, d))
			source.stations[0].cfg.Interval = 50 * time.Microsecond // as fast as it goes
			got := make(chan int, 1024)
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			done := make(chan struct{})
			go func() {
				defer close(done)
				_ = source.Run(ctx, func(ctx context.Context, batch ...ingest.Reading) error { // ends by cancel
					select {
					case got <- len(batch):
						return nil
					case <-ctx.Done():
						return ctx.Err()
					}
				})
			}()
			<-got
			left, n := 0, 0
			m := cost.Start()
			for b.Loop() {
				n++
				if left == 0 {
					left = <-got
				}
				left--
			}
			m.Report(b, n)
			cancel()
			<-done
		})
	}
}
