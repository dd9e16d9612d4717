package forward

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/forward/hub"
)

// A hub that is restored to yesterday gives numbers again that messages here have had, and the local server passes over those in silence. So whenever the link has
// come up and the hub is behind what is here, it is listened to before anything is taken: what has a number that was there already, and is younger than
// what had it, begins another turn of the numbers. In each turn the stream's source has another name to the local server, by a transform that fits no
// message, so that it forgets the numbers of the turn before.

// turnPrefix begins the subject of that transform.
const turnPrefix = "hf.turn."

func turned(turn uint64) jetstream.SubjectTransformConfig {
	subject := turnPrefix + strconv.FormatUint(turn, 10)
	return jetstream.SubjectTransformConfig{Source: subject, Destination: subject}
}

// turnOf returns the turn of the numbers in which a source takes.
func turnOf(src *jetstream.StreamSource) uint64 {
	for _, tr := range src.SubjectTransforms {
		if text, ok := strings.CutPrefix(tr.Source, turnPrefix); ok {
			if turn, err := strconv.ParseUint(text, 10, 64); err == nil {
				return turn
			}
		}
	}
	return 0
}

// hubClock knows the hub's time from an answer of its.
type hubClock struct{ hub, asked time.Time }

// now returns a time that is not before the hub's, by the round trip at most; zero if the hub has not said.
func (c hubClock) now() time.Time {
	if c.hub.IsZero() {
		return time.Time{}
	}
	return c.hub.Add(time.Since(c.asked))
}

// remember notes what the local stream has, before its source is taken away.
func (d *downlink) remember(info *jetstream.StreamInfo) {
	if len(info.Config.Sources) > 0 && len(info.Sources) > 0 {
		d.begun, d.turn = info.Sources[0].Seq, turnOf(info.Config.Sources[0])
	}
}

// hold takes a stream's sources away.
func hold(ctx context.Context, js jetstream.JetStream, cfg jetstream.StreamConfig) error {
	if len(cfg.Sources) == 0 {
		return nil
	}
	cfg.Sources = nil
	if _, err := js.UpdateStream(ctx, cfg); err != nil {
		return fmt.Errorf("hold stream %s: %w", cfg.Name, err)
	}
	return nil
}

// listenFor is how long the hub may be silent, beyond a round trip, before it is taken to have sent what it has.
const listenFor = 3 * time.Second

// setBack finds out whether a hub that begins at next, with so many messages from there on, is behind because it has not heard our last acknowledgements, or because it
// was set back. Then it returns the mark behind which another turn begins, else the one it was given. What is here, but was not known to be on flash, has no
// known time: what may be that, or another message with its number, is told of and not taken again.
func (d *downlink) setBack(ctx context.Context, had downMark, here, next, pending uint64) (downMark, error) {
	sub, err := d.up.nc.SubscribeSync(hub.DownSubject(d.up.opts.Leaf, d.stream))
	if err != nil {
		return had, fmt.Errorf("listen to what the hub sends down: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only when the connection is closed
	last, doubt, again := next-1, uint64(0), false
	for seen := map[uint64]bool{}; uint64(len(seen)) < pending && last < here && !again; {
		m, err := sub.NextMsg(listenFor + d.up.shares.roundTrip())
		if ctx.Err() != nil {
			return had, ctx.Err()
		}
		if err != nil {
			return had, fmt.Errorf("the hub is behind what is here, and does not send what it has: %w", err)
		}
		meta, err := m.Metadata()
		if err != nil {
			continue // a heartbeat, or flow control
		}
		seq, young := meta.Sequence.Stream, meta.Timestamp.After(had.At)
		seen[seq] = true
		if again = young && seq <= had.Received; again {
			break
		}
		if last = max(last, seq); young && seq <= here {
			doubt++
		}
	}
	if !again && last >= here {
		return had, nil
	}
	log := d.up.log.With("stream", d.stream, "had", here, "seq", last+1)
	log.Warn("the hub was set back to an earlier state and gives numbers again, taking what it sends behind them")
	back := downMark{Received: last, At: had.At, Turn: had.Turn + 1}
	if d.stream == hub.Documents {
		back.Received = 0 // they are only read: all of them again
	} else if doubt > 0 {
		log.Error("whether the last commands before those are new cannot be told, and they are not executed", "records", doubt,
			"remedy", "look for their outcomes, and send those again that have none")
	}
	return back, nil
}
