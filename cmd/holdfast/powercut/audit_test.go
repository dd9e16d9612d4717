package powercut

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/rig/poll"
	"github.com/holdfast-edge/holdfast/storage"
)

// arrival is a record at the hub.
type arrival struct {
	stream string // of the leaf
	id     string
	number string // as the device gave it; epoch and gap records have none
	told   uint64 // of a gap record: how many records it tells of
	merged uint64 // and how many of them an earlier one has told of, which may not have come
}

func newArrival(stream, id string, data []byte) arrival {
	number, _, _ := strings.Cut(string(data), " ")
	if _, err := strconv.ParseUint(number, 10, 64); err != nil {
		number = ""
	}
	a := arrival{stream: stream, id: id, number: number}
	if parsed, err := storage.ParseID(id); err == nil && parsed.Source == storage.GapSource {
		if g, err := storage.ParseGap(data); err == nil {
			a.told, a.merged = g.Count, g.Merged
		}
	}
	return a
}

// report is the account of a series of power cuts.
type report struct {
	Cuts        int // power cuts
	Acked       int // records acknowledged before a cut, or never cut
	OnLeaf      int // records that the leaf holds in the end, all sources
	Arrived     int // records at the hub, all sources
	Ahead       int // records that the hub held and the leaf lost
	Replays     int // starts that had records to bring back
	Lost        int // acknowledged, and not on the leaf after the cut
	Missing     int // acknowledged or on the leaf, and not at the hub
	Double      int // one ID twice at the hub, or one acknowledged record under two IDs
	Redelivered int // records that were never acknowledged, stored all the same, and sent by their device again
	Disordered  int // records of one source that arrived behind a later one
	Dropped     int // given up by a full stream, of which gap records at the hub tell
	Rejected    int // refused for good, as the leaf counts them
	Unbalanced  int // accounts that do not add up: received = stored + rejected, stored = forwarded + waiting + dropped
	examples    []string
}

// counts returns the account in one line.
func (r report) counts() string {
	return fmt.Sprintf("cuts %d, acknowledged %d, on the leaf %d, at the hub %d, hub ahead of the cut by %d, brought back after %d cuts: lost %d, missing %d, double %d, out of order %d, accounts wrong %d (never acknowledged and sent again %d, dropped with a gap record %d, rejected %d)",
		r.Cuts, r.Acked, r.OnLeaf, r.Arrived, r.Ahead, r.Replays, r.Lost, r.Missing, r.Double, r.Disordered, r.Unbalanced, r.Redelivered, r.Dropped, r.Rejected)
}

// String returns the account with examples of what is wrong.
func (r report) String() string {
	return strings.Join(append([]string{r.counts()}, r.examples...), "\n  ")
}

func (r *report) add(o report) {
	r.Cuts += o.Cuts
	r.Acked += o.Acked
	r.OnLeaf += o.OnLeaf
	r.Arrived += o.Arrived
	r.Ahead += o.Ahead
	r.Replays += o.Replays
	r.Lost += o.Lost
	r.Missing += o.Missing
	r.Double += o.Double
	r.Redelivered += o.Redelivered
	r.Disordered += o.Disordered
	r.Dropped += o.Dropped
	r.Rejected += o.Rejected
	r.Unbalanced += o.Unbalanced
	for _, e := range o.examples {
		r.example("%s", e)
	}
}

func (r *report) example(format string, args ...any) {
	if len(r.examples) < 8 {
		r.examples = append(r.examples, fmt.Sprintf(format, args...))
	}
}

// wrong says whether anything is not as it was promised.
func (r report) wrong() bool {
	return r.Lost > 0 || r.Missing > 0 || r.Double > 0 || r.Disordered > 0 || r.Unbalanced > 0
}

