// Package demo shows the whole of Holdfast on one machine: a hub, a leaf, simulated devices, a link that is cut, and an account of every record.
package demo

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/storage"
)

// Received is one record as it stands at the hub.
type Received struct {
	ID   storage.ID
	Data string
}

// Fetch returns all records below subject of a hub stream, in the stream's order, without epoch and gap records.
func Fetch(ctx context.Context, js jetstream.JetStream, stream, subject string) ([]Received, error) {
	s, err := js.Stream(ctx, stream)
	if err != nil {
		return nil, fmt.Errorf("open the hub's stream %s: %w", stream, err)
	}
	c, err := s.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{FilterSubjects: []string{subject}})
	if err != nil {
		return nil, fmt.Errorf("read the hub's stream %s: %w", stream, err)
	}
	info, err := c.Info(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the hub's stream %s: %w", stream, err)
	}
	left := info.NumPending + info.Delivered.Consumer
	out := make([]Received, 0, left)
	if left == 0 {
		return out, nil
	}
	messages, err := c.Messages()
	if err != nil {
		return nil, fmt.Errorf("read the hub's stream %s: %w", stream, err)
	}
	defer messages.Stop()
	for ; left > 0; left-- {
		m, err := messages.Next(jetstream.NextMaxWait(30 * time.Second))
		if err != nil {
			return nil, fmt.Errorf("read the hub's stream %s, %d records before its end: %w", stream, left, errors.Join(err, ctx.Err()))
		}
		id, err := storage.ParseID(m.Headers().Get(storage.HeaderID))
		if err != nil {
			return nil, fmt.Errorf("hub stream %s: %w", stream, err)
		}
		if !storage.Own(id.Source) {
			out = append(out, Received{id, string(m.Data())})
		}
	}
	return out, nil
}

// Count returns how many messages a hub stream has below subject, and with the subject less its last token.
func Count(ctx context.Context, js jetstream.JetStream, stream, subject string) (uint64, error) {
	s, err := js.Stream(ctx, stream)
	if err != nil {
		return 0, fmt.Errorf("open the hub's stream %s: %w", stream, err)
	}
	var n uint64
	for _, filter := range []string{subject, strings.TrimSuffix(subject, ".>")} {
		info, err := s.Info(ctx, jetstream.WithSubjectFilter(filter))
		if err != nil {
			return 0, fmt.Errorf("count the hub's stream %s: %w", stream, err)
		}
		for _, of := range info.State.Subjects {
			n += of
		}
	}
	return n, nil
}

// Account compares what one source was given with what is at the hub.
type Account struct {
	Source      string
	Captured    int // given by the device, or acknowledged to it
	AtHub       int // different ones of them at the hub
	Missing     int
	Double      int // the same record, by its ID, more than once
	Redelivered int // the device's broker sent the message again under a new packet: another record with the same content
	OutOfOrder  int // records behind a later one of the same source, by epoch and sequence
	Shuffled    int // records in another order than the device gave them
	Unknown     int // records that no device sent
	Holes       int // numbers below an epoch's highest that are not at the hub: something stored is missing
}

// Balances says that nothing is missing, double, out of order or from nowhere.
func (a Account) Balances() bool {
	return a.Missing == 0 && a.Double == 0 && a.OutOfOrder == 0 && a.Shuffled == 0 && a.Unknown == 0 && a.Holes == 0
}

// String is the account in one line.
func (a Account) String() string {
	return fmt.Sprintf("%s: %d captured, %d at the hub, %d missing, %d double, %d redelivered, %d out of order, %d shuffled, %d unknown, %d holes",
		a.Source, a.Captured, a.AtHub, a.Missing, a.Double, a.Redelivered, a.OutOfOrder, a.Shuffled, a.Unknown, a.Holes)
}

// Balance accounts for one source. sent are the different contents the device gave, in order; got is all that is at the hub, of any source.
// Order is judged twice: by epoch and sequence, and by the order in which the device sent.
func Balance(source string, sent []string, got []Received) Account {
	a := Account{Source: source, Captured: len(sent)}
	place := make(map[string]int, len(sent))
	for i, s := range sent {
		place[s] = i
	}
	ids := map[storage.ID]bool{}
	seen := map[string]bool{}
	var last storage.ID
	lastPlace := -1
	for _, r := range got {
		if r.ID.Source != source {
			continue
		}
		i, known := place[r.Data]
		switch {
		case ids[r.ID]:
			a.Double++
			continue
		case !known:
			a.Unknown++
		case seen[r.Data]:
			a.Redelivered++
		default:
			a.AtHub++
			if i < lastPlace {
				a.Shuffled++
			}
			lastPlace = max(lastPlace, i)
		}
		// The epochs of another store say nothing about this one's.
		if r.ID.Store == last.Store && (r.ID.Epoch < last.Epoch || r.ID.Epoch == last.Epoch && r.ID.Seq < last.Seq) {
			a.OutOfOrder++
		} else {
			last = r.ID
		}
		ids[r.ID], seen[r.Data] = true, true
	}
	a.Missing = len(place) - a.AtHub
	a.Holes = holes(ids)
	return a
}

// holes counts the numbers that are missing: a source's records are numbered from 1 in every epoch, without gaps.
func holes(ids map[storage.ID]bool) int {
	highest := map[storage.ID]uint64{} // by ID without its sequence
	for id := range ids {
		epoch := id
		epoch.Seq = 0
		highest[epoch] = max(highest[epoch], id.Seq)
	}
	n := -len(ids)
	for _, h := range highest {
		n += int(h)
	}
	return n
}
