package hub

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// maxLeaves is how many consumers a stream may have that has some for each leaf. The server's own limit is 1,000.
const maxLeaves = 1 << 16

// downWindow is how many commands or documents are sent ahead of the leaf's acknowledgement.
const downWindow = 256

// Shard returns the name of shard n, from 1, of a hub stream. The sources of one hub stream share a goroutine in the server, which carries
// about 20,000 records a second (nats-server 2.15): a fleet that sends more is spread over several.
func Shard(stream string, n int) string { return stream + "-" + strconv.Itoa(n) }

// settings returns what a Spec settles for a hub stream, also when that is a shard.
func (spec Spec) settings(name string) HubStream {
	for _, s := range spec.Streams {
		if s.Shards <= 1 && s.Name == name {
			return s
		}
		number, ok := strings.CutPrefix(name, s.Name+"-")
		if n, err := strconv.Atoi(number); ok && err == nil && s.Shards > 1 && n >= 1 && n <= s.Shards {
			return s
		}
	}
	return HubStream{}
}

// planStreams returns the hub streams that the leaves need, sorted by name.
func planStreams(spec Spec) []jetstream.StreamConfig {
	byName := map[string]*jetstream.StreamConfig{}
	stream := func(name string) *jetstream.StreamConfig {
		cfg := byName[name]
		if cfg == nil {
			set := spec.settings(name)
			cfg = &jetstream.StreamConfig{
				Name: name, Storage: jetstream.FileStorage, Replicas: spec.Replicas, AllowDirect: true, MaxBytes: set.MaxBytes, MaxAge: set.MaxAge,
			}
			if set.Replicas > 0 {
				cfg.Replicas = set.Replicas
			}
			if set.Full == Refuse {
				cfg.Discard = jetstream.DiscardNew
			}
			byName[name] = cfg
		}
		return cfg
	}
	// What is sent down is not for direct reads, whose permission cannot be narrowed to one leaf for certain.
	down := func(name string) *jetstream.StreamConfig {
		cfg := stream(name)
		cfg.AllowDirect, cfg.MaxConsumers = false, maxLeaves
		return cfg
	}
	for _, l := range spec.Leaves {
		for _, s := range l.Streams {
			src := &jetstream.StreamSource{
				Name:     s.Name,
				External: &jetstream.ExternalStream{APIPrefix: "$JS." + l.Name + ".API"},
				Consumer: &jetstream.StreamConsumerSource{Name: Consumer(l.Name, s.Name), DeliverSubject: DeliverSubject(l.Name, s.Name)},
			}
			cfg := stream(s.HubStream)
			if s.Mode == Mirror {
				cfg.Mirror = src
			} else {
				cfg.Sources = append(cfg.Sources, src)
			}
		}
		if l.Commands {
			down(Commands).Subjects = []string{"cmd.>"}
		}
		if l.Documents {
			cfg := down(Documents)
			cfg.Subjects = []string{"$KV." + DocumentBucket + ".>"}
			// What makes a stream a bucket for NATS clients.
			cfg.MaxMsgsPerSubject, cfg.AllowRollup, cfg.DenyDelete, cfg.Discard = 1, true, true, jetstream.DiscardNew
		}
	}
	if len(byName) > 0 {
		byName[Keep] = &jetstream.StreamConfig{Name: Keep, Subjects: []string{"hf.keep"}, Storage: jetstream.MemoryStorage, Replicas: 1, MaxMsgs: 1, AllowDirect: true, MaxConsumers: maxLeaves}
	}
	names := slices.Sorted(maps.Keys(byName))
	streams := make([]jetstream.StreamConfig, 0, len(names))
	for _, name := range names {
		streams = append(streams, *byName[name])
	}
	return streams
}

// planConsumers returns the consumers by which leaves take what is sent down to them, and those that keep their sources awake.
func planConsumers(spec Spec) []DurableConsumer {
	var all []DurableConsumer
	add := func(leaf, stream, filter string) {
		all = append(all, DurableConsumer{Stream: stream, Config: jetstream.ConsumerConfig{
			Durable: DownConsumer(leaf, stream), DeliverSubject: DownSubject(leaf, stream), FilterSubject: filter,
			DeliverPolicy: jetstream.DeliverAllPolicy, AckPolicy: jetstream.AckFlowControlPolicy, FlowControl: true, IdleHeartbeat: time.Second,
			MaxAckPending: downWindow, MaxDeliver: -1,
		}})
	}
	for _, l := range spec.Leaves {
		if l.Commands {
			add(l.Name, Commands, CommandSubject(l.Name, ">"))
		}
		if l.Documents {
			add(l.Name, Documents, DocumentSubject(l.Name, ">"))
		}
		for _, s := range l.Streams {
			all = append(all, keeper(l.Name, s.Name))
		}
	}
	return all
}

// Streams returns the hub streams, sorted by name. The caller owns the result, but not what its pointers lead to.
func (p Plan) Streams() []jetstream.StreamConfig { return slices.Clone(p.streams) }

// Consumers returns the consumers that the leaves need at the hub, in the order of the Spec. The caller owns the result.
func (p Plan) Consumers() []DurableConsumer { return slices.Clone(p.consumers) }