// audit counts what is wrong with what arrived. acked maps the ID of each acknowledged record to its device's number; onLeaf holds what the leaf has in the end.
func (r *report) audit(arrived []arrival, acked map[string]uint64, onLeaf map[string]bool) {
	at := map[string]bool{}
	latest := map[string]storage.ID{} // by stream and source: epoch records are in all streams
	for _, a := range arrived {
		id, err := storage.ParseID(a.id)
		if err != nil {
			r.Disordered++
			r.example("at the hub: %v", err)
			continue
		}
		if at[a.id] {
			r.Double++
			r.example("twice at the hub: %s", a.id)
			continue
		}
		at[a.id] = true
		line := a.stream + " " + id.Source
		if l := latest[line]; id.Epoch < l.Epoch || id.Epoch == l.Epoch && id.Seq < l.Seq {
			r.Disordered++
			r.example("at the hub %s arrived behind %s", a.id, l)
		} else {
			latest[line] = id
		}
		if !onLeaf[a.id] {
			r.Ahead++
		}
	}
	r.Arrived += len(arrived)
	r.missing(at, acked, onLeaf)
	r.numbers(arrived, acked)
}

func (r *report) missing(at map[string]bool, acked map[string]uint64, onLeaf map[string]bool) {
	for id := range acked {
		if !at[id] {
			r.Missing++
			r.example("acknowledged, not at the hub (on the leaf: %v): %s", onLeaf[id], id)
		}
	}
	for id := range onLeaf {
		if _, counted := acked[id]; !counted && !at[id] {
			r.Missing++
			r.example("on the leaf, not at the hub: %s", id)
		}
	}
}

// numbers looks at the records as their devices do: one number may have come under several IDs.
func (r *report) numbers(arrived []arrival, acked map[string]uint64) {
	type key struct{ source, number string }
	seen := map[key]int{}     // arrivals
	promised := map[key]int{} // acknowledged IDs
	for id, number := range acked {
		if parsed, err := storage.ParseID(id); err == nil {
			promised[key{parsed.Source, strconv.FormatUint(number, 10)}]++
		}
	}
	for _, a := range arrived {
		if id, err := storage.ParseID(a.id); err == nil && a.number != "" {
			k := key{id.Source, a.number}
			if seen[k]++; seen[k] > 1 {
				r.Redelivered++
			}
		}
	}
	for k, n := range promised {
		if n > 1 {
			r.Double++
			r.example("%s number %s was acknowledged %d times", k.source, k.number, n)
		}
	}
}

// watch follows a leaf's records at the hub.
type watch struct {
	stop []jetstream.ConsumeContext

	mu sync.Mutex // guards at
	at map[string]bool
}

// startWatch follows the hub streams of one leaf until close. The streams may be so new that they do not answer yet.
func startWatch(ctx context.Context, js jetstream.JetStream, leaf string) (*watch, error) {
	w := &watch{at: map[string]bool{}}
	for _, s := range streamNames() {
		var err error
		begun := poll.Wait(ctx, *patience, func() bool {
			err = w.follow(ctx, js, hubStream(leaf, s), storage.DataSubject(leaf, s, ">"))
			return err == nil
		})
		if !begun {
			w.close()
			return nil, fmt.Errorf("watch %s at the hub: %w", s, err)
		}
	}
	return w, nil
}

func (w *watch) follow(ctx context.Context, js jetstream.JetStream, stream, filter string) error {
	cons, err := js.OrderedConsumer(ctx, stream, jetstream.OrderedConsumerConfig{FilterSubjects: []string{filter}})
	if err != nil {
		return err
	}
	c, err := cons.Consume(func(m jetstream.Msg) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.at[m.Headers().Get(storage.HeaderID)] = true
	})
	if err != nil {
		return err
	}
	w.stop = append(w.stop, c)
	return nil
}

func (w *watch) close() {
	for _, c := range w.stop {
		c.Stop()
	}
}

// holds says whether an ID has arrived.
func (w *watch) holds(id string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.at[id]
}

// holdsAll says whether every ID among the keys has arrived.
func holdsAll[V any](w *watch, ids map[string]V) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id := range ids {
		if !w.at[id] {
			return false
		}
	}
	return true
}
