package image

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// account is what the hub holds of one stream.
type account struct{ arrived, missing, double, disordered, gaps, last int }

// read counts the numbers of one source at the hub, from 1 to last (0: to the highest one there).
func (g *gateway) read(stream, source string, last int) (account, error) {
	js, err := g.hub.JetStream()
	if err != nil {
		return account{}, err
	}
	defer js.Conn().Close()
	ctx, cancel := context.WithTimeout(g.t.Context(), time.Minute)
	defer cancel()
	s, err := js.Stream(ctx, stream)
	if err != nil {
		return account{}, err
	}
	var a account
	times := map[int]int{}
	left := s.CachedInfo().State.Msgs
	reader, err := js.OrderedConsumer(ctx, stream, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return account{}, err
	}
	defer func() { _ = s.DeleteConsumer(ctx, reader.CachedInfo().Name) }() // it would expire by itself
	for left > 0 {
		batch, err := reader.Fetch(int(min(left, 1000)), jetstream.FetchMaxWait(5*time.Second))
		if err != nil {
			return account{}, err
		}
		for m := range batch.Messages() {
			left--
			var n int
			var name string
			// What a cut left of a line is a shorter one.
			if _, err := fmt.Sscanf(string(m.Data()), "%d %s", &n, &name); err != nil || name != source || len(m.Data()) != len("00000000 ")+len(source) {
				continue
			}
			switch {
			case times[n] > 0:
				a.double++
			case n < a.last:
				a.disordered++
			case n > a.last+1:
				a.gaps++
			}
			times[n]++
			a.last = max(a.last, n)
			a.arrived++
		}
		if batch.Error() != nil {
			return account{}, batch.Error()
		}
	}
	if last == 0 {
		last = a.last
	}
	for n := 1; n <= last; n++ {
		if times[n] == 0 {
			a.missing++
		}
	}
	return a, nil
}
