package forward

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/rig/poll"
	"github.com/holdfast-edge/holdfast/storage"
)

// local returns the IDs of all records in a stream of the gateway.
func (g *gateway) local(stream string) []string { return ids(g.site.t, g.js, stream) }

// ids returns the IDs of all records of a stream, in its order.
func ids(t *testing.T, js jetstream.JetStream, stream string) []string {
	t.Helper()
	var all []string
	var err error
	poll.Until(t, patient, func() bool { all, err = readIDs(js, stream); return err == nil }, "read %s: %v", stream, &err)
	return all
}

func readIDs(js jetstream.JetStream, stream string) ([]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patient)
	defer cancel()
	c, err := js.OrderedConsumer(ctx, stream, jetstream.OrderedConsumerConfig{HeadersOnly: true, FilterSubjects: []string{"data.>"}})
	if err != nil {
		return nil, err
	}
	info, err := c.Info(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]string, 0, info.NumPending)
	for uint64(len(all)) < info.NumPending {
		b, err := c.Fetch(int(min(5000, info.NumPending-uint64(len(all)))), jetstream.FetchMaxWait(5*time.Second))
		if err != nil {
			return nil, err
		}
		n := 0
		for m := range b.Messages() {
			all = append(all, m.Headers().Get(storage.HeaderID))
			n++
		}
		if b.Error() != nil || n == 0 {
			return nil, fmt.Errorf("%d of %d records: %w", len(all), info.NumPending, b.Error())
		}
	}
	return all, nil
}

// compare says in which ways the IDs of a hub stream are not those wanted.
func compare(got, want []string) []string {
	var problems []string
	times := map[string]int{}
	for _, id := range got {
		times[id]++
	}
	missing, double, foreign := 0, 0, 0
	for _, id := range want {
		if times[id] == 0 {
			if missing++; missing <= 3 {
				problems = append(problems, id+" is missing")
			}
		}
		if times[id] > 1 {
			double++
		}
		delete(times, id)
	}
	for id, n := range times {
		if foreign += n; foreign <= 3 {
			problems = append(problems, id+" should not be there")
		}
	}
	if missing+double+foreign > 0 {
		return append(problems, fmt.Sprintf("%d missing, %d double, %d that should not be there; want %d", missing, double, foreign, len(want)))
	}
	g, w := byLeaf(got), byLeaf(want)
	for l := range w {
		if !slices.Equal(g[l], w[l]) {
			problems = append(problems, "the records of leaf "+l+" are out of order")
		}
	}
	return problems
}

func byLeaf(ids []string) map[string][]string {
	m := map[string][]string{}
	for _, id := range ids {
		l, _, _ := strings.Cut(id, ".")
		m[l] = append(m[l], id)
	}
	return m
}
