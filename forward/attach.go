package forward

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/storage"
)

const (
	// pokeInterval is the heartbeat of the consumer that makes a hub ask, see poke; the shortest that the server takes. pokeSlow is for a
	// hub that does not ask in pokeEager.
	pokeInterval = 100 * time.Millisecond
	pokeSlow     = 2 * time.Second
	pokeEager    = 10 * time.Second
	pokePatience = 3 * time.Second // with one number of records, then with another
	// attachPatience is how long the hub may take to ask before it is told that something is wrong.
	attachPatience = 15 * time.Second
	// attachStall is how long before the link is dialled anew because of it.
	attachStall = 45 * time.Second
	// assumedSize is what a record has where none is known, in bytes.
	assumedSize = 350
)

// awaitWish has the hub ask to attach, and waits until it does.
func (f *feed) awaitWish(ctx context.Context) (*wish, error) {
	name := f.consumer + "_poke"
	defer f.drop(ctx, name)
	began := time.Now()
	tick := time.NewTicker(pokePatience)
	defer tick.Stop()
	for try := 0; ; try++ {
		interval := pokeInterval
		if time.Since(began) > pokeEager {
			interval = pokeSlow
		}
		if !f.moving.Load() {
			if err := f.poke(ctx, name, 1+try%2, interval); err != nil {
				return nil, err
			}
		}
		f.observe(ctx)
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case w := <-f.wishes:
			return &w, nil
		case <-tick.C:
		}
		switch waited := time.Since(began); {
		case waited > attachStall && f.snapshot().Waiting > 0:
			f.enter(Stalled, "the hub does not ask for the stream's records", f.attachRemedy())
		case waited > attachPatience:
			f.enter(Handshake, "the hub does not ask for the stream's records", f.attachRemedy())
		}
	}
}

func (f *feed) attachRemedy() string {
	return fmt.Sprintf("check that hub stream %s names this leaf's stream with consumer %s, and the user's permissions: holdfast hub apply", f.hubStream, f.consumer)
}

// poke makes a hub ask that has no reason of its own to. A hub that did not notice that the link was gone still waits for records of a
// consumer that is no more, until it has heard nothing for 10 to 20 s; one whose request failed backs off, with an ear on the deliver
// subject. A heartbeat there makes both ask at once: the first because it names a number of delivered records that the hub did not
// get. So a consumer delivers so many headers (of any records, which the hub ignores for the consumer's name) and then heartbeats.
// Two numbers in turn, since the hub might have got just as many (nats-server 2.15, processInboundSourceMsg, startProbeSubscription).
func (f *feed) poke(ctx context.Context, name string, records int, interval time.Duration) error {
	f.drop(ctx, name)
	_, err := f.up.js.CreatePushConsumer(ctx, f.name, jetstream.ConsumerConfig{
		Name: name, DeliverSubject: f.deliver, FilterSubjects: []string{f.filter}, DeliverPolicy: jetstream.DeliverAllPolicy, HeadersOnly: true,
		AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: records, AckWait: time.Hour, IdleHeartbeat: interval, MemoryStorage: true,
		InactiveThreshold: time.Minute,
	})
	if err != nil {
		return fmt.Errorf("prepare for the hub: %w", err)
	}
	return nil
}

// drop deletes a consumer, which may not be there.
func (f *feed) drop(ctx context.Context, name string) {
	if ctx.Err() != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
	}
	err := f.up.js.DeleteConsumer(ctx, f.name, name)
	if err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) && !errors.Is(err, nats.ErrConnectionClosed) {
		f.up.log.Debug("consumer is not deleted", "stream", f.name, "consumer", name, "err", err)
	}
}

// serve grants a wish by a new consumer that begins at start, and follows it until the hub asks again, whose wish it returns, or
// something is wrong.
func (f *feed) serve(ctx context.Context, start storage.Position, w *wish) (*wish, error) {
	name := f.consumer + "_" + strconv.FormatUint(rand.Uint64()|1<<63, 36)
	js, err := f.stream(ctx)
	if err != nil {
		return nil, err
	}
	p := newPace(averageSize(js.CachedInfo().State), f.window, time.Now())
	c, err := f.up.js.CreatePushConsumer(ctx, f.name, jetstream.ConsumerConfig{
		Durable: name, DeliverSubject: f.deliver, FilterSubjects: []string{f.filter},
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: uint64(start),
		AckPolicy: jetstream.AckFlowControlPolicy, FlowControl: true, IdleHeartbeat: time.Second, MaxAckPending: p.limit, MaxDeliver: -1,
		MemoryStorage: true,
	})
	if err != nil {
		return nil, fmt.Errorf("make the consumer of the hub: %w", err)
	}
	defer f.drop(ctx, name)
	// The hub asked for a reset of a consumer that is not there; this one answers for it, and the hub takes its name from the answer.
	answer := &nats.Msg{Subject: "$JS.API.CONSUMER.RESET." + f.name + "." + name, Reply: w.msg.Reply, Header: w.msg.Header, Data: w.msg.Data}
	if err := f.up.nc.PublishMsg(answer); err != nil {
		return nil, fmt.Errorf("answer the hub: %w", err)
	}
	f.up.log.Debug("the hub attaches", "stream", f.name, "seq", start, "dur", time.Since(w.at))
	return f.follow(ctx, c, start, p)
}

// averageSize returns what a record of a stream has on the way, in bytes; assumedSize for an empty one.
func averageSize(s jetstream.StreamState) float64 {
	if s.Msgs == 0 {
		return assumedSize
	}
	return float64(s.Bytes) / float64(s.Msgs)
}
