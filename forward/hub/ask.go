package hub

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// ErrAway means that no server of the hub answered for a stream in time: its copies are on servers that are down, or just elect a leader. What was to be
// done for it is not done, or it is not known whether; doing it again later is safe.
var ErrAway = errors.New("no server of the hub answers for it: are those down that have its copies? run this again when they are back")

const (
	lookTimeout  = 4 * time.Second  // of one question, which costs nothing to ask again
	lookTries    = 3                // a leader that has just gone has a successor by then
	alterTimeout = 15 * time.Second // of one change: a stream of several copies elects its leader meanwhile
	alterTries   = 3                // a request is lost while the servers elect their own
)

// Errors of the server that say that it cannot answer now (nats-server 2.15, errors.json).
const (
	codeUnavailable     = 10008
	codeNotEnabled      = 10039 // of an account; said by a server of operator mode that has just been started, too
	codeStreamOffline   = 10118
	codeConsumerOffline = 10119
)

// look asks the hub something, a few times if need be. Errors: ErrAway when nobody answers, ctx's, or what the hub says.
func look[T any](ctx context.Context, question func(context.Context) (T, error)) (T, error) {
	for try := 1; ; try++ {
		short, cancel := context.WithTimeout(ctx, lookTimeout)
		answer, err := question(short)
		err = orAway(ctx, err)
		var api *jetstream.APIError
		sure := errors.As(err, &api) && api.ErrorCode != codeUnavailable // all of its servers are known to be down
		young := errors.As(err, &api) && api.ErrorCode == codeNotEnabled // or so for good, which a few seconds show
		again := (errors.Is(err, ErrAway) && !sure || young) && try < lookTries
		if again {
			<-short.Done() // what was refused at once is asked again a little later
		}
		cancel()
		if !again || ctx.Err() != nil {
			return answer, err
		}
	}
}

// lookAt looks at a stream of the hub.
func lookAt(ctx context.Context, js jetstream.JetStream, name string) (jetstream.Stream, error) {
	return look(ctx, func(ctx context.Context) (jetstream.Stream, error) { return js.Stream(ctx, name) })
}

// alter changes something at the hub by a request that may be made again. Errors: as look's; after ErrAway it may have been done.
func alter(ctx context.Context, change func(context.Context) error) error {
	var err error
	for range alterTries {
		short, cancel := context.WithTimeout(ctx, alterTimeout)
		if err = orAway(ctx, change(short)); !errors.Is(err, ErrAway) || ctx.Err() != nil {
			cancel()
			return err
		}
		<-short.Done()
		cancel()
	}
	return err
}

// orAway recognises the errors that mean ErrAway, while the caller's own time is not over.
func orAway(ctx context.Context, err error) error {
	var api *jetstream.APIError
	switch {
	case err == nil || ctx.Err() != nil:
		return err
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrTimeout), errors.Is(err, nats.ErrNoResponders):
		return ErrAway
	case errors.As(err, &api) && (api.ErrorCode == codeUnavailable || api.ErrorCode == codeStreamOffline || api.ErrorCode == codeConsumerOffline):
		return fmt.Errorf("%w (%w)", ErrAway, err)
	}
	return err
}
