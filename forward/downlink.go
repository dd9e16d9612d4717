package forward

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/forward/hub"
)

// Downstream returns the source by which a stream of the leaf takes what the hub has for it in the stream of the same name: hub.Commands or
// hub.Documents. The hub keeps how far that has come, in the consumer that hub apply makes. An empty domain is hub.Domain.
func Downstream(leaf, domain, stream string) *jetstream.StreamSource {
	if domain == "" {
		domain = hub.Domain
	}
	return &jetstream.StreamSource{
		Name:     stream,
		External: &jetstream.ExternalStream{APIPrefix: "$JS." + domain + ".API"},
		Consumer: &jetstream.StreamConsumerSource{Name: hub.DownConsumer(leaf, stream), DeliverSubject: hub.DownSubject(leaf, stream)},
	}
}

// maxDocuments bounds what the hub's configuration documents may take on the leaf.
const maxDocuments = 16 << 20

// documents is the bucket from which local applications read their documents, by their names without the leaf's.
func (u *Uplink) documents() jetstream.StreamConfig {
	source := Downstream(u.opts.Leaf, u.opts.Domain, hub.Documents)
	source.SubjectTransforms = []jetstream.SubjectTransformConfig{{
		Source: hub.DocumentSubject(u.opts.Leaf, ">"), Destination: "$KV." + hub.DocumentBucket + ".>",
	}}
	return jetstream.StreamConfig{
		Name: hub.Documents, Description: "configuration documents from the hub", Sources: []*jetstream.StreamSource{source},
		MaxMsgsPerSubject: 1, MaxBytes: maxDocuments, AllowDirect: true, AllowRollup: true, DenyDelete: true, Discard: jetstream.DiscardOld,
	}
}

// keepDocuments makes the bucket, and returns when it is there or ctx has ended.
func (u *Uplink) keepDocuments(ctx context.Context) {
	for fails := 0; ctx.Err() == nil; fails++ {
		err := u.makeDocuments(ctx)
		if err == nil {
			return
		}
		if fails%10 == 0 && ctx.Err() == nil {
			u.log.Warn("no bucket for the hub's documents, tried again", "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(handshakeLast):
		}
	}
}

func (u *Uplink) makeDocuments(ctx context.Context) error {
	_, err := u.js.Stream(ctx, hub.Documents)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		_, err = u.js.CreateStream(ctx, u.documents())
	}
	if err != nil {
		return fmt.Errorf("make stream %s: %w", hub.Documents, err)
	}
	return nil
}
